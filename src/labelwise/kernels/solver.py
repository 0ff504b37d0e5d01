"""Dual coordinate descent for up to 16 sibling labels at once.

For each label b: min 1/2 (|w|^2 + w0^2) + sum_i C_ib loss(y_ib (w.x_i + bias w0)), solved in the dual (Hsieh et al.
2008 for the hinges, Yu et al. 2011 for the logistic loss). One pass over a row's non-zeros serves all 16 labels. Rows
whose labels have all converged are skipped (shrinking) until the others have; then all rows are visited again, so that
the stopping criterion holds for all.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.intrinsics import (
    LANES,
    add_block,
    add_rows,
    as_float,
    dot_block,
    dot_rows,
    sort_from_bit,
)
from labelwise.kernels.jit import inner, jit

SQUARED_HINGE, HINGE, LOGISTIC = 0, 1, 2
_SETTLED = np.float32(0.3)  # a zero dual whose gradient is above this rarely becomes positive again
_INACTIVE = np.float32(0.5)  # rows with a violation below this fraction of the tolerance are skipped
_MIN_CURVATURE = np.float32(1e-12)  # for an empty document without bias, whose norm is 0
_NO_UPDATE = np.float32(0.2)  # below this fraction the weights are not updated


@jit(fastmath=True)
def solve_lanes(
    starts,
    ends,
    indices,
    values,
    rows,
    dense,
    first_dense,
    norms,
    signs,
    costs,
    weighted,
    width,
    loss,
    bias,
    tolerance,
    max_passes,
    seed,
    block,
    weights,
    offsets,
):
    """Train weights [features, 16] and offsets [16] from their given values; returns the number of passes.

    With values other than zero, 1/2 |w - given|^2 is minimised instead of 1/2 |w|^2. If these are the solution of
    other rows, that is one step on the problem of all rows, in which the dual variables of the others stay the same.

    Row i has the entries starts[i]..ends[i] of `indices` and `values`, and dense[rows[i]] (float32, or the bits of
    float16 as uint16; it may have no columns) as the features from first_dense on. signs [rows, 16] is +1 or -1. costs
    is the C of each example [rows, 16] when `weighted`, otherwise [1, 2] with that of negative and of positive
    examples. Lanes from `width` on stay zero. Rows are visited in random order, those of each `block` consecutive rows
    together.
    """
    n = len(norms)
    duals = np.zeros((n, LANES), np.float32)
    margins = np.empty(LANES, np.float32)
    change = np.zeros(LANES, np.float32)
    cost = np.ones(LANES, np.float32)
    n_dense = dense.shape[1]
    is_float16 = dense.itemsize == 2  # a row is converted as a whole, which vectorises
    converted = np.empty((1, dense.shape[1]), np.float32)
    order = np.arange(n)
    ranks, counts = np.empty((n + block - 1) // block, np.int64), np.empty((n + block - 1) // block, np.int64)
    spare = np.empty(n if block < n else 0, np.int64)
    active, everything = n, True
    state = np.uint64(seed) * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    for done in range(max_passes):
        state = _shuffle(order, active, state)
        if block < n:
            _group(order, active, block, ranks, counts, spare)
        worst = np.float32(0)
        index = 0
        while index < active:
            row = order[index]
            start, end = starts[row], ends[row]
            for b in range(LANES):
                margins[b] = offsets[b] * bias
            dot_rows(indices, values, start, end, weights, margins)
            if n_dense == 0:
                pass
            elif is_float16:
                source = dense[rows[row]]
                for column in range(len(source)):
                    converted[0, column] = as_float(source[column])
                dot_block(converted, 0, weights, first_dense, margins)
            else:
                dot_block(dense, rows[row], weights, first_dense, margins)
            for b in range(width):
                cost[b] = costs[row, b] if weighted else costs[0, (signs[row, b] + 1) >> 1]
            squared_norm = norms[row] + bias * bias
            if loss == LOGISTIC:
                violation, settled = _step_logistic(duals, signs, cost, row, width, squared_norm, margins, change)
            else:
                violation, settled = _step_hinge(duals, signs, cost, row, width, squared_norm, loss, margins, change)
            worst = max(worst, violation)
            if violation > _NO_UPDATE * tolerance:
                add_rows(indices, values, start, end, weights, change)
                if n_dense == 0:
                    pass
                elif is_float16:
                    add_block(converted, 0, weights, first_dense, change)
                else:
                    add_block(dense, rows[row], weights, first_dense, change)
                for b in range(width):
                    offsets[b] += change[b] * bias
                    duals[row, b] += change[b] * signs[row, b]
            if settled or violation < _INACTIVE * tolerance:
                active -= 1
                order[index], order[active] = order[active], row
            else:
                index += 1
        if worst < tolerance and everything:
            return done + 1
        everything = worst < tolerance or active == 0
        if everything:
            active = n
    return max_passes


@inner(fastmath=True)
def _step_hinge(duals, signs, cost, row, width, squared_norm, loss, margins, change):
    """Step of each label's dual for a row; returns the largest violation and whether all are settled at zero."""
    violation = np.float32(0)
    unsettled = np.float32(0)
    for b in range(width):
        y, old = np.float32(signs[row, b]), duals[row, b]
        soft = np.float32(0.5) / cost[b] if loss == SQUARED_HINGE else np.float32(0)
        upper = np.float32(3e38) if loss == SQUARED_HINGE else cost[b]
        curvature = max(squared_norm + soft, _MIN_CURVATURE)
        gradient = y * margins[b] - np.float32(1) + old * soft
        new = min(max(old - gradient / curvature, np.float32(0)), upper)
        change[b] = (new - old) * y
        violation = max(violation, abs(new - old) * curvature)
        unsettled = max(unsettled, max(new, _SETTLED - gradient))
    return violation, unsettled <= 0


