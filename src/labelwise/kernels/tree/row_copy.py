"""Copy some rows of a CSR matrix, which may be mapped from a file, to arrays in memory."""

from __future__ import annotations

from labelwise.kernels.jit import jit


@jit
def copy_rows(indptr, indices, data, rows, out_indptr, out_indices, out_data):
    """Copy rows one after the other; out_indptr[i] is where row i begins in the output."""
    for i in range(len(rows)):
        position = out_indptr[i]
        for k in range(indptr[rows[i]], indptr[rows[i] + 1]):
            out_indices[position] = indices[k]
            out_data[position] = data[k]
            position += 1
