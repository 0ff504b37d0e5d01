"""Large arrays on large memory pages.

The first touch of a page costs up to two microseconds, so a gigabyte in pages of 4 KB costs half a second before any
work is done. NumPy asks for large pages too, but its arrays do not begin at one, and memory that it has freed may stay
with the process; these go back to the system at once.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

PAGE = 1 << 21
LARGE = 2 * PAGE
_LINE = 64


def empty(size: int, dtype: Any) -> np.ndarray:
    """An array of any contents, on large pages if it is large."""
    if size < PAGE >> 4:  # small whatever the type: the quick way
        return np.empty(size, dtype)
    pages = _pages(size * np.dtype(dtype).itemsize)
    return np.empty(size, dtype) if pages is None else pages.view(dtype)


def zeros(size: int, dtype: Any) -> np.ndarray:
    """Zeros that begin at a cache line, on large pages if there are many."""
    count = size * np.dtype(dtype).itemsize
    pages = _pages(count)
    if pages is None:
        raw = np.zeros(count + _LINE, np.uint8)
        skip = -raw.__array_interface__["data"][0] % _LINE
        pages = raw[skip : skip + count]
    return pages.view(dtype)


def _pages(count: int) -> np.ndarray | None:
    """So many zero bytes that begin at a large page; None if they are few or the system has no such pages."""
    if count < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(-1, count + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # not offered, or not enough memory: then NumPy says so in its own way
        return None
    raw = np.frombuffer(memory, np.uint8)
    skip = -raw.__array_interface__["data"][0] % PAGE
    return raw[skip : skip + count]
