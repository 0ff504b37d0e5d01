"""The weights of a trained level as the starting point of further training on a few new documents.

The old documents are no longer at hand. Their losses are replaced by a quadratic function of the change of each
weight, with the curvature that the statistics of the old documents give: weights of features that many old documents
have change little. In the solver this is a scale per feature. Only weights of features of the new documents change.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labelwise.data.csr import read_only
from labelwise.linear.weights import ChunkedWeights, ChunkPart


@dataclass(frozen=True)
class InitialWeights:
    """The starting point of a level.

    Parameters
    ----------
    level
        Its weights in 32 bits.
    features
        For each feature of the new documents (numbered without gaps) its index in the level.
    curvature
        Per feature of the new documents, the mean curvature of one old document's loss in its weight.
    bias_curvature
        The same for the bias.
    documents
        Old documents of each chunk.
    """

    level: ChunkedWeights
    features: np.ndarray
    curvature: np.ndarray
    bias_curvature: float
    documents: np.ndarray

    def chunk(self, first: int, features: np.ndarray) -> ChunkStart:
        """The starting point of the chunk that has the child `first`, for some features of the new documents."""
        chunk = int(np.searchsorted(self.level.children_offsets, first, "right")) - 1
        count = self.documents[chunk]
        steps = 1 / np.sqrt(1 + count * self.curvature[features])
        bias_step = 1 / np.sqrt(1 + count * self.bias_curvature)
        return ChunkStart(self.level, chunk, self.features[features], steps.astype(np.float32), float(bias_step))


@dataclass(frozen=True)
class ChunkStart:
    """The starting point of one chunk. `features` are those of its new documents, as indices in the level.

    The solver works with documents multiplied by `steps`, and weights divided by them.
    """

    level: ChunkedWeights
    chunk: int
    features: np.ndarray
    steps: np.ndarray
    bias_step: float

    @cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        """For each feature the range of its entries in the level; empty if it has no weights."""
        level = self.level
        low, high = level.chunk_offsets[self.chunk : self.chunk + 2]
        own = level.features[low:high]
        index = np.searchsorted(own, self.features)
        found = np.append(own, -1)[index] == self.features
        rows = low + index[found]
        starts, ends = np.zeros(len(index), np.int64), np.zeros(len(index), np.int64)
        starts[found], ends[found] = level.row_offsets[rows], level.row_offsets[rows + 1]
        return starts, ends

    def load(self, first: int, width: int, bias: float, weights: np.ndarray, offsets: np.ndarray) -> None:
        """Set weights [features, 16] and offsets [16], which hold zeros, to those of the children first..first+width.

        `bias` is the solver's constant feature, already multiplied by its step.
        """
        from labelwise.kernels.tree.chunk_rows import load_lanes

        level = self.level
        begin = int(level.children_offsets[self.chunk])
        lanes, values = read_only(level.lanes), read_only(level.values)  # as those of a loaded model
        load_lanes(*self._entries, lanes, values, first - begin, width, weights)
        weights /= self.steps[:, None]
        if bias > 0:
            offsets[:width] = level.bias[first : first + width] / np.float32(bias)

    def completed(self, part: ChunkPart, first: int, max_weights: int | None) -> ChunkPart:
        """The children from `first` on with the weights of all features: those of `part`, and the others unchanged."""
        level, width = self.level, len(part.bias)
        low, high = level.chunk_offsets[self.chunk : self.chunk + 2]
        entries = slice(*level.row_offsets[[low, high]])
        counts = np.diff(level.row_offsets[low : high + 1])
        others = ~np.isin(level.features[low:high], self.features)
        lanes = level.lanes[entries].astype(np.int64) - (first - int(level.children_offsets[self.chunk]))
        kept = np.repeat(others, counts) & (lanes >= 0) & (lanes < width) & (level.values[entries] != 0)
        trained = np.repeat(part.features, part.row_counts)
        features = np.append(np.repeat(level.features[low:high], counts)[kept], trained)
        lanes = np.append(lanes[kept], part.lanes)
        values = np.append(level.values[entries][kept], part.values)
        if max_weights is not None:
            largest = _largest(lanes, values, max_weights)
            features, lanes, values = features[largest], lanes[largest], values[largest]
        order = np.argsort(features, kind="stable")  # keeps the lanes of a feature ascending
        unique, row_counts = np.unique(features, return_counts=True)
        return ChunkPart(
            unique.astype(np.int32), row_counts, lanes[order].astype(part.lanes.dtype), values[order], part.bias
        )


def _largest(lanes: np.ndarray, values: np.ndarray, limit: int) -> np.ndarray:
    """Mask of the `limit` entries per lane with the largest absolute values."""
    order = np.lexsort((-np.abs(values), lanes))
    counts = np.bincount(lanes)
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    mask = np.zeros(len(values), bool)
    mask[order] = ranks < limit
    return mask
