"""Getting a chunk (the children of one tree node) ready for the solver, and its weights out of it.

A chunk sees only the features of its own rows, numbered anew without gaps, so that the solver's weights are small
enough for the cache; afterwards the few weights worth keeping are stored by feature for prediction.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit
from labelwise.kernels.tree.sorting import sort_from_bit


@jit
def gather_rows(indptr, indices, values, rows, numbers, features, out_indptr, out_indices, out_values):
    """Copy rows with their features numbered anew in ascending order; features[:count] are the old numbers.

    numbers [all features] must hold -1 and is left so.
    """
    count = np.int64(0)
    for row in rows:
        for k in range(indptr[row], indptr[row + 1]):
            if numbers[indices[k]] < 0:
                numbers[indices[k]] = 0
                features[count] = indices[k]
                count += 1
    ordered = sort_from_bit(0, features, count, len(numbers), out_indices)
    for f in range(count):
        features[f] = ordered[f]
        numbers[features[f]] = f
    used = 0
    out_indptr[0] = 0
    for i in range(len(rows)):
        for k in range(indptr[rows[i]], indptr[rows[i] + 1]):
            out_indices[used] = numbers[indices[k]]
            out_values[used] = values[k]
            used += 1
        out_indptr[i + 1] = used
    for f in range(count):
        numbers[features[f]] = -1
    return count


@jit
def lane_targets(indptr, indices, values, rows, first, width, signs, costs, weighted, cost_positive, cost_negative):
    """Signs (and with `weighted` costs, positives times their value) of the labels first..first+width for some rows."""
    for i in range(len(rows)):
        for b in range(width):
            signs[i, b] = -1
            if weighted:
                costs[i, b] = cost_negative
        start, end = indptr[rows[i]], indptr[rows[i] + 1]
        while start < end:  # the first label not below `first`
            middle = (start + end) // 2
            if indices[middle] < first:
                start = middle + 1
            else:
                end = middle
        for k in range(start, indptr[rows[i] + 1]):
            if indices[k] >= first + width:
                break
            signs[i, indices[k] - first] = 1
            if weighted:
                costs[i, indices[k] - first] = cost_positive * values[k]


@jit
def strongest(weights, count, width, most, cuts):
    """Raise each lane's cut so that at most `most` of its weights reach it (more only if several are equal)."""
    column = np.empty(count, np.float32)
    for b in range(width):
        for f in range(count):
            column[f] = abs(weights[f, b])
        column.sort()
        cuts[b] = max(cuts[b], column[count - most])


@jit
def count_kept(weights, count, width, cuts, counts):
    """Add to counts [features] how many weights of each feature are kept."""
    for f in range(count):
        for b in range(width):
            if weights[f, b] != 0 and abs(weights[f, b]) >= cuts[b]:
                counts[f] += 1


@jit
def take_kept(weights, count, width, cuts, first_lane, out_features, out_lanes, out_values):
    """Write the kept weights as (feature, lane, value), by feature; returns how many."""
    used = 0
    for f in range(count):
        for b in range(width):
            if weights[f, b] != 0 and abs(weights[f, b]) >= cuts[b]:
                out_features[used] = f
                out_lanes[used] = first_lane + b
                out_values[used] = weights[f, b]
                used += 1
    return used


@jit
def place_kept(features, lanes, values, next_places, out_lanes, out_values):
    """Put one group's kept weights behind those of the groups before it, feature by feature."""
    for i in range(len(features)):
        place = next_places[features[i]]
        out_lanes[place] = lanes[i]
        out_values[place] = values[i]
        next_places[features[i]] = place + 1


@jit
def fill_rows(row_offsets, lanes, values, whole, new_offsets, new_lanes, new_values):
    """Copy rows to their new places; those that become whole get every lane. `new_values` must hold zeros."""
    for r in range(len(whole)):
        place = new_offsets[r]
        if whole[r]:
            for lane in range(new_offsets[r + 1] - place):
                new_lanes[place + lane] = lane
            for e in range(row_offsets[r], row_offsets[r + 1]):
                new_values[place + lanes[e]] = values[e]
        else:
            for e in range(row_offsets[r], row_offsets[r + 1]):
                new_lanes[place] = lanes[e]
                new_values[place] = values[e]
                place += 1
