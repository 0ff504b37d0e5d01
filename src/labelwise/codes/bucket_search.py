"""From scores of buckets back to labels: the exact k best of all labels, or of some, never documents x labels.

Labels are scanned in blocks, 32 documents at a time (`kernels/bucket_scan.py`). The scan needs to know what a label
must reach to matter, so it begins with some labels whose scores are all worked out, and makes its bytes anew as more
labels have been seen. Memory beside the tables and the scores is one byte for each score.

The candidate mode looks at labels of each table's best buckets only: those that are met in several tables are scored
exactly. What it may miss is a label whose buckets are all middling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from labelwise.codes.buckets import BucketTables, members
from labelwise.kernels.bucket_candidates import MOST_HITS, candidates_of
from labelwise.kernels.bucket_scan import (
    LANES,
    LEAST,
    MEDIAN,
    STEPS,
    SUM,
    all_scores,
    as_bytes,
    as_flags,
    distance_to,
    highest,
    limit_of,
    look_at_members,
    scan,
    scan_one,
)
from labelwise.parallel import ranges, run_all, threads
from labelwise.topk import NOTHING, TopK

Way = Literal["mean", "least", "median"]
WAYS: dict[str, int] = {"mean": SUM, "least": LEAST, "median": MEDIAN}
FIRST_LABELS, GROWTH, FLAG_GROWTH = 256, 4096, 32
"""Labels whose scores are all worked out, and how many times as many are seen before bytes are made anew: seldom for
sums, whose limits fall by themselves."""
MANY_LABELS, FIRST_BUCKETS, FIRST_MEMBERS = 1 << 15, 8, 32
"""From so many labels on the search begins with the labels of each document's 8 best buckets in the first table, of
which so many at least are scored."""
FEW_DOCUMENTS = 3
"""Documents that are cheaper one by one."""
AT_ONCE = 1 << 12
"""Labels whose buckets are worked out or picked together: few enough for a processor's cache."""
Block = tuple[np.ndarray, np.ndarray, int]
Found = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Scores, labels and limits."""


@dataclass(eq=False)
class BucketSearch:
    """Finds labels by the scores of their buckets.

    Parameters
    ----------
    tables
        Where labels lie. Tables of a 2-universal hash are worked out on the way; others are held side by side.
    way
        How a label's scores in all tables become one: their mean, the least, or the median.
    """

    tables: BucketTables
    way: Way = "mean"

    @cached_property
    def _held(self) -> np.ndarray | None:
        """All tables [labels, repetitions], unless they are better worked out on the way."""
        on_the_way = self.tables.hash == "universal" and not self.tables.given
        return None if on_the_way else self.tables.side_by_side()

    @cached_property
    def _first_members(self) -> tuple[np.ndarray, np.ndarray]:
        """The labels of each bucket of the first table: where the search begins."""
        order, offsets = members(self.tables.table(self.tables.numbers[0]), self.tables.n_buckets)
        return order.astype(np.int32), offsets

    def best(self, scores: np.ndarray, k: int, labels: np.ndarray | None = None) -> TopK:
        """The k best labels of each document.

        Parameters
        ----------
        scores
            float32 [tables, buckets, documents], finite. Documents that have other numbers get no labels.
        k
            Labels a document.
        labels
            The only ones to choose from, sorted; None: all.
        """
        n_documents = scores.shape[2]
        groups = self._groups(np.ascontiguousarray(scores, np.float32), k)
        total = self.tables.n_items if labels is None else len(labels)
        held = self._held  # made before threads ask for it
        phases = _phases(total, GROWTH if self.way == "mean" else FLAG_GROWTH)
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
        ids = np.full((n_documents, k), NOTHING, np.int32)
        best = np.full((n_documents, k), -np.inf, np.float32)
        for group in groups:
            ids[group.documents], best[group.documents] = group.ids[group.sound], group.best[group.sound]
        return TopK(ids, best)

    def _groups(self, scores: np.ndarray, k: int) -> list[_Lanes | _One]:
        """Documents in windows of 32, the last of which may begin inside the one before; a few go one by one."""
        n_tables, n_buckets, count = scores.shape
        way = WAYS[self.way]
        if count <= FEW_DOCUMENTS:
            singles = [np.ascontiguousarray(scores[:, :, place : place + 1]) for place in range(count)]
            return run_all(lambda item: _One(way, item[1], item[0], k), list(enumerate(singles)))
        if count < LANES:
            padded = np.zeros((n_tables, n_buckets, LANES), np.float32)
            padded[:, :, :count] = scores
            scores = padded
        edges = [(begin, min(begin + LANES, count)) for begin in range(0, count, LANES)]
        return run_all(lambda edge: _Lanes(way, scores, *edge, k), edges)

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
        told: Callable[[np.ndarray], np.ndarray],
    ) -> TopK:
        """The k best of some labels by the product of told score and weight; every score is worked out, in blocks."""
        n_documents = scores.shape[2]
        ids = np.full((n_documents, 0), NOTHING, np.int32)
        best = np.full((n_documents, 0), -np.inf, np.float32)
        sound: Any = np.isfinite(scores).all((0, 1))
        kernel: Any = all_scores
        way = WAYS[self.way]
        for rows, chosen, _ in self._blocks(0, len(labels), labels):
            found = np.empty((n_documents, len(rows)), np.float32)
            run_all(lambda part, r=rows, f=found: kernel(r, scores, way, *part, f), ranges(n_documents, threads()))
            found = np.where(sound[:, None], (told(found) * weights[chosen]).astype(np.float32), np.float32(-np.inf))
            best = np.concatenate([best, found], 1)
            ids = np.concatenate([ids, np.broadcast_to(chosen.astype(np.int32), found.shape)], 1)
            order = np.lexsort((ids, -best), axis=1)[:, :k]
            ids, best = np.take_along_axis(ids, order, 1), np.take_along_axis(best, order, 1)
        ids[np.isneginf(best)] = NOTHING
        return TopK(ids, best)

    # --- candidates ---

    @cached_property
    def _members(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels of each bucket of each table: four bytes a label and table."""
        order = np.empty((len(self.tables), self.tables.n_items), np.int32)
        offsets = np.empty((len(self.tables), self.tables.n_buckets + 1), np.int64)
        for row, number in enumerate(self.tables.numbers):
            order[row], offsets[row] = members(self.tables.table(number), self.tables.n_buckets)
        return order, offsets

    @cached_property
    def _rows(self) -> np.ndarray:
        """All tables [labels, repetitions]: candidates are anywhere."""
        return self._held if self._held is not None else self.tables.side_by_side()

    def best_candidates(self, scores: np.ndarray, k: int, buckets: int, hits: int) -> TopK:
        """The k best of the labels that are met `hits` times in the best `buckets` of each table.

        Where fewer than k are met so often, those that are met less often are taken as well.
        """
        n_tables, n_buckets, n_documents = scores.shape
        (order, offsets), rows = self._members, self._rows
        ids = np.full((n_documents, k), NOTHING, np.int32)
        best = np.full((n_documents, k), -np.inf, np.float32)
        top, wanted = min(buckets, n_buckets), min(hits, n_tables, MOST_HITS)
        kernel: Any = candidates_of

        def work(part: tuple[int, int]) -> None:
            counts = np.zeros(self.tables.n_items, np.uint8)
            for document in range(*part):
                own = np.ascontiguousarray(scores[:, :, document])
                if not np.isfinite(own).all():
                    continue
                chosen = np.argpartition(-own, top - 1, axis=1)[:, :top]
                kernel(own[:, :, None], rows, order, offsets, chosen, wanted, WAYS[self.way], counts, best[document],
                       ids[document])  # fmt: skip

        run_all(work, ranges(n_documents, threads()))
        return TopK(ids, best)


