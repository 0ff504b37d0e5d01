"""Prepare a chunk (the children of one tree node) for the solver, and extract its weights.

A chunk uses only the features of its own rows, renumbered without gaps, so that the solver's weights fit the cache;
afterwards the few weights that are kept are stored by feature for prediction.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit
from labelwise.kernels.tree.sorting import sort_from_bit


@jit
def gather_rows(indptr, indices, values, rows, numbers, features, out_indptr, out_indices, out_values):
    """Copy rows with their features renumbered in ascending order; features[:count] are the old indices.

    numbers [all features] must hold -1 and is reset to it.
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
def load_lanes(starts, ends, lanes, values, first, width, weights):
    """Set weights [features, 16] to the stored ones of the lanes first..first+width; feature f has starts[f]..ends[f].

    The lanes of a feature ascend; if those of a damaged model do not, nothing is written outside `weights`.
    """
    for f in range(len(starts)):
        low, high = starts[f], ends[f]
        while low < high:  # the first lane not below `first`
            middle = (low + high) // 2
            if lanes[middle] < first:
                low = middle + 1
            else:
                high = middle
        for entry in range(low, ends[f]):
            if lanes[entry] < first or lanes[entry] >= first + width:
                break
            weights[f, lanes[entry] - first] = values[entry]


@jit
def limit_weights(weights, count, width, max_weights, cuts):
    """Raise each lane's cut so that at most `max_weights` of its weights reach it (more only with ties)."""
    column = np.empty(count, np.float32)
    for b in range(width):
        for f in range(count):
            column[f] = abs(weights[f, b])
        column.sort()
        cuts[b] = max(cuts[b], column[count - max_weights])


@jit
def count_kept(weights, count, width, cuts, counts):
    """Add to counts [features] how many weights of each feature are kept."""
    for f in range(count):
        for b in range(width):
            if weights[f, b] != 0 and abs(weights[f, b]) >= cuts[b]:
                counts[f] += 1


@jit
def write_kept(weights, count, width, cuts, first_lane, out_features, out_lanes, out_values):
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
def merge_kept(features, lanes, values, next_entries, out_lanes, out_values):
    """Append one group's kept weights to those of the groups before it, feature by feature."""
    for i in range(len(features)):
        entry = next_entries[features[i]]
        out_lanes[entry] = lanes[i]
        out_values[entry] = values[i]
        next_entries[features[i]] = entry + 1
