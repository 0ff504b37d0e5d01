"""Where a chunk keeps a feature, without a search.

A chunk's features are sorted, and common features have low numbers, so nearly all that is looked up lies near the
front. There a word of 64 bits says which of 64 features the chunk has, and beside it stands how many come before: a
look-up is one cache line and no branch. The words of a chunk take four bytes a feature at most, however large the
vocabulary; the features behind them are found by a table of starts over ranges of features, chosen so that a range
holds one or two of the chunk's features.
"""

from __future__ import annotations

from typing import Any

from numba import types, uint64
from numba.extending import intrinsic

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.tree.prefetch import prefetch

ROWS_A_WORD = 4  # at least so many features for each word, which takes 16 bytes with the count beside it


@intrinsic
def _ones(_context: Any, word: Any) -> Any:
    """How many bits of a word are set."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), build


@jit
def directory_shape(chunk_offsets, features, n_features, word_offsets, shifts, range_offsets):
    """Choose how many words each chunk has and the shift of its ranges; the last offsets are the tables' whole size."""
    word_offsets[0] = range_offsets[0] = 0
    for c in range(len(chunk_offsets) - 1):
        low, high = chunk_offsets[c], chunk_offsets[c + 1]
        words = min((n_features + 63) >> 6, (high - low + ROWS_A_WORD - 1) // ROWS_A_WORD)
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
    """Fill the tables of the chunks first..last; words must be zero. Rows count from the chunk's own first feature."""
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
            before += _ones(words[2 * word])
        filled = range_offsets[c]
        for behind in range(r, high):
            place = range_offsets[c] + ((features[behind] - limit) >> shifts[c])
            while filled <= place:
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
    """The chunk's rows of a document's features with the document's values, behind the `found` ones; how many now."""
    first_word = word_offsets[chunk]
    limit = 64 * (word_offsets[chunk + 1] - first_word)
    middle = begin
    while middle < end and indices[middle] < limit:
        prefetch(words, 2 * (first_word + (indices[middle] >> 6)))
        middle += 1
    for k in range(begin, middle):
        place = uint64(2 * (first_word + (indices[k] >> 6)))
        word, bit = words[place], uint64(indices[k] & 63)
        hit_rows[found] = low + words[place + uint64(1)] + _ones(word & ((uint64(1) << bit) - uint64(1)))
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
        wanted = indices[k]
        place = first_range + ((wanted - limit) >> shift)
        r, stop = low + starts[place], low + starts[place + 1]
        while r < stop and features[r] < wanted:
            r += 1
        hit_rows[found] = r
        hit_values[found] = data[k]
        found += r < stop and features[r] == wanted
    return found
