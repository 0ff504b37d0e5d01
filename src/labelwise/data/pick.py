"""Some rows of a matrix that may be larger than memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse


def pick_rows(matrix: Any, rows: Any) -> Any:
    """``matrix[rows]`` for a slice, an index array or a mask, touching only those rows.

    SciPy does the same unless the offsets are wider than the columns, as they are from 2^31 numbers on: then it makes a
    wider copy of all columns first.
    """
    if not isinstance(matrix, sparse.csr_array) or matrix.indptr.dtype == matrix.indices.dtype:
        return matrix[rows]
    chosen = row_numbers(rows, matrix.shape[0])
    starts = matrix.indptr[chosen]
    counts = matrix.indptr[chosen + 1] - starts
    ends = np.cumsum(counts)
    places = np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())
    indptr = np.concatenate([[0], ends])
    picked = (matrix.data[places], matrix.indices[places], indptr)
    return sparse.csr_array(picked, shape=(len(chosen), matrix.shape[1]))


def row_numbers(rows: Any, count: int) -> np.ndarray:
    """The numbers of the rows that a slice, an index array or a mask chooses among `count`."""
    if isinstance(rows, slice):
        return np.arange(*rows.indices(count))
    rows = np.atleast_1d(np.asarray(rows))
    if rows.dtype == bool:
        if len(rows) != count:
            raise IndexError(f"a mask of {len(rows)} for {count} rows")
        return np.flatnonzero(rows)
    rows = rows.astype(np.int64, copy=False)
    if len(rows) and not (rows.min() >= -count and rows.max() < count):
        raise IndexError(f"rows from {rows.min()} to {rows.max()}, but there are {count}")
    return np.where(rows < 0, rows + count, rows)


def csr_of(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> sparse.csr_array:
    """A matrix of these very arrays; SciPy's constructor would copy columns of another type than the offsets."""
    matrix: Any = sparse.csr_array(shape, dtype=data.dtype)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix
