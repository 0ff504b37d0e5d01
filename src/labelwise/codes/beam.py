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
LARGEST_LOG = 88.0  # beyond it e^x is no float32 any more; only labels weighed up by the user get there

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


def beam_search(
    features: Any,
    levels: Sequence[ChunkedWeights],
    label_order: np.ndarray,
    beam: int,
    k: int,
    post_processor: str = "l3_hinge",
    choice: LabelChoice | None = None,
) -> TopK:
    """The best k labels of each row of a CSR matrix (float32, sorted int32 indices)."""
    transform, power, product = _post_processor(post_processor)
    allowed = _allowed_by_level(levels, choice.allowed if choice else None)
    extra = _nothing(np.float32) if choice is None or choice.extra is None else choice.extra.astype(np.float32)
    n = features.shape[0]
    ids = np.empty((n, k), np.int32)
    scores = np.empty((n, k), np.float32)
    decoded = [_decoded(level) for level in levels]
    names = np.ascontiguousarray(label_order, np.int32)

    def work(part: tuple[int, int]) -> None:
        from labelwise.kernels.beam import expand

        begin, end = part
        alone = end - begin == 1
        position = _nothing(np.int32) if alone else np.full(features.shape[1], -1, np.int32)
        for first in range(begin, end, BLOCK):
            last = min(first + BLOCK, end)
            nodes = np.zeros((last - first, 1), np.int32)
            kept = np.zeros((last - first, 1), np.float32)
            for depth, (level, (values, codes, decode)) in enumerate(zip(levels, decoded, strict=True)):
                leaf = depth == len(levels) - 1
                keep = min(k if leaf else beam, level.n_children)
                out_nodes = np.empty((last - first, keep), np.int32)
                out_scores = np.empty((last - first, keep), np.float32)
                expand(
                    features.indptr, features.indices, features.data, first, nodes, kept,
                    level.children_offsets, level.chunk_offsets, level.features, level.row_offsets, level.lanes,
                    values, codes, decode, level.bias, level.scales, transform, power,
                    allowed[depth], extra if leaf else _nothing(np.float32), names if leaf else _nothing(np.int32),
                    keep, position, out_nodes, out_scores,
                )  # fmt: skip
                nodes, kept = out_nodes, out_scores
            width = nodes.shape[1]
            ids[first:last, :width], scores[first:last, :width] = nodes, kept
            ids[first:last, width:], scores[first:last, width:] = NOTHING, -np.inf

    run_all(work, ranges(n, threads() if n >= 8 * threads() else 1))
    if product:
        np.exp(np.minimum(scores, LARGEST_LOG), out=scores, where=ids >= 0)
    return TopK(ids, scores)


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


def _decoded(level: ChunkedWeights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values for the kernel: plain float32, or codes with a table of what they stand for."""
    if level.values.dtype == np.float32:
        return level.values, _nothing(np.uint8), _nothing(np.float32)
    if level.values.dtype == np.int8:
        return _nothing(np.float32), level.values.view(np.uint8), _int8_table()
    return _nothing(np.float32), level.values.view(np.uint16), _half_table()


@lru_cache
def _half_table() -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


@lru_cache
def _int8_table() -> np.ndarray:
    return np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)


@lru_cache
def _nothing(dtype: Any) -> np.ndarray:
    return np.empty(0, dtype)
