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
    chosen = np.atleast_1d(np.arange(matrix.shape[0])[rows])
    starts = matrix.indptr[chosen]
    counts = matrix.indptr[chosen + 1] - starts
    ends = np.cumsum(counts)
    places = np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())
    indptr = np.concatenate([[0], ends])
    picked = (matrix.data[places], matrix.indices[places], indptr)
    return sparse.csr_array(picked, shape=(len(chosen), matrix.shape[1]))
