"""Checks of arrays read from files: offsets, indices and weights, checked once before a kernel reads them.

Neighbours are compared, never subtracted: a difference of two int64 may overflow and look small. All checks work in
pieces, so that they need little memory beside the array, which may be memory-mapped.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labelwise.mapped import release_pages

PIECE = 1 << 20
LARGEST_WEIGHT = 1e18


def is_non_decreasing(values: np.ndarray) -> bool:
    """Whether no value of a vector is smaller than the one before it."""
    return all(bool((piece[1:] >= piece[:-1]).all()) for piece in _pieces(values, overlap=1))


def is_increasing(values: np.ndarray) -> bool:
    """Whether every value of a vector is larger than the one before it."""
    return all(bool((piece[1:] > piece[:-1]).all()) for piece in _pieces(values, overlap=1))


def are_offsets(offsets: np.ndarray, end: int) -> bool:
    """Whether a vector of integers begins with 0, ends with `end` and never decreases."""
    return (
        offsets.ndim == 1
        and offsets.dtype.kind in "iu"
        and len(offsets) > 0
        and int(offsets[0]) == 0
        and int(offsets[-1]) == end
        and is_non_decreasing(offsets)
    )


def are_sizes(sizes: np.ndarray, total: int) -> bool:
    """Whether a vector holds non-negative integers that sum to `total`."""
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or not in_range(sizes, total + 1):
        return False
    # the sum of a piece cannot overflow as long as total * PIECE fits
    return total < 1 << 43 and sum(int(piece.sum(dtype=np.int64)) for piece in _pieces(sizes)) == total


def in_range(numbers: np.ndarray, end: int) -> bool:
    """Whether all integers of an array are from 0 to ``end - 1``."""
    return numbers.dtype.kind in "iu" and all(
        int(piece.min()) >= 0 and int(piece.max()) < end for piece in _pieces(numbers.reshape(-1))
    )


def all_finite(array: np.ndarray) -> bool:
    """Whether an array holds neither NaN nor infinity; integer arrays never do."""
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel()
    return all(bool(np.isfinite(piece).all()) for piece in _pieces(flat))


def are_weights(array: np.ndarray) -> bool:
    """Whether all numbers of an array are finite and small enough to be multiplied with each other in float32."""
    if array.dtype.kind != "f" or array.size == 0:
        return True
    # min and max propagate NaN, which fails both comparisons;
    # Python floats, because the limit itself is infinite in float16
    return all(
        float(piece.min()) >= -LARGEST_WEIGHT and float(piece.max()) <= LARGEST_WEIGHT
        for piece in _pieces(array.reshape(-1))
    )


def _pieces(values: np.ndarray, overlap: int = 0) -> Iterator[np.ndarray]:
    """A vector in non-empty pieces, each starting with the last `overlap` values of the piece before."""
    for begin in range(0, len(values), PIECE):
        yield values[max(0, begin - overlap) : begin + PIECE]
        if len(values) > PIECE:
            release_pages(values)
