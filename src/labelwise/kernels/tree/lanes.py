"""The inner loops of linear training and prediction as vector code, sixteen numbers at a time.

Weights are stored as rows of 16 floats, one cache line, one number per sibling label. Numba's own vectoriser compiles
an inner loop of 16 with set-up and tests around it (23 ns per non-zero); explicit vector types take 3.5 ns on the same
machine. LLVM maps <16 x float> to the vector instructions of the processor.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from labelwise.kernels.tree.sizes import LANES as LANES

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_LONG = ir.IntType(64)
_FAST = ("fast",)
_UNROLL = 4


@intrinsic
def dot_rows(_context: Any, indices: Any, values: Any, start: Any, end: Any, weights: Any, out: Any) -> Any:
    """out[0:16] += sum over k in start..end of values[k] * weights[indices[k], 0:16]."""
    signature = types.void(indices, values, types.int64, types.int64, weights, out)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, scaled, target = _rows(context, builder, signature, arguments)
        _dot(builder, arguments[2], arguments[3], row, scaled, target)
        return context.get_dummy_value()

    return signature, build


@intrinsic
def add_rows(_context: Any, indices: Any, values: Any, start: Any, end: Any, weights: Any, delta: Any) -> Any:
    """weights[indices[k], 0:16] += values[k] * delta[0:16] for k in start..end."""
    signature = types.void(indices, values, types.int64, types.int64, weights, delta)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, scaled, source = _rows(context, builder, signature, arguments)
        _add(builder, arguments[2], arguments[3], row, scaled, source)
        return context.get_dummy_value()

    return signature, build


@intrinsic
def dot_block(_context: Any, dense: Any, row: Any, weights: Any, first: Any, out: Any) -> Any:
    """out[0:16] += sum over all k of dense[row, k] * weights[first + k, 0:16]; dense as `stored` of add_spans."""
    signature = types.void(dense, types.int64, weights, types.int64, out)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count, row, scaled, target = _block(context, builder, signature, arguments)
        _dot(builder, ir.Constant(_LONG, 0), count, row, scaled, target)
        return context.get_dummy_value()

    return signature, build


@intrinsic
def add_block(_context: Any, dense: Any, row: Any, weights: Any, first: Any, delta: Any) -> Any:
    """weights[first + k, 0:16] += dense[row, k] * delta[0:16] for all k."""
    signature = types.void(dense, types.int64, weights, types.int64, delta)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count, row, scaled, source = _block(context, builder, signature, arguments)
        _add(builder, ir.Constant(_LONG, 0), count, row, scaled, source)
        return context.get_dummy_value()

    return signature, build


@intrinsic
def add_spans(_context: Any, stored: Any, starts: Any, factors: Any, count: Any, block: Any, sums: Any) -> Any:
    """Add factors[h] * stored[starts[h] + 16 * block : starts[h] + 16 * block + 16] for h in 0..count to that block.

    `stored` is float32, int8, or the bits of float16 as uint16. Bounds are not checked.
    """
    signature = types.void(stored, starts, factors, types.int64, types.int64, sums)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, offsets, scales, target = (
            context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 1, 2, 5)
        )
        kind = ir.VectorType(source.type.pointee, LANES)
        first = builder.mul(arguments[4], ir.Constant(_LONG, LANES))
        source = builder.gep(source, [first])
        target = builder.bitcast(builder.gep(target, [first]), _VECTOR.as_pointer())
        total = cgutils.alloca_once(builder, _VECTOR)
        builder.store(builder.load(target, align=4), total)
        with cgutils.for_range(builder, arguments[3]) as loop:
            pointer = builder.gep(source, [builder.load(builder.gep(offsets, [loop.index]))])
            numbers = builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)
            scale = _broadcast(builder, builder.load(builder.gep(scales, [loop.index])))
            product = builder.fmul(scale, _as_floats(builder, numbers, stored.dtype, _VECTOR), flags=_FAST)
            builder.store(builder.fadd(product, builder.load(total), flags=_FAST), total)
        builder.store(builder.load(total), target, align=4)
        return context.get_dummy_value()

    return signature, build


@intrinsic
def as_float(_context: Any, stored: Any) -> Any:
    """One stored number as float32: float32, int8, or the bits of float16 as uint16."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _as_floats(builder, arguments[0], stored, ir.FloatType())

    return types.float32(stored), build


