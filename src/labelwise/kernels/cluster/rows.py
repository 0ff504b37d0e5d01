"""Rows of features for the clustering kernels: products with a centre, sums, copies, lengths.

A row stands in a CSR block (columns ascending) and a dense block side by side; either may have no columns. A centre
is one dense vector over both, the CSR block's columns first. `dot_with_centre` works on a range of rows and
`add_to_centre` on a range of columns, so that threads can share a large group without any effect on the result.
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
    """``products[i]`` = row ``members[i]`` times the centre, for i from `first` to `last` (not included)."""
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
    """Four sums side by side: one alone would wait for each addition to end."""
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
    """Add row ``members[i]`` times ``signs[i]`` to the centre, only columns from `first` to `last` (not included)."""
    n_columns = len(centre) - dense.shape[1]
    for i in range(len(members)):
        sign = np.float32(signs[i])
        if sign == 0:
            continue
        row = members[i]
        begin = _place_of(indices, indptr[row], indptr[row + 1], first)
        end = indptr[row + 1] if last >= n_columns else _place_of(indices, begin, indptr[row + 1], last)
        for k in range(np.uint64(begin), np.uint64(end)):
            centre[indices[k]] += sign * data[k]
        for column in range(max(first, n_columns), last):
            centre[column] += sign * dense[row, column - n_columns]


@inner
def _place_of(indices: np.ndarray, low: int, high: int, column: int) -> int:
    """The first place from `low` on whose column is not below `column`."""
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
    """Copy some rows and number the columns anew, only those that occur, in their order; how many there are."""
    places = np.zeros(n_columns, np.uint32)
    written = 0
    new_indptr[0] = 0
    for i in range(len(members)):
        for k in range(indptr[members[i]], indptr[members[i] + 1]):
            places[indices[k]] = 1
            new_data[written] = data[k]
            new_indices[written] = indices[k]
            written += 1
        new_indptr[i + 1] = written
    count = 0
    for column in range(n_columns):
        used = places[column]
        places[column] = count
        count += used
    for k in range(written):
        new_indices[k] = places[new_indices[k]]
    return count


@jit
def row_lengths(indptr: np.ndarray, data: np.ndarray, dense: np.ndarray, lengths: np.ndarray) -> None:
    """The Euclidean length of each row."""
    for row in range(len(lengths)):
        squares = 0.0
        for k in range(indptr[row], indptr[row + 1]):
            squares += np.float64(data[k]) * np.float64(data[k])
        for k in range(dense.shape[1]):
            squares += np.float64(dense[row, k]) * np.float64(dense[row, k])
        lengths[row] = np.sqrt(squares)
