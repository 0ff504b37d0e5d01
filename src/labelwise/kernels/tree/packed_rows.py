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

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.tree.bits import sum_of_first
from labelwise.kernels.tree.feature_sets import decode, is_sound
from labelwise.kernels.tree.sizes import BLOCK

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