def _phases(total: int, growth: int) -> list[tuple[int, int]]:
    """Stretches of labels; between two of them the bytes are made anew."""
    edges, edge = [0], FIRST_LABELS
    while edge < total:
        edges.append(edge)
        edge *= growth
    edges.append(total)
    return list(pairwise(edges))


class _Lanes:
    """Up to 32 documents on their way through the labels.

    Attributes
    ----------
    documents, sound
        Documents that have a result, and their lanes.
    """

    def __init__(self, way: int, scores: np.ndarray, begin: int, end: int, k: int) -> None:
        self.way, self.scores = way, scores
        self.first = max(0, min(begin, scores.shape[2] - LANES))
        n_tables, n_buckets, _ = scores.shape
        self.tops = np.empty((n_tables, LANES), np.float32)
        odd = np.empty(LANES, np.float32)
        kernel: Any = highest
        kernel(scores, self.first, self.tops, odd)
        lanes = np.arange(begin, end) - self.first
        self.sound = lanes[odd[lanes] == 0]
        self.documents = self.sound + self.first
        self.active = np.uint32(np.bitwise_or.reduce(np.uint32(1) << self.sound.astype(np.uint32), initial=0))
        self.bytes = np.empty((0, n_buckets, LANES), np.uint8)
        self.limits = np.zeros(LANES, np.uint8)
        self.steps = np.zeros(LANES)
        self.bounds = self.tops.sum(0, dtype=np.float64)
        self.best = np.full((LANES, k), -np.inf, np.float32)
        self.ids = np.full((LANES, k), NOTHING, np.int32)
        self.found: list[Found] = []

    def begin_with(self, rows: np.ndarray, order: np.ndarray, offsets: np.ndarray) -> None:
        """Look at labels of each document's best buckets in the first table: they show what must be reached."""
        for lane in self.sound:
            _look_at_best(
                rows, order, offsets, self.scores, self.first + lane, self.way, self.best[lane], self.ids[lane]
            )

    def make_ready(self) -> None:
        """Bytes and limits for what must be reached now; before anything is known, all labels are looked at."""
        worst = self.best[:, -1].astype(np.float64)
        if np.isneginf(worst[self.sound]).any():
            return
        n_tables, n_buckets, _ = self.scores.shape
        if len(self.bytes) == 0:
            self.bytes = np.empty((n_tables, n_buckets, LANES), np.uint8)
        if self.way == SUM:
            self.steps = _steps(self.bounds, worst, n_tables)
            kernel: Any = as_bytes
            kernel(self.scores, self.first, self.tops, _rounded_down(self.steps), self.bytes)
            self.limits = np.array(
                [_limit(*each, n_tables) for each in zip(worst, self.bounds, self.steps, strict=True)]
            )
            return
        weight, limit = _flag(self.way, n_tables)
        self.limits = np.full(LANES, min(limit, 255), np.uint8)  # bytes end at 255: within it are all labels
        flags: Any = as_flags
        flags(self.scores, self.first, worst.astype(np.float32), weight, self.bytes)

    def look(self, blocks: Iterable[Block]) -> None:
        """Scan some labels; what is found waits for `gather`."""
        best, ids, limits = self.best.copy(), self.ids.copy(), self.limits.copy()
        room = np.empty(len(self.scores), np.float32)
        kernel: Any = scan
        for rows, labels, first in blocks:
            kernel(
                rows, labels, first, self.bytes, self.active, limits, self.bounds, self.steps, self.scores, self.first,
                self.way, room, best, ids,
            )  # fmt: skip
        self.found.append((best, ids, limits))

    def gather(self) -> None:
        """Put together what the shares have found."""
        found, self.found = self.found, []
        self.best, self.ids = _merged(found)
        self.limits = np.min([part[2] for part in found], 0)


