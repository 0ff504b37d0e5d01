"""What the metrics read off predictions: hits, the best possible weights, what ties can move, counts a label.

All take one run of documents (its rows of predictions, and its rows of the truth with `indptr` starting at 0)
and write into arrays of the caller, so that threads work on different runs. Truth rows are sorted and hold a
label once.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit

FINE, OUT_OF_RANGE, TWICE, NOT_A_NUMBER, UNSORTED, AFTER_NOTHING = range(6)


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
    """Mark the predictions that are in the truth, count those made, and check them on the way.

    Returns what is wrong, and the row and place of it; `FINE` when nothing is. Ids must be -1 or below
    `n_labels`, no label twice in a row, scores falling and numbers, nothing after a -1.
    """
    rows, places = ids.shape
    for row in range(rows):
        count = 0
        for place in range(places):
            hits[row, place] = 0
            label = ids[row, place]
            if label == -1:
                continue
            if label < 0 or label >= n_labels:
                return OUT_OF_RANGE, row, place
            if count < place:
                return AFTER_NOTHING, row, place
            if np.isnan(scores[row, place]):
                return NOT_A_NUMBER, row, place
            if place > 0 and scores[row, place] > scores[row, place - 1]:
                return UNSORTED, row, place
            repeats = 0
            for before in range(place):
                repeats += ids[row, before] == label
            if repeats > 0:
                return TWICE, row, place
            count += 1
            low, high = indptr[row], indptr[row + 1]
            while low < high:
                middle = (low + high) >> 1
                if indices[middle] < label:
                    low = middle + 1
                else:
                    high = middle
            if low < indptr[row + 1] and indices[low] == label:
                hits[row, place] = 1
        filled[row] = count
    return FINE, 0, 0


@jit
def best_weights(indptr: np.ndarray, indices: np.ndarray, weights: np.ndarray, best: np.ndarray) -> None:
    """The largest weights among each document's own labels, falling; zeros where it has fewer labels."""
    rows, places = best.shape
    for row in range(rows):
        for place in range(places):
            best[row, place] = 0.0
        count = 0
        for position in range(indptr[row], indptr[row + 1]):
            weight = weights[indices[position]]
            if count < places:
                count += 1
            elif weight <= best[row, places - 1]:
                continue
            place = count - 1
            while place > 0 and best[row, place - 1] < weight:
                best[row, place] = best[row, place - 1]
                place -= 1
            best[row, place] = weight


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
    """Fewest and most hits in the first `cut` places over all orders of equal scores, added up over the rows.

    `cut_off` counts the rows where the run of equal scores ends with the list: labels beyond it may be equal
    too.
    """
    rows, places = scores.shape
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
            for place in range(start):
                sure += hits[row, place]
            tied = 0
            for place in range(start, stop):
                tied += hits[row, place]
            room = cut - start
            lowest[which] += sure + max(0, room - (stop - start - tied))
            highest[which] += sure + min(tied, room)
            if stop == places and stop - start > 1:
                cut_off[which] += 1


@jit
def count_labels(
    ids: np.ndarray, hits: np.ndarray, lengths: np.ndarray, predicted: np.ndarray, correct: np.ndarray
) -> None:
    """Add to each label how often it is among the first `lengths[row]` predictions, and how often rightly."""
    for row in range(len(ids)):
        for place in range(lengths[row]):
            predicted[ids[row, place]] += 1
            correct[ids[row, place]] += hits[row, place]


@jit
def first_places(ids: np.ndarray, hits: np.ndarray, depth: int, best: np.ndarray) -> None:
    """Lower each label's best place to the first one at which it is a hit, within `depth` places."""
    for row in range(len(ids)):
        for place in range(depth):
            if hits[row, place] and place < best[ids[row, place]]:
                best[ids[row, place]] = place
