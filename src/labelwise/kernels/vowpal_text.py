"""Parse lines of Vowpal Wabbit to CSR rows: `12,40 |words 7:0.5 19 |more:2.0 3`, and hash named features.

As in `sparse_text`: one block that ends in a newline, arrays that are large enough, and at the first fault its type and
byte. Labels are returned as positions in the block, as they may be any word.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.numbers import FLOAT32_OVERFLOW, read_integer, read_number
from labelwise.kernels.sparse_text import (
    COLON,
    COMMA,
    FINE,
    MAX_INDEX,
    NEWLINE,
    SPACE,
    TAB,
    at_line_end,
    at_token_end,
    sort_features,
)

NO_BAR, BAD_HEAD, BAD_LABEL, BAD_WEIGHT, BAD_SCALE, BAD_FEATURE, BAD_VALUE = range(1, 8)
NOT_A_COLUMN, INDEX_TOO_LARGE, SUM_TOO_LARGE = range(8, 11)

BAR, QUOTE = 124, 39
NOT_HASHED = -1


@jit
def murmur3(data: np.ndarray, begin: int, end: int, seed: int) -> int:
    """The 32-bit MurmurHash3 (x86 variant) of data[begin:end], as a non-negative integer."""
    mask = 0xFFFFFFFF
    state = seed & mask
    for index in range(begin, end, 4):
        left = min(end - index, 4)
        word = 0
        for offset in range(left):
            word |= data[index + offset] << (8 * offset)
        word = (word * 0xCC9E2D51) & mask
        word = ((word << 15) | (word >> 17)) & mask
        state ^= (word * 0x1B873593) & mask
        if left == 4:
            state = ((state << 13) | (state >> 19)) & mask
            state = (state * 5 + 0xE6546B64) & mask
    state ^= (end - begin) & mask
    state ^= state >> 16
    state = (state * 0x85EBCA6B) & mask
    state ^= state >> 13
    state = (state * 0xC2B2AE35) & mask
    return state ^ (state >> 16)


@inner(forceinline=True)
def at_word_end(data: np.ndarray, position: int) -> bool:
    """Whether a blank, a bar or the line's end is at `position`."""
    return data[position] == BAR or at_token_end(data, position)


@inner(forceinline=True)
def skip_blanks(data: np.ndarray, position: int) -> int:
    """The position of the next byte that is not a blank."""
    while data[position] == SPACE or data[position] == TAB:
        position += 1
    return position


@inner(forceinline=True)
def skip_name(data: np.ndarray, position: int) -> int:
    """The position of the colon, blank, bar or line end after a name."""
    while data[position] != COLON and not at_word_end(data, position):
        position += 1
    return position


@jit
def parse_vowpal(
    data: np.ndarray,
    hash_mask: int,
    feature_counts: np.ndarray,
    label_counts: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    label_starts: np.ndarray,
    label_ends: np.ndarray,
) -> tuple[int, int, int, int, int, int]:
    """Parse the lines of a block; blank lines are ignored.

    The counts have one element per line, `indices` and `values` one per blank, the labels' bounds one per line and
    comma. Names are hashed and masked by `hash_mask`, or are column indices if that is NOT_HASHED. Returns (fault,
    its byte, rows, features stored, labels stored, feature columns).
    """
    position = rows = stored = tagged = columns = int(np.int64(0))  # typed, as in sparse_text
    while position < data.size:
        line = position
        position = skip_blanks(data, position)
        if not at_line_end(data, position):
            before = tagged
            fault, position, tagged = _head(data, position, label_starts, label_ends, tagged)
            if fault != FINE:
                return fault, line if fault == NO_BAR else position, rows, stored, tagged, columns
            label_counts[rows] = tagged - before
            before = stored
            fault, position, stored, columns = _namespaces(data, position, hash_mask, indices, values, stored, columns)
            if fault != FINE:
                return fault, position, rows, stored, tagged, columns
            feature_counts[rows] = stored - before
            rows += 1
        position += 1 if data[position] == NEWLINE else 2
    return FINE, position, rows, stored, tagged, columns