class _One:
    """A single document on its way through the labels."""

    def __init__(self, way: int, scores: np.ndarray, document: int, k: int) -> None:
        self.way, self.scores = way, scores
        good = bool(np.isfinite(scores).all())
        self.sound, self.documents = np.arange(int(good)), np.full(int(good), document)
        self.bytes = np.empty((0, scores.shape[1]), np.uint8)
        self.tops = scores.max(1) if good else scores[:, 0]
        self.bound, self.step, self.limit = float(self.tops.sum(dtype=np.float64)), 0.0, 0
        self.best = np.full((1, k), -np.inf, np.float32)
        self.ids = np.full((1, k), NOTHING, np.int32)
        self.found: list[Found] = []

    def begin_with(self, rows: np.ndarray, order: np.ndarray, offsets: np.ndarray) -> None:
        """Look at labels of the best buckets in the first table."""
        if len(self.sound):
            _look_at_best(rows, order, offsets, self.scores, 0, self.way, self.best[0], self.ids[0])

    def make_ready(self) -> None:
        """Bytes and limit for what must be reached now."""
        worst = float(self.best[0, -1])
        if np.isneginf(worst) or len(self.sound) == 0:
            return
        n_tables = len(self.scores)
        if self.way == SUM:
            self.step = float(_steps(np.array([self.bound]), np.array([worst]), n_tables)[0])
            away = (self.tops - self.scores[:, :, 0]) * _rounded_down(np.array([self.step]))
            self.bytes = np.minimum(away, np.float32(255)).astype(np.uint8)
            self.limit = int(_limit(worst, self.bound, self.step, n_tables))
            return
        weight, self.limit = _flag(self.way, n_tables)
        self.bytes = np.where(self.scores[:, :, 0] < np.float32(worst), np.uint8(weight), np.uint8(0))

    def look(self, blocks: Iterable[Block]) -> None:
        """Scan some labels; what is found waits for `gather`."""
        best, ids, limit = self.best.copy(), self.ids.copy(), self.limit
        room = np.empty(len(self.scores), np.float32)
        kernel: Any = scan_one
        for rows, labels, first in blocks if len(self.sound) else ():
            limit = kernel(
                rows, labels, first, self.bytes, limit, self.bound, self.step, self.scores, self.way, room, best[0],
                ids[0],
            )  # fmt: skip
        self.found.append((best, ids, np.array([limit])))

    def gather(self) -> None:
        """Put together what the shares have found."""
        found, self.found = self.found, []
        self.best, self.ids = _merged(found)
        self.limit = min(int(part[2][0]) for part in found)


