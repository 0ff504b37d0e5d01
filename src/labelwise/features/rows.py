"""Documents as the linear kernels take them: bare CSR arrays, and dense columns beside them that stay dense."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from labelwise.data.blocks import Blocks
from labelwise.data.csr import csr_of
from labelwise.data.dataset import CSR

NO_COLUMNS = np.empty((0, 0), np.float32)
DENSE = 0.5
"""Fraction of numbers other than 0 from which an array takes less memory as it is than as CSR."""


class Rows(NamedTuple):
    """A CSR matrix as bare arrays, with `dense` columns, which count as the features from `first_dense` on."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    shape: tuple[int, int]
    """Documents, and features of both kinds."""
    dense: np.ndarray = NO_COLUMNS
    """[documents, columns], float32 or float16."""
    first_dense: int = 0
    zeros: bool = True
    """Whether zeros of `dense` are added up: it can change how other numbers are rounded."""
    unused: int = 0
    """So many of the last features occur in no document."""

    @classmethod
    def of(cls, matrix: Any) -> Rows:
        """The arrays of a CSR matrix; rows as they are."""
        return matrix if isinstance(matrix, Rows) else cls(matrix.indptr, matrix.indices, matrix.data, matrix.shape)

    @property
    def sparse(self) -> sparse.csr_array:
        """The sparse features as a matrix of the same arrays."""
        return csr_of(self.data, self.indices, self.indptr, self.shape)

    @property
    def n_dense(self) -> int:
        """Dense columns."""
        return self.dense.shape[1]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All that is held, by name."""
        held = {"indptr": self.indptr, "indices": self.indices, "data": self.data}
        return held | {"dense": self.dense} if self.n_dense else held


def blocks_of(features: Any) -> tuple[Any, np.ndarray]:
    """A sparse and a dense block (without columns where there is none) from CSR, `Rows`, dense or `Blocks`.

    An array of mostly zeros counts as sparse.
    """
    if isinstance(features, Blocks):
        left, dense = features.sparse, features.dense
    elif isinstance(features, np.ndarray) and np.count_nonzero(features) >= DENSE * features.size:
        left, dense = None, features
    else:
        left, dense = features, None
    if left is None:
        left = sparse.csr_array((features.shape[0], 0), dtype=np.float32)
    return as_csr(left), NO_COLUMNS if dense is None else dense


def as_csr(features: Any) -> Any:
    """All features as CSR with sorted int32 columns, 8 bytes per dense number."""
    if isinstance(features, Rows):
        return features
    if isinstance(features, Blocks):
        return features.to_csr()
    if isinstance(features, np.ndarray) and features.dtype != np.float32:
        features = features.astype(np.float32)
    csr = features if isinstance(features, CSR) else sparse.csr_array(features)
    if csr.indices.dtype != np.int32:
        csr = csr_of(csr.data, csr.indices.astype(np.int32), csr.indptr, csr.shape)  # what is the user's stays as it is
    return csr
