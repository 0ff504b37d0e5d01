"""Rows of TF-IDF: from counted terms, or directly from texts and a table of known terms.

A row is first a sequence of integers (column << 32 | count). They are radix sorted by column, weighted and written to
the arrays of the final matrix. Both paths share these steps, so results are bitwise equal.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.term_table import TermTable
from labelwise.kernels.terms import (
    AHEAD,
    DONE,
    LOW,
    NO_PAIRS,
    SLOT,
    find_gram,
    find_word,
    gram_key,
    mixed,
    prefetch_gram,
    word_key,
)
from labelwise.kernels.words import (
    MARGIN,
    NEEDS_PYTHON,
    fold,
    is_one_character,
    split_words,
)

UNKNOWN = -1
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_MISSING = np.uint64(0xFFFFFFFFFFFFFFFF)
"""Entry of a term that is not in the table; its lower half is UNKNOWN as a column."""
_RECENT = 1 << 12
_MAX_DIGIT_BITS = 11
MAX_DIGITS = 3 << _MAX_DIGIT_BITS
_INSERTION_SIZE = 24
"""Rows up to this size are sorted by insertion."""


@jit
def tally(pairs: np.ndarray, frequency: np.ndarray, occurrences: np.ndarray) -> None:
    """Add each term's document frequency and, unless that array is empty, its occurrences."""
    for index in range(len(pairs)):
        frequency[pairs[index] >> _HALF] += 1
    if len(occurrences) > 0:
        for index in range(len(pairs)):
            occurrences[pairs[index] >> _HALF] += np.int64(pairs[index] & LOW)


@jit
def count_kept(pairs: np.ndarray, row_ends: np.ndarray, columns: np.ndarray, sizes: np.ndarray) -> None:
    """Write to `sizes` how many of each row's terms have a column."""
    begin = 0
    for row in range(len(row_ends)):
        kept = 0
        for index in range(begin, row_ends[row]):
            kept += columns[pairs[index] >> _HALF] != UNKNOWN
        sizes[row] = kept
        begin = row_ends[row]


@inner
def sort_row(keys: np.ndarray, size: int, spare: np.ndarray, bits: int, positions: np.ndarray) -> np.ndarray:
    """Stable sort of keys[:size] by column (of `bits` bits); returns `keys` or `spare`, whichever holds the result.

    `spare` is as long as `keys`, `positions` has MAX_DIGITS entries.
    """
    if size <= _INSERTION_SIZE:
        for end in range(1, size):
            key = keys[end]
            index = end
            while index > 0 and keys[index - 1] >> _HALF > key >> _HALF:
                keys[index] = keys[index - 1]
                index -= 1
            keys[index] = key
        return keys
    passes = -(-bits // _MAX_DIGIT_BITS)  # a pass over the row costs about as much as eight times as many digits
    while (passes + 1) * (8 * size + (1 << -(-bits // (passes + 1)))) < passes * (8 * size + (1 << -(-bits // passes))):
        passes += 1
    width = -(-bits // passes)
    digits = 1 << width
    mask = np.uint64(digits - 1)
    for digit in range(passes * digits):
        positions[digit] = 0
    for index in range(size):
        column = keys[index] >> _HALF
        table = np.uint64(0)
        for _ in range(passes):
            positions[table + (column & mask)] += 1
            column >>= np.uint64(width)
            table += np.uint64(digits)
    for begin in range(0, passes * digits, digits):
        total = 0
        for digit in range(begin, begin + digits):
            count = positions[digit]
            positions[digit] = total
            total += count
    source, target = keys, spare
    for turn in range(passes):
        shift = np.uint64(32 + turn * width)
        for index in range(size):
            digit = np.uint64(turn * digits) + (source[index] >> shift & mask)
            target[np.uint64(positions[digit])] = source[index]
            positions[digit] += 1
        source, target = target, source
    return source


@inner
def weight_row(
    keys: np.ndarray, size: int, weights: np.ndarray, sublinear: bool, unit: bool,
    indices: np.ndarray, values: np.ndarray, used: int,
) -> None:  # fmt: skip
    """Write a sorted row to indices and values from `used` on. Empty `weights` mean ones."""
    squares = 0.0
    for index in range(size):
        column = keys[index] >> _HALF
        value = np.float64(keys[index] & LOW)
        if sublinear and value > 1:
            value = 1 + np.log(value)
        if len(weights) > 0:
            value *= weights[column]
        squares += value * value
        indices[used + index] = column
        values[used + index] = value
    if unit and squares > 0:
        scale = 1 / np.sqrt(squares)
        for index in range(used, used + size):
            values[index] *= scale


@jit
def write_rows(
    pairs: np.ndarray, row_ends: np.ndarray, columns: np.ndarray, bits: int, weights: np.ndarray, sublinear: bool,
    unit: bool, indptr: np.ndarray, indices: np.ndarray, values: np.ndarray,
) -> None:  # fmt: skip
    """Write counted terms as rows of the matrix, each at its position in `indptr`."""
    longest = 0
    for row in range(len(row_ends)):
        longest = max(longest, row_ends[row] - (row_ends[row - 1] if row > 0 else 0))
    keys, spare = np.empty(longest + 1, np.uint64), np.empty(longest + 1, np.uint64)
    positions = np.empty(MAX_DIGITS, np.int32)
    begin = 0
    for row in range(len(row_ends)):
        size = np.int64(0)
        for index in range(begin, row_ends[row]):
            column = np.int64(columns[pairs[index] >> _HALF])
            keys[size] = np.uint64(column) << _HALF | (pairs[index] & LOW)
            size += column != UNKNOWN
        begin = row_ends[row]
        row_keys = sort_row(keys, size, spare, bits, positions)
        weight_row(row_keys, size, weights, sublinear, unit, indices, values, indptr[row])


@inner
def merge_equal(keys: np.ndarray, size: int) -> int:
    """Merge sorted keys with equal columns, summing their counts; returns how many remain."""
    last = -1
    for index in range(size):
        if last >= 0 and keys[last] >> _HALF == keys[index] >> _HALF:
            keys[last] += keys[index] & LOW
        else:
            last += 1
            keys[last] = keys[index]
    return last + 1


def write_columns(table: TermTable, columns: np.ndarray) -> None:
    """Prepare a table for `look_up`: write the terms' columns into its entries. It cannot learn afterwards."""
    for slots, index in ((table.words.reshape(-1, SLOT), 2), (table.grams.reshape(-1, 2), 1)):
        filled = slots[:, 0] != 0
        terms = slots[filled, index] >> _HALF
        slots[filled, index] = terms << _HALF | columns[terms].astype(np.uint32)


@inner
def add_one(keys: np.ndarray, found: int, recent: np.ndarray, column: np.uint64) -> int:
    """Count a column for a row of `found` keys; returns the new number of keys.

    `recent` holds, by the last bits of a column, the index of the key written last: it finds most repetitions, need not
    be cleared and may be small. The others stay duplicates until `merge_equal`.
    """
    new = column << _HALF
    slot = column & np.uint64(len(recent) - 1)
    index = np.int64(recent[slot])
    here = index < found
    index = np.uint64(index if here else found)
    now = keys[index]
    seen = here & (now >> _HALF << _HALF == new)
    index = index if seen else np.uint64(found)
    keys[index] = (now if seen else new) + _ONE
    recent[slot] = index
    return found + (0 if seen or column == LOW else 1)


@jit
def look_up(
    buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, table: np.ndarray, lowercase: int,
    min_words: int, max_words: int, seed: np.uint64, words: np.ndarray, grams: np.ndarray, arena: np.ndarray,
    hash_bits: int, bits: int, weights: np.ndarray, sublinear: bool, unit: bool,
    indices: np.ndarray, values: np.ndarray, used: int, row_ends: np.ndarray,
) -> tuple[int, int, int]:  # fmt: skip
    """Write rows of texts to `indices` and `values` from `used` on, until DONE, NO_PAIRS (no space) or NEEDS_PYTHON.

    The table's entries hold a term's column instead of the index of a count (see `write_columns`). With `hash_bits`
    above 0 the table is not read: the leading bits of a term's hash are its column.
    """
    longest = 0
    for row in range(len(starts)):
        longest = max(longest, ends[row] - starts[row])
    text = np.empty(2 * longest + MARGIN, np.uint8)
    edges = np.empty(longest + MARGIN, np.int64)
    max_terms = longest // 2 + 1
    own, latest = np.empty(max_terms, np.uint64), np.empty(max_terms, np.uint64)
    max_keys = max_terms * (max_words - min_words + 1) + 1
    keys, spare = np.empty(max_keys, np.uint64), np.empty(max_keys, np.uint64)
    positions = np.empty(MAX_DIGITS, np.int32)
    recent = np.empty(_RECENT, np.uint32)
    shift = np.uint64(64 - hash_bits)
    for row in range(len(starts)):
        size = fold(buffer, starts[row], ends[row], table, lowercase, text)
        if size < 0:
            return NEEDS_PYTHON, row, used
        runs = split_words(text, size, edges)
        if used + runs * (max_words - min_words + 1) > len(indices):
            return NO_PAIRS, row, used
        length, found = np.int64(0), np.int64(0)
        for run in range(runs):
            begin = edges[2 * run]
            size = edges[2 * run + 1] - begin
            if is_one_character(text, begin, size):
                continue
            first, second, mix = word_key(text, begin, size, seed)
            if hash_bits > 0:
                term = mix
                column = mix >> shift
            else:
                slot = find_word(words, first, second, mix, text, begin, size, arena)
                entry = words[slot + np.uint64(2)] if words[slot] != 0 else _MISSING
                term = entry >> _HALF
                column = entry & LOW
            own[length] = term
            latest[length] = term
            length += 1
            if min_words == 1:
                found = add_one(keys, found, recent, column)
        for n in range(2, min(max_words, length) + 1):
            for index in range(length - 1, n - 2, -1):
                if hash_bits > 0:
                    term = mixed(latest[index - 1], own[index], seed)
                    column = term >> shift
                else:
                    ahead = max(index - AHEAD, 1)
                    prefetch_gram(grams, gram_key(latest[ahead - 1], own[ahead]), seed)
                    slot = find_gram(grams, gram_key(latest[index - 1], own[index]), seed)
                    entry = grams[slot + np.uint64(1)] if grams[slot] != 0 else _MISSING
                    term = entry >> _HALF
                    column = entry & LOW
                latest[index] = term
                if n >= min_words:
                    found = add_one(keys, found, recent, column)
        row_keys = sort_row(keys, found, spare, bits, positions)
        found = merge_equal(row_keys, found)
        weight_row(row_keys, found, weights, sublinear, unit, indices, values, used)
        used += found
        row_ends[row] = used
    return DONE, len(starts), used
