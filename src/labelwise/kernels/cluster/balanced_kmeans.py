"""Balanced spherical 2-means: split a group of rows into two equal halves, recursively down to the leaves.

A row consists of a row of a CSR block and one of a dense block; either may have no columns. With S the sum of the left
rows, T that of all and c = (T - S)/|T - S| - S/|S|, a row's score is <c, z>, and the lower half of the scores goes
left. <T, z> is computed once and |S|^2 is the sum of <S, z> over the left rows, so an iteration needs one dot product
per row and one dense vector S, to which only the rows that changed sides are added.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.cluster.rows import add_to_centre, dot_with_centre
from labelwise.kernels.cluster.selection import kth_smallest
from labelwise.kernels.jit import jit


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
def score_rows(with_all: np.ndarray, with_left: np.ndarray, left: np.ndarray, scores: np.ndarray) -> None:
    """Compute scores from the dot products of each row with the sum of all rows and with that of the left rows."""
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

    ``draws[node]`` holds two random numbers for each split; the children of node n are 2n + 1 and 2n + 2.
    """
    count = len(members)
    zero = np.int64(0)  # a literal would be another type and compile another specialisation
    every = dense.shape[1] + n_columns
    centre = np.empty(every, np.float32)
    products, with_all = np.empty(count, np.float32), np.empty(count, np.float32)
    scores, spare_scores = np.empty(count, np.float64), np.empty(count, np.float64)
    left, signs = np.empty(count, np.bool_), np.empty(count, np.int8)
    spare = np.empty(count, np.int64)
    edges = np.zeros((1 << layers) + 1, np.int64)
    edges[1 << layers] = count
    for layer in range(layers):
        step = 1 << (layers - layer)
        for index in range(1 << layer):
            begin, end = edges[index * step], edges[(index + 1) * step]
            edges[index * step + (step >> 1)] = begin + ((end - begin) >> 1)
            n = end - begin
            if n < 2:
                continue
            group = members[begin:end]
            one, other = first_pair(draws[((node + 1) << layer) - 1 + index], n)
            for i in range(n):
                left[i], signs[i] = False, 0
            signs[one], signs[other] = 1, -1
            centre[:] = 0
            for iteration in range(max_iterations + 1):
                add_to_centre(indptr, indices, data, dense, group, signs[:n], zero, every, centre)
                dot_with_centre(indptr, indices, data, dense, group, zero, n, centre, products)
                if iteration == 0:  # the first pair's difference is the first direction; the sum of all rows comes next
                    for i in range(n):
                        scores[i], signs[i] = products[i], 1
                    centre[:] = 0
                    continue
                if iteration == 1:  # from here on the centre is the sum of the left rows
                    for i in range(n):
                        with_all[i] = products[i]
                    centre[:] = 0
                else:
                    score_rows(with_all[:n], products[:n], left[:n], scores[:n])
                if choose_half(scores[:n], spare_scores, left[:n], signs[:n]) == 0:
                    break
            partition_members(group, left[:n], spare)
