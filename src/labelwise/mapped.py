"""Memory-mapped arrays: a pass over a whole array need not keep it in memory.

Pages read from a mapped file count as memory of the process until the system reclaims them. Code that reads a whole
array once does it in pieces and releases the pages after each.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np

PIECE_BYTES = 16 << 20
COUNT_BATCH = 1 << 22


def mapping_of(array: np.ndarray) -> mmap.mmap | None:
    """The mapped file an array is part of, or None."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, mmap.mmap) else None


def release_pages(array: np.ndarray) -> None:
    """Release the pages of a mapped array; they are read from the file again on access. Other arrays are left as is."""
    mapping = mapping_of(array)
    if mapping is not None and not array.flags.writeable and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def in_pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """A mapped vector in pieces, each released after use; any other vector as one piece."""
    if mapping_of(array) is None:
        yield array
        return
    size = max(1, PIECE_BYTES // array.itemsize)
    for begin in range(0, len(array), size):
        yield array[begin : begin + size]
        release_pages(array)


def counts_of(numbers: np.ndarray, size: int, table: np.ndarray | None = None) -> np.ndarray:
    """How often each number below `size` occurs, or each `table[number]`.

    Piece by piece, because NumPy copies what it counts, and index arrays, to int64.
    """
    counts = np.zeros(size, np.int64)
    batch = max(COUNT_BATCH, size)
    for begin in range(0, len(numbers), batch):
        piece = numbers[begin : begin + batch]
        counts += np.bincount(piece if table is None else table[piece], minlength=size)
        release_pages(numbers)
    return counts
