"""Beam search: from documents to their best labels through the levels of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from labelwise.codes.chunked import ChunkedWeights
from labelwise.errors import ConfigError, did_you_mean
from labelwise.parallel import ranges, run_all, threads
from labelwise.topk import NOTHING, TopK

BLOCK = 2048
FEW = 16  # documents below which a second thread is not worth calling

POST_PROCESSORS: dict[str, tuple[int, int, bool]] = {
    **{f"l{p}_hinge": (0, p, True) for p in (1, 2, 3, 4)},
    **{f"log_l{p}_hinge": (0, p, False) for p in (1, 2, 3, 4)},
    "sigmoid": (1, 1, True),
    "log_sigmoid": (1, 1, False),
    "none": (2, 1, False),
}
"""Name to (kernel's transform, power, whether the sum of logarithms is turned back into a product)."""


@dataclass(frozen=True)
class LabelChoice:
    """Labels that may be predicted and what is added to their score, both in tree order; None: all, nothing."""

    allowed: np.ndarray | None = None
    extra: np.ndarray | None = None


class TreeSearch:
    """A tree made ready for searching: what every search needs is laid out once."""

    def __init__(
        self, levels: Sequence[ChunkedWeights], label_order: np.ndarray, post_processor: str = "l3_hinge"
    ) -> None:
        self._transform, self._power, self._product = _post_processor(post_processor)
        self._levels = levels
        self._arrays = [
            (
                level.children_offsets, level.chunk_offsets, level.features, level.row_offsets, level.lanes,
                _stored(level), level.bias, level.scales, *level.directory, level.widest,
            )
            for level in levels
        ]  # fmt: skip
        self._sizes = [level.n_children for level in levels]
        self._names = np.ascontiguousarray(label_order, np.int32)

    def best(self, features: Any, beam: int, k: int, choice: LabelChoice | None = None) -> TopK:
        """The best k labels of each row of a CSR matrix (float32, sorted int32 indices)."""
        n = features.shape[0]
        extra = _nothing(np.float32) if choice is None or choice.extra is None else choice.extra.astype(np.float32)
        allowed = _allowed_by_level(self._levels, choice.allowed if choice else None)
        ids = np.empty((n, k), np.int32)
        scores = np.empty((n, k), np.float32)

        def work(part: tuple[int, int]) -> None:
            self._search(features, *part, beam, allowed, extra, ids, scores)

        if n < FEW:
            work((0, n))
        else:
            run_all(work, ranges(n, threads()))
        return TopK(ids, scores)

    def _search(
        self,
        features: Any,
        begin: int,
        end: int,
        beam: int,
        allowed: list[np.ndarray],
        extra: np.ndarray,
        ids: np.ndarray,
        scores: np.ndarray,
    ) -> None:
        """Fill the rows begin..end of `ids` and `scores`."""
        from labelwise.kernels.beam import expand, from_logarithms

        indptr, indices, data = features.indptr, features.indices, features.data
        position = _nothing(np.int32) if end - begin == 1 else np.full(features.shape[1], NOTHING, np.int32)
        for first in range(begin, end, BLOCK):
            last = min(first + BLOCK, end)
            nodes = np.zeros((last - first, 1), np.int32)
            kept = np.zeros((last - first, 1), np.float32)
            for depth, (arrays, size) in enumerate(zip(self._arrays, self._sizes, strict=True)):
                leaf = depth == len(self._sizes) - 1
                keep = min(ids.shape[1] if leaf else beam, size)
                out_nodes = np.empty((last - first, keep), np.int32)
                out_scores = np.empty((last - first, keep), np.float32)
                expand(
                    indptr, indices, data, first, nodes, kept, *arrays, self._transform, self._power, allowed[depth],
                    extra if leaf else _nothing(np.float32), self._names if leaf else _nothing(np.int32),
                    keep, position, out_nodes, out_scores,
                )  # fmt: skip
                nodes, kept = out_nodes, out_scores
            width = nodes.shape[1]
            ids[first:last, :width], scores[first:last, :width] = nodes, kept
            ids[first:last, width:], scores[first:last, width:] = NOTHING, -np.inf
        if self._product:
            from_logarithms(ids, scores, begin, end)


def beam_search(
    features: Any,
    levels: Sequence[ChunkedWeights],
    label_order: np.ndarray,
    beam: int,
    k: int,
    post_processor: str = "l3_hinge",
    choice: LabelChoice | None = None,
) -> TopK:
    """One search in a tree that is not kept ready."""
    return TreeSearch(levels, label_order, post_processor).best(features, beam, k, choice)


def _post_processor(name: str) -> tuple[int, int, bool]:
    if name not in POST_PROCESSORS:
        raise ConfigError(f"there is no post-processor '{name}'; {did_you_mean(name, POST_PROCESSORS)}")
    return POST_PROCESSORS[name]


def _allowed_by_level(levels: Sequence[ChunkedWeights], allowed: np.ndarray | None) -> list[np.ndarray]:
    """For each level which nodes lead to an allowed label; empty arrays when all do."""
    if allowed is None:
        return [_nothing(np.bool_)] * len(levels)
    masks = [np.ascontiguousarray(allowed, np.bool_)]
    for level in reversed(levels[1:]):
        starts = level.children_offsets[:-1]
        counts = np.add.reduceat(np.append(masks[0], False).astype(np.int64), starts) if len(starts) else starts
        counts[np.diff(level.children_offsets) == 0] = 0
        masks.insert(0, counts > 0)
    return masks


def _stored(level: ChunkedWeights) -> np.ndarray:
    """Values for the kernel, which takes float16 by its bits."""
    return level.values.view(np.uint16) if level.values.dtype == np.float16 else level.values


@lru_cache
def _nothing(dtype: Any) -> np.ndarray:
    return np.empty(0, dtype)
