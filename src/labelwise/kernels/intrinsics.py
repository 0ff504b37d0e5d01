"""Bits of words, and comparisons and sums of several small numbers at once, as single processor instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from labelwise.kernels.jit import inner

# --- sizes ---
# Numbers of elements that kernels read at once, for code that allocates arrays without importing Numba.

LANES = 16
"""Children whose weights are one vector."""
BYTES = 16
"""Low bytes of features that are compared at once: an array of them has so many more at its end."""
BLOCK = 32
"""Counts of rows that are summed at once."""


_LONG = ir.IntType(64)


@intrinsic
def popcount(_context: Any, word: Any) -> Any:
    """The number of set bits of a word."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), build


@intrinsic
def lowest_bit(_context: Any, word: Any) -> Any:
    """The index of the lowest set bit of a word that is not 0."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), build


@intrinsic
def equal_bytes(_context: Any, array: Any, index: Any, byte: Any) -> Any:
    """A bit for each of the 16 bytes from an index on: whether it is equal to `byte`. Bounds are not checked."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), BYTES)
        numbers = _load(context, builder, signature, arguments, vector)
        wanted = _broadcast(builder, builder.trunc(arguments[2], ir.IntType(8)), vector)
        equal = builder.icmp_unsigned("==", numbers, wanted)
        return builder.zext(builder.bitcast(equal, ir.IntType(BYTES)), _LONG)

    return types.uint64(array, types.int64, types.int64), build


@intrinsic
def sum_of_first(_context: Any, array: Any, index: Any, count: Any) -> Any:
    """The sum of the first `count` (below 32) of the 32 unsigned numbers from an index on. Bounds are not checked."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = array.dtype.bitwidth
        vector = ir.VectorType(ir.IntType(bits), BLOCK)
        wide = ir.IntType(min(2 * bits, 64))  # 31 numbers of 8 or 16 bits do not reach the double width
        numbers = _load(context, builder, signature, arguments, vector)
        limit = _broadcast(builder, builder.trunc(arguments[2], vector.element), vector)
        used = builder.icmp_unsigned("<", ir.Constant(vector, list(range(BLOCK))), limit)
        kept = builder.select(used, numbers, ir.Constant(vector, [0] * BLOCK))
        kept = builder.zext(kept, ir.VectorType(wide, BLOCK))
        name = f"llvm.vector.reduce.add.v{BLOCK}i{wide.width}"
        reduce = builder.module.globals.get(name)
        if reduce is None:
            reduce = ir.Function(builder.module, ir.FunctionType(wide, [kept.type]), name)
        total = builder.call(reduce, [kept])
        return builder.zext(total, _LONG) if wide.width < 64 else total

    return types.int64(array, types.int64, types.int64), build


def _load(context: Any, builder: Any, signature: Any, arguments: Any, vector: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    pointer = builder.bitcast(builder.gep(data, [arguments[1]]), vector.as_pointer())
    return builder.load(pointer, align=1)


def _broadcast(builder: Any, number: Any, vector: Any) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, undefined, zeros)


# --- lanes ---
# The inner loops of linear training and prediction as vector code, sixteen numbers at a time.
#
# Weights are stored as rows of 16 floats, one cache line, one number per sibling label. Numba's own vectoriser compiles
# an inner loop of 16 with set-up and tests around it (23 ns per non-zero); explicit vector types take 3.5 ns on the
# same machine. LLVM maps <16 x float> to the vector instructions of the processor.

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
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
            scale = _lanes_broadcast(builder, builder.load(builder.gep(scales, [loop.index])))
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


def _lanes_broadcast(builder: Any, number: Any) -> Any:
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
        return _lanes_broadcast(builder, _as_floats(builder, number, signature.args[0].dtype, ir.FloatType()))

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
        return _lanes_broadcast(builder, builder.load(builder.gep(values, [k])))

    return row, scaled, builder.bitcast(last, _VECTOR.as_pointer())


# --- prefetch ---
# Prefetch memory into the processor's cache.


@intrinsic
def prefetch(_context: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of array[index] for reading; any index is allowed."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        number = ir.IntType(32)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        signature_type = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        call = builder.module.declare_intrinsic("llvm.prefetch", [address.type], signature_type)
        builder.call(call, [address, *(ir.Constant(number, flag) for flag in (0, 3, 1))])  # to read, keep, data
        return context.get_dummy_value()

    return types.void(array, types.int64), build


# --- addresses ---
# Pass many arrays to a kernel as one: a table of their addresses and lengths.
#
# Numba unpacks every array in each call, a tenth of a microsecond each, which for the twenty arrays of each level of a
# tree takes as long as the search of a small level. A table of addresses is a single array.


def address_row(arrays: Sequence[np.ndarray]) -> list[int]:
    """Address and length of each array in turn. The caller must keep the arrays alive as long as the addresses."""
    numbers = []
    for array in arrays:
        if array.ndim != 1 or not array.flags.c_contiguous or not array.flags.aligned:
            raise ValueError("a kernel can use the addresses of aligned, contiguous vectors only")
        numbers += [array.ctypes.data, len(array)]
    return numbers


@intrinsic
def array_at(_context: Any, row: Any, index: Any, like: Any) -> Any:
    """The array at an index of an address row; it must have the type of `like`."""
    array_type = types.Array(like.dtype, 1, "C")

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        entry = builder.gep(numbers, [builder.shl(arguments[1], ir.Constant(arguments[1].type, 1))])
        address = builder.load(entry)
        count = builder.load(builder.gep(entry, [ir.Constant(arguments[1].type, 1)]))
        array = context.make_array(array_type)(context, builder)
        size = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
        data = builder.inttoptr(address, array.data.type)
        populate_array(array, data, shape=[count], strides=[ir.Constant(count.type, size)], itemsize=size, meminfo=None)
        return array._getvalue()

    return array_type(row, types.int64, like), build


# --- sorting ---
# Radix sort: takes a third of the time of a comparison sort, and compiles in a tenth of the time of NumPy's.

_BITS = np.int64(6)
_DIGITS = 1 << 6


@inner
def sort_from_bit(bit, keys, count, limit, spare):
    """Stable sort of keys[:count] by their bits from `bit` on, whose values are below `limit`.

    Returns the array that holds the result: `keys` or `spare`, which has the same size.
    """
    ends = np.empty(_DIGITS, np.int64)
    shift = np.int64(bit)
    while limit >> (shift - bit) > 0:
        for digit in range(_DIGITS):
            ends[digit] = 0
        for k in range(count):
            ends[(keys[k] >> shift) & (_DIGITS - 1)] += 1
        total = 0
        for digit in range(_DIGITS):
            size = ends[digit]
            ends[digit] = total
            total += size
        for k in range(count):
            digit = (keys[k] >> shift) & (_DIGITS - 1)
            spare[ends[digit]] = keys[k]
            ends[digit] += 1
        keys, spare = spare, keys
        shift += _BITS
    return keys
