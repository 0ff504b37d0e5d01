"""The weights of one tree level by chunk: the children of one node together, feature by feature, in flat arrays.

Training writes this layout, and pruning and learning change it. Models are stored and searched as `packed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.csr import read_only
from labelwise.errors import ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.io.tensors import all_finite, are_offsets
from labelwise.kernels import packing as kernels
from labelwise.kernels.intrinsics import BLOCK, BYTES, LANES
from labelwise.runtime.threads import ranges, run_all, threads

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
class LevelWeights:
    """What both layouts of a level have; `children_offsets` are where the children of each chunk begin and end."""

    n_features: int
    children_offsets: np.ndarray

    @property
    def n_children(self) -> int:
        """Number of nodes of this level."""
        return int(self.children_offsets[-1])


@dataclass(frozen=True)
class ChunkedWeights(LevelWeights):
    """One level: chunk c has the rows ``chunk_offsets[c]:chunk_offsets[c+1]``, row r the entries of its feature.

    ``children_offsets[c]:children_offsets[c+1]`` are the chunk's children among the level's nodes; an entry's lane
    counts from the first of them. Values may be float16 or int8; int8 values are multiplied by the child's `scales`.
    """

    chunk_offsets: np.ndarray
    features: np.ndarray
    row_offsets: np.ndarray
    lanes: np.ndarray
    values: np.ndarray
    bias: np.ndarray
    scales: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))

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
        offsets, bias = children_offsets.astype(np.int64), np.concatenate(biases).astype(np.float32)
        return cls(n_features, offsets, rows.astype(np.int64), features, row_offsets, lanes, values, bias)

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
        chunk_offsets = _offsets(np.bincount(chunks[starts], minlength=n_chunks))
        row_offsets = np.append(starts, len(order))
        lanes = (children - children_offsets[chunks]).astype(lane_type(children_offsets))
        offsets, values = children_offsets.astype(np.int64), by_feature.data[order]
        return cls(
            n_features, offsets, chunk_offsets, features[starts], row_offsets, lanes, values, bias.astype(np.float32)
        )

    @property
    def n_weights(self) -> int:
        """Number of non-zero weights."""
        return int(np.count_nonzero(self.values))

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

    def pruned(self, threshold: float) -> ChunkedWeights:
        """Only the weights whose absolute value reaches the threshold, as training with that threshold stores them."""
        return self._only((np.abs(self.as_float32().values) >= np.float32(threshold)) & (self.values != 0))

    def without_zeros(self) -> ChunkedWeights:
        """Without weights of 0, and without features that have no other."""
        kept = self.values != 0
        return self if kept.all() else self._only(kept)

    def _only(self, kept: np.ndarray) -> ChunkedWeights:
        """With some of the weights, given as a mask."""
        counts = np.diff(_offsets(kept)[self.row_offsets])
        used = counts > 0
        return replace(
            self,
            chunk_offsets=_offsets(used)[self.chunk_offsets],
            features=self.features[used],
            row_offsets=_offsets(counts[used]),
            lanes=self.lanes[kept],
            values=self.values[kept],
        )


def lane_type(children_offsets: np.ndarray) -> type[np.unsignedinteger]:
    """The smallest type that holds the lanes of every chunk."""
    widest = int(np.diff(children_offsets).max(initial=0))
    return np.uint8 if widest <= 1 << 8 else np.uint16 if widest <= 1 << 16 else np.uint32


# --- packed ---
# The weights of one tree level as they are stored and searched, straight from a mapped file.
#
# Per weight there is its value and, unless its row is full, its lane in a byte; per row about two bytes, where a list
# of features and of offsets would take twelve (`kernels.packing`). A model opens without reading its weights: each
# chunk is checked when it is used first, or all of them with `check`.

MIN_DENSITY = 0.25
"""Fraction of the children with a weight from which a row is stored in full.

