"""Search state per document in bucket decoding: the best labels so far, and the score a label must reach.

32 documents are searched together, as the lanes of vectors (`DocumentGroup`), or one alone (`SingleDocument`). Both
scan blocks of labels from `bucket_search.py`, several blocks in parallel if need be, and then merge the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from labelwise.kernels.buckets.bucket_scan import (
    LANES,
    LEAST,
    STEPS,
    SUM,
    as_bytes,
    as_flags,
    distance_to,
    highest,
    limit_of,
    scan,
    scan_one,
    score_members,
)
from labelwise.topk import NO_LABEL, sorted_by_score

FIRST_BUCKETS, FIRST_MEMBERS = 8, 32
"""The search begins with labels of so many best buckets of the first table; at least so many of them are scored."""
LabelBlock = tuple[np.ndarray, np.ndarray, int]
"""Buckets of labels [labels, tables], the labels if they are not consecutive, and the first label's index."""
ScanResult = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Scores, labels and limits."""


class DocumentGroup:
    """The search state of up to 32 documents.

    Attributes
    ----------
    documents, valid
        Documents with finite scores, and their lanes; the others get no result.
    """

    def __init__(self, aggregation: int, scores: np.ndarray, begin: int, end: int, k: int) -> None:
        self.aggregation, self.scores = aggregation, scores
        self.first = max(0, min(begin, scores.shape[2] - LANES))
        n_tables, n_buckets, _ = scores.shape
        self.tops = np.empty((n_tables, LANES), np.float32)
        non_finite = np.empty(LANES, np.float32)
        kernel: Any = highest
        kernel(scores, self.first, self.tops, non_finite)
        lanes = np.arange(begin, end) - self.first
        self.valid = lanes[non_finite[lanes] == 0]
        self.documents = self.valid + self.first
        self.active = np.uint32(np.bitwise_or.reduce(np.uint32(1) << self.valid.astype(np.uint32), initial=0))
        self.bytes = np.empty((0, n_buckets, LANES), np.uint8)
        self.limits = np.zeros(LANES, np.uint8)
        self.steps = np.zeros(LANES)
        self.bounds = self.tops.sum(0, dtype=np.float64)
        self.best = np.full((LANES, k), -np.inf, np.float32)
        self.ids = np.full((LANES, k), NO_LABEL, np.int32)
        self.results: list[ScanResult] = []

    def score_best_buckets(self, rows: np.ndarray, order: np.ndarray, offsets: np.ndarray) -> None:
        """Score labels of each document's best buckets in the first table, for an initial threshold."""
        for lane in self.valid:
            _score_best(
                rows, order, offsets, self.scores, self.first + lane, self.aggregation, self.best[lane], self.ids[lane]
            )

    def update_bounds(self) -> None:
        """Compute bytes and limits for the current threshold; until there is one, all labels are scored."""
        worst = self.best[:, -1].astype(np.float64)
        if np.isneginf(worst[self.valid]).any():
            return
        n_tables, n_buckets, _ = self.scores.shape
        if len(self.bytes) == 0:
            self.bytes = np.empty((n_tables, n_buckets, LANES), np.uint8)
        if self.aggregation == SUM:
            self.steps = _steps(self.bounds, worst, n_tables)
            kernel: Any = as_bytes
            kernel(self.scores, self.first, self.tops, _rounded_down(self.steps), self.bytes)
            self.limits = np.array(
                [_limit(*each, n_tables) for each in zip(worst, self.bounds, self.steps, strict=True)]
            )
            return
        weight, limit = _flag(self.aggregation, n_tables)
        self.limits = np.full(LANES, min(limit, 255), np.uint8)  # bytes saturate at 255: all labels are within it
        flags: Any = as_flags
        flags(self.scores, self.first, worst.astype(np.float32), weight, self.bytes)

    def scan(self, blocks: Iterable[LabelBlock]) -> None:
        """Scan some labels; the result is kept until `merge`."""
        best, ids, limits = self.best.copy(), self.ids.copy(), self.limits.copy()
        scratch = np.empty(len(self.scores), np.float32)
        kernel: Any = scan
        for rows, labels, first in blocks:
            kernel(
                rows, labels, first, self.bytes, self.active, limits, self.bounds, self.steps, self.scores, self.first,
                self.aggregation, scratch, best, ids,
            )  # fmt: skip
        self.results.append((best, ids, limits))

    def merge(self) -> None:
        """Merge the results of all scans since the last merge."""
        results, self.results = self.results, []
        self.best, self.ids = _merged(results)
        self.limits = np.min([limits for _, _, limits in results], 0)


