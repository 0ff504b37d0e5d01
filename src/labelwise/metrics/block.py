"""Block: a run of documents with what the metrics share, each computed once and only if a metric asks.

A block holds at most one document of each bootstrap group (see bootstrap.py), 4096 in all. Its arrays stay in
the cache, and sums over blocks are the same however the documents were cut into pieces.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.errors import DataError
from labelwise.kernels.metrics import hits as kernels
from labelwise.metrics.bootstrap import GROUPS
from labelwise.metrics.ranking import discounts
from labelwise.topk import TopK

NO_WEIGHTS = np.zeros(1)
_PROBLEMS = {
    kernels.OUT_OF_RANGE: "label id {label} is out of range; there are {n_labels:,} labels, ids start at 0",
    kernels.DUPLICATE: "label id {label} is predicted twice; each label may be in a row once",
    kernels.SCORE_IS_NAN: "the score of label id {label} is NaN, which has no rank",
    kernels.UNSORTED: "scores rise; a row must be sorted by score, best first",
    kernels.AFTER_PADDING: "label id {label} follows an empty place; empty places (-1) come last in a row",
}


class Block:
    """Some documents' predictions and truth.

    Parameters
    ----------
    top, truth, rows
        Predictions and label matrix (canonical), and which rows of both: from, up to.
    n_known
        Ids of predictions are below it.
    first
        Number of the first document of the block, for messages.
    depth
        Places the metrics look at.
    weights
        The inverse propensity of each label and one number more; needed for gains only.
    threshold
        The score a prediction must reach for F1 without a cut.
    """

    def __init__(
        self,
        top: TopK,
        truth: sparse.csr_array,
        rows: tuple[int, int],
        *,
        n_known: int,
        first: int = 0,
        depth: int = 0,
        weights: np.ndarray = NO_WEIGHTS,
        threshold: float | None = None,
    ) -> None:
        start, stop = rows
        scores = top.scores[start:stop]
        self.ids = _as_int32(top.ids[start:stop], n_known, first)
        self.scores = np.ascontiguousarray(scores, np.float32 if scores.dtype == np.float32 else np.float64)
        indptr = truth.indptr[start : stop + 1].astype(np.int64)
        self.indices = truth.indices[indptr[0] : indptr[-1]].astype(np.int32, copy=False)
        self.indptr = indptr - indptr[0]
        self.n_true = np.diff(indptr)
        self.depth, self.weights, self.threshold = depth, weights, threshold
        self.hits = np.empty(self.ids.shape, np.uint8)
        self.filled = np.empty(len(self.ids), np.int64)
        problem, row, place = kernels.find_hits(
            self.ids, self.scores, self.indptr, self.indices, n_known, self.hits, self.filled
        )
        if problem != kernels.FINE:
            what = _PROBLEMS[problem].format(label=self.ids[row, place], n_labels=n_known)
            raise DataError(f"predictions of document {first + row:,}, place {place + 1}: {what}")

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def hit_counts(self) -> np.ndarray:
        """Hits within the first j places, for j = 0 to `depth`."""
        return _running_sums(self.hits[:, : self.depth], np.int64)

    @cached_property
    def discounted(self) -> np.ndarray:
        """The same with a hit at place i worth 1 / log2(i + 1)."""
        return _running_sums(self.hits[:, : self.depth] * discounts(self.depth), np.float64)

    @cached_property
    def ideal(self) -> np.ndarray:
        """The discounted sum of j hits at the first j places, for j = 0 to `depth`."""
        return np.concatenate([[0.0], np.cumsum(discounts(self.depth))])

    @cached_property
    def gains(self) -> np.ndarray:
        """The weight of each hit within `depth`, 0 for a miss."""
        # A missing prediction (-1) reads the last weight, which its hit of 0 takes away again.
        return self.hits[:, : self.depth] * self.weights[self.ids[:, : self.depth]]

    @cached_property
    def best_gains(self) -> np.ndarray:
        """The weights a list would have that ranks the document's own labels by weight."""
        best = np.empty((len(self), self.depth))
        kernels.best_weights(self.indptr, self.indices, self.weights, best)
        return best

    @cached_property
    def gain_sums(self) -> np.ndarray:
        """Weights of the hits within the first j places, for j = 0 to `depth`."""
        return _running_sums(self.gains, np.float64)

    @cached_property
    def best_gain_sums(self) -> np.ndarray:
        """The most that `gain_sums` could be."""
        return _running_sums(self.best_gains, np.float64)

    @cached_property
    def discounted_gains(self) -> np.ndarray:
        """`gain_sums` with the discount of `discounted`."""
        return _running_sums(self.gains * discounts(self.depth), np.float64)

    @cached_property
    def best_discounted_gains(self) -> np.ndarray:
        """The most that `discounted_gains` could be."""
        return _running_sums(self.best_gains * discounts(self.depth), np.float64)

    @cached_property
    def reaching(self) -> np.ndarray:
        """Predictions of each document whose score reaches the threshold; in sorted rows they come first."""
        # In the scores' own precision, as TopK.above compares: a float32 0.7 reaches a threshold of 0.7.
        enough = self.scores >= self.scores.dtype.type(self.threshold)
        return np.minimum(enough.sum(1), self.filled)

    def lengths(self, k: int | None) -> np.ndarray:
        """How many predictions of each document count: the first k, or those that reach the threshold."""
        return self.reaching if k is None else np.minimum(self.filled, k)

    def hits_within(self, lengths: np.ndarray) -> np.ndarray:
        """Hits among the first `lengths` predictions of each document."""
        return self.hit_counts[np.arange(len(self)), lengths]


def block_rows(first: int, count: int) -> list[tuple[int, int]]:
    """Cut `count` rows, beginning with document `first`, where document numbers are multiples of GROUPS.

    However documents arrive, each is in the same place of a block then, and sums are made in the same order.
    """
    edges = [0, *range(GROUPS - first % GROUPS, count, GROUPS), count]
    return [(start, stop) for start, stop in pairwise(edges) if start < stop]


def _running_sums(values: np.ndarray, dtype: Any) -> np.ndarray:
    sums = np.zeros((len(values), values.shape[1] + 1), dtype)
    np.cumsum(values, axis=1, dtype=dtype, out=sums[:, 1:])
    return sums


def _as_int32(ids: np.ndarray, n_known: int, first: int) -> np.ndarray:
    """Ids in the one type the kernels are compiled for; what does not fit is out of range anyway."""
    if ids.dtype.kind not in "iu":
        raise DataError(f"predicted label ids must be whole numbers, got {ids.dtype}")
    limits = np.iinfo(np.int32)
    if not np.can_cast(ids.dtype, np.int32):
        beyond = ((ids > limits.max) | (ids < limits.min)).any(1)
        if beyond.any():
            document = first + int(beyond.argmax())
            raise DataError(
                f"predictions of document {document:,}: a label id is out of range; there are {n_known:,} labels"
            )
    return np.ascontiguousarray(ids, np.int32)
