"""The weights of one tree level, stored by chunk: the children of one node together, feature by feature.

A query walks its features once a chunk and meets all siblings' weights beside each other. Everything is a flat array,
so a level is mapped from its file as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise.errors import ModelFormatError
from labelwise.store import stored


@dataclass(frozen=True)
class ChunkPart:
    """One chunk as training makes it: rows of (feature; lanes and values), features ascending."""

    features: np.ndarray
    row_counts: np.ndarray
    lanes: np.ndarray
    values: np.ndarray
    bias: np.ndarray

    @classmethod
    def side_by_side(cls, parts: Sequence[ChunkPart]) -> ChunkPart:
        """One chunk from neighbouring groups of its children, each with lanes that count from its own first child."""
        if len(parts) == 1:
            return parts[0]
        firsts = np.cumsum([0, *(len(part.bias) for part in parts)])
        features = np.concatenate([np.repeat(part.features, part.row_counts) for part in parts])
        lanes = np.concatenate(
            [part.lanes.astype(np.int64) + first for part, first in zip(parts, firsts, strict=False)]
        )
        order = np.argsort(features, kind="stable")  # groups come in order, so lanes stay sorted inside a feature
        found, counts = np.unique(features, return_counts=True)
        values = np.concatenate([part.values for part in parts])[order]
        return cls(found.astype(np.int32), counts, lanes[order], values, np.concatenate([part.bias for part in parts]))


@dataclass(frozen=True)
class ChunkedWeights:
    """One level: chunk c has the rows ``chunk_offsets[c]:chunk_offsets[c+1]``, row r the entries of its feature.

    ``children_offsets[c]:children_offsets[c+1]`` are the chunk's children among the level's nodes; an entry's lane
    counts from the first of them. Values may be float16 or int8; int8 is to be multiplied by the child's `scales`.
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
    def joined(cls, parts: Sequence[ChunkPart], n_features: int, children_offsets: np.ndarray) -> ChunkedWeights:
        """A level from its chunks."""
        counts = np.concatenate([part.row_counts for part in parts]) if parts else np.empty(0, np.int64)
        lanes = np.concatenate([part.lanes for part in parts])
        return cls(
            n_features,
            children_offsets.astype(np.int64),
            np.cumsum([0, *(len(part.features) for part in parts)], dtype=np.int64),
            np.concatenate([part.features for part in parts]).astype(np.int32),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            lanes.astype(_lane_type(children_offsets)),
            np.concatenate([part.values for part in parts]).astype(np.float32),
            np.concatenate([part.bias for part in parts]).astype(np.float32),
            np.empty(0, np.float32),
        )

    @property
    def n_children(self) -> int:
        """Nodes of this level."""
        return int(self.children_offsets[-1])

    @property
    def n_weights(self) -> int:
        """Weights kept."""
        return len(self.values)

    @property
    def widest(self) -> int:
        """Children of the largest chunk."""
        return int(np.diff(self.children_offsets).max(initial=0))

    def entry_children(self) -> np.ndarray:
        """The node each entry belongs to."""
        rows = np.diff(self.row_offsets)
        chunk_of_row = np.repeat(np.arange(len(self.chunk_offsets) - 1), np.diff(self.chunk_offsets))
        first = np.repeat(self.children_offsets[:-1][chunk_of_row], rows)
        return first + self.lanes

    def stored_as(self, precision: str) -> ChunkedWeights:
        """The same weights as float32, float16 or int8 (one scale a child, so that its largest weight is 127)."""
        if precision == "float32":
            return self
        if precision == "float16":
            values, scales = self.values.astype(np.float16), self.scales
        else:
            children = self.entry_children()
            largest = np.zeros(self.n_children, np.float32)
            np.maximum.at(largest, children, np.abs(self.values))
            scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
            values = np.rint(self.values / scales[children]).astype(np.int8)
        return ChunkedWeights(
            self.n_features, self.children_offsets, self.chunk_offsets, self.features, self.row_offsets,
            self.lanes, values, self.bias, scales,
        )  # fmt: skip

    def to_tensors(self, prefix: str) -> dict[str, np.ndarray]:
        """As named arrays."""
        return {f"{prefix}.{name}": getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_tensors(
        cls, prefix: str, tensors: Mapping[str, np.ndarray], n_features: int, children_offsets: np.ndarray, path: Path
    ) -> ChunkedWeights:
        """Take back `to_tensors`, every index checked: kernels walk these arrays without looking."""
        found = {name: stored(tensors, f"{prefix}.{name}", path) for name in _ARRAYS}
        level = cls(n_features, children_offsets=children_offsets.astype(np.int64), **found)
        if not level._sound():
            raise ModelFormatError(f"{path}: the weights of {prefix} are damaged")
        return level

    def _sound(self) -> bool:
        arrays = [getattr(self, name) for name in _ARRAYS]
        kinds = (
            self.chunk_offsets.dtype == self.row_offsets.dtype == np.int64
            and self.features.dtype == np.int32
            and self.lanes.dtype == _lane_type(self.children_offsets)
            and self.values.dtype in (np.float32, np.float16, np.int8)
            and self.bias.dtype == self.scales.dtype == np.float32
        )
        if not kinds or any(array.ndim != 1 for array in arrays):
            return False
        n_chunks = len(self.children_offsets) - 1
        sizes = (
            len(self.chunk_offsets) == n_chunks + 1
            and len(self.row_offsets) == len(self.features) + 1
            and len(self.lanes) == len(self.values)
            and len(self.bias) == self.n_children
            and len(self.scales) == (self.n_children if self.values.dtype == np.int8 else 0)
        )
        if (
            not sizes
            or not _rising(self.chunk_offsets, len(self.features))
            or not _rising(self.row_offsets, len(self.lanes))
        ):
            return False
        if not np.isfinite(self.bias).all() or not np.isfinite(self.scales).all() or not np.isfinite(self.values).all():
            return False
        if len(self.features) and (self.features.min() < 0 or self.features.max() >= self.n_features):
            return False
        inner = np.ones(len(self.features), bool)
        inner[self.chunk_offsets[:-1][self.chunk_offsets[:-1] < len(self.features)]] = False
        if len(inner) and not (np.diff(self.features, prepend=-1)[inner] > 0).all():
            return False
        entries = self.row_offsets[self.chunk_offsets]
        widths = np.repeat(np.diff(self.children_offsets), np.diff(entries))
        return bool((self.lanes < widths).all())


_ARRAYS = ("chunk_offsets", "features", "row_offsets", "lanes", "values", "bias", "scales")


def _lane_type(children_offsets: np.ndarray) -> type[np.unsignedinteger]:
    """The smallest type that numbers the children of every chunk."""
    widest = int(np.diff(children_offsets).max(initial=0))
    return np.uint8 if widest <= 1 << 8 else np.uint16 if widest <= 1 << 16 else np.uint32


def _rising(offsets: np.ndarray, last: int) -> bool:
    return bool(len(offsets) and offsets[0] == 0 and offsets[-1] == last and (np.diff(offsets) >= 0).all())
