"""Bits of words, and comparisons and sums of several small numbers at once, as single processor instructions."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from labelwise.kernels.tree.sizes import BLOCK, BYTES

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
