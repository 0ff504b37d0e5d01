"""Rows of TF-IDF: from counted terms, or straight from texts and a table of known terms.

A row is first a run of numbers (column << 32 | count). They are sorted by column, digit by digit, then weighed and
written to the arrays of the final matrix. Both ways to a row share these steps, so they give the same bits.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.text.term_table import TermTable
from labelwise.kernels.text.terms import (
    AHEAD,
    DONE,
    LOW,
    NO_PAIRS,
    SLOT,
    fetch_gram,
    find_gram,
    find_word,
    gram_key,
    mixed,
    word_key,
)
from labelwise.kernels.text.words import MARGIN, NEEDS_PYTHON, cut, fold, is_one_character

UNKNOWN = -1
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_MISSING = np.uint64(0xFFFFFFFFFFFFFFFF)
"""Entry of a term that the table lacks; its lower half is UNKNOWN as a column."""
_MARKS = 1 << 12
_WIDEST = 11
MOST_DIGITS = 3 << _WIDEST
_FEW = 24
"""Rows up to this length are sorted by insertion."""


@jit
def tally(pairs: np.ndarray, frequency: np.ndarray, occurrences: np.ndarray) -> None:
    """Add to each term the documents it is in and, unless that array is empty, how often it occurs."""
    for place in range(len(pairs)):
        frequency[pairs[place] >> _HALF] += 1
    if len(occurrences) > 0:
        for place in range(len(pairs)):
            occurrences[pairs[place] >> _HALF] += np.int64(pairs[place] & LOW)


@jit
def count_kept(pairs: np.ndarray, row_ends: np.ndarray, columns: np.ndarray, sizes: np.ndarray) -> None:
    """How many of each row's terms have a column."""
    begin = 0
    for row in range(len(row_ends)):
        kept = 0
        for place in range(begin, row_ends[row]):
            kept += columns[pairs[place] >> _HALF] != UNKNOWN
        sizes[row] = kept
        begin = row_ends[row]


