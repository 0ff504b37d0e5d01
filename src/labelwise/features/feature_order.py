"""Features numbered by how common they are, so that what is used together lies together in memory.

Most of a document's features are common ones. With the commonest first, their weights share cache lines and pages in
every node of a tree: training takes a quarter less time and a single prediction too. Names and the user's own numbers
are untouched; a model keeps the order beside its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.checks import in_range
from labelwise.errors import DataError, ModelFormatError
from labelwise.features.rows import NO_COLUMNS, Rows, as_csr, blocks_of
from labelwise.parallel import ranges, run_all, threads
from labelwise.store import get_tensor

FEW = 64  # documents below which a second thread is not worth calling
MOST_FEATURES = 1 << 30
"""A model has a number for each feature, whether it occurs or not."""
BYTES_PER_FEATURE = 4 + 4 + 4 + 8
"""While the order is made: counts, the order, its inverse, and the features that do not occur."""


class FeatureOrder:
    """``original[new number]`` is the feature's number in the user's data, commonest first."""

    def __init__(self, original: np.ndarray) -> None:
        self.original = original
        self.places = np.empty(len(original), np.int32)
        self.places[original] = np.arange(len(original), dtype=np.int32)

    @classmethod
    def by_frequency(cls, features: Any, n_dense: int = 0) -> FeatureOrder:
        """The order for a CSR matrix; equally common features keep theirs.

        Dense columns, which count behind the sparse ones, come after all features that occur, and then the others.
        """
        from labelwise.kernels.tree.renumber import count_columns

        n_sparse = features.shape[1]
        if n_sparse + n_dense > MOST_FEATURES:
            raise DataError(
                f"{n_sparse + n_dense:,} features are too many: a linear model keeps a number per feature and accepts "
                f"{MOST_FEATURES:,}; number the features that occur from 0 on, or hash them into fewer"
            )
        counts = np.zeros(n_sparse, np.int32)
        count_columns(features.indices, 0, len(features.indices), counts)
        seen = np.flatnonzero(counts)
        original = np.empty(n_sparse + n_dense, np.int32)
        original[: len(seen)] = seen[np.argsort(-counts[seen], kind="stable")]
        original[len(seen) : len(seen) + n_dense] = np.arange(n_sparse, n_sparse + n_dense)
        original[len(seen) + n_dense :] = np.flatnonzero(counts == 0)
        return cls(original)

    @classmethod
    def learned(cls, features: Any, own: bool = False) -> tuple[FeatureOrder, Rows]:
        """The order of features for training, and the features in it; with `own` CSR stays in its memory."""
        csr, dense = blocks_of(features)
        order = cls.by_frequency(csr, dense.shape[1])
        ordered = order.applied(csr, own)
        n_seen = int(ordered.indices.max(initial=-1)) + 1  # all features that occur have the lowest numbers
        shape = (csr.shape[0], len(order.original))
        unused = shape[1] - n_seen - dense.shape[1]
        return order, Rows(ordered.indptr, ordered.indices, ordered.data, shape, dense, n_seen, unused=unused)

    def applied(self, features: Any, own: bool = False) -> Any:
        """The CSR matrix in the new numbers; with `own` in the same memory."""
        if own:
            self._renumber(features, features.indices, features.data)
            return features
        indices, data = np.empty_like(features.indices), np.empty_like(features.data)
        self._renumber(features, indices, data)
        return sparse.csr_array((data, indices, features.indptr), shape=features.shape)

    def rows(self, features: Any) -> Rows:
        """Documents to predict for, as bare arrays: a matrix takes longer to make than a document to look at.

        `Rows`, which no user has, are renumbered in their own memory. Dense columns stay dense if the model counts
        them as neighbours, which it does if it was trained on the same columns.
        """
        csr, dense = blocks_of(features)
        first = 0
        if dense.shape[1]:
            places = self.places[csr.shape[1] :]
            first = int(places.min())
            if int(places.max()) - first >= len(places):
                csr, dense = as_csr(features), NO_COLUMNS
            elif (np.diff(places) < 0).any():
                dense = dense[:, np.argsort(places)]
        shape = (csr.shape[0], len(self.places))
        if isinstance(csr, Rows):
            self._renumber(csr, csr.indices, csr.data)
            return csr
        indices, data = np.empty_like(csr.indices), np.empty_like(csr.data)
        self._renumber(csr, indices, data)
        zeros = not isinstance(features, np.ndarray)  # CSR made of an array has none
        return Rows(csr.indptr, indices, data, shape, dense, first, zeros)

    def _renumber(self, features: Any, out_indices: np.ndarray, out_data: np.ndarray) -> None:
        from labelwise.kernels.tree.renumber import renumber_rows

        matrix = features.indptr, features.indices, features.data, self.places
        if features.shape[0] <= FEW:
            renumber_rows(*matrix, 0, features.shape[0], out_indices, out_data)
            return
        parts = ranges(features.shape[0], 4 * threads())
        run_all(lambda part: renumber_rows(*matrix, *part, out_indices, out_data), parts)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], n_features: int, path: Path) -> FeatureOrder:
        """Take back ``original``, checked: kernels use it without looking."""
        original = get_tensor(tensors, "feature_order", path)
        sound = original.dtype == np.int32 and original.shape == (n_features,) and in_range(original, n_features)
        if sound:
            seen = np.zeros(n_features, bool)
            seen[original] = True
            sound = bool(seen.all())
        if not sound:
            raise ModelFormatError(f"{path}: the order of features is damaged")
        return cls(original)
