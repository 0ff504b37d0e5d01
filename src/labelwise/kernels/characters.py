"""N-grams of characters of UTF-8 text, over whole texts or inside words, as scikit-learn defines them.

A text is first copied in lower case with its white space normalized and the position of every character noted; an
n-gram is then a range of bytes, which the hash table of words (`terms`) stores and finds like a word.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.term_rows import (
    MAX_DIGITS,
    add_one,
    merge_equal,
    sort_row,
    weight_row,
)
from labelwise.kernels.terms import (
    DONE,
    LOW,
    NO_PAIRS,
    add_word,
    count_one,
    find_word,
    word_key,
)
from labelwise.kernels.words import MARGIN, NEEDS_PYTHON, append, folding_table

_HALF = np.uint64(32)
_SPACE = 0x20
_PADDING = 64  # `word_key` and `same_word` read eight bytes at a time
_RECENT = 1 << 16
WHITE = 1 << 24
"""Added to the code points of white space in `character_codes`."""


@lru_cache(maxsize=2)
def character_codes(lowercase: bool) -> np.ndarray:
    """For each code point itself or its lower case, with WHITE added to white space, or NEEDS_PYTHON.

    The character 0 counts as white space, because it ends a term in the table of terms.
    """
    codes = np.arange(len(folding_table(False)), dtype=np.uint32)
    white = np.strings.isspace(codes.view("U1"))
    white[0] = True
    table = codes.astype(np.int32)
    if lowercase:
        special = folding_table(True) == NEEDS_PYTHON
        plain = ((codes < 0xD800) | (codes >= 0xE000)) & ~special
        lowered = codes[plain].tobytes().decode("utf-32-le").lower().encode("utf-32-le")
        table[plain] = np.frombuffer(lowered, np.uint32)
        table[special] = NEEDS_PYTHON
    table[0] = _SPACE
    return np.where(white, table + WHITE, table).astype(np.int32)


@inner
def copy_characters(
    buffer: np.ndarray, start: int, end: int, table: np.ndarray, in_words: bool, text: np.ndarray, edges: np.ndarray
) -> int:
    """Write buffer[start:end] to `text`, where its characters begin to `edges`; returns their number or NEEDS_PYTHON.

    A run of white space becomes one blank. With `in_words`, white space is left out and every word is written between
    two blanks. ``edges[characters]`` is where the text ends.
    """
    position, size, count = start, np.int64(0), np.int64(0)
    inside = False  # a word whose closing blank is not written yet
    white = np.int64(0)  # the number of white characters directly before
    while position < end:
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
            code = np.int64(_SPACE)  # not UTF-8: treated as a blank
            position += 1
        code = np.int64(table[min(code, len(table) - 1)])
        if code < 0:
            return NEEDS_PYTHON
        if code >= WHITE:
            white += 1
            if in_words:
                if inside:
                    edges[count] = size
                    count += 1
                    size = append(text, size, _SPACE)
                inside = False
                continue
            if white > 2:
                continue
            if white == 2:
                count -= 1
                size = edges[count]
                code = np.int64(_SPACE)
            else:
                code -= WHITE
        else:
            white = np.int64(0)
            if in_words and not inside:
                edges[count] = size
                count += 1
                size = append(text, size, _SPACE)
                inside = True
        edges[count] = size
        count += 1
        size = append(text, size, code)
    if inside:
        edges[count] = size
        count += 1
        size = append(text, size, _SPACE)
    edges[count] = size
    for extra in range(_PADDING):
        text[size + extra] = 0
    return count


@inner
def list_grams(
    text: np.ndarray, edges: np.ndarray, count: int, min_size: int, max_size: int, in_words: bool, grams: np.ndarray
) -> int:
    """Write begin and end of every n-gram to `grams`; returns how many there are, at most count x sizes.

    Inside words, a word with its blanks that is shorter than n counts once.
    """
    found, begin = np.int64(0), np.int64(0)
    while begin < count:
        end = count
        if in_words:
            end = begin + 2
            while text[edges[end - 1]] != _SPACE:
                end += 1
        for n in range(min_size, max_size + 1):
            size = min(n, end - begin) if in_words else n
            for index in range(begin, end - size + 1):
                grams[found, 0], grams[found, 1] = edges[index], edges[index + size]
                found += 1
            if end - begin <= n:
                break
        begin = end
    return found


@inner
def longest_text(starts: np.ndarray, ends: np.ndarray) -> int:
    """The number of bytes of the longest text."""
    longest = np.int64(0)
    for row in range(len(starts)):
        longest = max(longest, ends[row] - starts[row])
    return longest


@jit
def learn_characters(
    buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, table: np.ndarray, min_size: int, max_size: int,
    in_words: bool, seed: np.uint64, words: np.ndarray, nodes: np.ndarray, arena: np.ndarray, counts: np.ndarray,
    pairs: np.ndarray, used: int, row_ends: np.ndarray,
) -> tuple[int, int, int]:  # fmt: skip
    """See `CharacterTable.learn`. A text that did not fit is started again by the next call."""
    longest = longest_text(starts, ends)
    text, edges = np.empty(2 * longest + MARGIN, np.uint8), np.empty(2 * longest + 4, np.int64)
    grams = np.empty(((2 * longest + 3) * (max_size - min_size + 1), 2), np.int64)
    for row in range(len(starts)):
        count = copy_characters(buffer, starts[row], ends[row], table, in_words, text, edges)
        if count < 0:
            return NEEDS_PYTHON, row, used
        if used + count * (max_size - min_size + 1) > len(pairs):
            return NO_PAIRS, row, used
        row_begin = used
        for gram in range(list_grams(text, edges, count, min_size, max_size, in_words, grams)):
            begin = grams[gram, 0]
            size = grams[gram, 1] - begin
            first, second, mix = word_key(text, begin, size, seed)
            slot = find_word(words, first, second, mix, text, begin, size, arena)
            if words[slot] == 0:
                status = add_word(words, slot, first, second, mix, text, begin, size, nodes, arena, counts)
                if status != DONE:
                    return status, row, row_begin
            entry, used = count_one(pairs, row_begin, used, words[slot + np.uint64(2)])
            words[slot + np.uint64(2)] = entry
        row_ends[row] = used
    return DONE, len(starts), used


@jit
def add_terms(
    buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, done: int, numbers: np.ndarray, seed: np.uint64,
    words: np.ndarray, nodes: np.ndarray, arena: np.ndarray, counts: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Insert whole texts from `done` on as terms and write their numbers; -1 for an empty text or one with a 0."""
    text = np.zeros(longest_text(starts, ends) + MARGIN, np.uint8)
    for row in range(done, len(starts)):
        size = ends[row] - starts[row]
        valid = size > 0
        for index in range(size):
            text[index] = buffer[starts[row] + index]
            valid &= text[index] != 0
        for extra in range(_PADDING):
            text[size + extra] = 0
        if not valid:
            numbers[row] = -1
            continue
        first, second, mix = word_key(text, 0, size, seed)
        slot = find_word(words, first, second, mix, text, 0, size, arena)
        if words[slot] == 0:
            status = add_word(words, slot, first, second, mix, text, 0, size, nodes, arena, counts)
            if status != DONE:
                return status, row
        numbers[row] = np.int64(words[slot + np.uint64(2)] >> _HALF)
    return DONE, len(starts)


@jit
def look_up_characters(
    buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, table: np.ndarray, min_size: int, max_size: int,
    in_words: bool, seed: np.uint64, words: np.ndarray, arena: np.ndarray, hash_bits: int, bits: int,
    weights: np.ndarray, sublinear: bool, unit: bool, indices: np.ndarray, values: np.ndarray, used: int,
    row_ends: np.ndarray,
) -> tuple[int, int, int]:  # fmt: skip
    """`term_rows.look_up` for n-grams of characters."""
    longest = longest_text(starts, ends)
    text, edges = np.empty(2 * longest + MARGIN, np.uint8), np.empty(2 * longest + 4, np.int64)
    grams = np.empty(((2 * longest + 3) * (max_size - min_size + 1), 2), np.int64)
    max_keys = (2 * longest + 3) * (max_size - min_size + 1) + 1
    keys, spare = np.empty(max_keys, np.uint64), np.empty(max_keys, np.uint64)
    positions = np.empty(MAX_DIGITS, np.int32)
    recent = np.empty(_RECENT, np.uint32)
    shift = np.uint64(64 - hash_bits)
    for row in range(len(starts)):
        count = copy_characters(buffer, starts[row], ends[row], table, in_words, text, edges)
        if count < 0:
            return NEEDS_PYTHON, row, used
        if used + count * (max_size - min_size + 1) > len(indices):
            return NO_PAIRS, row, used
        found = np.int64(0)
        for gram in range(list_grams(text, edges, count, min_size, max_size, in_words, grams)):
            begin = grams[gram, 0]
            size = grams[gram, 1] - begin
            first, second, mix = word_key(text, begin, size, seed)
            if hash_bits > 0:
                column = mix >> shift
            else:
                slot = find_word(words, first, second, mix, text, begin, size, arena)
                column = words[slot + np.uint64(2)] & LOW if words[slot] != 0 else LOW
            found = add_one(keys, found, recent, column)
        row_keys = sort_row(keys, found, spare, bits, positions)
        found = merge_equal(row_keys, found)
        weight_row(row_keys, found, weights, sublinear, unit, indices, values, used)
        used += found
        row_ends[row] = used
    return DONE, len(starts), used