@inner
def _step_logistic(duals, signs, cost, row, width, squared_norm, margins, change):
    """Newton steps on each label's dual: minimise 1/2 q d^2 + g d + z ln z + (C - z) ln(C - z), z = dual + d.

    Duals lie strictly between 0 and C; an initial dual of 0 means one so small that its weights are negligible.
    """
    violation = np.float32(0)
    for b in range(width):
        y, c = np.float64(signs[row, b]), np.float64(cost[b])
        old = min(max(np.float64(duals[row, b]), 1e-8 * c), (1 - 1e-8) * c)
        gradient = y * np.float64(margins[b])
        z = old
        for _ in range(30):
            derivative = squared_norm * (z - old) + gradient + np.log(z / (c - z))
            if abs(derivative) < 1e-3:
                break
            after = z - derivative / (squared_norm + c / (z * (c - z)))
            if after <= 0:
                after = 0.1 * z
            elif after >= c:
                after = c - 0.1 * (c - z)
            z = after
        step = z - np.float64(duals[row, b])
        change[b] = np.float32(step * y)
        violation = max(violation, np.float32(abs(step) * squared_norm))
    return violation, False


@inner
def _shuffle(order, count, state):
    """Fisher-Yates shuffle of the first rows, with a separate generator: results do not depend on other draws."""
    for i in range(count - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        j = np.int64(state % np.uint64(i + 1))
        order[i], order[j] = order[j], order[i]
    return state


@inner
def _group(order, count, block, ranks, counts, spare):
    """Sort shuffled rows by blocks, in the order in which blocks first occur: random blocks, random rows in each."""
    seen = np.int64(0)
    for b in range(len(ranks)):
        ranks[b] = -1
        counts[b] = 0
    for i in range(count):
        b = order[i] // block
        if ranks[b] < 0:
            ranks[b] = seen
            seen += 1
        counts[ranks[b]] += 1
    position = np.int64(0)
    for rank in range(seen):
        size = counts[rank]
        counts[rank] = position
        position += size
    for i in range(count):
        rank = ranks[order[i] // block]
        spare[counts[rank]] = order[i]
        counts[rank] += 1
    for i in range(count):
        order[i] = spare[i]


# --- chunk rows ---
# Prepare a chunk (the children of one tree node) for the solver, and extract its weights.
#
# A chunk uses only the features of its own rows, renumbered without gaps, so that the solver's weights fit the cache;
# afterwards the few weights that are kept are stored by feature for prediction.


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
