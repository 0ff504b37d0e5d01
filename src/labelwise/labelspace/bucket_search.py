"""Decode bucket scores to labels: the exact top k of all labels, or of some, without a documents x labels matrix.

Labels are scanned in blocks, 32 documents at a time (`kernels/buckets.py`). The scan needs a threshold that
a label must reach, so it begins with some labels whose scores are all computed, and recomputes its bytes as more labels
have been scanned. Memory beside the tables and the scores is one byte per score.

The candidate mode visits only the labels in each table's best buckets: those found in several tables are scored
exactly. It may miss a label none of whose buckets is among the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from labelwise.kernels.buckets import (
    LANES,
    LEAST,
    MAX_HITS,
    MEDIAN,
    STEPS,
    SUM,
    all_scores,
    as_bytes,
    as_flags,
    best_candidates,
    distance_to,
    highest,
    limit_of,
    scan,
    scan_one,
    score_members,
)
from labelwise.labelspace.buckets import BucketTables, members
from labelwise.runtime.threads import ranges, run_all, threads
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

# --- bucket documents ---
# Search state per document in bucket decoding: the best labels so far, and the score a label must reach.
#
# 32 documents are searched together, as the lanes of vectors (`DocumentGroup`), or one alone (`SingleDocument`). Both
# scan blocks of labels, several blocks in parallel if need be, and then merge the results.

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


Aggregation = Literal["mean", "least", "median"]
"""How a label's scores in all tables are combined."""
Score = Literal["logits", "mean", "least", "median", "unbiased"]
"""How bucket scores become a label's score: what is combined, and how."""
AGGREGATIONS: dict[Aggregation, int] = {"mean": SUM, "least": LEAST, "median": MEDIAN}
FIRST_LABELS, GROWTH, FLAG_GROWTH = 256, 4096, 32
"""Labels whose scores are all computed, and by which factor their number grows before bytes are recomputed: rarely for
sums, whose limits are lowered during the scan."""
MANY_LABELS = 1 << 15
"""With more labels than this the search begins with labels of each document's best buckets in the first table."""
FEW_DOCUMENTS = 3
"""Up to so many documents are cheaper one by one."""
BLOCK_LABELS = 1 << 12
"""Labels whose buckets are computed or selected at a time: few enough for a processor's cache."""


@dataclass(eq=False)
class BucketSearch:
    """Finds labels by the scores of their buckets.

    Parameters
    ----------
    tables
        The buckets of labels. Tables of a 2-universal hash are computed on demand; others are stored side by side.
    """

    tables: BucketTables

    @cached_property
    def _stored(self) -> np.ndarray | None:
        """All tables [labels, repetitions]; None if they are computed on demand."""
        on_demand = self.tables.hash == "universal" and not self.tables.given
        return None if on_demand else self.tables.side_by_side()

    @cached_property
    def _first_members(self) -> tuple[np.ndarray, np.ndarray]:
        """The labels of each bucket of the first table: where the search begins."""
        order, offsets = members(self.tables.table(self.tables.numbers[0]), self.tables.n_buckets)
        return order.astype(np.int32), offsets

    def best(
        self, scores: np.ndarray, k: int, labels: np.ndarray | None = None, aggregation: Aggregation = "mean"
    ) -> TopK:
        """The k best labels of each document.

        Parameters
        ----------
        scores
            float32 [tables, buckets, documents]. Documents with scores that are not finite get no labels.
        k
            Labels per document.
        labels
            The labels to choose from, sorted; None: all.
        aggregation
            How a label's scores in all tables are combined.
        """
        n_documents = scores.shape[2]
        groups = self._groups(np.ascontiguousarray(scores, np.float32), k, AGGREGATIONS[aggregation])
        total = self.tables.n_items if labels is None else len(labels)
        stored = self._stored  # computed once, before threads use it
        phases = _phases(total, GROWTH if aggregation == "mean" else FLAG_GROWTH)
        if labels is None and stored is not None and total > MANY_LABELS:
            first = (stored, *self._first_members)
            run_all(lambda group: group.score_best_buckets(*first), groups)
            phases = [(0, phases[1][1]), *phases[2:]]
        for begin, end in phases if total else ():
            run_all(lambda group: group.update_bounds(), groups)
            # a thread keeps its documents, whose bytes stay in its cache, for all labels of the phase
            parts = ranges(end - begin, max(1, threads() // max(len(groups), 1)))
            work = [(group, begin + first, begin + last) for group in groups for first, last in parts]
            run_all(lambda item: item[0].scan(self._blocks(*item[1:], labels)), work)
            for group in groups:
                group.merge()
        ids = np.full((n_documents, k), NO_LABEL, np.int32)
        best = np.full((n_documents, k), -np.inf, np.float32)
        for group in groups:
            ids[group.documents], best[group.documents] = group.ids[group.valid], group.best[group.valid]
        return TopK(ids, best)

    def _groups(self, scores: np.ndarray, k: int, aggregation: int) -> list[DocumentGroup | SingleDocument]:
        """Documents in windows of 32, the last of which may overlap the one before; a few one by one."""
        n_tables, n_buckets, count = scores.shape
        if count <= FEW_DOCUMENTS:
            singles = [np.ascontiguousarray(scores[:, :, document : document + 1]) for document in range(count)]
            return run_all(lambda item: SingleDocument(aggregation, item[1], item[0], k), list(enumerate(singles)))
        if count < LANES:
            padded = np.zeros((n_tables, n_buckets, LANES), np.float32)
            padded[:, :, :count] = scores
            scores = padded
        edges = [(begin, min(begin + LANES, count)) for begin in range(0, count, LANES)]
        return run_all(lambda edge: DocumentGroup(aggregation, scores, *edge, k), edges)

    def _blocks(self, begin: int, end: int, labels: np.ndarray | None) -> Iterator[LabelBlock]:
        """Blocks of the labels from index `begin` to `end`, of all labels or of those given."""
        none = np.empty(0, np.int64)
        stored = self._stored
        if labels is None and stored is not None:
            yield stored[begin:end], none, begin
            return
        for first in range(begin, end, BLOCK_LABELS):
            last = min(first + BLOCK_LABELS, end)
            if labels is None:
                yield self.tables.rows(first, last), none, first
                continue
            chosen = labels[first:last].astype(np.int64)
            yield self.tables.rows_of(chosen) if stored is None else stored[chosen], chosen, first

    def best_weighted(
        self,
        scores: np.ndarray,
        k: int,
        labels: np.ndarray,
        weights: np.ndarray,
        to_score: Callable[[np.ndarray], np.ndarray],
        aggregation: Aggregation = "mean",
    ) -> TopK:
        """The top k of some labels by `to_score` of aggregated scores times weight; all are computed, in blocks."""
        n_documents = scores.shape[2]
        ids = np.full((n_documents, 0), NO_LABEL, np.int32)
        best = np.full((n_documents, 0), -np.inf, np.float32)
        valid: Any = np.isfinite(scores).all((0, 1))
        kernel: Any = all_scores
        code = AGGREGATIONS[aggregation]
        for rows, chosen, _ in self._blocks(0, len(labels), labels):
            combined = np.empty((n_documents, len(rows)), np.float32)
            run_all(lambda part, r=rows, c=combined: kernel(r, scores, code, *part, c), ranges(n_documents, threads()))
            weighted = np.where(
                valid[:, None], (to_score(combined) * weights[chosen]).astype(np.float32), np.float32(-np.inf)
            )
            best = np.concatenate([best, weighted], 1)
            ids = np.concatenate([ids, np.broadcast_to(chosen.astype(np.int32), weighted.shape)], 1)
            top = sorted_by_score(ids, best).head(k)
            ids, best = top.ids, top.scores
        return TopK(np.where(np.isneginf(best), np.int32(NO_LABEL), ids), best)

    # --- candidates ---

    @cached_property
    def _members(self) -> tuple[np.ndarray, np.ndarray]:
        """The labels of each bucket of each table: four bytes per label and table."""
        order = np.empty((len(self.tables), self.tables.n_items), np.int32)
        offsets = np.empty((len(self.tables), self.tables.n_buckets + 1), np.int64)
        for row, number in enumerate(self.tables.numbers):
            order[row], offsets[row] = members(self.tables.table(number), self.tables.n_buckets)
        return order, offsets

    @cached_property
    def _rows(self) -> np.ndarray:
        """All tables [labels, repetitions]: candidates can be any label."""
        return self._stored if self._stored is not None else self.tables.side_by_side()

    def best_candidates(
        self, scores: np.ndarray, k: int, buckets: int, hits: int, aggregation: Aggregation = "mean"
    ) -> TopK:
        """The top k of the labels that are in the best `buckets` of at least `hits` tables.

        Where these are fewer than k, labels with fewer hits are included.
        """
        n_tables, n_buckets, n_documents = scores.shape
        (order, offsets), rows = self._members, self._rows
        ids = np.full((n_documents, k), NO_LABEL, np.int32)
        best = np.full((n_documents, k), -np.inf, np.float32)
        top, min_hits = min(buckets, n_buckets), min(hits, n_tables, MAX_HITS)
        kernel: Any = best_candidates
        code = AGGREGATIONS[aggregation]

        def work(part: tuple[int, int]) -> None:
            counts = np.zeros(self.tables.n_items, np.uint8)
            for document in range(*part):
                own = np.ascontiguousarray(scores[:, :, document])
                if not np.isfinite(own).all():
                    continue
                chosen = np.argpartition(-own, top - 1, axis=1)[:, :top]
                kernel(own[:, :, None], rows, order, offsets, chosen, min_hits, code, counts, best[document],
                       ids[document])  # fmt: skip

        run_all(work, ranges(n_documents, threads()))
        return TopK(ids, best)


def _phases(total: int, growth: int) -> list[tuple[int, int]]:
    """Ranges of labels; the bytes are recomputed between two of them."""
    edges, edge = [0], FIRST_LABELS
    while edge < total:
        edges.append(edge)
        edge *= growth
    edges.append(total)
    return list(pairwise(edges))
