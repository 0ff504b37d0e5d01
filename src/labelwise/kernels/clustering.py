"""Balanced spherical 2-means: split a group of rows into two equal halves, recursively down to the leaves.

A row consists of a row of a CSR block and one of a dense block; either may have no columns. With S the sum of the left
rows, T that of all and c = (T - S)/|T - S| - S/|S|, a row's score is <c, z>, and the lower half of the scores goes
left. <T, z> is computed once and |S|^2 is the sum of <S, z> over the left rows, so an iteration needs one dot product
per row and one dense vector S, to which only the rows that changed sides are added.

What is maximised is |S| + |T - S|. A split may be tried from several initial pairs of rows for `TRIAL` iterations each;
only the best of these is continued.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit

# --- rows ---
# Rows of features for the clustering kernels: dot products with a centre, sums, copies, norms.
#
# A row consists of a row of a CSR block (columns ascending) and one of a dense block; either may have no columns. A
# centre is one dense vector over both, the CSR block's columns first. `dot_with_centre` processes a range of rows and
# `add_to_centre` a range of columns, so that threads can divide a large group without any effect on the result.

_ONE, _TWO, _THREE, _FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@jit
def dot_with_centre(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    members: np.ndarray,
    first: int,
    last: int,
    centre: np.ndarray,
    products: np.ndarray,
) -> None:
    """``products[i]`` = dot product of row ``members[i]`` and the centre, for i from `first` to `last` (exclusive)."""
    width = dense.shape[1]
    dense_centre = centre[len(centre) - width :]
    for i in range(first, last):
        row = members[i]
        product = _sparse_dot(indices, data, indptr[row], indptr[row + 1], centre)
        if width > 0:
            product += _dense_dot(dense[row], dense_centre)
        products[i] = product


@inner
def _sparse_dot(indices: np.ndarray, data: np.ndarray, begin: int, end: int, centre: np.ndarray) -> np.float32:
    """Dot product with four accumulators, so that additions do not wait for each other."""
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    k, stop = np.uint64(begin), np.uint64(end)
    for _ in range((end - begin) >> 2):
        a += data[k] * centre[indices[k]]
        b += data[k + _ONE] * centre[indices[k + _ONE]]
        c += data[k + _TWO] * centre[indices[k + _TWO]]
        d += data[k + _THREE] * centre[indices[k + _THREE]]
        k += _FOUR
    while k < stop:
        a += data[k] * centre[indices[k]]
        k += _ONE
    return (a + b) + (c + d)


@inner(fastmath={"reassoc"})
def _dense_dot(row: np.ndarray, centre: np.ndarray) -> np.float32:
    product = np.float32(0)
    for k in range(len(row)):
        product += row[k] * centre[k]
    return product


@jit
def add_to_centre(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    members: np.ndarray,
    signs: np.ndarray,
    first: int,
    last: int,
    centre: np.ndarray,
) -> None:
    """Add row ``members[i]`` times ``signs[i]`` to the centre, only columns from `first` to `last` (exclusive)."""
    n_columns = len(centre) - dense.shape[1]
    for i in range(len(members)):
        sign = np.float32(signs[i])
        if sign == 0:
            continue
        row = members[i]
        begin = _lower_bound(indices, indptr[row], indptr[row + 1], first)
        end = indptr[row + 1] if last >= n_columns else _lower_bound(indices, begin, indptr[row + 1], last)
        for k in range(np.uint64(begin), np.uint64(end)):
            centre[indices[k]] += sign * data[k]
        for column in range(max(first, n_columns), last):
            centre[column] += sign * dense[row, column - n_columns]


@inner
def _lower_bound(indices: np.ndarray, low: int, high: int, column: int) -> int:
    """The first index from `low` on whose column is not below `column`."""
    if column == 0:
        return low
    while low < high:
        middle = (low + high) >> 1
        if np.int64(indices[middle]) < column:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def copy_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    n_columns: int,
    members: np.ndarray,
    new_indptr: np.ndarray,
    new_indices: np.ndarray,
    new_data: np.ndarray,
) -> int:
    """Copy some rows and renumber the columns that occur, in their order; returns how many occur."""
    new_columns = np.zeros(n_columns, np.uint32)
    written = 0
    new_indptr[0] = 0
    for i in range(len(members)):
        for k in range(indptr[members[i]], indptr[members[i] + 1]):
            new_columns[indices[k]] = 1
            new_data[written] = data[k]
            new_indices[written] = indices[k]
            written += 1
        new_indptr[i + 1] = written
    count = 0
    for column in range(n_columns):
        used = new_columns[column]
        new_columns[column] = count
        count += used
    for k in range(written):
        new_indices[k] = new_columns[new_indices[k]]
    return count


@jit
def row_norms(indptr: np.ndarray, data: np.ndarray, dense: np.ndarray, norms: np.ndarray) -> None:
    """Write the L2 norm of each row to `norms`."""
    for row in range(len(norms)):
        squares = 0.0
        for k in range(indptr[row], indptr[row + 1]):
            squares += np.float64(data[k]) * np.float64(data[k])
        for k in range(dense.shape[1]):
            squares += np.float64(dense[row, k]) * np.float64(dense[row, k])
        norms[row] = np.sqrt(squares)


# --- selection ---
# The k-th smallest value by quickselect (NumPy's own partition takes seconds to compile).


@inner
def kth_smallest(values: np.ndarray, k: int) -> float:
    """The value at index `k` of the sorted values; reorders `values`. None may be NaN."""
    low, high = 0, len(values) - 1
    while low < high:
        first, middle, last = values[low], values[(low + high) >> 1], values[high]
        pivot = max(min(first, middle), min(max(first, middle), last))
        left, right = low, high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while values[right] > pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if k <= right:
            high = right
        elif k >= left:
            low = left
        else:
            break
    return values[k]


TRIAL = 3
"""Iterations after which the starts of a split are compared."""


@jit
def choose_half(scores: np.ndarray, spare: np.ndarray, left: np.ndarray, signs: np.ndarray) -> int:
    """Assign the lower half of the scores to the left side, ties to the first rows; returns how many changed sides.

    `signs` becomes 1 for rows that moved to the left side, -1 for those that left it, 0 for the rest. `spare` is
    scratch of the same size.
    """
    count = len(scores)
    half = count >> 1
    for i in range(count):
        spare[i] = scores[i]
    edge = kth_smallest(spare[:count], half - 1)
    equals = half
    for i in range(count):
        if scores[i] < edge:
            equals -= 1
    moved = 0
    for i in range(count):
        now = scores[i] < edge
        if scores[i] == edge and equals > 0:
            now = True
            equals -= 1
        signs[i] = np.int8(now) - np.int8(left[i])
        moved += signs[i] != 0
        left[i] = now
    return moved


@jit
def score_rows(with_all: np.ndarray, with_left: np.ndarray, left: np.ndarray, scores: np.ndarray) -> float:
    """Compute scores from the dot products of each row with the sum of all rows and with that of the left rows.

    Returns the norm of the left rows' sum plus that of the others'.
    """
    left_squares, right_squares = 0.0, 0.0
    for i in range(len(scores)):
        if left[i]:
            left_squares += with_left[i]
        else:
            right_squares += np.float64(with_all[i]) - np.float64(with_left[i])
    # A side whose rows are empty, or cancel out, has no direction.
    to_left = 1 / np.sqrt(left_squares) if left_squares > 0 else 0.0
    to_right = 1 / np.sqrt(right_squares) if right_squares > 0 else 0.0
    for i in range(len(scores)):
        scores[i] = with_all[i] * to_right - with_left[i] * (to_right + to_left)
    return np.sqrt(max(left_squares, 0.0)) + np.sqrt(max(right_squares, 0.0))


@jit
def first_pair(draws: np.ndarray, count: int) -> tuple[int, int]:
    """Two different indices below `count` (2 or more) from two random numbers."""
    one = draws[0] % count
    return one, (one + 1 + draws[1] % (count - 1)) % count


@jit
def partition_members(members: np.ndarray, left: np.ndarray, spare: np.ndarray) -> None:
    """Move the left members before the others; each side keeps its order."""
    lefts, others = 0, 0
    for i in range(len(members)):
        if left[i]:
            members[lefts] = members[i]
            lefts += 1
        else:
            spare[others] = members[i]
            others += 1
    for i in range(others):
        members[lefts + i] = spare[i]


@jit
def halve_recursively(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    n_columns: int,
    layers: int,
    draws: np.ndarray,
    node: int,
    max_iterations: int,
    members: np.ndarray,
) -> None:
    """Halve all rows recursively, `layers` times: `members` becomes the order of the rows, leaf after leaf.

    ``draws[node]`` [starts, 2] holds the random numbers of each split; the children of node n are 2n + 1 and 2n + 2.
    """
    count = len(members)
    work = (
        np.empty(dense.shape[1] + n_columns, np.float32),
        np.empty(count, np.float32), np.empty(count, np.float32),
        np.empty(count, np.float64), np.empty(count, np.float64),
        np.empty(count, np.bool_), np.empty(count, np.bool_), np.empty(count, np.int8),
    )  # fmt: skip
    spare = np.empty(count, np.int64)
    edges = np.zeros((1 << layers) + 1, np.int64)
    edges[1 << layers] = count
    for layer in range(layers):
        step = 1 << (layers - layer)
        for index in range(1 << layer):
            begin, end = edges[index * step], edges[(index + 1) * step]
            edges[index * step + (step >> 1)] = begin + ((end - begin) >> 1)
            if end - begin < 2:
                continue
            group = members[begin:end]
            number = ((node + 1) << layer) - 1 + index
            left = _halve_group(indptr, indices, data, dense, group, draws[number], max_iterations, work)
            partition_members(group, left, spare)


@inner
def _halve_group(indptr, indices, data, dense, group, draws, max_iterations, work):
    """Which of the group's rows are in the left half."""
    n = len(group)
    zero = np.int64(0)  # a literal would be another type and compile another specialisation
    centre, every = work[0], np.int64(len(work[0]))
    products, with_all, scores, spare = work[1][:n], work[2][:n], work[3][:n], work[4][:n]
    left, best, signs = work[5][:n], work[6][:n], work[7][:n]
    centre[:], signs[:] = 0, 1
    add_to_centre(indptr, indices, data, dense, group, signs, zero, every, centre)
    dot_with_centre(indptr, indices, data, dense, group, zero, n, centre, with_all)
    trial = min(TRIAL, max_iterations)
    highest = -1.0
    for start in range(len(draws)):
        one, other = first_pair(draws[start], n)
        centre[:], left[:], signs[:] = 0, False, 0
        signs[one], signs[other] = 1, -1
        add_to_centre(indptr, indices, data, dense, group, signs, zero, every, centre)
        dot_with_centre(indptr, indices, data, dense, group, zero, n, centre, products)
        scores[:], centre[:] = products, 0
        objective = 0.0
        for iteration in range(trial):
            if iteration > 0:
                add_to_centre(indptr, indices, data, dense, group, signs, zero, every, centre)
                dot_with_centre(indptr, indices, data, dense, group, zero, n, centre, products)
                objective = score_rows(with_all, products, left, scores)
            if choose_half(scores, spare, left, signs) == 0:
                break
        if objective > highest:
            highest = objective
            best[:] = left
    centre[:], signs[:] = 0, best
    for _ in range(trial, max_iterations):
        add_to_centre(indptr, indices, data, dense, group, signs, zero, every, centre)
        dot_with_centre(indptr, indices, data, dense, group, zero, n, centre, products)
        score_rows(with_all, products, best, scores)
        if choose_half(scores, spare, best, signs) == 0:
            break
    return best


