"""From scores of buckets back to labels: the exact k best of all labels, or of some, never documents x labels.

Labels are scanned in blocks, 32 documents at a time (`kernels/buckets/bucket_scan.py`). The scan needs to know what a
label must reach to matter, so it begins with some labels whose scores are all computed, and makes its bytes again as
more labels have been seen. Memory beside the tables and the scores is one byte for each score.

The candidate mode looks at labels of each table's best buckets only: those that are met in several tables are scored
exactly. What it may miss is a label whose buckets are all middling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from labelwise.codes.bucket_documents import Block, DocumentGroup, SingleDocument
from labelwise.codes.buckets import BucketTables, members
from labelwise.kernels.buckets.bucket_candidates import MOST_HITS, candidates_of
from labelwise.kernels.buckets.bucket_scan import LANES, LEAST, MEDIAN, SUM, all_scores
from labelwise.parallel import ranges, run_all, threads
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

Aggregation = Literal["mean", "least", "median"]
"""How a label's scores in all tables become one."""
AGGREGATIONS: dict[Aggregation, int] = {"mean": SUM, "least": LEAST, "median": MEDIAN}
FIRST_LABELS, GROWTH, FLAG_GROWTH = 256, 4096, 32
"""Labels whose scores are all computed, and how many times as many are seen before bytes are made again: seldom for
sums, whose limits fall by themselves."""
MANY_LABELS = 1 << 15
"""From so many labels on the search begins with labels of each document's best buckets in the first table."""
FEW_DOCUMENTS = 3
"""Documents that are cheaper one by one."""
AT_ONCE = 1 << 12
"""Labels whose buckets are computed or picked together: few enough for a processor's cache."""