def _as_floats(builder: Any, numbers: Any, dtype: Any, result: Any) -> Any:
    """Numbers (or a vector of them) as float32."""
    if dtype == types.float32:
        return numbers
    if dtype == types.int8:
        return builder.sitofp(numbers, result)
    vector = isinstance(result, ir.VectorType)
    whole = ir.VectorType(ir.IntType(32), LANES) if vector else ir.IntType(32)

    def constant(kind: Any, value: Any) -> Any:
        return ir.Constant(kind, [value] * LANES if vector else value)

    # sign and the rest move to their bits of a float32; the product corrects the exponent, also of denormals
    bits = builder.zext(numbers, whole)
    sign = builder.shl(builder.and_(bits, constant(whole, 0x8000)), constant(whole, 16))
    rest = builder.shl(builder.and_(bits, constant(whole, 0x7FFF)), constant(whole, 13))
    return builder.fmul(builder.bitcast(builder.or_(sign, rest), result), constant(result, 2.0**112))


def _broadcast(builder: Any, number: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _dot(builder: Any, start: Any, end: Any, row: Any, scaled: Any, target: Any) -> None:
    """target += sum over k in start..end of scaled(k) * the vector at row(k)."""
    sums = [
        cgutils.alloca_once(builder, _VECTOR) for _ in range(_UNROLL)
    ]  # several, so that additions do not wait for each other
    builder.store(builder.load(target, align=4), sums[0])
    for other in sums[1:]:
        builder.store(ir.Constant(_VECTOR, [0.0] * LANES), other)

    def add(k: Any, total: Any) -> None:
        product = builder.fmul(scaled(k), builder.load(row(k), align=4), flags=_FAST)
        builder.store(builder.fadd(product, builder.load(total), flags=_FAST), total)

    shift = ir.Constant(_LONG, _UNROLL.bit_length() - 1)
    blocks = builder.ashr(builder.sub(end, start), shift)
    with cgutils.for_range(builder, blocks) as loop:
        k = builder.add(start, builder.shl(loop.index, shift))
        for step in range(_UNROLL):
            add(builder.add(k, ir.Constant(_LONG, step)), sums[step])
    rest = builder.add(start, builder.shl(blocks, shift))
    with cgutils.for_range(builder, builder.sub(end, rest)) as loop:
        add(builder.add(rest, loop.index), sums[0])
    loaded = [builder.load(total) for total in sums]
    while len(loaded) > 1:
        loaded = [builder.fadd(a, b, flags=_FAST) for a, b in zip(loaded[::2], loaded[1::2], strict=True)]
    builder.store(loaded[0], target, align=4)


def _add(builder: Any, start: Any, end: Any, row: Any, scaled: Any, source: Any) -> None:
    """The vector at row(k) += scaled(k) * source, for k in start..end."""
    change = builder.load(source, align=4)
    with cgutils.for_range(builder, builder.sub(end, start)) as loop:
        k = builder.add(start, loop.index)
        pointer = row(k)
        product = builder.fmul(scaled(k), change, flags=_FAST)
        builder.store(builder.fadd(product, builder.load(pointer, align=4), flags=_FAST), pointer, align=4)


def _block(context: Any, builder: Any, signature: Any, arguments: Any) -> tuple[Any, Any, Any, Any]:
    """`_rows` for a dense row: its size, the pointer to row first + k, number k broadcast, the last argument."""
    dense, weights, last = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2, 4))
    count = cgutils.unpack_tuple(builder, dense.shape)[1]
    values = builder.gep(dense.data, [builder.mul(arguments[1], count)])
    vectors = builder.gep(builder.bitcast(weights.data, _VECTOR.as_pointer()), [arguments[3]])

    def scaled(k: Any) -> Any:
        number = builder.load(builder.gep(values, [k]))
        return _broadcast(builder, _as_floats(builder, number, signature.args[0].dtype, ir.FloatType()))

    return count, lambda k: builder.gep(vectors, [k]), scaled, builder.bitcast(last.data, _VECTOR.as_pointer())


def _rows(context: Any, builder: Any, signature: Any, arguments: Any) -> tuple[Any, Any, Any]:
    """Common to both loops: the pointer to row indices[k], values[k] broadcast, the pointer to the last argument."""
    indices, values, weights, last = (
        context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 1, 4, 5)
    )
    vectors = builder.bitcast(weights, _VECTOR.as_pointer())

    def row(k: Any) -> Any:
        index = builder.load(builder.gep(indices, [k]))
        return builder.gep(vectors, [builder.sext(index, _LONG) if index.type.width < 64 else index])

    def scaled(k: Any) -> Any:
        return _broadcast(builder, builder.load(builder.gep(values, [k])))

    return row, scaled, builder.bitcast(last, _VECTOR.as_pointer())