# --- capped kmeans ---
# Spherical k-means with minimum and maximum cluster sizes: split one group of rows into k clusters.
#
# Rows that lose most by missing their best cluster are assigned first. Only one centre exists at a time: dot products
# with it are stored (clusters x rows), and a cluster's |sum|^2 is the sum of its own rows' products, so norms need no
# pass over the features. Initial centres are rows drawn with a preference for distant ones, as in k-means++.


@jit
def cluster_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    n_columns: int,
    members: np.ndarray,
    draws: np.ndarray,
    smallest: int,
    largest: int,
    max_iterations: int,
    clusters: np.ndarray,
) -> None:
    """Write the cluster of each member, one of ``len(draws)``, each of `smallest` to `largest` members."""
    centre = np.zeros(n_columns + dense.shape[1], np.float32)
    similarities = np.empty((len(draws), len(members)), np.float32)
    nearest = np.full(len(members), -np.inf, np.float32)
    for cluster in range(len(draws)):
        chosen = draw_distant(nearest, draws[cluster])
        similar_to_row(indptr, indices, data, dense, members, chosen, centre, similarities[cluster])
        update_nearest(similarities[cluster], chosen, nearest)
    clusters[:] = -1
    for iteration in range(max_iterations):
        moved = choose_clusters(similarities, smallest, largest, clusters)
        if moved == 0 or iteration == max_iterations - 1:
            break
        for cluster in range(len(draws)):
            similar_to_cluster(
                indptr, indices, data, dense, members, clusters, cluster, centre, similarities[cluster]
            )  # fmt: skip


