"""Decode bucket scores to labels: the exact top k of all labels, or of some, without a documents x labels matrix.

Labels are scanned in blocks, 32 documents at a time (`kernels/buckets/bucket_scan.py`). The scan needs a threshold that
a label must reach, so it begins with some labels whose scores are all computed, and recomputes its bytes as more labels
have been scanned. Memory beside the tables and the scores is one byte per score.

The candidate mode visits only the labels in each table's best buckets: those found in several tables are scored
exactly. It may miss a label none of whose buckets is among the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from labelwise.codes.bucket_documents import DocumentGroup, LabelBlock, SingleDocument
from labelwise.codes.buckets import BucketTables, members
from labelwise.kernels.buckets.bucket_candidates import MAX_HITS, best_candidates
from labelwise.kernels.buckets.bucket_scan import LANES, LEAST, MEDIAN, SUM, all_scores
from labelwise.parallel import ranges, run_all, threads
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

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
