"""Words of UTF-8 text: runs of two or more letters, digits or underscores, optionally in lower case.

Two steps per document. `fold` copies it with every byte outside words set to 0 and letters in lower case: 64 bytes at a
time where all are ASCII, character by character through a table elsewhere. `split_words` compares 64 bytes at a time
with 0 and reads the words' positions from the bits. Letters and their lower case are defined as in Python.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from labelwise.kernels.jit import inner

CHUNK = 64
MARGIN = 4 * CHUNK
"""Bytes that `fold` needs beyond twice the document's length (a lower-case letter can be longer)."""
NEEDS_PYTHON = -1
"""Returned by `fold` for a document with a letter whose lower case depends on its neighbours or has two characters."""

_CODE_POINTS = 0x110000
_BYTE, _BYTES_8 = ir.IntType(8), ir.IntType(64)
_BYTES_64 = ir.VectorType(_BYTE, CHUNK)


@lru_cache(maxsize=2)
def folding_table(lowercase: bool) -> np.ndarray:
    """What `fold` writes for each code point: itself or its lower case, 0 outside words, NEEDS_PYTHON."""
    codes = np.arange(_CODE_POINTS, dtype=np.uint32)
    if not lowercase:
        in_word = np.strings.isalnum(codes.view("U1")) | (codes == ord("_"))
        return np.where(in_word, codes, 0).astype(np.int32)
    special = np.array([0x130, 0x3A3])  # the capital I with a dot becomes two characters, the sigma has two lower cases
    plain = (codes < 0xD800) | (codes >= 0xE000)
    plain[special] = False
    lowered = codes[plain].tobytes().decode("utf-32-le").lower().encode("utf-32-le")
    codes[plain] = np.frombuffer(lowered, np.uint32)
    table = folding_table(False)[codes]
    table[special] = NEEDS_PYTHON
    return table


# --- intrinsics that Numba lacks: unaligned loads, and 64 bytes at once --------------------------------------------


def _address(context: Any, builder: Any, array_type: Any, array: Any, position: Any, element: Any) -> Any:
    """A pointer to array[position] as another type."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [position]), element.as_pointer())


def _all(byte: int) -> ir.Constant:
    return ir.Constant(_BYTES_64, [byte] * CHUNK)


def _between(builder: Any, vector: Any, first: str, last: str) -> Any:
    return builder.icmp_unsigned("<=", builder.sub(vector, _all(ord(first))), _all(ord(last) - ord(first)))


@intrinsic
def eight_bytes(typing: Any, array: Any, position: Any) -> Any:
    """array[position : position + 8] as one little-endian integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1], _BYTES_8)
        return builder.load(address, align=1)

    return types.uint64(array, types.int64), generate


@intrinsic
def filled_bytes(typing: Any, array: Any, position: Any) -> Any:
    """One bit for each of array[position : position + 64], set where it is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1], _BYTES_64)
        filled = builder.icmp_unsigned("!=", builder.load(address, align=1), _all(0))
        return builder.bitcast(filled, _BYTES_8)

    return types.uint64(array, types.int64), generate


@intrinsic
def trailing_zeros(typing: Any, value: Any) -> Any:
    """The index of the lowest set bit of a non-zero integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@intrinsic
def prefetch(typing: Any, array: Any, position: Any) -> Any:
    """Prefetch array[position] into the cache."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1], _BYTE)
        number = ir.IntType(32)
        signature_type = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        instruction = builder.module.declare_intrinsic("llvm.prefetch", [address.type], signature_type)
        builder.call(instruction, [address, number(1), number(3), number(1)])  # to be written, kept near, data
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


@intrinsic
def fold_ascii(typing: Any, source: Any, begin: Any, target: Any, position: Any, lowercase: Any) -> Any:
    """Fold 64 bytes from source[begin] to target[position] as if all were ASCII; returns a bit for each that is not."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, begin, target, position, lowercase = arguments
        given = builder.load(_address(context, builder, signature.args[0], source, begin, _BYTES_64), align=1)
        lower = builder.or_(given, _all(0x20))
        upper = builder.select(_between(builder, given, "A", "Z"), lower, given)
        written = builder.select(builder.trunc(lowercase, ir.IntType(1)), upper, given)
        letter = _between(builder, lower, "a", "z")
        digit = _between(builder, given, "0", "9")
        underscore = builder.icmp_unsigned("==", given, _all(ord("_")))
        in_word = builder.or_(builder.or_(letter, digit), underscore)
        address = _address(context, builder, signature.args[2], target, position, _BYTES_64)
        builder.store(builder.select(in_word, written, _all(0)), address, align=1)
        return builder.bitcast(builder.icmp_signed("<", given, _all(0)), _BYTES_8)

    return types.uint64(source, types.int64, target, types.int64, types.int64), generate