@inner
def sort_row(keys: np.ndarray, size: int, spare: np.ndarray, bits: int, places: np.ndarray) -> np.ndarray:
    """Sort keys[:size] by column (of so many bits), equal columns in the order given; the array that holds them then.

    `spare` is as long as `keys`, `places` has room for MOST_DIGITS.
    """
    if size <= _FEW:
        for end in range(1, size):
            key = keys[end]
            place = end
            while place > 0 and keys[place - 1] >> _HALF > key >> _HALF:
                keys[place] = keys[place - 1]
                place -= 1
            keys[place] = key
        return keys
    passes = -(-bits // _WIDEST)  # a pass over the row costs about as much as eight times as many digits
    while (passes + 1) * (8 * size + (1 << -(-bits // (passes + 1)))) < passes * (8 * size + (1 << -(-bits // passes))):
        passes += 1
    width = -(-bits // passes)
    digits = 1 << width
    mask = np.uint64(digits - 1)
    for digit in range(passes * digits):
        places[digit] = 0
    for place in range(size):
        column = keys[place] >> _HALF
        table = np.uint64(0)
        for _ in range(passes):
            places[table + (column & mask)] += 1
            column >>= np.uint64(width)
            table += np.uint64(digits)
    for begin in range(0, passes * digits, digits):
        total = 0
        for digit in range(begin, begin + digits):
            count = places[digit]
            places[digit] = total
            total += count
    source, target = keys, spare
    for turn in range(passes):
        shift = np.uint64(32 + turn * width)
        for place in range(size):
            digit = np.uint64(turn * digits) + (source[place] >> shift & mask)
            target[np.uint64(places[digit])] = source[place]
            places[digit] += 1
        source, target = target, source
    return source


@inner
def weigh_row(
    keys: np.ndarray, size: int, weights: np.ndarray, sublinear: bool, unit: bool,
    indices: np.ndarray, values: np.ndarray, used: int,
) -> None:  # fmt: skip
    """Write a sorted row to indices and values from `used` on. Empty `weights` stand for ones."""
    squares = 0.0
    for place in range(size):
        column = keys[place] >> _HALF
        value = np.float64(keys[place] & LOW)
        if sublinear and value > 1:
            value = 1 + np.log(value)
        if len(weights) > 0:
            value *= weights[column]
        squares += value * value
        indices[used + place] = column
        values[used + place] = value
    if unit and squares > 0:
        scale = 1 / np.sqrt(squares)
        for place in range(used, used + size):
            values[place] *= scale


@jit
def write_rows(
    pairs: np.ndarray, row_ends: np.ndarray, columns: np.ndarray, bits: int, weights: np.ndarray, sublinear: bool,
    unit: bool, indptr: np.ndarray, indices: np.ndarray, values: np.ndarray,
) -> None:  # fmt: skip
    """Turn counted terms into rows of the matrix; `indptr` says where each belongs."""
    longest = 0
    for row in range(len(row_ends)):
        longest = max(longest, row_ends[row] - (row_ends[row - 1] if row > 0 else 0))
    keys, spare = np.empty(longest + 1, np.uint64), np.empty(longest + 1, np.uint64)
    places = np.empty(MOST_DIGITS, np.int32)
    begin = 0
    for row in range(len(row_ends)):
        size = np.int64(0)
        for place in range(begin, row_ends[row]):
            column = np.int64(columns[pairs[place] >> _HALF])
            keys[size] = np.uint64(column) << _HALF | (pairs[place] & LOW)
            size += column != UNKNOWN
        begin = row_ends[row]
        row_keys = sort_row(keys, size, spare, bits, places)
        weigh_row(row_keys, size, weights, sublinear, unit, indices, values, indptr[row])


@inner
def merge_equal(keys: np.ndarray, size: int) -> int:
    """Make one of sorted keys with equal columns, adding up their counts; how many remain."""
    last = -1
    for place in range(size):
        if last >= 0 and keys[last] >> _HALF == keys[place] >> _HALF:
            keys[last] += keys[place] & LOW
        else:
            last += 1
            keys[last] = keys[place]
    return last + 1


def note_columns(table: TermTable, columns: np.ndarray) -> None:
    """Make a table ready for `look_up`: put the terms' columns into its entries. It cannot learn any more then."""
    for slots, place in ((table.words.reshape(-1, SLOT), 2), (table.grams.reshape(-1, 2), 1)):
        filled = slots[:, 0] != 0
        terms = slots[filled, place] >> _HALF
        slots[filled, place] = terms << _HALF | columns[terms].astype(np.uint32)


@inner
def add_one(keys: np.ndarray, found: int, marks: np.ndarray, column: np.uint64) -> int:
    """Count a column for a row of `found` keys; how many it has then.

    Most repetitions are met by a look at where a column with the same last digits was put, if it was: `marks` need not
    be cleared and may be small. The rest stand twice until `merge_equal`.
    """
    new = column << _HALF
    mark = column & np.uint64(len(marks) - 1)
    place = np.int64(marks[mark])
    here = place < found
    place = np.uint64(place if here else found)
    now = keys[place]
    seen = here & (now >> _HALF << _HALF == new)
    place = place if seen else np.uint64(found)
    keys[place] = (now if seen else new) + _ONE
    marks[mark] = place
    return found + (0 if seen or column == LOW else 1)


@jit
def look_up(
    buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, table: np.ndarray, lowercase: int,
    min_words: int, max_words: int, seed: np.uint64, words: np.ndarray, grams: np.ndarray, arena: np.ndarray,
    hash_bits: int, bits: int, weights: np.ndarray, sublinear: bool, unit: bool,
    indices: np.ndarray, values: np.ndarray, used: int, row_ends: np.ndarray,
) -> tuple[int, int, int]:  # fmt: skip
    """Write rows for texts to `indices` and `values` from `used` on, until done, out of room or NEEDS_PYTHON.

    The table's entries hold a term's column in place of a count's place (see `note_columns`). With `hash_bits` above 0
    the table is not looked at: the leading bits of a term's hash are its column.
    """
    longest = 0
    for row in range(len(starts)):
        longest = max(longest, ends[row] - starts[row])
    text = np.empty(2 * longest + MARGIN, np.uint8)
    edges = np.empty(longest + MARGIN, np.int64)
    most = longest // 2 + 1
    own, latest = np.empty(most, np.uint64), np.empty(most, np.uint64)
    most = most * (max_words - min_words + 1) + 1
    keys, spare = np.empty(most, np.uint64), np.empty(most, np.uint64)
    places = np.empty(MOST_DIGITS, np.int32)
    marks = np.empty(_MARKS, np.uint32)
    shift = np.uint64(64 - hash_bits)
    for row in range(len(starts)):
        size = fold(buffer, starts[row], ends[row], table, lowercase, text)
        if size < 0:
            return NEEDS_PYTHON, row, used
        runs = cut(text, size, edges)
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
                found = add_one(keys, found, marks, column)
        for n in range(2, min(max_words, length) + 1):
            for place in range(length - 1, n - 2, -1):
                if hash_bits > 0:
                    term = mixed(latest[place - 1], own[place], seed)
                    column = term >> shift
                else:
                    ahead = max(place - AHEAD, 1)
                    fetch_gram(grams, gram_key(latest[ahead - 1], own[ahead]), seed)
                    slot = find_gram(grams, gram_key(latest[place - 1], own[place]), seed)
                    entry = grams[slot + np.uint64(1)] if grams[slot] != 0 else _MISSING
                    term = entry >> _HALF
                    column = entry & LOW
                latest[place] = term
                if n >= min_words:
                    found = add_one(keys, found, marks, column)
        row_keys = sort_row(keys, found, spare, bits, places)
        found = merge_equal(row_keys, found)
        weigh_row(row_keys, found, weights, sublinear, unit, indices, values, used)
        used += found
        row_ends[row] = used
    return DONE, len(starts), used
