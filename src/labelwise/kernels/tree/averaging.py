"""Average the best labels of several models."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.topk import NO_LABEL


@jit
def average(ids, scores, models, product, begin, end, out_ids, out_scores):
    """Labels by their mean score over the models, best first, ties by lower id.

    ids, scores [documents, models * n_ranks]: the predictions of each model, side by side, padded with NO_LABEL. A
    label that a model does not predict counts 0 there if scores are products (`product`), otherwise as much as the
    model's lowest prediction for the document.
    """
    n_ranks = ids.shape[1] // models
    keep = out_ids.shape[1]
    labels = np.empty(ids.shape[1], np.int32)
    sums = np.empty(ids.shape[1], np.float64)
    for i in range(begin, end):
        floors = 0.0
        count = np.int64(0)
        for model in range(models):
            first = model * n_ranks
            last = first
            while last < first + n_ranks and ids[i, last] != NO_LABEL:
                last += 1
            floor = 0.0 if product or last == first else np.float64(scores[i, last - 1])
            floors += floor
            for p in range(first, last):
                count = _add(labels, sums, count, ids[i, p], scores[i, p] - floor)
        for p in range(keep):
            out_ids[i, p] = NO_LABEL
            out_scores[i, p] = -np.inf
        for c in range(count):
            mean = np.float32((sums[c] + floors) / models)
            p = min(c, keep)
            while p > 0 and (mean > out_scores[i, p - 1]):
                if p < keep:
                    out_ids[i, p], out_scores[i, p] = out_ids[i, p - 1], out_scores[i, p - 1]
                p -= 1
            if p < keep:
                out_ids[i, p], out_scores[i, p] = labels[c], mean


@inner
def _add(labels, sums, count, label, score):
    """Add a score to its label's sum; labels are kept in ascending order. Returns the number of labels."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if labels[middle] < label:
            low = middle + 1
        else:
            high = middle
    if low < count and labels[low] == label:
        sums[low] += score
        return count
    for index in range(count, low, -1):
        labels[index] = labels[index - 1]
        sums[index] = sums[index - 1]
    labels[low], sums[low] = label, score
    return count + 1
