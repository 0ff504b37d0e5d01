"""Check that a CSR matrix is canonical."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit


@jit
def is_canonical(indptr, indices, data, n_rows, n_columns):
    """Whether offsets ascend, columns are sorted, unique and in range, and values are finite and non-zero."""
    if len(indptr) != n_rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices) or len(indices) != len(data):
        return False
    for row in range(n_rows):
        if indptr[row + 1] < indptr[row] or indptr[row + 1] > len(indices):
            return False
        before = -1
        for k in range(indptr[row], indptr[row + 1]):
            column = indices[k]
            if column <= before or column >= n_columns or data[k] == 0 or not np.isfinite(data[k]):
                return False
            before = column
    return True
