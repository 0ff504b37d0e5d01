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

from labelwise.kernels.cluster.rows import add_to_centre, dot_with_centre
from labelwise.kernels.cluster.selection import kth_smallest
from labelwise.kernels.jit import inner, jit

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
