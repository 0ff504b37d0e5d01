"""An index from features to a chunk's rows, without binary search.

A chunk's features are sorted, and frequent features have low indices, so nearly all look-ups are near the front. There
a word of 64 bits marks which of 64 features the chunk has, and next to it is the number of features before: a look-up
is one cache line and no branch. The words of a chunk take at most four bytes per feature, however large the vocabulary;
the features after them are found by a table of starts over ranges of features, chosen so that a range holds one or two
of the chunk's features.
"""

from __future__ import annotations

from typing import Any

from numba import types, uint64
from numba.extending import intrinsic

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.tree.prefetch import prefetch

ROWS_PER_WORD = 4  # minimum features per word, which takes 16 bytes with its count


@intrinsic
def _popcount(_context: Any, word: Any) -> Any:
    """The number of set bits of a word."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), build


@jit
def directory_shape(chunk_offsets, features, n_features, word_offsets, shifts, range_offsets):
    """Choose the number of words and the shift of ranges per chunk; the last offsets are the sizes of the tables."""
    word_offsets[0] = range_offsets[0] = 0
    for c in range(len(chunk_offsets) - 1):
        low, high = chunk_offsets[c], chunk_offsets[c + 1]
        words = min((n_features + 63) >> 6, (high - low + ROWS_PER_WORD - 1) // ROWS_PER_WORD)
        behind = max(n_features - 64 * words, 0)
        while high > low and features[high - 1] >= 64 * words:
            high -= 1
        count = chunk_offsets[c + 1] - high
        shift = 1
        while (behind >> shift) > max(count, 1):
            shift += 1
        word_offsets[c + 1] = word_offsets[c] + words
        shifts[c] = shift
        range_offsets[c + 1] = range_offsets[c] + (behind >> shift) + 2


@jit
def fill_directory(
    chunk_offsets, features, word_offsets, shifts, range_offsets, first, last, words, starts,
):  # fmt: skip
    """Fill the tables of the chunks first..last; words must be zero. Rows count from the chunk's first feature."""
    for c in range(first, last):
        low, high = chunk_offsets[c], chunk_offsets[c + 1]
        limit = 64 * (word_offsets[c + 1] - word_offsets[c])
        r = low
        while r < high and features[r] < limit:
            words[2 * (word_offsets[c] + (features[r] >> 6))] |= uint64(1) << uint64(features[r] & 63)
            r += 1
        before = 0
        for word in range(word_offsets[c], word_offsets[c + 1]):
            words[2 * word + 1] = before
            before += _popcount(words[2 * word])
        filled = range_offsets[c]
        for behind in range(r, high):
            slot = range_offsets[c] + ((features[behind] - limit) >> shifts[c])
            while filled <= slot:
                starts[filled] = behind - low
                filled += 1
        while filled < range_offsets[c + 1]:
            starts[filled] = high - low
            filled += 1


@inner
def look_up(
    begin, end, indices, data, chunk, low, features, word_offsets, words, shifts, range_offsets, starts,
    found, hit_rows, hit_values,
):  # fmt: skip
    """Append the chunk's rows of a document's features, and their values, to the `found` ones; returns the count."""
    first_word = word_offsets[chunk]
    limit = 64 * (word_offsets[chunk + 1] - first_word)
    middle = begin
    while middle < end and indices[middle] < limit:
        prefetch(words, 2 * (first_word + (indices[middle] >> 6)))
        middle += 1
    for k in range(begin, middle):
        slot = uint64(2 * (first_word + (indices[k] >> 6)))
        word, bit = words[slot], uint64(indices[k] & 63)
        hit_rows[found] = low + words[slot + uint64(1)] + _popcount(word & ((uint64(1) << bit) - uint64(1)))
        hit_values[found] = data[k]
        found += (word >> bit) & uint64(1)
    if middle == end:
        return found
    shift, first_range = shifts[chunk], range_offsets[chunk]
    for k in range(middle, end):
        prefetch(starts, first_range + ((indices[k] - limit) >> shift))
    for k in range(middle, end):
        prefetch(features, low + starts[first_range + ((indices[k] - limit) >> shift)])
    for k in range(middle, end):
        feature = indices[k]
        slot = first_range + ((feature - limit) >> shift)
        r, stop = low + starts[slot], low + starts[slot + 1]
        while r < stop and features[r] < feature:
            r += 1
        hit_rows[found] = r
        hit_values[found] = data[k]
        found += r < stop and features[r] == feature
    return found