A full row is added to the children's sums with vector instructions, which is faster than a fourth of it one by one.
"""


@dataclass(frozen=True, eq=False)
class PackedWeights(LevelWeights):
    """One level: the arrays of `kernels.packing`.

    Values may be float16 or int8; int8 values are multiplied by the child's `scales`.
    """

    set_offsets: np.ndarray
    word_offsets: np.ndarray
    words: np.ndarray
    shifts: np.ndarray
    range_offsets: np.ndarray
    starts: np.ndarray
    low_offsets: np.ndarray
    lows: np.ndarray
    anchors: np.ndarray
    counts: np.ndarray
    lanes: np.ndarray
    values: np.ndarray
    full_values: np.ndarray
    bias: np.ndarray
    scales: np.ndarray
    origin: str = ""
    """The file and name of weights that are not known to be sound; empty for weights of this process."""
    checked: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    """Per chunk what is known: SOUND, WANTED or 0 (`kernels.packing`)."""

    @classmethod
    def of(cls, level: ChunkedWeights | PackedWeights) -> PackedWeights:
        """The same weights, packed; zeros are left out of rows that do not become full."""
        if isinstance(level, PackedWeights):
            return level
        level = level.without_zeros()
        n_chunks = len(level.chunk_offsets) - 1
        chunk_parts, set_parts = ranges(n_chunks, threads()), ranges(2 * n_chunks, threads())
        given = [
            read_only(array)
            for array in (level.chunk_offsets, level.features, level.row_offsets, level.lanes, bits_of(level.values))
        ]
        children, full = read_only(level.children_offsets), np.empty(len(level.features), np.bool_)
        n_full, n_other, n_entries = (np.empty(n_chunks, np.int64) for _ in range(3))
        counted = full, n_full, n_other, n_entries
        run_all(
            lambda part: kernels.split_rows(given[0], given[2], children, MIN_DENSITY, *part, *counted), chunk_parts
        )
        set_offsets = _offsets(np.column_stack([n_full, n_other]).ravel())
        full_offsets = _offsets(n_full * np.diff(level.children_offsets))
        first_rows, first_entries = _offsets(n_other), _offsets(n_entries)
        n_blocks = -(-int(first_rows[-1]) // BLOCK)
        features = np.empty(int(set_offsets[-1]), np.int32)
        counts = np.zeros(BLOCK * (n_blocks + 1), level.lanes.dtype)
        lanes, values = (np.empty(int(first_entries[-1]), array.dtype) for array in given[3:])
        full_values = np.zeros(int(full_offsets[-1]) + LANES, values.dtype)
        offsets = set_offsets, full_offsets, first_rows, first_entries
        outputs = features, counts, lanes, values, full_values
        run_all(lambda part: kernels.pack_rows(*given, children, full, *offsets, *part, *outputs), chunk_parts)
        anchors = _offsets(np.add.reduceat(counts, np.arange(0, len(counts), BLOCK), dtype=np.int64))[: n_blocks + 1]
        shapes = tuple(np.empty(2 * n_chunks, np.int64) for _ in range(4))
        run_all(lambda part: kernels.choose_shapes(set_offsets, features, *part, *shapes), set_parts)
        n_words, shifts, n_ranges, low_bytes = shapes
        word_offsets, range_offsets, low_offsets = (_offsets(sizes) for sizes in (n_words, n_ranges, low_bytes))
        words, starts = np.zeros(2 * int(word_offsets[-1]), np.uint64), np.empty(int(range_offsets[-1]), np.int32)
        lows = np.zeros(int(low_offsets[-1]) + BYTES, np.uint8)
        sets = set_offsets, word_offsets, words, shifts, range_offsets, starts, low_offsets, lows
        run_all(lambda part: kernels.fill_sets(features, sets, *part), set_parts)
        values, full_values = (array.view(level.values.dtype) for array in (values, full_values))
        return cls(
            level.n_features, level.children_offsets, *sets, anchors, counts, lanes, values, full_values, level.bias,
            level.scales, checked=np.ones(n_chunks, np.uint8),
        )  # fmt: skip

    def unpacked(self) -> ChunkedWeights:
        """The same weights by row, without zeros: to train, prune or convert them."""
        self.check()
        n_chunks = len(self.children_offsets) - 1
        parts = ranges(n_chunks, threads())
        tables = read_only(self.children_offsets), self.sets, self.rows
        n_rows, n_weights = np.empty(n_chunks, np.int64), np.empty(n_chunks, np.int64)
        run_all(lambda part: kernels.count_weights(*tables, *part, n_rows, n_weights), parts)
        chunk_offsets, first_entries = _offsets(n_rows), _offsets(n_weights)
        features, counts = np.empty(int(chunk_offsets[-1]), np.int32), np.empty(int(chunk_offsets[-1]), np.int64)
        lanes = np.empty(int(first_entries[-1]), self.lanes.dtype)
        values = np.empty(len(lanes), bits_of(self.values).dtype)
        outputs = chunk_offsets, first_entries, features, counts, lanes, values
        run_all(lambda part: kernels.unpack_rows(*tables, *part, *outputs), parts)
        return ChunkedWeights(
            self.n_features, self.children_offsets, chunk_offsets, features, _offsets(counts), lanes,
            values.view(self.values.dtype), self.bias, self.scales,
        )  # fmt: skip

    @cached_property
    def sets(self) -> tuple[np.ndarray, ...]:
        """The chunks' sets of features, as kernels take them."""
        return tuple(read_only(getattr(self, name)) for name in _SETS)

    @cached_property
    def rows(self) -> tuple[np.ndarray, ...]:
        """The chunks' rows, as kernels take them; float16 as its bits."""
        sizes = np.diff(self.set_offsets)
        full_offsets = _offsets(sizes[::2] * np.diff(self.children_offsets))
        arrays = (
            full_offsets, _offsets(sizes[1::2]), self.anchors, self.counts, self.lanes, bits_of(self.values),
            bits_of(self.full_values),
        )  # fmt: skip
        return tuple(read_only(array) for array in arrays)

    @property
    def n_weights(self) -> int:
        """Number of non-zero weights."""
        return int(np.count_nonzero(self.values)) + int(np.count_nonzero(self.full_values))

    @property
    def stored_bytes(self) -> int:
        """Bytes of the arrays in a file."""
        return sum(array.nbytes for array in self.to_tensors("").values())

    @property
    def widest(self) -> int:
        """Number of children of the largest chunk."""
        return int(np.diff(self.children_offsets).max(initial=0))

    @property
    def precision(self) -> str:
        """The type of the values: float32, float16 or int8."""
        return self.values.dtype.name

    def check(self, chunks: np.ndarray | None = None) -> None:
        """Check those of some (or all) chunks that have not been; raises ModelFormatError if one is damaged."""
        chunks = np.arange(len(self.checked)) if chunks is None else chunks
        chunks = chunks[self.checked[chunks] != 1]
        if not len(chunks):
            return
        tables = read_only(self.children_offsets), self.n_features, self.sets, self.rows, read_only(chunks)
        parts, found = ranges(len(chunks), 4 * threads()), np.zeros_like(self.checked)
        if not all(run_all(lambda part: kernels.check_chunks(*tables, *part, found), parts)):
            raise ModelFormatError(f"{self.origin} are damaged")
        if not self._are_finite(chunks):
            raise ModelFormatError(f"{self.origin} are damaged: some are not finite numbers")
        self.checked[chunks] = kernels.SOUND  # only now: other threads use what is sound

    def _are_finite(self, chunks: np.ndarray) -> bool:
        """Whether the values of some chunks, which are sound otherwise, are finite."""
        if self.values.dtype == np.int8:
            return True
        if len(chunks) == len(self.checked):
            return all_finite(self.values) and all_finite(self.full_values)
        full_offsets, first_rows, anchors, counts = self.rows[:4]

        def first_value(row: int) -> int:
            block = row // BLOCK
            return int(anchors[block]) + int(counts[block * BLOCK : row].sum(dtype=np.int64))

        return all(
            np.isfinite(self.full_values[full_offsets[chunk] : full_offsets[chunk + 1]]).all()
            and np.isfinite(
                self.values[first_value(int(first_rows[chunk])) : first_value(int(first_rows[chunk + 1]))]
            ).all()
            for chunk in chunks
        )

    def check_wanted(self) -> None:
        """Check the chunks that a search needs."""
        self.check(np.flatnonzero(self.checked == kernels.WANTED))

    def to_tensors(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays by name."""
        return {f"{prefix}.{name}": getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_tensors(
        cls, prefix: str, tensors: Mapping[str, np.ndarray], n_features: int, children_offsets: np.ndarray, path: Path
    ) -> PackedWeights:
        """Open what `to_tensors` returned: offsets and sizes are checked, chunks when they are used first."""
        arrays = {name: get_tensor(tensors, f"{prefix}.{name}", path) for name in _ARRAYS}
        level = cls(
            n_features, children_offsets.astype(np.int64), **arrays,
            origin=f"{path}: the weights of {prefix}", checked=np.zeros(len(children_offsets) - 1, np.uint8),
        )  # fmt: skip
        if not level._is_consistent():
            raise ModelFormatError(f"{level.origin} are damaged")
        return level

    def _is_consistent(self) -> bool:
        """Whether types, sizes and the offsets of chunks match."""
        lanes = lane_type(self.children_offsets)
        types: dict[str, Any] = {
            "words": np.uint64, "starts": np.int32, "lows": np.uint8, "counts": lanes, "lanes": lanes,
            "bias": np.float32, "scales": np.float32, "full_values": self.values.dtype, "values": self.values.dtype,
        }  # fmt: skip
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        if self.values.dtype not in (np.float32, np.float16, np.int8):
            return False
        if any(array.ndim != 1 or array.dtype != types.get(name, np.int64) for name, array in arrays.items()):
            return False
        n_sets = 2 * (len(self.children_offsets) - 1)
        if len(self.set_offsets) != n_sets + 1 or not are_offsets(self.set_offsets, int(self.set_offsets[-1])):
            return False
        sizes = np.diff(self.set_offsets)
        if sizes.max(initial=0) > self.n_features:  # so the sums below cannot overflow
            return False
        n_other = int(sizes[1::2].sum())
        n_full = int(sizes[::2] @ np.diff(self.children_offsets))
        n_blocks = -(-n_other // BLOCK)
        return bool(
            len(self.word_offsets) == len(self.range_offsets) == len(self.low_offsets) == n_sets + 1
            and len(self.shifts) == n_sets
            and len(self.words) % 2 == 0
            and len(self.lows) >= BYTES
            and are_offsets(self.word_offsets, len(self.words) // 2)
            and are_offsets(self.range_offsets, len(self.starts))
            and are_offsets(self.low_offsets, len(self.lows) - BYTES)
            and len(self.counts) == BLOCK * (n_blocks + 1)
            and len(self.anchors) == n_blocks + 1
            and len(self.lanes) == len(self.values)
            and len(self.full_values) == n_full + LANES
            and len(self.bias) == self.n_children
            and len(self.scales) == (self.n_children if self.values.dtype == np.int8 else 0)
            and all_finite(self.bias)
            and all_finite(self.scales)
        )


_SETS = ("set_offsets", "word_offsets", "words", "shifts", "range_offsets", "starts", "low_offsets", "lows")
_ARRAYS = (*_SETS, "anchors", "counts", "lanes", "values", "full_values", "bias", "scales")


def _offsets(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


def bits_of(values: np.ndarray) -> np.ndarray:
    """Values as kernels take them: float16 as uint16."""
    return values.view(np.uint16) if values.dtype == np.float16 else values