@jit
def draw_distant(nearest: np.ndarray, draw: float) -> int:
    """Draw a row with weight 1 - its similarity to the nearest row drawn before (inf marks the drawn rows)."""
    total = 0.0
    for i in range(len(nearest)):
        total += _weight(nearest[i])
    remaining = draw * total
    last = -1
    for i in range(len(nearest)):
        weight = _weight(nearest[i])
        if weight > 0 or (total == 0 and nearest[i] != np.inf):
            remaining -= weight
            last = i
            if remaining < 0 or total == 0:
                break
    return last


@inner
def _weight(similarity: np.float32) -> float:
    return 1.0 if similarity == -np.inf else max(0.0, 1.0 - np.float64(similarity))


@jit
def update_nearest(similarities: np.ndarray, chosen: int, nearest: np.ndarray) -> None:
    """Update the similarity to the nearest drawn row with a row just drawn, and mark it as drawn."""
    for i in range(len(nearest)):
        nearest[i] = max(nearest[i], similarities[i])
    nearest[chosen] = np.inf


@inner
def similar_to_row(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    members: np.ndarray,
    chosen: int,
    centre: np.ndarray,
    similarities: np.ndarray,
) -> None:
    """Dot products of all members with one of them; the centre is zero before and after."""
    signs = np.ones(1, np.int8)
    add_to_centre(indptr, indices, data, dense, members[chosen : chosen + 1], signs, 0, len(centre), centre)
    dot_with_centre(indptr, indices, data, dense, members, 0, len(members), centre, similarities)
    centre[:] = 0


