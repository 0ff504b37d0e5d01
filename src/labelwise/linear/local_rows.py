"""The documents of one chunk as the solver reads them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class LocalRows(NamedTuple):
    """Documents with their features renumbered.

    Document i has the entries starts[i]..ends[i] of `indices` and `values`, and dense[dense_rows[i]] as the features
    from `first_dense` on.
    """

    rows: np.ndarray
    """Their indices among all documents."""
    starts: np.ndarray
    ends: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    dense: np.ndarray
    dense_rows: np.ndarray
    first_dense: int
    norms: np.ndarray
    """Squared norms."""
    features: np.ndarray
    """The index of each feature among all."""

    @property
    def solver_dense(self) -> np.ndarray:
        """`dense` as the kernel takes it: float16 as its bits, read-only, so that it is compiled for few types."""
        dense = self.dense.view()
        dense = dense.view(np.uint16) if dense.dtype == np.float16 else dense
        dense.flags.writeable = False
        return dense

    def scaled(self, steps: np.ndarray) -> LocalRows:
        """The same documents with each feature multiplied by a number."""
        values = self.values * steps[self.indices]
        ends = np.append(0, np.cumsum(np.square(values, dtype=np.float64)))
        norms = ends[self.ends] - ends[self.starts]
        dense = self.dense
        if dense.shape[1]:
            own = steps[self.first_dense : self.first_dense + dense.shape[1]]
            dense = np.ascontiguousarray(dense[self.dense_rows] * own, np.float32)
            norms += np.square(dense, dtype=np.float64).sum(axis=1)
        rows = np.arange(len(self.rows)) if dense.shape[1] else self.dense_rows
        return self._replace(values=values, dense=dense, dense_rows=rows, norms=norms.astype(np.float32))
