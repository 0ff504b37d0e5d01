"""The weights of a trained level as the starting point of further training on a few new documents.

New documents have a fraction of all features, and only the weights of these can change: the others are copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labelwise.linear.weights import ChunkedWeights, ChunkPart

Rows = tuple[np.ndarray, np.ndarray]
"""For each feature of a chunk the range of its entries in the level; empty if it has no weights."""


@dataclass(frozen=True)
class InitialWeights:
    """A level in float32, and for each feature of the new documents (their columns, without gaps) its index in it."""

    level: ChunkedWeights
    features: np.ndarray

    def rows(self, first: int, features: np.ndarray) -> Rows:
        """The entries of some features of the new documents in the chunk with the child `first`."""
        level = self.level
        low, high = level.chunk_offsets[self._chunk(first) :][:2]
        own = level.features[low:high]
        wanted = self.features[features]
        at = np.searchsorted(own, wanted)
        found = np.append(own, -1)[at] == wanted
        rows = low + np.where(found, at, 0)
        starts, ends = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        starts[found], ends[found] = level.row_offsets[rows[found]], level.row_offsets[rows[found] + 1]
        return starts, ends

    def load(self, rows: Rows, first: int, width: int, weights: np.ndarray) -> None:
        """Write the weights of the children first..first+width to `weights` [features, 16], which holds zeros."""
        from labelwise.kernels.tree.chunk_rows import load_lanes

        begin = self.level.children_offsets[self._chunk(first)]
        load_lanes(*rows, self.level.lanes, self.level.values, first - int(begin), width, weights)

    def completed(
        self, part: ChunkPart, trained: np.ndarray, first: int, last: int, max_weights: int | None
    ) -> ChunkPart:
        """The children first..last with the weights of all features: those `trained` in `part`, the others unchanged.

        `part` numbers features as the new documents do, the result as the level does.
        """
        level, chunk = self.level, self._chunk(first)
        low, high = level.chunk_offsets[chunk : chunk + 2]
        begin, end = level.row_offsets[low], level.row_offsets[high]
        counts = np.diff(level.row_offsets[low : high + 1])
        kept = np.repeat(~np.isin(level.features[low:high], self.features[trained]), counts)
        lanes = level.lanes[begin:end].astype(np.int64) - (first - int(level.children_offsets[chunk]))
        kept &= (lanes >= 0) & (lanes < last - first) & (level.values[begin:end] != 0)
        features = np.concatenate(
            [np.repeat(level.features[low:high], counts)[kept], np.repeat(self.features[part.features], part.row_counts)]
        )
        lanes = np.concatenate([lanes[kept], part.lanes])
        values = np.concatenate([level.values[begin:end][kept], part.values])
        if max_weights is not None:
            largest = _largest(lanes, values, max_weights)
            features, lanes, values = features[largest], lanes[largest], values[largest]
        order = np.argsort(features, kind="stable")
        unique, row_counts = np.unique(features, return_counts=True)
        return ChunkPart(
            unique.astype(np.int32), row_counts, lanes[order].astype(part.lanes.dtype), values[order], part.bias
        )

    def _chunk(self, child: int) -> int:
        return int(np.searchsorted(self.level.children_offsets, child, "right")) - 1


def _largest(lanes: np.ndarray, values: np.ndarray, limit: int) -> np.ndarray:
    """Mask of the `limit` entries per lane with the largest absolute values."""
    order = np.lexsort((-np.abs(values), lanes))
    counts = np.bincount(lanes)
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    mask = np.zeros(len(values), bool)
    mask[order] = ranks < limit
    return mask
