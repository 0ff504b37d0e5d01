"""Freed memory stays with the process while it trains on a CPU, instead of going back to the system after every step.

A training step frees the same large blocks that the next step asks for. The C library gives each of them back to the
system at once and gets pages again, zeroed one by one: on virtual machines that can cost more than the arithmetic.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

# Numbers and defaults from glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
DEFAULTS = {TRIM_THRESHOLD: 128 << 10, TOP_PAD: 128 << 10, MMAP_MAX: 65536}
KEEPING = {TRIM_THRESHOLD: (1 << 31) - 1, TOP_PAD: 64 << 20, MMAP_MAX: 0}


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory inside the block, give all of it back afterwards.

    Does nothing without glibc, or where the environment says already how memory is kept: that choice stays.
    """
    if platform.libc_ver()[0] != "glibc" or chosen_outside():
        yield
        return
    library = ctypes.CDLL(None)
    _set(library, KEEPING)
    try:
        yield
    finally:
        _set(library, DEFAULTS)
        library.malloc_trim(0)


def chosen_outside() -> bool:
    """Whether the environment sets how glibc keeps memory."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name.startswith("MALLOC_") for name in os.environ)


def _set(library: ctypes.CDLL, settings: dict[int, int]) -> None:
    for setting, value in settings.items():
        library.mallopt(setting, value)
