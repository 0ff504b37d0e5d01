"""Sixteen numbers at a time: the two loops in which the linear trainer spends its life, as explicit vector code.

Weights are stored as rows of 16 floats, one cache line, one number for each of 16 sibling labels. Numba's own
vectoriser treats an inner loop of 16 as a loop with set-up and tests around it (23 ns a non-zero); writing the vector
type down takes 3.5 ns on the same machine. LLVM turns <16 x float> into whatever the processor has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
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
        start, end = arguments[2], arguments[3]
        sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(_UNROLL)]  # several: additions wait for each other
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
        return context.get_dummy_value()

    return signature, build


@intrinsic
def add_rows(_context: Any, indices: Any, values: Any, start: Any, end: Any, weights: Any, delta: Any) -> Any:
    """weights[indices[k], 0:16] += values[k] * delta[0:16] for k in start..end."""
    signature = types.void(indices, values, types.int64, types.int64, weights, delta)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, scaled, source = _rows(context, builder, signature, arguments)
        start, end = arguments[2], arguments[3]
        change = builder.load(source, align=4)
        with cgutils.for_range(builder, builder.sub(end, start)) as loop:
            k = builder.add(start, loop.index)
            place = row(k)
            product = builder.fmul(scaled(k), change, flags=_FAST)
            builder.store(builder.fadd(product, builder.load(place, align=4), flags=_FAST), place, align=4)
        return context.get_dummy_value()

    return signature, build


def _rows(context: Any, builder: Any, signature: Any, arguments: Any) -> tuple[Any, Any, Any]:
    """What both loops use: the place of row indices[k], values[k] in all lanes, and the place of the last argument."""
    indices, values, weights, last = (
        context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 1, 4, 5)
    )
    vectors = builder.bitcast(weights, _VECTOR.as_pointer())

    def row(k: Any) -> Any:
        index = builder.load(builder.gep(indices, [k]))
        return builder.gep(vectors, [builder.sext(index, _LONG) if index.type.width < 64 else index])

    def scaled(k: Any) -> Any:
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        first = builder.insert_element(
            undefined, builder.load(builder.gep(values, [k])), ir.Constant(ir.IntType(32), 0)
        )
        return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))

    return row, scaled, builder.bitcast(last, _VECTOR.as_pointer())
