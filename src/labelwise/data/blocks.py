"""Features in two blocks side by side: sparse ones, such as TF-IDF, and dense ones, such as embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.csr import pick_rows
from labelwise.errors import DataError

ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Blocks:
    """A CSR and a dense block of the same rows; the sparse columns come first. Either may be None.

    Scale the blocks relative to each other: the one with the larger norm dominates.
    """

    sparse: sparse.csr_array | None
    dense: np.ndarray | None

    def __post_init__(self) -> None:
        if not (self.sparse is None or sparse.issparse(self.sparse)) or not isinstance(self.dense, np.ndarray | None):
            raise DataError("blocks of features are a sparse matrix and then a dense array; either may be None")
        rows = {block.shape[0] for block in self._parts()}
        if len(rows) != 1:
            raise DataError(f"blocks of features need the same number of rows, got {sorted(rows) or 'no block'}")

    def _parts(self) -> list[Any]:
        return [block for block in (self.sparse, self.dense) if block is not None]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and columns of both blocks."""
        parts = self._parts()
        return parts[0].shape[0], sum(part.shape[1] for part in parts)

    def __getitem__(self, rows: Any) -> Blocks:
        """Some of the rows."""
        picked: list[Any] = [None if block is None else pick_rows(block, rows) for block in (self.sparse, self.dense)]
        return Blocks(*picked)

    def to_csr(self) -> sparse.csr_array:
        """Both blocks as one sparse matrix, 8 bytes for each dense number; built in chunks of rows."""
        n, columns = self.shape
        left = self.sparse if self.sparse is not None else sparse.csr_array((n, 0), dtype=np.float32)
        width = columns - left.shape[1]
        indptr = left.indptr.astype(np.int64) + width * np.arange(n + 1)
        indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
        for first in range(0, n, ROWS_AT_ONCE):
            last = min(first + ROWS_AT_ONCE, n)
            begin, end = left.indptr[first], left.indptr[last]
            moved = np.repeat(width * np.arange(first, last), np.diff(left.indptr[first : last + 1]))
            positions = moved + np.arange(begin, end)
            indices[positions], data[positions] = left.indices[begin:end], left.data[begin:end]
            if self.dense is not None:
                positions = (indptr[first + 1 : last + 1] - width)[:, None] + np.arange(width)
                indices[positions], data[positions] = np.arange(left.shape[1], columns), self.dense[first:last]
        if indptr[-1] <= np.iinfo(np.int32).max:
            indptr = indptr.astype(np.int32)  # otherwise SciPy makes the columns int64 too
        return sparse.csr_array((data, indices, indptr), shape=(n, columns))
