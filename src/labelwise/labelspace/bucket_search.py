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
    """The search state of up to 32 documents; until there is a threshold, all labels are scored.

    Attributes
    ----------
    first, valid
        The first of the documents in `scores`, and those with finite scores, counted from it; others get no result.
    best, ids
        Scores and labels found so far [documents, k].
    bytes, limits
        What a label loses by each bucket, in one byte, and how much all its buckets may lose together.
    """

    def __init__(
        self, aggregation: int, scores: np.ndarray, first: int, valid: np.ndarray, tops: np.ndarray, k: int
    ) -> None:
        self.aggregation, self.scores, self.first, self.valid, self.tops = aggregation, scores, first, valid, tops
        self.documents, count = valid + first, tops.shape[1]
        self.active = np.uint32(np.bitwise_or.reduce(np.uint32(1) << valid.astype(np.uint32), initial=0))
        self.bounds, self.steps, self.limits = tops.sum(0, dtype=np.float64), np.zeros(count), np.zeros(count, np.uint8)
        self.bytes = np.empty((0, scores.shape[1], count), np.uint8)
        self.best = np.full((count, k), -np.inf, np.float32)
        self.ids = np.full((count, k), NO_LABEL, np.int32)
        self.results: list[ScanResult] = []

    @classmethod
    def of(cls, aggregation: int, scores: np.ndarray, begin: int, end: int, k: int) -> DocumentGroup:
        """The documents begin to end - 1."""
        first = max(0, min(begin, scores.shape[2] - LANES))
        tops, non_finite = np.empty((len(scores), LANES), np.float32), np.empty(LANES, np.float32)
        highest(scores, first, tops, non_finite)
        lanes = np.arange(begin, end) - first
        return cls(aggregation, scores, first, lanes[non_finite[lanes] == 0], tops, k)

    def score_best_buckets(self, rows: np.ndarray, order: np.ndarray, offsets: np.ndarray) -> None:
        """Score labels of each document's best buckets in the first table, for an initial threshold."""
        count = min(FIRST_BUCKETS, self.scores.shape[1])
        scratch = np.empty(len(self.scores), np.float32)
        promising = np.empty(max(FIRST_MEMBERS, 2 * self.best.shape[1]), np.int32)
        for lane in self.valid:
            document = self.first + lane
            chosen = np.argpartition(-self.scores[0, :, document], count - 1)[:count]
            score_members(
                rows, order, offsets, chosen, promising, self.scores, document, self.aggregation, scratch,
                self.best[lane], self.ids[lane],
            )  # fmt: skip

    def update_bounds(self) -> None:
        """Compute bytes and limits for the current threshold."""
        worst = self.best[:, -1].astype(np.float64)
        if not len(self.valid) or np.isneginf(worst[self.valid]).any():
            return
        n_tables = len(self.scores)
        if self.aggregation == SUM:
            self.steps = _steps(self.bounds, worst, n_tables)
            self.limits = np.array(
                [_limit(*each, n_tables) for each in zip(worst, self.bounds, self.steps, strict=True)]
            )
            # slightly smaller factors, so that products rounded to float32 never exceed the exact ones
            self._write_distances((self.steps * (1 - 1e-6)).astype(np.float32))
            return
        # for the minimum all tables must reach the threshold, for the median half of them
        weight, limit = (255, 0) if self.aggregation == LEAST else (1, n_tables // 2)
        self.limits = np.full(len(worst), limit)
        self._write_flags(worst.astype(np.float32), weight)

    def _write_distances(self, steps: np.ndarray) -> None:
        """Distances from the upper bounds in steps."""
        self.bytes = self.bytes if len(self.bytes) else np.empty((*self.scores.shape[:2], LANES), np.uint8)
        as_bytes(self.scores, self.first, self.tops, steps, self.bytes)

    def _write_flags(self, worst: np.ndarray, weight: int) -> None:
        """The weight of each score below the threshold."""
        self.bytes = self.bytes if len(self.bytes) else np.empty((*self.scores.shape[:2], LANES), np.uint8)
        as_flags(self.scores, self.first, worst, weight, self.bytes)

    def scan(self, blocks: Iterable[LabelBlock]) -> None:
        """Scan some labels; the result is kept until `merge`."""
        best, ids, scratch = self.best.copy(), self.ids.copy(), np.empty(len(self.scores), np.float32)
        limits = np.minimum(self.limits, 255).astype(np.uint8)  # bytes saturate at 255: all labels are within it
        for rows, labels, first in blocks:
            scan(
                rows, labels, first, self.bytes, self.active, limits, self.bounds, self.steps, self.scores, self.first,
                self.aggregation, scratch, best, ids,
            )  # fmt: skip
        self.results.append((best, ids, limits))

    def merge(self) -> None:
        """Merge the results of all scans since the last merge."""
        results, self.results = self.results, []
        self.best, self.ids = _merged(results)
        self.limits = np.min([limits for _, _, limits in results], 0)


class SingleDocument(DocumentGroup):
    """The search state of one document, the only one in `scores`."""

    @classmethod
    def of_one(cls, aggregation: int, scores: np.ndarray, document: int, k: int) -> SingleDocument:
        """With this number, for the result."""
        finite = bool(np.isfinite(scores).all())
        found = cls(aggregation, scores, 0, np.arange(int(finite)), scores.max(1) if finite else scores[:, 0], k)
        found.bytes, found.documents = found.bytes[:, :, 0], found.valid + document
        return found

    def _write_distances(self, steps: np.ndarray) -> None:
        self.bytes = np.minimum((self.tops - self.scores[:, :, 0]) * steps, np.float32(255)).astype(np.uint8)

    def _write_flags(self, worst: np.ndarray, weight: int) -> None:
        self.bytes = np.where(self.scores[:, :, 0] < worst, np.uint8(weight), np.uint8(0))

    def scan(self, blocks: Iterable[LabelBlock]) -> None:
        best, ids, scratch = self.best.copy(), self.ids.copy(), np.empty(len(self.scores), np.float32)
        limit, bound, step = int(self.limits[0]), float(self.bounds[0]), float(self.steps[0])
        for rows, labels, first in blocks if len(self.valid) else ():
            limit = scan_one(
                rows, labels, first, self.bytes, limit, bound, step, self.scores, self.aggregation, scratch, best[0],
                ids[0],
            )  # fmt: skip
        self.results.append((best, ids, np.array([limit])))


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
    distances = np.array([distance_to(low, n_tables, bound) for bound, low in zip(bounds, worst, strict=True)])
    return STEPS / np.where(np.isfinite(distances), np.maximum(distances, 1e-30), 1.0)


def _limit(worst: float, bound: float, step: float, n_tables: int) -> np.uint8:
    return np.uint8(0) if np.isneginf(worst) else np.uint8(limit_of(worst, n_tables, bound, step))


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

    def _groups(self, scores: np.ndarray, k: int, aggregation: int) -> list[Any]:
        """Documents in windows of 32, the last of which may overlap the one before; a few one by one."""
        n_tables, n_buckets, count = scores.shape
        if count <= FEW_DOCUMENTS:
            singles = [np.ascontiguousarray(scores[:, :, document : document + 1]) for document in range(count)]
            return run_all(lambda item: SingleDocument.of_one(aggregation, item[1], item[0], k), enumerate(singles))
        if count < LANES:
            padded = np.zeros((n_tables, n_buckets, LANES), np.float32)
            padded[:, :, :count] = scores
            scores = padded
        edges = [(begin, min(begin + LANES, count)) for begin in range(0, count, LANES)]
        return run_all(lambda edge: DocumentGroup.of(aggregation, scores, *edge, k), edges)

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
        code = AGGREGATIONS[aggregation]
        for rows, chosen, _ in self._blocks(0, len(labels), labels):
            combined = np.empty((n_documents, len(rows)), np.float32)
            run_all(
                lambda part, r=rows, c=combined: all_scores(r, scores, code, *part, c), ranges(n_documents, threads())
            )
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
        code = AGGREGATIONS[aggregation]

        def work(part: tuple[int, int]) -> None:
            counts = np.zeros(self.tables.n_items, np.uint8)
            for document in range(*part):
                own = np.ascontiguousarray(scores[:, :, document])
                if not np.isfinite(own).all():
                    continue
                chosen = np.argpartition(-own, top - 1, axis=1)[:, :top]
                best_candidates(
                    own[:, :, None], rows, order, offsets, chosen, min_hits, code, counts, best[document], ids[document]
                )

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