@dataclass(eq=False)
class BucketSearch:
    """Finds labels by the scores of their buckets.

    Parameters
    ----------
    tables
        Where labels lie. Tables of a 2-universal hash are computed when needed; others are held side by side.
    """

    tables: BucketTables

    @cached_property
    def _held(self) -> np.ndarray | None:
        """All tables [labels, repetitions], unless they are better computed when needed."""
        on_the_way = self.tables.hash == "universal" and not self.tables.given
        return None if on_the_way else self.tables.side_by_side()

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
            float32 [tables, buckets, documents], finite. Documents that have other numbers get no labels.
        k
            Labels per document.
        labels
            The only ones to choose from, sorted; None: all.
        aggregation
            How a label's scores in all tables become one.
        """
        n_documents = scores.shape[2]
        groups = self._groups(np.ascontiguousarray(scores, np.float32), k, AGGREGATIONS[aggregation])
        total = self.tables.n_items if labels is None else len(labels)
        held = self._held  # made before threads ask for it
        phases = _phases(total, GROWTH if aggregation == "mean" else FLAG_GROWTH)
        if labels is None and held is not None and total > MANY_LABELS:
            first = (held, *self._first_members)
            run_all(lambda group: group.begin_with(*first), groups)
            phases = [(0, phases[1][1]), *phases[2:]]
        for begin, end in phases if total else ():
            run_all(lambda group: group.make_ready(), groups)
            # a thread stays with its documents, whose bytes then stay in its cache, for all labels of the phase
            shares = ranges(end - begin, max(1, threads() // max(len(groups), 1)))
            work = [(group, begin + first, begin + last) for group in groups for first, last in shares]
            run_all(lambda item: item[0].look(self._blocks(*item[1:], labels)), work)
            for group in groups:
                group.gather()
        ids = np.full((n_documents, k), NO_LABEL, np.int32)
        best = np.full((n_documents, k), -np.inf, np.float32)
        for group in groups:
            ids[group.documents], best[group.documents] = group.ids[group.sound], group.best[group.sound]
        return TopK(ids, best)

    def _groups(self, scores: np.ndarray, k: int, aggregation: int) -> list[DocumentGroup | SingleDocument]:
        """Documents in windows of 32, the last of which may begin inside the one before; a few go one by one."""
        n_tables, n_buckets, count = scores.shape
        if count <= FEW_DOCUMENTS:
            singles = [np.ascontiguousarray(scores[:, :, place : place + 1]) for place in range(count)]
            return run_all(lambda item: SingleDocument(aggregation, item[1], item[0], k), list(enumerate(singles)))
        if count < LANES:
            padded = np.zeros((n_tables, n_buckets, LANES), np.float32)
            padded[:, :, :count] = scores
            scores = padded
        edges = [(begin, min(begin + LANES, count)) for begin in range(0, count, LANES)]
        return run_all(lambda edge: DocumentGroup(aggregation, scores, *edge, k), edges)

    def _blocks(self, begin: int, end: int, labels: np.ndarray | None) -> Iterator[Block]:
        """Buckets of labels [labels, tables], the labels if they are not consecutive, and the first one's number."""
        none = np.empty(0, np.int64)
        held = self._held
        if labels is None and held is not None:
            yield held[begin:end], none, begin
            return
        for first in range(begin, end, AT_ONCE):
            last = min(first + AT_ONCE, end)
            if labels is None:
                yield self.tables.rows(first, last), none, first
                continue
            chosen = labels[first:last].astype(np.int64)
            yield self.tables.rows_of(chosen) if held is None else held[chosen], chosen, first

    def best_weighted(
        self,
        scores: np.ndarray,
        k: int,
        labels: np.ndarray,
        weights: np.ndarray,
        to_score: Callable[[np.ndarray], np.ndarray],
        aggregation: Aggregation = "mean",
    ) -> TopK:
        """The k best of some labels by `to_score` of aggregated scores times weight; all are computed, in blocks."""
        n_documents = scores.shape[2]
        ids = np.full((n_documents, 0), NO_LABEL, np.int32)
        best = np.full((n_documents, 0), -np.inf, np.float32)
        sound: Any = np.isfinite(scores).all((0, 1))
        kernel: Any = all_scores
        code = AGGREGATIONS[aggregation]
        for rows, chosen, _ in self._blocks(0, len(labels), labels):
            found = np.empty((n_documents, len(rows)), np.float32)
            run_all(lambda part, r=rows, f=found: kernel(r, scores, code, *part, f), ranges(n_documents, threads()))
            found = np.where(
                sound[:, None], (to_score(found) * weights[chosen]).astype(np.float32), np.float32(-np.inf)
            )
            best = np.concatenate([best, found], 1)
            ids = np.concatenate([ids, np.broadcast_to(chosen.astype(np.int32), found.shape)], 1)
            top = sorted_by_score(ids, best).head(k)
            ids, best = top.ids, top.scores
        return TopK(np.where(np.isneginf(best), np.int32(NO_LABEL), ids), best)

    # --- candidates ---

    @cached_property
    def _members(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels of each bucket of each table: four bytes per label and table."""
        order = np.empty((len(self.tables), self.tables.n_items), np.int32)
        offsets = np.empty((len(self.tables), self.tables.n_buckets + 1), np.int64)
        for row, number in enumerate(self.tables.numbers):
            order[row], offsets[row] = members(self.tables.table(number), self.tables.n_buckets)
        return order, offsets

    @cached_property
    def _rows(self) -> np.ndarray:
        """All tables [labels, repetitions]: candidates are anywhere."""
        return self._held if self._held is not None else self.tables.side_by_side()

    def best_candidates(
        self, scores: np.ndarray, k: int, buckets: int, hits: int, aggregation: Aggregation = "mean"
    ) -> TopK:
        """The k best of the labels that are met `hits` times in the best `buckets` of each table.

        Where fewer than k are met so often, those that are met less often are taken as well.
        """
        n_tables, n_buckets, n_documents = scores.shape
        (order, offsets), rows = self._members, self._rows
        ids = np.full((n_documents, k), NO_LABEL, np.int32)
        best = np.full((n_documents, k), -np.inf, np.float32)
        top, wanted = min(buckets, n_buckets), min(hits, n_tables, MOST_HITS)
        kernel: Any = candidates_of
        code = AGGREGATIONS[aggregation]

        def work(part: tuple[int, int]) -> None:
            counts = np.zeros(self.tables.n_items, np.uint8)
            for document in range(*part):
                own = np.ascontiguousarray(scores[:, :, document])
                if not np.isfinite(own).all():
                    continue
                chosen = np.argpartition(-own, top - 1, axis=1)[:, :top]
                kernel(own[:, :, None], rows, order, offsets, chosen, wanted, code, counts, best[document],
                       ids[document])  # fmt: skip

        run_all(work, ranges(n_documents, threads()))
        return TopK(ids, best)


def _phases(total: int, growth: int) -> list[tuple[int, int]]:
    """Stretches of labels; between two of them the bytes are made again."""
    edges, edge = [0], FIRST_LABELS
    while edge < total:
        edges.append(edge)
        edge *= growth
    edges.append(total)
    return list(pairwise(edges))
