"""Renumber the columns of a CSR matrix."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit
from labelwise.kernels.tree.sorting import sort_from_bit


@jit
def count_columns(indices, begin, end, counts):
    """Add to counts [columns] how often each column occurs in indices[begin:end]."""
    for k in range(begin, end):
        counts[indices[k]] += 1


@jit
def renumber_rows(indptr, indices, data, new_columns, begin, end, out_indices, out_data):
    """Renumber column c to new_columns[c] in rows begin..end, columns sorted again; the output may be the input."""
    longest = 0
    for row in range(begin, end):
        longest = max(longest, indptr[row + 1] - indptr[row])
    keys, spare = np.empty(longest, np.int64), np.empty(longest, np.int64)
    values = np.empty(longest, np.float32)
    for row in range(begin, end):
        first, count = indptr[row], indptr[row + 1] - indptr[row]
        for k in range(count):
            keys[k] = (np.int64(new_columns[indices[first + k]]) << 32) | k
            values[k] = data[first + k]
        ordered = sort_from_bit(32, keys, count, len(new_columns), spare)
        for k in range(count):
            out_indices[first + k] = ordered[k] >> 32
            out_data[first + k] = values[ordered[k] & 0xFFFFFFFF]
