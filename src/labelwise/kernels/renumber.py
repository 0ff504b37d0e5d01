"""New numbers for the columns of a CSR matrix."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def count_columns(indices, begin, end, counts):
    """Add to counts [columns] how often each column stands in indices[begin:end]."""
    for k in range(begin, end):
        counts[indices[k]] += 1


@njit(nogil=True, cache=True)
def renumber_rows(indptr, indices, data, places, begin, end, out_indices, out_data):
    """Rows begin..end with column c called places[c], columns ascending again; the output may be the input."""
    longest = 0
    for row in range(begin, end):
        longest = max(longest, indptr[row + 1] - indptr[row])
    keys = np.empty(longest, np.int64)
    values = np.empty(longest, np.float32)
    for row in range(begin, end):
        first, count = indptr[row], indptr[row + 1] - indptr[row]
        for k in range(count):
            keys[k] = (np.int64(places[indices[first + k]]) << 32) | k
            values[k] = data[first + k]
        keys[:count].sort()
        for k in range(count):
            out_indices[first + k] = keys[k] >> 32
            out_data[first + k] = values[keys[k] & 0xFFFFFFFF]
