"""Arrays that are mapped from files: passes over all of one need not keep it in memory.

What was read of a mapped file counts as memory of the process until the system takes it back. Code that goes once
through a whole array does it in pieces and says after each that it is done with it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np

PIECE_BYTES = 16 << 20
COUNTED_AT_ONCE = 1 << 22


def mapping_of(array: np.ndarray) -> mmap.mmap | None:
    """The mapped file an array is part of, or None."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, mmap.mmap) else None


def forget(array: np.ndarray) -> None:
    """Let go of the pages of a mapped array; they come back from the file when they are looked at. Others stay."""
    mapping = mapping_of(array)
    if mapping is not None and not array.flags.writeable and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def in_pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """A vector, in pieces that are forgotten one after the other if it is mapped, else whole."""
    if mapping_of(array) is None:
        yield array
        return
    size = max(1, PIECE_BYTES // array.itemsize)
    for begin in range(0, len(array), size):
        yield array[begin : begin + size]
        forget(array)


def counts_of(numbers: np.ndarray, size: int, table: np.ndarray | None = None) -> np.ndarray:
    """How often each number below `size` occurs, or each `table[number]`.

    Piece by piece, because NumPy makes a wider copy of what it counts and of what it takes for an index.
    """
    counts = np.zeros(size, np.int64)
    at_once = max(COUNTED_AT_ONCE, size)
    for begin in range(0, len(numbers), at_once):
        piece = numbers[begin : begin + at_once]
        counts += np.bincount(piece if table is None else table[piece], minlength=size)
        forget(numbers)
    return counts
