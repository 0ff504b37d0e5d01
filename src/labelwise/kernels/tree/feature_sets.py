"""Sets of features in about a byte per feature, in which a feature's rank is found without decoding.

Frequent features have low indices, so a set is dense at the front. There a word of 64 bits marks which of 64 features
it has, and next to it is the number of features before: a look-up is one cache line and no branch. After the words, in
the tail, features are grouped by ranges of 256 indices; of each only the low byte is stored, and where a range starts.
Sets whose tail has few features per 256 have wider ranges and two bytes per feature, first all low and then all high
bytes.

`sets` is a tuple of arrays: set_offsets (the number of features before each set), word_offsets, words (pairs of bits
and count), shifts (logarithm of the width of ranges), range_offsets, starts (per range the rank of its first feature,
and an end), low_offsets, lows (with BYTES more bytes at the end).
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.tree.bits import equal_bytes, lowest_bit, popcount
from labelwise.kernels.tree.prefetch import prefetch
from labelwise.kernels.tree.sizes import BYTES

NARROW, WIDE = 8, 16
"""Shifts with one and at most with two bytes per feature."""
MIN_MARKED = 32
"""Features per range of 256 from which words are used: they take 64 bytes, but are faster than a range."""
WORDS = 4
"""Words per range of 256."""
RANGE_ROWS = 4
"""Minimum mean number of features per wide range."""


@jit
def choose_shapes(set_offsets, features, first, last, words, shifts, ranges, low_bytes):
    """For the sets first..last the number of words, the shift, and the sizes of `starts` and `lows`."""
    for s in range(first, last):
        low, high = set_offsets[s], set_offsets[s + 1]
        head, head_end, gain, best_gain, before = np.int64(0), low, np.int64(0), np.int64(0), np.int64(-1)
        r = low
        while r < high:
            number = np.int64(features[r] >> NARROW)
            begin = r
            while r < high and features[r] >> NARROW == number:
                r += 1
            gain += r - begin - MIN_MARKED * (number - before)
            before = number
            if gain > best_gain:
                head, head_end, best_gain = number + 1, r, gain
        tail = high - head_end
        words[s], shifts[s] = WORDS * head, NARROW
        ranges[s] = low_bytes[s] = 0
        if tail > 0:
            span = features[high - 1] - (head << NARROW)
            shift = NARROW + 1
            while shift < WIDE and (span >> shift) > tail // RANGE_ROWS:
                shift += 1
            if 4 * (span >> NARROW) + tail <= 4 * (span >> shift) + 2 * tail:
                shift = NARROW
            shifts[s] = shift
            ranges[s] = (span >> shift) + 2
            low_bytes[s] = tail if shift == NARROW else 2 * tail


@jit
def fill_sets(features, sets, first, last):
    """Fill words, starts and lows of the sets first..last; words must be zero."""
    set_offsets, word_offsets, words, shifts, range_offsets, starts, low_offsets, lows = sets
    for s in range(first, last):
        low, high = set_offsets[s], set_offsets[s + 1]
        limit = 64 * (word_offsets[s + 1] - word_offsets[s])
        r = low
        while r < high and features[r] < limit:
            words[2 * (word_offsets[s] + (features[r] >> 6))] |= uint64(1) << uint64(features[r] & 63)
            r += 1
        before = 0
        for word in range(word_offsets[s], word_offsets[s + 1]):
            words[2 * word + 1] = before
            before += popcount(words[2 * word])
        tail, shift = high - r, shifts[s]
        filled = range_offsets[s]
        for k in range(tail):
            behind = features[r + k] - limit
            while filled <= range_offsets[s] + (behind >> shift):
                starts[filled] = r + k - low
                filled += 1
            lows[low_offsets[s] + k] = behind & 255
            if shift > NARROW:
                lows[low_offsets[s] + tail + k] = (behind & ((1 << shift) - 1)) >> 8
        while filled < range_offsets[s + 1]:
            starts[filled] = high - low
            filled += 1


@inner
def decode(s, sets, features):
    """Write the features of a set; returns their number."""
    _, word_offsets, words, shifts, range_offsets, starts, low_offsets, lows = sets
    first_word = word_offsets[s]
    rank = 0
    for w in range(first_word, word_offsets[s + 1]):
        word = words[2 * w]
        while word != uint64(0):
            features[rank] = 64 * (w - first_word) + lowest_bit(word)
            rank += 1
            word &= word - uint64(1)
    if range_offsets[s + 1] > range_offsets[s]:
        limit, shift, end = 64 * (word_offsets[s + 1] - first_word), shifts[s], range_offsets[s + 1] - 1
        base, tail = low_offsets[s] - rank, starts[end] - rank
        for slot in range(range_offsets[s], end):
            begin = limit + ((slot - range_offsets[s]) << shift)
            for r in range(starts[slot], starts[slot + 1]):
                behind = np.int64(lows[base + r])
                if shift > NARROW:
                    behind |= np.int64(lows[base + tail + r]) << 8
                features[r] = begin + behind
        rank += tail
    return rank


@inner
def look_up(begin, end, indices, data, s, sets, found, hit_ranks, hit_values):
    """Append the ranks of ascending indices that are in a set, and their values, to `found` others; returns the count.

    The arrays of hits need room for one more.
    """
    _, word_offsets, words, shifts, range_offsets, starts, low_offsets, lows = sets
    first_word = word_offsets[s]
    limit = 64 * (word_offsets[s + 1] - first_word)
    middle = begin
    while middle < end and indices[middle] < limit:
        prefetch(words, 2 * (first_word + (indices[middle] >> 6)))
        middle += 1
    for k in range(begin, middle):
        slot = uint64(2 * (first_word + (indices[k] >> 6)))
        word, bit = words[slot], uint64(indices[k] & 63)
        hit_ranks[found] = words[slot + uint64(1)] + popcount(word & ((uint64(1) << bit) - uint64(1)))
        hit_values[found] = data[k]
        found += (word >> bit) & uint64(1)
    first_range, last_range = range_offsets[s], range_offsets[s + 1] - 1
    if middle == end or last_range < first_range:
        return found
    shift = shifts[s]
    reach = limit + ((last_range - first_range) << shift)
    while end > middle and indices[end - 1] >= reach:
        end -= 1
    for k in range(middle, end):
        prefetch(starts, first_range + ((indices[k] - limit) >> shift))
    base = low_offsets[s] - starts[first_range]
    for k in range(middle, end):
        prefetch(lows, base + starts[first_range + ((indices[k] - limit) >> shift)])
    tail = starts[last_range] - starts[first_range]
    for k in range(middle, end):
        behind = np.int64(indices[k]) - limit
        slot = first_range + (behind >> shift)
        r, stop = base + starts[slot], base + starts[slot + 1]
        if shift == NARROW:
            while r < stop:
                equal = equal_bytes(lows, r, behind & 255)
                if equal != uint64(0):
                    r += lowest_bit(equal)
                    break
                r += BYTES
            here = r < stop
        else:
            r, here = _find_wide(lows, r, stop, tail, behind & ((1 << shift) - 1))
        hit_ranks[found] = r - base
        hit_values[found] = data[k]
        found += here
    return found


@inner
def _find_wide(lows, begin, end, tail, number):
    """Binary search for a number of two bytes in begin..end; returns where it would be, and whether it is there."""
    stop = end
    while begin < end:
        middle = (begin + end) >> 1
        if np.int64(lows[middle]) | (np.int64(lows[middle + tail]) << 8) < number:
            begin = middle + 1
        else:
            end = middle
    here = begin < stop and np.int64(lows[begin]) | (np.int64(lows[begin + tail]) << 8) == number
    return begin, here


@inner
def is_sound(s, sets, n_features):
    """Whether a set's ranks are below its size and its features ascend and are below `n_features`.

    The offsets of all sets, and the sizes of the arrays, must have been checked.
    """
    set_offsets, word_offsets, words, shifts, range_offsets, starts, low_offsets, lows = sets
    size = set_offsets[s + 1] - set_offsets[s]
    rank = np.int64(0)
    for w in range(word_offsets[s], word_offsets[s + 1]):
        word, first = words[2 * w], 64 * (w - word_offsets[s])
        if words[2 * w + 1] != uint64(rank):
            return False
        if first >= n_features and word != uint64(0):
            return False
        if first < n_features < first + 64 and word >> uint64(n_features - first) != uint64(0):
            return False
        rank += popcount(word)
    tail, shift, low_bytes = size - rank, shifts[s], low_offsets[s + 1] - low_offsets[s]
    begin, end = range_offsets[s], range_offsets[s + 1] - 1
    if tail == 0:
        return end < begin and low_bytes == 0
    if tail < 0 or end <= begin or not NARROW <= shift <= WIDE or low_bytes != (tail if shift == NARROW else 2 * tail):
        return False
    if starts[begin] != rank or starts[end] != size:
        return False
    base, limit = low_offsets[s] - rank, 64 * (word_offsets[s + 1] - word_offsets[s])
    for slot in range(begin, end):
        if starts[slot + 1] < starts[slot] or starts[slot + 1] > size:
            return False
        before = np.int64(-1)
        for r in range(starts[slot], starts[slot + 1]):
            number = np.int64(lows[base + r])
            if shift > NARROW:
                number |= np.int64(lows[base + tail + r]) << 8
            if number <= before or number >> shift != 0:
                return False
            before = number
        if before >= n_features - limit - ((slot - begin) << shift):
            return False
    return True
