"""Search state per document in bucket decoding: the best labels so far, and what a label must reach to matter.

32 documents are searched together, as the lanes of vectors (`DocumentGroup`), or one alone (`SingleDocument`). Both get
blocks of labels from `bucket_search.py`, several blocks at the same time if need be, and then gather what was found.
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
    look_at_members,
    scan,
    scan_one,
)
from labelwise.topk import NO_LABEL, sorted_by_score

FIRST_BUCKETS, FIRST_MEMBERS = 8, 32
"""Best buckets of the first table with whose labels the search begins, and labels of them that are scored at least."""
Block = tuple[np.ndarray, np.ndarray, int]
"""Buckets of labels [labels, tables], the labels if they are not consecutive, and the first one's number."""
Found = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Scores, labels and limits."""


class DocumentGroup:
    """The search state of up to 32 documents.

    Attributes
    ----------
    documents, sound
        Documents that have a result, and their lanes.
    """

    def __init__(self, aggregation: int, scores: np.ndarray, begin: int, end: int, k: int) -> None:
        self.aggregation, self.scores = aggregation, scores
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
        self.ids = np.full((LANES, k), NO_LABEL, np.int32)
        self.found: list[Found] = []

    def begin_with(self, rows: np.ndarray, order: np.ndarray, offsets: np.ndarray) -> None:
        """Look at labels of each document's best buckets in the first table: they show what must be reached."""
        for lane in self.sound:
            _look_at_best(
                rows, order, offsets, self.scores, self.first + lane, self.aggregation, self.best[lane], self.ids[lane]
            )

    def make_ready(self) -> None:
        """Bytes and limits for what must be reached now; before anything is known, all labels are looked at."""
        worst = self.best[:, -1].astype(np.float64)
        if np.isneginf(worst[self.sound]).any():
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
                self.aggregation, room, best, ids,
            )  # fmt: skip
        self.found.append((best, ids, limits))

    def gather(self) -> None:
        """Combine what the parts have found."""
        found, self.found = self.found, []
        self.best, self.ids = _merged(found)
        self.limits = np.min([part[2] for part in found], 0)


class SingleDocument:
    """The search state of a single document."""

    def __init__(self, aggregation: int, scores: np.ndarray, document: int, k: int) -> None:
        self.aggregation, self.scores = aggregation, scores
        good = bool(np.isfinite(scores).all())
        self.sound, self.documents = np.arange(int(good)), np.full(int(good), document)
        self.bytes = np.empty((0, scores.shape[1]), np.uint8)
        self.tops = scores.max(1) if good else scores[:, 0]
        self.bound, self.step, self.limit = float(self.tops.sum(dtype=np.float64)), 0.0, 0
        self.best = np.full((1, k), -np.inf, np.float32)
        self.ids = np.full((1, k), NO_LABEL, np.int32)
        self.found: list[Found] = []

    def begin_with(self, rows: np.ndarray, order: np.ndarray, offsets: np.ndarray) -> None:
        """Look at labels of the best buckets in the first table."""
        if len(self.sound):
            _look_at_best(rows, order, offsets, self.scores, 0, self.aggregation, self.best[0], self.ids[0])

    def make_ready(self) -> None:
        """Bytes and limit for what must be reached now."""
        worst = float(self.best[0, -1])
        if np.isneginf(worst) or len(self.sound) == 0:
            return
        n_tables = len(self.scores)
        if self.aggregation == SUM:
            self.step = float(_steps(np.array([self.bound]), np.array([worst]), n_tables)[0])
            away = (self.tops - self.scores[:, :, 0]) * _rounded_down(np.array([self.step]))
            self.bytes = np.minimum(away, np.float32(255)).astype(np.uint8)
            self.limit = int(_limit(worst, self.bound, self.step, n_tables))
            return
        weight, self.limit = _flag(self.aggregation, n_tables)
        self.bytes = np.where(self.scores[:, :, 0] < np.float32(worst), np.uint8(weight), np.uint8(0))

    def look(self, blocks: Iterable[Block]) -> None:
        """Scan some labels; what is found waits for `gather`."""
        best, ids, limit = self.best.copy(), self.ids.copy(), self.limit
        room = np.empty(len(self.scores), np.float32)
        kernel: Any = scan_one
        for rows, labels, first in blocks if len(self.sound) else ():
            limit = kernel(
                rows, labels, first, self.bytes, limit, self.bound, self.step, self.scores, self.aggregation, room,
                best[0], ids[0],
            )  # fmt: skip
        self.found.append((best, ids, np.array([limit])))

    def gather(self) -> None:
        """Combine what the parts have found."""
        found, self.found = self.found, []
        self.best, self.ids = _merged(found)
        self.limit = min(int(part[2][0]) for part in found)


def _look_at_best(
    rows: np.ndarray,
    order: np.ndarray,
    offsets: np.ndarray,
    scores: np.ndarray,
    document: int,
    aggregation: int,
    best: np.ndarray,
    ids: np.ndarray,
) -> None:
    """Keep the best labels of a document's best buckets in the first table."""
    own = scores[0, :, document]
    count = min(FIRST_BUCKETS, len(own))
    chosen = np.argpartition(-own, count - 1)[:count]
    kernel: Any = look_at_members
    room, promising = np.empty(len(scores), np.float32), np.empty(max(FIRST_MEMBERS, 2 * len(best)), np.int32)
    kernel(rows, order, offsets, chosen, promising, scores, document, aggregation, room, best, ids)


def _merged(found: Sequence[Found]) -> tuple[np.ndarray, np.ndarray]:
    """The best of what several shares of the labels gave; what was known before is in every one."""
    if len(found) == 1:
        return found[0][:2]
    k = found[0][0].shape[1]
    best = np.concatenate([part[0] for part in found], 1)
    ids = np.concatenate([part[1] for part in found], 1)
    top = sorted_by_score(ids, best)
    best, ids = top.scores, top.ids
    again = np.zeros(ids.shape, bool)
    again[:, 1:] = (ids[:, 1:] == ids[:, :-1]) & (
        ids[:, 1:] != NO_LABEL
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


def _flag(aggregation: int, n_tables: int) -> tuple[int, int]:
    """What a score counts that is too low, and how much may come together: the least must be high enough in all tables,
    the median in half of them."""
    return (255, 0) if aggregation == LEAST else (1, n_tables // 2)
