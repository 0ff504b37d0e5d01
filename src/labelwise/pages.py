"""Large arrays on huge memory pages.

The first access to a page costs up to two microseconds, so a gigabyte in pages of 4 KB costs half a second before any
work is done. NumPy requests huge pages too, but its arrays are not aligned to them, and memory that it has freed may
stay with the process; these arrays are returned to the system at once.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np

PAGE = 1 << 21
LARGE = 2 * PAGE
_LINE = 64


def empty(size: int, dtype: Any) -> np.ndarray:
    """An uninitialised array, on huge pages if it is large."""
    if size < PAGE >> 4:  # small for any dtype: avoid the overhead
        return np.empty(size, dtype)
    pages = _pages(size * np.dtype(dtype).itemsize)
    return np.empty(size, dtype) if pages is None else pages.view(dtype)


def zeros(size: int, dtype: Any) -> np.ndarray:
    """Zeros aligned to a cache line, on huge pages if there are many."""
    count = size * np.dtype(dtype).itemsize
    pages = _pages(count)
    if pages is None:
        raw = np.zeros(count + _LINE, np.uint8)
        skip = -raw.__array_interface__["data"][0] % _LINE
        pages = raw[skip : skip + count]
    return pages.view(dtype)


def in_small_pages(array: np.ndarray) -> np.ndarray:
    """A copy in pages as small as those of a mapped file; NumPy would request huge ones."""
    if array.nbytes == 0:
        return array
    memory = mmap.mmap(-1, array.nbytes)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    copy = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
    copy[...] = array
    return copy


def _pages(count: int) -> np.ndarray | None:
    """`count` zero bytes aligned to a huge page; None if they are few or the system has no huge pages."""
    if count < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(-1, count + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # not supported, or not enough memory: then NumPy raises the error
        return None
    raw = np.frombuffer(memory, np.uint8)
    skip = -raw.__array_interface__["data"][0] % PAGE
    return raw[skip : skip + count]