@jit
def similar_to_cluster(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    members: np.ndarray,
    clusters: np.ndarray,
    cluster: int,
    centre: np.ndarray,
    similarities: np.ndarray,
) -> None:
    """Dot products of all members with a cluster's normalized sum; the centre is zero before and after."""
    signs = np.empty(len(members), np.int8)
    for i in range(len(members)):
        signs[i] = clusters[i] == cluster
    add_to_centre(indptr, indices, data, dense, members, signs, 0, len(centre), centre)
    dot_with_centre(indptr, indices, data, dense, members, 0, len(members), centre, similarities)
    centre[:] = 0
    squares = 0.0
    for i in range(len(members)):
        if signs[i]:
            squares += similarities[i]
    scale = 1 / np.sqrt(squares) if squares > 0 else 0.0
    for i in range(len(members)):
        similarities[i] = similarities[i] * scale


@jit
def choose_clusters(similarities: np.ndarray, smallest: int, largest: int, clusters: np.ndarray) -> int:
    """Assign each row to its best cluster that is not full, in order of loss; returns how many changed cluster.

    Ties in similarity go to the lower cluster, ties in loss to the lower row. A cluster with `smallest` members
    takes more, up to `largest`, only while enough rows are left for the others.
    """
    n_clusters, count = similarities.shape
    losses = np.empty(count, np.float32)
    for i in range(count):
        best, second = similarities[0, i], np.float32(-np.inf)
        for cluster in range(1, n_clusters):
            similarity = similarities[cluster, i]
            if similarity > best:
                best, second = similarity, best
            elif similarity > second:
                second = similarity
        losses[i] = second - best
    sizes = np.zeros(n_clusters, np.int64)
    extra = count - n_clusters * smallest
    moved = 0
    for i in np.argsort(losses, kind="mergesort"):
        chosen = -1
        for cluster in range(n_clusters):
            is_open = sizes[cluster] < smallest or (sizes[cluster] < largest and extra > 0)
            if is_open and (chosen < 0 or similarities[cluster, i] > similarities[chosen, i]):
                chosen = cluster
        extra -= sizes[chosen] >= smallest
        sizes[chosen] += 1
        moved += clusters[i] != chosen
        clusters[i] = chosen
    return moved