def _look_at_best(
    rows: np.ndarray,
    order: np.ndarray,
    offsets: np.ndarray,
    scores: np.ndarray,
    document: int,
    way: int,
    best: np.ndarray,
    ids: np.ndarray,
) -> None:
    """Keep the best labels of a document's best buckets in the first table."""
    own = scores[0, :, document]
    count = min(FIRST_BUCKETS, len(own))
    chosen = np.argpartition(-own, count - 1)[:count]
    kernel: Any = look_at_members
    room, promising = np.empty(len(scores), np.float32), np.empty(max(FIRST_MEMBERS, 2 * len(best)), np.int32)
    kernel(rows, order, offsets, chosen, promising, scores, document, way, room, best, ids)


def _merged(found: Sequence[Found]) -> tuple[np.ndarray, np.ndarray]:
    """The best of what several shares of the labels gave; what was known before is in every one."""
    if len(found) == 1:
        return found[0][:2]
    k = found[0][0].shape[1]
    best = np.concatenate([part[0] for part in found], 1)
    ids = np.concatenate([part[1] for part in found], 1)
    order = np.lexsort((np.where(ids == NOTHING, np.iinfo(np.int32).max, ids), -best), axis=1)
    best, ids = np.take_along_axis(best, order, 1), np.take_along_axis(ids, order, 1)
    again = np.zeros(ids.shape, bool)
    again[:, 1:] = (ids[:, 1:] == ids[:, :-1]) & (
        ids[:, 1:] != NOTHING
    )  # the same label has the same score: neighbours
    order = np.argsort(again, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(best, order, 1), np.take_along_axis(ids, order, 1)


def _steps(bounds: np.ndarray, worst: np.ndarray, n_tables: int) -> np.ndarray:
    """What distances are multiplied by, so that STEPS of them lead from the best that can be to what is wanted.

    The room for rounding counts: scores may be equal to what is wanted only once they are rounded.
    """
    kernel: Any = distance_to
    away = np.array([kernel(low, n_tables, bound) for bound, low in zip(bounds, worst, strict=True)])
    return STEPS / np.where(np.isfinite(away), np.maximum(away, 1e-30), 1.0)


def _rounded_down(steps: np.ndarray) -> np.ndarray:
    """A little less, so that products rounded to float32 are never more than the true ones."""
    return (steps * (1 - 1e-6)).astype(np.float32)


def _limit(worst: float, bound: float, step: float, n_tables: int) -> np.uint8:
    kernel: Any = limit_of
    return np.uint8(0) if np.isneginf(worst) else np.uint8(kernel(worst, n_tables, bound, step))


def _flag(way: int, n_tables: int) -> tuple[int, int]:
    """What a score counts that is too low, and how much may come together: the least must be high enough in all tables,
    the median in half of them."""
    return (255, 0) if way == LEAST else (1, n_tables // 2)