# --- the two steps --------------------------------------------------------------------------------------------------


@inner
def fold(buffer: np.ndarray, start: int, end: int, table: np.ndarray, lowercase: int, text: np.ndarray) -> int:
    """Write buffer[start:end] to `text` with 0 outside words, then 2 CHUNK zeros; returns its size or NEEDS_PYTHON."""
    position = start
    size = 0
    last_chunk = len(buffer) - CHUNK
    while position < end:
        if position <= last_chunk:
            others = fold_ascii(buffer, position, text, size, lowercase)
            whole = trailing_zeros(others) if others != 0 else CHUNK
            position += whole
            size += whole
            if others == 0 or position >= end:
                continue
        # one by one while this character or the next is not ASCII, as in scripts that only share the blank
        while position < end and (buffer[position] >= 0x80 or position > last_chunk or buffer[position + 1] >= 0x80):
            code = np.int64(buffer[position])
            if code < 0x80:
                position += 1
            elif 0xC0 <= code < 0xE0 and position + 2 <= end:
                code = (code & 0x1F) << 6 | (buffer[position + 1] & 0x3F)
                position += 2
            elif 0xE0 <= code < 0xF0 and position + 3 <= end:
                code = (code & 0x0F) << 12 | (buffer[position + 1] & 0x3F) << 6 | (buffer[position + 2] & 0x3F)
                position += 3
            elif 0xF0 <= code < 0xF5 and position + 4 <= end:
                code = (code & 0x07) << 18 | (buffer[position + 1] & 0x3F) << 12 | (buffer[position + 2] & 0x3F) << 6
                code |= buffer[position + 3] & 0x3F
                position += 4
            else:
                code = np.int64(0)  # not UTF-8: treated as outside words
                position += 1
            code = np.int64(table[min(code, len(table) - 1)])
            if code < 0:
                return NEEDS_PYTHON
            size = append(text, size, code)
    size -= position - end  # the last chunk may have read into the next document
    for extra in range(2 * CHUNK):
        text[size + extra] = 0
    return size


@inner
def append(text: np.ndarray, size: int, code: int) -> int:
    """Append a code point in UTF-8; returns the new size."""
    if code < 0x80:
        text[size] = code
        return size + 1
    if code < 0x800:
        text[size] = 0xC0 | code >> 6
        text[size + 1] = 0x80 | code & 0x3F
        return size + 2
    if code < 0x10000:
        text[size] = 0xE0 | code >> 12
        text[size + 1] = 0x80 | code >> 6 & 0x3F
        text[size + 2] = 0x80 | code & 0x3F
        return size + 3
    text[size] = 0xF0 | code >> 18
    text[size + 1] = 0x80 | code >> 12 & 0x3F
    text[size + 2] = 0x80 | code >> 6 & 0x3F
    text[size + 3] = 0x80 | code & 0x3F
    return size + 4


@inner
def split_words(text: np.ndarray, size: int, edges: np.ndarray) -> int:
    """Write begin and end of each run of two or more bytes in words to `edges`; returns the number of runs.

    A run can still be one character of several bytes: see `is_one_character`.
    """
    one, top = np.uint64(1), np.uint64(63)
    count = 0
    before = np.uint64(0)  # whether the previous chunk ended with a non-zero byte, and whether inside a run
    inside = np.uint64(0)
    filled = filled_bytes(text, 0)
    for begin in range(0, size + 1, CHUNK):
        following = filled_bytes(text, begin + CHUNK)
        neighbour = (filled << one | before) | (filled >> one | following << top)
        runs = filled & neighbour
        changes = runs ^ (runs << one | inside)
        before = filled >> top
        inside = runs >> top
        filled = following
        while changes != 0:
            edges[count] = begin + trailing_zeros(changes)
            count += 1
            changes &= changes - one
    return count >> 1


@inner
def is_one_character(text: np.ndarray, begin: int, size: int) -> bool:
    """Whether text[begin : begin + size] of two or more bytes is a single character."""
    first = text[begin]
    return first >= 0x80 and size <= 2 + (first >= 0xE0) + (first >= 0xF0)
