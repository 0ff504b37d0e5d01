"""The weights of one tree level by chunk: the children of one node together, feature by feature, in flat arrays.

Training writes this layout, and pruning and learning change it. Models are stored and searched as `packed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

MAX_FLOAT16 = 65504.0


@dataclass(frozen=True)
class ChunkPart:
    """One chunk as training produces it: rows of (feature; lanes and values), features ascending."""

    features: np.ndarray
    row_counts: np.ndarray
    lanes: np.ndarray
    values: np.ndarray
    bias: np.ndarray

    @classmethod
    def side_by_side(cls, parts: Sequence[ChunkPart]) -> ChunkPart:
        """One chunk from consecutive groups of its children; the lanes of each group count from its first child."""
        if len(parts) == 1:
            return parts[0]
        firsts = np.cumsum([0, *(len(part.bias) for part in parts)])
        features = np.unique(np.concatenate([part.features for part in parts]))
        rows = [np.searchsorted(features, part.features) for part in parts]
        counts = np.zeros(len(features), np.int64)
        for part, own in zip(parts, rows, strict=True):
            counts[own] += part.row_counts
        next_entries = np.cumsum(counts) - counts
        lanes = np.empty(int(counts.sum()), np.uint16 if firsts[-1] <= 1 << 16 else np.uint32)
        values = np.empty(len(lanes), np.float32)
        for part, own, first in zip(parts, rows, firsts[:-1], strict=True):
            shifts = next_entries[own] - (np.cumsum(part.row_counts) - part.row_counts)
            entries = np.repeat(shifts, part.row_counts) + np.arange(len(part.lanes))
            lanes[entries] = part.lanes + first  # groups are in order, so lanes ascend within a feature
            values[entries] = part.values
            next_entries[own] += part.row_counts
        return cls(features, counts, lanes, values, np.concatenate([part.bias for part in parts]))


@dataclass(frozen=True)
class ChunkedWeights:
    """One level: chunk c has the rows ``chunk_offsets[c]:chunk_offsets[c+1]``, row r the entries of its feature.

    ``children_offsets[c]:children_offsets[c+1]`` are the chunk's children among the level's nodes; an entry's lane
    counts from the first of them. Values may be float16 or int8; int8 values are multiplied by the child's `scales`.
    """

    n_features: int
    children_offsets: np.ndarray
    chunk_offsets: np.ndarray
    features: np.ndarray
    row_offsets: np.ndarray
    lanes: np.ndarray
    values: np.ndarray
    bias: np.ndarray
    scales: np.ndarray

    @classmethod
    def joined(cls, parts: list[ChunkPart], n_features: int, children_offsets: np.ndarray) -> ChunkedWeights:
        """Concatenate the chunks of a level. Empties the list, so that weights are not held twice."""
        rows, entries = (np.cumsum([0, *(len(getattr(p, name)) for p in parts)]) for name in ("features", "lanes"))
        features, row_offsets = np.empty(rows[-1], np.int32), np.zeros(rows[-1] + 1, np.int64)
        counts = row_offsets[1:]
        lanes, values = np.empty(entries[-1], lane_type(children_offsets)), np.empty(entries[-1], np.float32)
        biases = []
        parts.reverse()
        for chunk in range(len(parts)):
            part = parts.pop()
            row, entry = slice(*rows[chunk : chunk + 2]), slice(*entries[chunk : chunk + 2])
            features[row], counts[row], lanes[entry], values[entry] = (
                part.features, part.row_counts, part.lanes, part.values,
            )  # fmt: skip
            biases.append(part.bias)
        np.cumsum(counts, out=counts)
        return cls(
            n_features,
            children_offsets.astype(np.int64),
            rows.astype(np.int64),
            features,
            row_offsets,
            lanes,
            values,
            np.concatenate(biases).astype(np.float32),
            np.empty(0, np.float32),
        )

    @classmethod
    def from_matrix(cls, weights: Any, bias: np.ndarray, children_offsets: np.ndarray) -> ChunkedWeights:
        """A level from a sparse matrix [features, children] without duplicates, and the children's biases."""
        by_feature = sparse.csc_array(weights, dtype=np.float32).tocsr()  # children ascend within a feature
        by_feature.eliminate_zeros()
        n_features, n_chunks = by_feature.shape[0], len(children_offsets) - 1
        chunk_of_child = np.repeat(np.arange(n_chunks), np.diff(children_offsets))
        chunks, entries = chunk_of_child[by_feature.indices], np.arange(by_feature.nnz)
        order = sparse.coo_array((entries, (chunks, entries)), shape=(n_chunks, by_feature.nnz)).tocsr().data
        features = np.repeat(np.arange(n_features, dtype=np.int32), np.diff(by_feature.indptr))[order]
        chunks, children = chunks[order], by_feature.indices[order]
        starts = np.flatnonzero((np.diff(chunks, prepend=-1) != 0) | (np.diff(features, prepend=-1) != 0))
        return cls(
            n_features,
            children_offsets.astype(np.int64),
            np.append(0, np.cumsum(np.bincount(chunks[starts], minlength=n_chunks))).astype(np.int64),
            features[starts],
            np.append(starts, len(order)).astype(np.int64),
            (children - children_offsets[chunks]).astype(lane_type(children_offsets)),
            by_feature.data[order],
            bias.astype(np.float32),
            np.empty(0, np.float32),
        )

    @property
    def n_children(self) -> int:
        """Number of nodes of this level."""
        return int(self.children_offsets[-1])

    @property
    def n_weights(self) -> int:
        """Number of non-zero weights."""
        return int(np.count_nonzero(self.values))

    @property
    def widest(self) -> int:
        """Number of children of the largest chunk."""
        return int(np.diff(self.children_offsets).max(initial=0))

    def entry_children(self) -> np.ndarray:
        """The node of each entry."""
        rows = np.diff(self.row_offsets)
        chunk_of_row = np.repeat(np.arange(len(self.chunk_offsets) - 1), np.diff(self.chunk_offsets))
        children = np.repeat(self.children_offsets[:-1].astype(np.int32)[chunk_of_row], rows)
        np.add(children, self.lanes, out=children, casting="unsafe")  # a node's index fits int32
        return children

    def stored_as(self, precision: str) -> ChunkedWeights:
        """The same weights as float32, float16 or int8 (one scale per child, so that its largest weight is 127)."""
        if precision == "float32":
            return self
        if precision == "float16":
            values, scales = np.clip(self.values, -MAX_FLOAT16, MAX_FLOAT16).astype(np.float16), self.scales
        else:
            children = self.entry_children()
            largest = np.zeros(self.n_children, np.float32)
            np.maximum.at(largest, children, np.abs(self.values))
            scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
            quotients = scales[children]
            np.divide(self.values, quotients, out=quotients)
            values = np.rint(quotients, out=quotients).astype(np.int8)
        return replace(self, values=values, scales=scales).without_zeros()

    def as_float32(self) -> ChunkedWeights:
        """The same weights in 32 bits."""
        if self.values.dtype == np.float32:
            return self
        values = self.values.astype(np.float32)
        if len(self.scales):
            values *= self.scales[self.entry_children()]
        return replace(self, values=values, scales=np.empty(0, np.float32))

    def part(self, chunk: int) -> ChunkPart:
        """One chunk of a level in 32 bits."""
        low, high = self.chunk_offsets[chunk : chunk + 2]
        entries, children = slice(*self.row_offsets[[low, high]]), slice(*self.children_offsets[chunk : chunk + 2])
        counts = np.diff(self.row_offsets[low : high + 1])
        return ChunkPart(
            self.features[low:high], counts, self.lanes[entries], self.values[entries], self.bias[children]
        )

    def with_children(self, added: np.ndarray) -> ChunkedWeights:
        """A level in 32 bits with so many more children at the end of each chunk.

        They have no weights; their bias is the mean of their siblings'.
        """
        offsets = self.children_offsets
        means = np.add.reduceat(self.bias, offsets[:-1]) / np.diff(offsets)
        bias = np.insert(self.bias, np.repeat(offsets[1:], added), np.repeat(means, added).astype(np.float32))
        offsets = offsets + np.append(0, np.cumsum(added))
        lanes = self.lanes.astype(lane_type(offsets), copy=False)
        return replace(self, children_offsets=offsets, bias=bias, lanes=lanes)

    @property
    def precision(self) -> str:
        """The type of the values: float32, float16 or int8."""
        return self.values.dtype.name

    def pruned(self, threshold: float) -> ChunkedWeights:
        """Only the weights whose absolute value reaches the threshold, as training with that threshold stores them."""
        magnitudes = np.abs(self.values.astype(np.float32))
        if len(self.scales):
            magnitudes *= self.scales[self.entry_children()]
        return self._only((magnitudes >= np.float32(threshold)) & (self.values != 0))

    def without_zeros(self) -> ChunkedWeights:
        """Without weights of 0, and without features that have no other."""
        kept = self.values != 0
        return self if kept.all() else self._only(kept)

    def _only(self, kept: np.ndarray) -> ChunkedWeights:
        """With some of the weights, given as a mask."""
        counts = np.diff(np.concatenate([[0], np.cumsum(kept)])[self.row_offsets])
        used = counts > 0
        return replace(
            self,
            chunk_offsets=np.concatenate([[0], np.cumsum(used)])[self.chunk_offsets],
            features=self.features[used],
            row_offsets=np.concatenate([[0], np.cumsum(counts[used])]),
            lanes=self.lanes[kept],
            values=self.values[kept],
        )


def lane_type(children_offsets: np.ndarray) -> type[np.unsignedinteger]:
    """The smallest type that holds the lanes of every chunk."""
    widest = int(np.diff(children_offsets).max(initial=0))
    return np.uint8 if widest <= 1 << 8 else np.uint16 if widest <= 1 << 16 else np.uint32
