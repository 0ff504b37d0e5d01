"""Features renumbered by document frequency, for memory locality.

Most of a document's features are frequent ones. With the most frequent first, their weights share cache lines and pages
in every node of a tree: training and a single prediction take a quarter less time. Names and the user's numbering are
untouched; a model stores the order beside its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labelwise.checks import in_range
from labelwise.data.csr import MappedCsrBuilder, csr_of, offsets_of, read_only
from labelwise.data.dataset import row_pieces
from labelwise.data.out_of_core import range_of_rows
from labelwise.errors import DataError, ModelFormatError
from labelwise.features.rows import NO_COLUMNS, FeatureRows, as_csr, blocks_of
from labelwise.mapped import in_pieces, release_pages
from labelwise.parallel import ranges, run_all, threads
from labelwise.store import get_tensor

PIECE_ENTRIES = 1 << 22
"""Entries that are read from a file, or written to one, at a time."""
MIN_PARALLEL = 64  # documents up to which one thread is faster than several
MAX_FEATURES = 1 << 30
"""A model stores one number per feature, whether it occurs or not."""
BYTES_PER_FEATURE = 4 + 4 + 4 + 8
"""While the order is computed: counts, the order, its inverse, and the features that do not occur."""


class FeatureOrder:
    """``original[new index]`` is the feature's index in the user's data, most frequent first; `ranks` inverts it."""

    def __init__(self, original: np.ndarray) -> None:
        self.original = original
        self.ranks = np.empty(len(original), np.int32)
        self.ranks[original] = np.arange(len(original), dtype=np.int32)

    @classmethod
    def by_frequency(cls, features: Any, n_dense: int = 0) -> FeatureOrder:
        """The order for a CSR matrix; ties keep the user's order.

        Dense columns, numbered after the sparse ones by the user, follow the sparse features that occur; features
        that do not occur come last.
        """
        from labelwise.kernels.tree.renumber import count_columns

        n_sparse = features.shape[1]
        if n_sparse + n_dense > MAX_FEATURES:
            raise DataError(
                f"{n_sparse + n_dense:,} features are too many: a linear model keeps a number per feature and accepts "
                f"at most {MAX_FEATURES:,}; renumber the features that occur from 0, or hash them into fewer"
            )
        counts = np.zeros(n_sparse, np.int32)
        indices = read_only(features.indices)
        for begin in range(0, len(indices), PIECE_ENTRIES):
            count_columns(indices, begin, min(begin + PIECE_ENTRIES, len(indices)), counts)
            release_pages(features.indices)
        seen = np.flatnonzero(counts)
        original = np.empty(n_sparse + n_dense, np.int32)
        original[: len(seen)] = seen[np.argsort(-counts[seen], kind="stable")]
        original[len(seen) : len(seen) + n_dense] = np.arange(n_sparse, n_sparse + n_dense)
        original[len(seen) + n_dense :] = np.flatnonzero(counts == 0)
        return cls(original)

    @classmethod
    def learn(cls, features: Any, in_place: bool = False, folder: Path | None = None) -> OrderedFeatures:
        """The order of the training features, and the features renumbered by it.

        `in_place` overwrites the CSR; with a folder they are written to files in it and mapped.
        """
        csr, dense = blocks_of(features)
        order = cls.by_frequency(csr, dense.shape[1])
        ordered = order.apply(csr, in_place) if folder is None else order._apply_on_disk(csr, folder)
        # all features that occur have the lowest numbers
        n_seen = max((int(piece.max(initial=-1)) for piece in in_pieces(ordered.indices)), default=-1) + 1
        shape = (csr.shape[0], len(order.original))
        unused = shape[1] - n_seen - dense.shape[1]
        rows = FeatureRows(offsets_of(ordered), ordered.indices, ordered.data, shape, dense, n_seen, unused=unused)
        return OrderedFeatures(order, rows, folder)

    def extended(self, n_features: int) -> FeatureOrder:
        """The order with more features, numbered after the others by the user and here."""
        return FeatureOrder(np.append(self.original, np.arange(len(self.original), n_features, dtype=np.int32)))

    def apply(self, features: Any, in_place: bool = False) -> Any:
        """Renumber the columns of a CSR matrix, in a copy unless `in_place`."""
        if in_place:
            self._renumber(features, features.indices, features.data)
            return features
        indices, data = np.empty_like(features.indices), np.empty_like(features.data)
        self._renumber(features, indices, data)
        return csr_of(data, indices, features.indptr, features.shape)

    def _apply_on_disk(self, features: Any, folder: Path) -> Any:
        builder = MappedCsrBuilder(True, folder)
        for first, last in row_pieces(features.indptr, PIECE_ENTRIES):
            part = self.apply(range_of_rows(features, first, last))
            builder.add(np.diff(part.indptr), part.indices, part.data, 1.0)
            release_pages(features.indices)
            release_pages(features.data)
        return builder.matrix(features.shape[1])

    def rows(self, features: Any) -> FeatureRows:
        """Renumbered documents to predict for, as arrays: building a matrix takes longer than scoring a document.

        `FeatureRows`, which users never hold, are renumbered in place. Dense columns stay dense if they are consecutive
        in the model's order, which they are if it was trained on the same columns.
        """
        csr, dense = blocks_of(features)
        first = 0
        if dense.shape[1]:
            ranks = self.ranks[csr.shape[1] :]
            first = int(ranks.min())
            if int(ranks.max()) - first >= len(ranks):
                csr, dense = as_csr(features), NO_COLUMNS
            elif (np.diff(ranks) < 0).any():
                dense = dense[:, np.argsort(ranks)]
        shape = (csr.shape[0], len(self.ranks))
        if isinstance(csr, FeatureRows):
            self._renumber(csr, csr.indices, csr.data)
            return csr
        indices, data = np.empty_like(csr.indices), np.empty_like(csr.data)
        self._renumber(csr, indices, data)
        zeros = not isinstance(features, np.ndarray)  # CSR built from an array stores none
        return FeatureRows(offsets_of(csr), indices, data, shape, dense, first, zeros)

    def _renumber(self, features: Any, out_indices: np.ndarray, out_data: np.ndarray) -> None:
        from labelwise.kernels.tree.renumber import renumber_rows

        matrix = offsets_of(features), read_only(features.indices), read_only(features.data), self.ranks
        if features.shape[0] <= MIN_PARALLEL:
            renumber_rows(*matrix, 0, features.shape[0], out_indices, out_data)
            return
        parts = ranges(features.shape[0], 4 * threads())
        run_all(lambda part: renumber_rows(*matrix, *part, out_indices, out_data), parts)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], n_features: int, path: Path) -> FeatureOrder:
        """Restore ``original`` and check that it is a permutation: kernels index with it unchecked."""
        original = get_tensor(tensors, "feature_order", path)
        sound = original.dtype == np.int32 and original.shape == (n_features,) and in_range(original, n_features)
        if sound:
            seen = np.zeros(n_features, bool)
            seen[original] = True
            sound = bool(seen.all())
        if not sound:
            raise ModelFormatError(f"{path}: the order of features is damaged")
        return cls(original)


class OrderedFeatures(NamedTuple):
    """Training features, renumbered by the order next to them."""

    order: FeatureOrder
    rows: FeatureRows
    folder: Path | None = None
    """For the files of mapped rows, and for copies of some of them; None: rows are in memory."""