@inner
def _head(
    data: np.ndarray, position: int, label_starts: np.ndarray, label_ends: np.ndarray, tagged: int
) -> tuple[int, int, int]:
    """Parse the part before the first bar: labels, a weight, a tag. Returns (fault, position, labels stored)."""
    words = 0
    while data[position] != BAR:
        if at_line_end(data, position):
            return NO_BAR, position, tagged
        begin = position
        if data[begin] == QUOTE:
            while not at_word_end(data, position):
                position += 1
            position = skip_blanks(data, position)
            if data[position] != BAR:
                return BAD_HEAD, position, tagged
            break
        if words == 0:
            while True:
                label_starts[tagged] = position
                while data[position] != COMMA and data[position] != COLON and not at_word_end(data, position):
                    position += 1
                if position == label_starts[tagged] or data[position] == COLON:
                    return BAD_LABEL, begin, tagged
                label_ends[tagged] = position
                tagged += 1
                if data[position] != COMMA:
                    break
                position += 1
        else:
            weight, position = read_number(data, position)
            if position < 0 or not at_word_end(data, position):
                position = begin
                while not at_word_end(data, position):
                    position += 1
                if data[position] == BAR:
                    break  # a tag that touches the bar needs no quote
                weight = 0.0
            if words > 1:
                return BAD_HEAD, begin, tagged
            if weight != 1:
                return BAD_WEIGHT, begin, tagged
        words += 1
        position = skip_blanks(data, position)
    return FINE, position, tagged


@inner
def _namespace(data: np.ndarray, position: int) -> tuple[int, int, float]:
    """A namespace's name and value after its bar: (position after them or -1 for a fault, seed, value)."""
    begin = position + 1
    position = skip_name(data, begin)
    unseeded = int(np.int64(0))
    seed = murmur3(data, begin, position, unseeded) if position > begin else unseeded
    if data[position] != COLON:
        return position, seed, 1.0
    scale, position = read_number(data, position + 1)
    if position < 0 or abs(scale) >= FLOAT32_OVERFLOW or not at_word_end(data, position):
        return -1, seed, 1.0
    return position, seed, scale


@inner
def _namespaces(
    data: np.ndarray,
    position: int,
    hash_mask: int,
    indices: np.ndarray,
    values: np.ndarray,
    stored: int,
    columns: int,
) -> tuple[int, int, int, int]:
    """The features from the first bar to the line's end: (fault, position, features stored, columns)."""
    first = stored
    previous = -1
    ascending = True
    seed = int(np.int64(0))
    scale = 1.0
    while not at_line_end(data, position):
        begin = position
        if data[begin] == BAR:
            position, seed, scale = _namespace(data, begin)
            if position < 0:
                return BAD_SCALE, begin, stored, columns
            position = skip_blanks(data, position)
            continue
        fault, position, column, wide = _feature(data, begin, hash_mask, seed)
        if fault == FINE and abs(wide * scale) >= FLOAT32_OVERFLOW:
            fault = BAD_VALUE
        if fault != FINE:
            return fault, begin, stored, columns
        columns = max(columns, column + 1)
        value = np.float32(wide * scale)
        if value != 0:
            ascending &= column > previous
            previous = column
            indices[stored] = column
            values[stored] = value
            stored += 1
        position = skip_blanks(data, position)
    if not ascending:
        stored = sort_features(indices, values, first, stored)
        if stored < 0:
            return SUM_TOO_LARGE, position, stored, columns
    return FINE, position, stored, columns


@inner(forceinline=True)
def _feature(data: np.ndarray, begin: int, hash_mask: int, seed: int) -> tuple[int, int, int, float]:
    """One feature: (fault, position after it, column, value)."""
    if hash_mask == NOT_HASHED:
        column, position = read_integer(data, begin)
        if data[position] != COLON and not at_word_end(data, position):
            return NOT_A_COLUMN, begin, 0, 0.0
        if column > MAX_INDEX:
            return INDEX_TOO_LARGE, begin, 0, 0.0
    else:
        position = skip_name(data, begin)
        column = murmur3(data, begin, position, seed) & hash_mask
    if position == begin:
        return BAD_FEATURE, begin, 0, 0.0
    if data[position] != COLON:
        return FINE, position, column, 1.0
    wide, position = read_number(data, position + 1)
    if position < 0 or abs(wide) >= FLOAT32_OVERFLOW or not at_word_end(data, position):
        return BAD_VALUE, begin, 0, 0.0
    return FINE, position, column, wide
