"""Weights by chunk as they are stored and searched: full rows without lanes, other rows with their counts.

A row is the weights of one feature for the children of a node (a chunk). Chunk c has two sets of features: set 2c are
those with a full row, a value for every child, set 2c + 1 the others. The rank of a feature in its set is the index of
its row, so full rows need no offsets. Of the other rows the number of weights is stored, and for every 32 rows the
number of weights before them.

`rows` is a tuple of arrays: full_offsets and first_rows (per chunk: where its full values begin, and the number of
other rows before it), anchors, counts (with room for a block of 32 after the last), lanes, values, full_values (with
LANES more at the end).
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from labelwise.kernels.intrinsics import (
    BLOCK,
    BYTES,
    equal_bytes,
    lowest_bit,
    popcount,
    prefetch,
    sort_from_bit,
    sum_of_first,
)
from labelwise.kernels.jit import inner, jit

# --- feature sets ---
# Sets of features in about a byte per feature, in which a feature's rank is found without decoding.
#
# Frequent features have low indices, so a set is dense at the front. There a word of 64 bits marks which of 64 features
# it has, and next to it is the number of features before: a look-up is one cache line and no branch. After the words,
# in the tail, features are grouped by ranges of 256 indices; of each only the low byte is stored, and where a range
# starts. Sets whose tail has few features per 256 have wider ranges and two bytes per feature, first all low and then
# all high bytes.
#
# `sets` is a tuple of arrays: set_offsets (the number of features before each set), word_offsets, words (pairs of bits
# and count), shifts (logarithm of the width of ranges), range_offsets, starts (per range the rank of its first feature,
# and an end), low_offsets, lows (with BYTES more bytes at the end).

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


_SHIFT = BLOCK.bit_length() - 1
SOUND, WANTED = 1, 2
"""What is known of a chunk: nothing (0), that it was checked, that a search needs it."""


@inner
def row_begin(row, anchors, counts):
    """The index of the first weight of a row that is not full."""
    block = row >> _SHIFT
    return anchors[block] + sum_of_first(counts, block << _SHIFT, row & (BLOCK - 1))


@jit
def split_rows(chunk_offsets, row_offsets, children_offsets, density, first, last, full, n_full, n_other, n_entries):
    """Mark the rows of the chunks first..last that become full, and count rows and weights of each chunk."""
    for c in range(first, last):
        width = children_offsets[c + 1] - children_offsets[c]
        n_full[c] = n_other[c] = n_entries[c] = 0
        for r in range(chunk_offsets[c], chunk_offsets[c + 1]):
            count = row_offsets[r + 1] - row_offsets[r]
            full[r] = count >= density * width
            if full[r]:
                n_full[c] += 1
            else:
                n_other[c] += 1
                n_entries[c] += count


@jit
def pack_rows(
    chunk_offsets, features, row_offsets, lanes, values, children_offsets, full, set_offsets, full_offsets, first_rows,
    first_entries, first, last, out_features, out_counts, out_lanes, out_values, out_full,
):  # fmt: skip
    """Copy the rows of the chunks first..last; `out_full` must hold zeros."""
    for c in range(first, last):
        width = children_offsets[c + 1] - children_offsets[c]
        full_row, other = set_offsets[2 * c], set_offsets[2 * c + 1]
        begin, row, entry = full_offsets[c], first_rows[c], first_entries[c]
        for r in range(chunk_offsets[c], chunk_offsets[c + 1]):
            if full[r]:
                out_features[full_row] = features[r]
                full_row += 1
                for e in range(row_offsets[r], row_offsets[r + 1]):
                    out_full[begin + lanes[e]] = values[e]
                begin += width
                continue
            out_features[other] = features[r]
            other += 1
            out_counts[row] = row_offsets[r + 1] - row_offsets[r]
            row += 1
            for e in range(row_offsets[r], row_offsets[r + 1]):
                out_lanes[entry] = lanes[e]
                out_values[entry] = values[e]
                entry += 1


@jit
def count_weights(children_offsets, sets, rows, first, last, n_rows, n_weights):
    """Count the rows and the weights other than 0 of each of the chunks first..last."""
    set_offsets = sets[0]
    full_offsets, first_rows, anchors, counts, _, values, full_values = rows
    for c in range(first, last):
        width = children_offsets[c + 1] - children_offsets[c]
        n_rows[c] = n_weights[c] = 0
        for r in range(set_offsets[2 * c + 1] - set_offsets[2 * c]):
            begin = full_offsets[c] + r * width
            here = 0
            for lane in range(width):
                here += full_values[begin + lane] != 0
            n_rows[c] += here > 0
            n_weights[c] += here
        for row in range(first_rows[c], first_rows[c + 1]):
            begin = row_begin(row, anchors, counts)
            here = 0
            for e in range(begin, begin + counts[row]):
                here += values[e] != 0
            n_rows[c] += here > 0
            n_weights[c] += here


@jit
def unpack_rows(
    children_offsets, sets, rows, first, last, chunk_offsets, first_entries, out_features, out_counts, out_lanes,
    out_values,
):  # fmt: skip
    """Write the rows of the chunks first..last by feature, without zeros."""
    set_offsets = sets[0]
    full_offsets, first_rows, anchors, counts, lanes, values, full_values = rows
    for c in range(first, last):
        width = children_offsets[c + 1] - children_offsets[c]
        n_full = set_offsets[2 * c + 1] - set_offsets[2 * c]
        n_other = set_offsets[2 * c + 2] - set_offsets[2 * c + 1]
        full_features, other_features = np.empty(n_full, np.int32), np.empty(n_other, np.int32)
        decode(2 * c, sets, full_features)
        decode(2 * c + 1, sets, other_features)
        a = b = 0
        out, entry = chunk_offsets[c], first_entries[c]
        while a < n_full or b < n_other:
            before = entry
            if b == n_other or (a < n_full and full_features[a] < other_features[b]):
                feature, begin = full_features[a], full_offsets[c] + a * width
                a += 1
                for lane in range(width):
                    if full_values[begin + lane] != 0:
                        out_lanes[entry], out_values[entry] = lane, full_values[begin + lane]
                        entry += 1
            else:
                feature, row = other_features[b], first_rows[c] + b
                b += 1
                begin = row_begin(row, anchors, counts)
                for e in range(begin, begin + counts[row]):
                    if values[e] != 0:
                        out_lanes[entry], out_values[entry] = lanes[e], values[e]
                        entry += 1
            if entry > before:
                out_features[out], out_counts[out] = feature, entry - before
                out += 1


@inner
def is_sound_chunk(c, children_offsets, n_features, sets, rows):
    """Whether everything that a search in the chunk uses as an index is one, and no feature has two rows."""
    set_offsets, first_rows, anchors, counts, lanes = sets[0], rows[1], rows[2], rows[3], rows[4]
    for s in range(2 * c, 2 * c + 2):
        if not is_sound(s, sets, n_features):
            return False
    width = children_offsets[c + 1] - children_offsets[c]
    row, last = first_rows[c], first_rows[c + 1]
    if row == last:
        return True
    begin = entry = row_begin(row, anchors, counts)
    if not 0 <= begin <= len(lanes):
        return False
    while row < last:
        if row & (BLOCK - 1) == 0 and anchors[row >> _SHIFT] != entry:
            return False
        if counts[row] == 0 or np.int64(counts[row]) > width:
            return False
        entry += np.int64(counts[row])
        row += 1
    if entry > len(lanes):
        return False
    widest = np.int64(0)
    for e in range(begin, entry):
        widest = max(widest, np.int64(lanes[e]))
    if widest >= width:
        return False
    n_full = set_offsets[2 * c + 1] - set_offsets[2 * c]
    if n_full == 0:
        return True
    full_features, other_features = np.empty(n_full, np.int32), np.empty(last - first_rows[c], np.int32)
    decode(2 * c, sets, full_features)
    decode(2 * c + 1, sets, other_features)
    a = 0
    for feature in other_features:
        while a < n_full and full_features[a] < feature:
            a += 1
        if a < n_full and full_features[a] == feature:
            return False
    return True


@jit
def check_chunks(children_offsets, n_features, sets, rows, chunks, first, last, checked):
    """Check the chunks chunks[first:last]; returns whether all are sound."""
    for c in chunks[first:last]:
        if not is_sound_chunk(c, children_offsets, n_features, sets, rows):
            return False
        checked[c] = SOUND
    return True


# --- row copy ---
# Copy some rows of a CSR matrix, which may be mapped from a file, to arrays in memory.


@jit
def copy_rows(indptr, indices, data, rows, out_indptr, out_indices, out_data):
    """Copy rows one after the other; out_indptr[i] is where row i begins in the output."""
    for i in range(len(rows)):
        position = out_indptr[i]
        for k in range(indptr[rows[i]], indptr[rows[i] + 1]):
            out_indices[position] = indices[k]
            out_data[position] = data[k]
            position += 1


# --- renumber ---
# Renumber the columns of a CSR matrix.


@jit
def count_columns(indices, begin, end, counts):
    """Add to counts [columns] how often each column occurs in indices[begin:end]."""
    for k in range(begin, end):
        counts[indices[k]] += 1


@jit
def renumber_rows(indptr, indices, data, new_columns, begin, end, out_indices, out_data):
    """Renumber column c to new_columns[c] in rows begin..end, columns sorted again; the output may be the input."""
    longest = 0
    for row in range(begin, end):
        longest = max(longest, indptr[row + 1] - indptr[row])
    keys, spare = np.empty(longest, np.int64), np.empty(longest, np.int64)
    values = np.empty(longest, np.float32)
    for row in range(begin, end):
        first, count = indptr[row], indptr[row + 1] - indptr[row]
        for k in range(count):
            keys[k] = (np.int64(new_columns[indices[first + k]]) << 32) | k
            values[k] = data[first + k]
        ordered = sort_from_bit(32, keys, count, len(new_columns), spare)
        for k in range(count):
            out_indices[first + k] = ordered[k] >> 32
            out_data[first + k] = values[ordered[k] & 0xFFFFFFFF]