class SingleDocument:
    """The search state of a single document."""

    def __init__(self, aggregation: int, scores: np.ndarray, document: int, k: int) -> None:
        self.aggregation, self.scores = aggregation, scores
        finite = bool(np.isfinite(scores).all())
        self.valid, self.documents = np.arange(int(finite)), np.full(int(finite), document)
        self.bytes = np.empty((0, scores.shape[1]), np.uint8)
        self.tops = scores.max(1) if finite else scores[:, 0]
        self.bound, self.step, self.limit = float(self.tops.sum(dtype=np.float64)), 0.0, 0
        self.best = np.full((1, k), -np.inf, np.float32)
        self.ids = np.full((1, k), NO_LABEL, np.int32)
        self.results: list[ScanResult] = []

    def score_best_buckets(self, rows: np.ndarray, order: np.ndarray, offsets: np.ndarray) -> None:
        """Score labels of the best buckets in the first table."""
        if len(self.valid):
            _score_best(rows, order, offsets, self.scores, 0, self.aggregation, self.best[0], self.ids[0])

    def update_bounds(self) -> None:
        """Compute bytes and limit for the current threshold."""
        worst = float(self.best[0, -1])
        if np.isneginf(worst) or len(self.valid) == 0:
            return
        n_tables = len(self.scores)
        if self.aggregation == SUM:
            self.step = float(_steps(np.array([self.bound]), np.array([worst]), n_tables)[0])
            distances = (self.tops - self.scores[:, :, 0]) * _rounded_down(np.array([self.step]))
            self.bytes = np.minimum(distances, np.float32(255)).astype(np.uint8)
            self.limit = int(_limit(worst, self.bound, self.step, n_tables))
            return
        weight, self.limit = _flag(self.aggregation, n_tables)
        self.bytes = np.where(self.scores[:, :, 0] < np.float32(worst), np.uint8(weight), np.uint8(0))

    def scan(self, blocks: Iterable[LabelBlock]) -> None:
        """Scan some labels; the result is kept until `merge`."""
        best, ids, limit = self.best.copy(), self.ids.copy(), self.limit
        scratch = np.empty(len(self.scores), np.float32)
        kernel: Any = scan_one
        for rows, labels, first in blocks if len(self.valid) else ():
            limit = kernel(
                rows, labels, first, self.bytes, limit, self.bound, self.step, self.scores, self.aggregation, scratch,
                best[0], ids[0],
            )  # fmt: skip
        self.results.append((best, ids, np.array([limit])))

    def merge(self) -> None:
        """Merge the results of all scans since the last merge."""
        results, self.results = self.results, []
        self.best, self.ids = _merged(results)
        self.limit = min(int(limits[0]) for _, _, limits in results)


def _score_best(
    rows: np.ndarray,
    order: np.ndarray,
    offsets: np.ndarray,
    scores: np.ndarray,
    document: int,
    aggregation: int,
    best: np.ndarray,
    ids: np.ndarray,
) -> None:
    """Score labels of a document's best buckets in the first table and keep the best."""
    first_scores = scores[0, :, document]
    count = min(FIRST_BUCKETS, len(first_scores))
    chosen = np.argpartition(-first_scores, count - 1)[:count]
    kernel: Any = score_members
    scratch, promising = np.empty(len(scores), np.float32), np.empty(max(FIRST_MEMBERS, 2 * len(best)), np.int32)
    kernel(rows, order, offsets, chosen, promising, scores, document, aggregation, scratch, best, ids)


def _merged(results: Sequence[ScanResult]) -> tuple[np.ndarray, np.ndarray]:
    """The best labels of several scans; each scan's result includes what was known before it."""
    if len(results) == 1:
        return results[0][:2]
    k = results[0][0].shape[1]
    best = np.concatenate([scores for scores, _, _ in results], 1)
    ids = np.concatenate([labels for _, labels, _ in results], 1)
    top = sorted_by_score(ids, best)
    best, ids = top.scores, top.ids
    duplicate = np.zeros(ids.shape, bool)
    duplicate[:, 1:] = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] != NO_LABEL)  # equal scores: duplicates are neighbours
    order = np.argsort(duplicate, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(best, order, 1), np.take_along_axis(ids, order, 1)


def _steps(bounds: np.ndarray, worst: np.ndarray, n_tables: int) -> np.ndarray:
    """The factor of distances so that the distance from the upper bound to the threshold is STEPS steps.

    The tolerance for rounding is included: scores may reach the threshold only once they are rounded.
    """
    kernel: Any = distance_to
    distances = np.array([kernel(low, n_tables, bound) for bound, low in zip(bounds, worst, strict=True)])
    return STEPS / np.where(np.isfinite(distances), np.maximum(distances, 1e-30), 1.0)


def _rounded_down(steps: np.ndarray) -> np.ndarray:
    """Slightly smaller factors, so that products rounded to float32 never exceed the exact ones."""
    return (steps * (1 - 1e-6)).astype(np.float32)


def _limit(worst: float, bound: float, step: float, n_tables: int) -> np.uint8:
    kernel: Any = limit_of
    return np.uint8(0) if np.isneginf(worst) else np.uint8(kernel(worst, n_tables, bound, step))


def _flag(aggregation: int, n_tables: int) -> tuple[int, int]:
    """The penalty of a score below the threshold, and the limit of their sum: for the minimum all tables must reach the
    threshold, for the median half of them."""
    return (255, 0) if aggregation == LEAST else (1, n_tables // 2)
