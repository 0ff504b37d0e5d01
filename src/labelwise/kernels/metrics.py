"""Kernels of the metrics: hits, the best possible weights, the effect of ties, counts per label.

All take a range of documents (its rows of predictions, and its rows of the true labels with `indptr` starting at 0) and
write into arrays of the caller, so that threads process different ranges. Rows of true labels are sorted and unique.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit

FINE, OUT_OF_RANGE, DUPLICATE, SCORE_IS_NAN, UNSORTED, AFTER_PADDING = range(6)


@jit
def find_hits(
    ids: np.ndarray,
    scores: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    n_labels: int,
    hits: np.ndarray,
    filled: np.ndarray,
) -> tuple[int, int, int]:
    """Mark the predictions that are true, count the predictions per document, and check them.

    Returns the fault, its row and its rank; `FINE` if there is none. Ids must be -1 or below `n_labels`, without
    duplicates in a row, scores descending and not NaN, and no prediction may follow a -1.
    """
    rows, n_ranks = ids.shape
    for row in range(rows):
        count = 0
        for rank in range(n_ranks):
            hits[row, rank] = 0
            label = ids[row, rank]
            if label == -1:
                continue
            if label < 0 or label >= n_labels:
                return OUT_OF_RANGE, row, rank
            if count < rank:
                return AFTER_PADDING, row, rank
            if np.isnan(scores[row, rank]):
                return SCORE_IS_NAN, row, rank
            if rank > 0 and scores[row, rank] > scores[row, rank - 1]:
                return UNSORTED, row, rank
            repeats = 0
            for before in range(rank):
                repeats += ids[row, before] == label
            if repeats > 0:
                return DUPLICATE, row, rank
            count += 1
            low, high = indptr[row], indptr[row + 1]
            while low < high:
                middle = (low + high) >> 1
                if indices[middle] < label:
                    low = middle + 1
                else:
                    high = middle
            if low < indptr[row + 1] and indices[low] == label:
                hits[row, rank] = 1
        filled[row] = count
    return FINE, 0, 0


@jit
def best_weights(indptr: np.ndarray, indices: np.ndarray, weights: np.ndarray, best: np.ndarray) -> None:
    """The largest weights among each document's true labels, descending, padded with zeros."""
    rows, n_ranks = best.shape
    for row in range(rows):
        for rank in range(n_ranks):
            best[row, rank] = 0.0
        count = 0
        for position in range(indptr[row], indptr[row + 1]):
            weight = weights[indices[position]]
            if count < n_ranks:
                count += 1
            elif weight <= best[row, n_ranks - 1]:
                continue
            rank = count - 1
            while rank > 0 and best[row, rank - 1] < weight:
                best[row, rank] = best[row, rank - 1]
                rank -= 1
            best[row, rank] = weight


@jit
def tie_range(
    scores: np.ndarray,
    hits: np.ndarray,
    filled: np.ndarray,
    cuts: np.ndarray,
    lowest: np.ndarray,
    highest: np.ndarray,
    cut_off: np.ndarray,
) -> None:
    """Minimum and maximum hits in the top `cut` over all orders of equal scores, summed over the rows.

    `cut_off` counts the rows where the run of equal scores reaches the end of the list: labels beyond it may be tied
    too.
    """
    rows, n_ranks = scores.shape
    for row in range(rows):
        for which in range(len(cuts)):
            cut = min(cuts[which], filled[row])
            sure = 0
            if cut == 0:
                continue
            start = cut - 1
            while start > 0 and scores[row, start - 1] == scores[row, cut - 1]:
                start -= 1
            stop = cut
            while stop < filled[row] and scores[row, stop] == scores[row, cut - 1]:
                stop += 1
            for rank in range(start):
                sure += hits[row, rank]
            tied = 0
            for rank in range(start, stop):
                tied += hits[row, rank]
            free = cut - start
            lowest[which] += sure + max(0, free - (stop - start - tied))
            highest[which] += sure + min(tied, free)
            if stop == n_ranks and stop - start > 1:
                cut_off[which] += 1


@jit
def count_labels(
    ids: np.ndarray, hits: np.ndarray, lengths: np.ndarray, predicted: np.ndarray, correct: np.ndarray
) -> None:
    """Add to each label how often it is among the first `lengths[row]` predictions, and how often correctly."""
    for row in range(len(ids)):
        for rank in range(lengths[row]):
            predicted[ids[row, rank]] += 1
            correct[ids[row, rank]] += hits[row, rank]


@jit
def first_ranks(ids: np.ndarray, hits: np.ndarray, depth: int, best: np.ndarray) -> None:
    """Lower each label's best rank to the first one at which it is a hit, within the top `depth`."""
    for row in range(len(ids)):
        for rank in range(depth):
            if hits[row, rank] and rank < best[ids[row, rank]]:
                best[ids[row, rank]] = rank
