"""Keeps freed memory in the process during training and encoding, instead of returning it to the system every time.

A step frees the same large blocks that the next step allocates. The C library returns each of them to the system
and gets new zeroed pages, which on virtual machines can cost more than the arithmetic.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Numbers and defaults from glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
DEFAULTS = {TRIM_THRESHOLD: 128 << 10, TOP_PAD: 128 << 10, MMAP_MAX: 65536}
KEEPING = {TRIM_THRESHOLD: (1 << 31) - 1, TOP_PAD: 64 << 20, MMAP_MAX: 0}


_blocks = 0
_lock = threading.Lock()


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory inside the block and return all of it to the system afterwards.

    Blocks may be nested, and open in several threads; the last that ends returns the memory. Does nothing without
    glibc, or where the environment already configures malloc.
    """
    if platform.libc_ver()[0] != "glibc" or is_set_by_environment():
        yield
        return
    _enter(1)
    try:
        yield
    finally:
        _enter(-1)


def _enter(change: int) -> None:
    global _blocks
    with _lock:
        before, _blocks = _blocks, _blocks + change
        if before and _blocks:
            return
        library = ctypes.CDLL(None)
        _set(library, KEEPING if _blocks else DEFAULTS)
        if not _blocks:
            library.malloc_trim(0)


def is_set_by_environment() -> bool:
    """Whether the environment configures glibc's malloc."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name.startswith("MALLOC_") for name in os.environ)


def _set(library: ctypes.CDLL, settings: dict[int, int]) -> None:
    for setting, value in settings.items():
        library.mallopt(setting, value)
