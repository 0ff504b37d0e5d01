"""Rows of features for the clustering kernels: dot products with a centre, sums, copies, norms.

A row consists of a row of a CSR block (columns ascending) and one of a dense block; either may have no columns. A
centre is one dense vector over both, the CSR block's columns first. `dot_with_centre` processes a range of rows and
`add_to_centre` a range of columns, so that threads can divide a large group without any effect on the result.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit

_ONE, _TWO, _THREE, _FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@jit
def dot_with_centre(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    members: np.ndarray,
    first: int,
    last: int,
    centre: np.ndarray,
    products: np.ndarray,
) -> None:
    """``products[i]`` = dot product of row ``members[i]`` and the centre, for i from `first` to `last` (exclusive)."""
    width = dense.shape[1]
    dense_centre = centre[len(centre) - width :]
    for i in range(first, last):
        row = members[i]
        product = _sparse_dot(indices, data, indptr[row], indptr[row + 1], centre)
        if width > 0:
            product += _dense_dot(dense[row], dense_centre)
        products[i] = product


@inner
def _sparse_dot(indices: np.ndarray, data: np.ndarray, begin: int, end: int, centre: np.ndarray) -> np.float32:
    """Dot product with four accumulators, so that additions do not wait for each other."""
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    k, stop = np.uint64(begin), np.uint64(end)
    for _ in range((end - begin) >> 2):
        a += data[k] * centre[indices[k]]
        b += data[k + _ONE] * centre[indices[k + _ONE]]
        c += data[k + _TWO] * centre[indices[k + _TWO]]
        d += data[k + _THREE] * centre[indices[k + _THREE]]
        k += _FOUR
    while k < stop:
        a += data[k] * centre[indices[k]]
        k += _ONE
    return (a + b) + (c + d)


@inner(fastmath={"reassoc"})
def _dense_dot(row: np.ndarray, centre: np.ndarray) -> np.float32:
    product = np.float32(0)
    for k in range(len(row)):
        product += row[k] * centre[k]
    return product


@jit
def add_to_centre(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    dense: np.ndarray,
    members: np.ndarray,
    signs: np.ndarray,
    first: int,
    last: int,
    centre: np.ndarray,
) -> None:
    """Add row ``members[i]`` times ``signs[i]`` to the centre, only columns from `first` to `last` (exclusive)."""
    n_columns = len(centre) - dense.shape[1]
    for i in range(len(members)):
        sign = np.float32(signs[i])
        if sign == 0:
            continue
        row = members[i]
        begin = _lower_bound(indices, indptr[row], indptr[row + 1], first)
        end = indptr[row + 1] if last >= n_columns else _lower_bound(indices, begin, indptr[row + 1], last)
        for k in range(np.uint64(begin), np.uint64(end)):
            centre[indices[k]] += sign * data[k]
        for column in range(max(first, n_columns), last):
            centre[column] += sign * dense[row, column - n_columns]


@inner
def _lower_bound(indices: np.ndarray, low: int, high: int, column: int) -> int:
    """The first index from `low` on whose column is not below `column`."""
    if column == 0:
        return low
    while low < high:
        middle = (low + high) >> 1
        if np.int64(indices[middle]) < column:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def copy_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    n_columns: int,
    members: np.ndarray,
    new_indptr: np.ndarray,
    new_indices: np.ndarray,
    new_data: np.ndarray,
) -> int:
    """Copy some rows and renumber the columns that occur, in their order; returns how many occur."""
    new_columns = np.zeros(n_columns, np.uint32)
    written = 0
    new_indptr[0] = 0
    for i in range(len(members)):
        for k in range(indptr[members[i]], indptr[members[i] + 1]):
            new_columns[indices[k]] = 1
            new_data[written] = data[k]
            new_indices[written] = indices[k]
            written += 1
        new_indptr[i + 1] = written
    count = 0
    for column in range(n_columns):
        used = new_columns[column]
        new_columns[column] = count
        count += used
    for k in range(written):
        new_indices[k] = new_columns[new_indices[k]]
    return count


@jit
def row_norms(indptr: np.ndarray, data: np.ndarray, dense: np.ndarray, norms: np.ndarray) -> None:
    """Write the L2 norm of each row to `norms`."""
    for row in range(len(norms)):
        squares = 0.0
        for k in range(indptr[row], indptr[row + 1]):
            squares += np.float64(data[k]) * np.float64(data[k])
        for k in range(dense.shape[1]):
            squares += np.float64(dense[row, k]) * np.float64(dense[row, k])
        norms[row] = np.sqrt(squares)
