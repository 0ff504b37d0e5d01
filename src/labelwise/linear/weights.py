"""The weights of one tree level, stored by chunk: the children of one node together, feature by feature.

A query walks its features once a chunk and meets all siblings' weights beside each other. Everything is a flat array,
so a level is mapped from its file as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from labelwise.checks import all_finite, are_offsets, in_range
from labelwise.errors import ModelFormatError
from labelwise.parallel import ranges, run_all, threads
from labelwise.store import get_tensor

FILLED = 0.25
LARGEST_HALF = 65504.0


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
        features = np.unique(np.concatenate([part.features for part in parts]))
        rows = [np.searchsorted(features, part.features) for part in parts]
        counts = np.zeros(len(features), np.int64)
        for part, own in zip(parts, rows, strict=True):
            counts[own] += part.row_counts
        next_places = np.cumsum(counts) - counts
        lanes = np.empty(int(counts.sum()), np.uint16 if firsts[-1] <= 1 << 16 else np.uint32)
        values = np.empty(len(lanes), np.float32)
        for part, own, first in zip(parts, rows, firsts[:-1], strict=True):
            behind = next_places[own] - (np.cumsum(part.row_counts) - part.row_counts)
            places = np.repeat(behind, part.row_counts) + np.arange(len(part.lanes))
            lanes[places] = part.lanes + first  # groups come in order, so lanes rise inside a feature
            values[places] = part.values
            next_places[own] += part.row_counts
        return cls(features, counts, lanes, values, np.concatenate([part.bias for part in parts]))


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
    def joined(cls, parts: list[ChunkPart], n_features: int, children_offsets: np.ndarray) -> ChunkedWeights:
        """A level from its chunks. The list is emptied on the way, so that no weight is held twice."""
        rows, entries = (np.cumsum([0, *(len(getattr(p, name)) for p in parts)]) for name in ("features", "lanes"))
        features, row_offsets = np.empty(rows[-1], np.int32), np.zeros(rows[-1] + 1, np.int64)
        counts = row_offsets[1:]
        lanes, values = np.empty(entries[-1], _lane_type(children_offsets)), np.empty(entries[-1], np.float32)
        biases = []
        parts.reverse()
        for place in range(len(parts)):
            part = parts.pop()
            row, entry = slice(*rows[place : place + 2]), slice(*entries[place : place + 2])
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

    @property
    def n_children(self) -> int:
        """Nodes of this level."""
        return int(self.children_offsets[-1])

    @property
    def n_weights(self) -> int:
        """Weights kept."""
        return int(np.count_nonzero(self.values))

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

    @cached_property
    def directory(self) -> tuple[np.ndarray, ...]:
        """Where each chunk keeps its features: the tables of `kernels.chunk_directory`, made at the first use."""
        from labelwise.kernels.tree.chunk_directory import directory_shape, fill_directory

        n_chunks = len(self.chunk_offsets) - 1
        chunks = self.chunk_offsets, self.features
        word_offsets, range_offsets = np.empty(n_chunks + 1, np.int64), np.empty(n_chunks + 1, np.int64)
        shifts = np.empty(n_chunks, np.int64)
        directory_shape(*chunks, self.n_features, word_offsets, shifts, range_offsets)
        words, starts = np.zeros(2 * int(word_offsets[-1]), np.uint64), np.empty(int(range_offsets[-1]), np.int32)
        shape = word_offsets, shifts, range_offsets
        run_all(lambda part: fill_directory(*chunks, *shape, *part, words, starts), ranges(n_chunks, threads()))
        return word_offsets, words, shifts, range_offsets, starts

    def filled(self, share: float = FILLED) -> ChunkedWeights:
        """The same weights, with rows that have at least this share of the children made whole by zeros.

        A whole row is added to the children's sums as vectors, which takes less time than a fourth of it one by one;
        and it is the common features, which nearly all documents have, that nearly all children have weights for.
        """
        from labelwise.kernels.tree.chunk_rows import fill_rows

        widths = np.repeat(np.diff(self.children_offsets), np.diff(self.chunk_offsets))
        counts = np.diff(self.row_offsets)
        whole = counts >= share * widths
        offsets = np.concatenate([[0], np.cumsum(np.where(whole, widths, counts))]).astype(np.int64)
        lanes = np.empty(int(offsets[-1]), self.lanes.dtype)
        values = np.zeros(int(offsets[-1]), np.float32)
        fill_rows(self.row_offsets, self.lanes, self.values, whole, offsets, lanes, values)
        return replace(self, row_offsets=offsets, lanes=lanes, values=values)

    def stored_as(self, precision: str) -> ChunkedWeights:
        """The same weights as float32, float16 or int8 (one scale a child, so that its largest weight is 127)."""
        if precision == "float32":
            return self
        if precision == "float16":
            values, scales = np.clip(self.values, -LARGEST_HALF, LARGEST_HALF).astype(np.float16), self.scales
        else:
            children = self.entry_children()
            largest = np.zeros(self.n_children, np.float32)
            np.maximum.at(largest, children, np.abs(self.values))
            scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
            values = np.rint(self.values / scales[children]).astype(np.int8)
        return replace(self, values=values, scales=scales)

    def to_tensors(self, prefix: str) -> dict[str, np.ndarray]:
        """As named arrays."""
        return {f"{prefix}.{name}": getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_tensors(
        cls, prefix: str, tensors: Mapping[str, np.ndarray], n_features: int, children_offsets: np.ndarray, path: Path
    ) -> ChunkedWeights:
        """Take back `to_tensors`, every index checked: kernels walk these arrays without looking."""
        found = {name: get_tensor(tensors, f"{prefix}.{name}", path) for name in _ARRAYS}
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
            or not are_offsets(self.chunk_offsets, len(self.features))
            or not are_offsets(self.row_offsets, len(self.lanes))
        ):
            return False
        if not all(all_finite(array) for array in (self.bias, self.scales, self.values)):
            return False
        if not in_range(self.features, self.n_features):
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
