"""The weights of one tree level as they are stored and searched, straight from a mapped file.

Per weight there is its value and, unless its row is full, its lane in a byte; per row about two bytes, where a list of
features and of offsets would take twelve (`kernels.packing`). A model opens
without reading its weights: each chunk is checked when it is used first, or all of them with `check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.csr import read_only
from labelwise.errors import ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.io.tensors import all_finite, are_offsets
from labelwise.kernels.intrinsics import BLOCK, BYTES, LANES
from labelwise.linear.weights import ChunkedWeights, lane_type
from labelwise.runtime.threads import ranges, run_all, threads

MIN_DENSITY = 0.25
"""Fraction of the children with a weight from which a row is stored in full.

A full row is added to the children's sums with vector instructions, which is faster than a fourth of it one by one.
"""


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """One level: the arrays of `kernels.packing`.

    Values may be float16 or int8; int8 values are multiplied by the child's `scales`.
    """

    n_features: int
    children_offsets: np.ndarray
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
        from labelwise.kernels import packing as kernels

        level = level.without_zeros()
        n_chunks = len(level.chunk_offsets) - 1
        chunk_parts, set_parts = ranges(n_chunks, threads()), ranges(2 * n_chunks, threads())
        given = [
            read_only(array)
            for array in (level.chunk_offsets, level.features, level.row_offsets, level.lanes, _bits(level.values))
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
        from labelwise.kernels import packing as kernels

        self.check()
        n_chunks = len(self.children_offsets) - 1
        parts = ranges(n_chunks, threads())
        tables = read_only(self.children_offsets), self.sets, self.rows
        n_rows, n_weights = np.empty(n_chunks, np.int64), np.empty(n_chunks, np.int64)
        run_all(lambda part: kernels.count_weights(*tables, *part, n_rows, n_weights), parts)
        chunk_offsets, first_entries = _offsets(n_rows), _offsets(n_weights)
        features, counts = np.empty(int(chunk_offsets[-1]), np.int32), np.empty(int(chunk_offsets[-1]), np.int64)
        lanes = np.empty(int(first_entries[-1]), self.lanes.dtype)
        values = np.empty(len(lanes), _bits(self.values).dtype)
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
            full_offsets, _offsets(sizes[1::2]), self.anchors, self.counts, self.lanes, _bits(self.values),
            _bits(self.full_values),
        )  # fmt: skip
        return tuple(read_only(array) for array in arrays)

    @property
    def n_children(self) -> int:
        """Number of nodes of this level."""
        return int(self.children_offsets[-1])

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
        from labelwise.kernels.packing import SOUND, check_chunks

        tables = read_only(self.children_offsets), self.n_features, self.sets, self.rows, read_only(chunks)
        parts, found = ranges(len(chunks), 4 * threads()), np.zeros_like(self.checked)
        if not all(run_all(lambda part: check_chunks(*tables, *part, found), parts)):
            raise ModelFormatError(f"{self.origin} are damaged")
        if not self._are_finite(chunks):
            raise ModelFormatError(f"{self.origin} are damaged: some are not finite numbers")
        self.checked[chunks] = SOUND  # only now: other threads use what is sound

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
        from labelwise.kernels.packing import WANTED

        self.check(np.flatnonzero(self.checked == WANTED))

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
        n_chunks = len(self.children_offsets) - 1
        if any(len(offsets) != 2 * n_chunks + 1 for offsets in (self.set_offsets, self.word_offsets)):
            return False
        if any(len(offsets) != 2 * n_chunks + 1 for offsets in (self.range_offsets, self.low_offsets)):
            return False
        if len(self.shifts) != 2 * n_chunks or len(self.words) % 2 or len(self.lows) < BYTES:
            return False
        # a set of features has at most n_features, so the sums below cannot overflow
        if not are_offsets(self.set_offsets, int(self.set_offsets[-1])):
            return False
        sizes = np.diff(self.set_offsets)
        if len(sizes) and int(sizes.max()) > self.n_features:
            return False
        n_other = int(sizes[1::2].sum())
        n_full = int(sizes[::2] @ np.diff(self.children_offsets))
        n_blocks = -(-n_other // BLOCK)
        return bool(
            are_offsets(self.word_offsets, len(self.words) // 2)
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


def _bits(values: np.ndarray) -> np.ndarray:
    """Values as kernels take them: float16 as uint16."""
    return values.view(np.uint16) if values.dtype == np.float16 else values
