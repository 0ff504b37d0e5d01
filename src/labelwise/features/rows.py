"""Document features as the linear kernels take them: CSR arrays, and dense columns that stay dense."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from labelwise.data.blocks import Blocks
from labelwise.data.csr import MappedCsrBuilder, csr_of, offsets_of
from labelwise.data.dataset import CSR, row_pieces
from labelwise.data.out_of_core import range_of_rows
from labelwise.mapped import release_pages

NO_COLUMNS = np.empty((0, 0), np.float32)
MIN_DENSITY = 0.5
"""Fraction of non-zeros from which an array takes less memory dense than as CSR."""


class FeatureRows(NamedTuple):
    """A CSR matrix as plain arrays, and `dense` columns, which are the features from index `first_dense` on.

    Offsets are int64 and indices int32, whatever a user's matrix has, so that every kernel is compiled once.
    """

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    shape: tuple[int, int]
    """Documents, and sparse plus dense features."""
    dense: np.ndarray = NO_COLUMNS
    """[documents, columns], float32 or float16."""
    first_dense: int = 0
    zeros: bool = True
    """Whether zeros of `dense` take part in sums: adding them can change how other numbers are rounded."""
    unused: int = 0
    """How many features at the end occur in no document."""

    @classmethod
    def of(cls, matrix: Any) -> FeatureRows:
        """The arrays of a CSR matrix; rows are returned unchanged."""
        if isinstance(matrix, FeatureRows):
            return matrix
        return cls(offsets_of(matrix), matrix.indices.astype(np.int32, copy=False), matrix.data, matrix.shape)

    @property
    def sparse(self) -> sparse.csr_array:
        """The sparse features as a CSR matrix that shares the arrays, but has offsets of the type of its indices."""
        offsets = self.indptr.astype(np.int32) if self.indptr[-1] < 1 << 31 else self.indptr
        return csr_of(self.data, self.indices, offsets, self.shape)

    @property
    def n_dense(self) -> int:
        """Dense columns."""
        return self.dense.shape[1]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        arrays = {"indptr": self.indptr, "indices": self.indices, "data": self.data}
        return arrays | {"dense": self.dense} if self.n_dense else arrays


def stacked(above: FeatureRows, below: FeatureRows) -> FeatureRows:
    """The documents of two, which have the same features and the same dense columns."""
    indptr = np.append(above.indptr, below.indptr[1:] + above.indptr[-1])
    indices, data = np.append(above.indices, below.indices), np.append(above.data, below.data)
    dense = np.concatenate([above.dense, below.dense]) if above.n_dense else NO_COLUMNS
    shape = (above.shape[0] + below.shape[0], above.shape[1])
    return above._replace(indptr=indptr, indices=indices, data=data, shape=shape, dense=dense, unused=0)


def blocks_of(features: Any) -> tuple[Any, np.ndarray]:
    """A sparse and a dense block (without columns where there is none) from CSR, `FeatureRows`, dense or `Blocks`.

    An array of mostly zeros counts as sparse.
    """
    if isinstance(features, Blocks):
        left, dense = features.sparse, features.dense
    elif isinstance(features, np.ndarray) and np.count_nonzero(features) >= MIN_DENSITY * features.size:
        left, dense = None, features
    else:
        left, dense = features, None
    if left is None:
        left = sparse.csr_array((features.shape[0], 0), dtype=np.float32)
    return as_csr(left), NO_COLUMNS if dense is None else dense


def as_csr(features: Any) -> Any:
    """All features as CSR with sorted int32 columns, 8 bytes per dense number."""
    if isinstance(features, FeatureRows):
        return features
    if isinstance(features, Blocks):
        return features.to_csr()
    if isinstance(features, np.ndarray) and features.dtype != np.float32:
        features = features.astype(np.float32)
    csr = features if isinstance(features, CSR) else sparse.csr_array(features)
    if csr.indices.dtype != np.int32:
        csr = csr_of(csr.data, csr.indices.astype(np.int32), csr.indptr, csr.shape)  # the user's matrix is not changed
    return csr


def unit_rows(features: Any) -> Any:
    """Features (CSR, dense or `Blocks`) with every document scaled to unit L2 norm; documents without features stay."""
    if isinstance(features, Blocks):
        parts = [part for part in (features.sparse, features.dense) if part is not None]
        norms = np.sqrt(sum(_squares(part) for part in parts))
        left, dense = (None if part is None else _divided(part, norms) for part in (features.sparse, features.dense))
        return Blocks(left, dense)
    return _divided(features, np.sqrt(_squares(features)))


def unit_rows_on_disk(features: Any, folder: Path) -> Any:
    """`unit_rows` of CSR in a file of the folder, which is mapped; sums are rounded as those of short matrices."""
    builder = MappedCsrBuilder(True, folder)
    for first, last in row_pieces(features.indptr):
        part = unit_rows(range_of_rows(features, first, last))
        builder.add(np.diff(part.indptr), part.indices, part.data, 1.0)
        release_pages(features.indices)
        release_pages(features.data)
    return builder.matrix(features.shape[1])


def _squares(features: Any) -> np.ndarray:
    """The sum of the squares of each row, float64."""
    if isinstance(features, np.ndarray):
        return np.einsum("ij,ij->i", features, features, dtype=np.float64)
    ends = np.append(0.0, np.cumsum(np.square(features.data, dtype=np.float64)))[features.indptr]
    return np.diff(ends)


def _divided(features: Any, norms: np.ndarray) -> Any:
    factors = np.divide(1.0, norms, out=np.ones_like(norms), where=norms > 0).astype(np.float32)
    if isinstance(features, np.ndarray):
        return features * factors[:, None].astype(features.dtype)
    data = features.data * np.repeat(factors, np.diff(features.indptr))
    return csr_of(data, features.indices, features.indptr, features.shape)
