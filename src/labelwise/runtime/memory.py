"""Memory that this process can still allocate: what the system has free, or less if a container sets a limit."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labelwise.runtime.threads import control_groups

NO_LIMIT = 1 << 60
"""Control groups without a limit report a number at least this large."""


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be allocated without swapping or being killed; None where the system does not report it."""
    available = [free for free in (_of_system(root), *_of_groups(root)) if free is not None]
    return max(0, min(available)) if available else None


def _of_system(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_groups(root: Path) -> list[int]:
    """Free bytes in each control group of this process."""
    available = []
    for group, is_version_1 in control_groups("memory", root):
        names = ("limit_in_bytes", "usage_in_bytes") if is_version_1 else ("max", "current")
        limit, used = (_number(group / f"memory.{name}") for name in names)
        if limit is not None and used is not None and limit < NO_LIMIT:
            available.append(limit - used + _file_cache(group / "memory.stat"))
    return available


def _file_cache(path: Path) -> int:
    """Bytes of the page cache, which the system reclaims when needed; with those of groups below, if listed."""
    listed = dict(line.split(" ", 1) for line in _text(path).splitlines() if " " in line)
    amounts = (listed.get(f"total_{name}", listed.get(name, "")) for name in ("inactive_file", "active_file"))
    return sum(int(amount) for amount in amounts if amount.isdigit())


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


# --- memory limit ---
# How much memory work on data larger than memory may use: one setting decides the sizes of all its blocks.
#
# `memory` is a limit in GB for the whole process, or a word (`check`, `ignore`), which stands for what is free. Pages
# of mapped files are not counted: the system reclaims them when memory is needed for something else.

UNKNOWN_BYTES = 4 << 30
"""Assumed to be free where the system does not report it."""
LEAST_BYTES, MOST_BYTES = 8 << 20, 2 << 30
"""Bounds of a block: smaller ones cost more time than they save memory, and larger ones gain nothing."""


def own_memory() -> int:
    """Bytes of this process that are in memory and in no file; 0 where the system does not report it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")  # it has the program's name
    except OSError:
        return 0
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024 if "RssAnon:" in status else 0


def memory_left(memory: float | str) -> int:
    """Bytes that this process may still allocate."""
    free = free_memory()
    free = UNKNOWN_BYTES if free is None else free
    return min(free, int(memory * 1e9) - own_memory()) if isinstance(memory, float | int) else free


def block_bytes(memory: float | str, fraction: float) -> int:
    """Bytes of a block that may use this fraction of what is left."""
    return int(min(max(fraction * memory_left(memory), LEAST_BYTES), MOST_BYTES))


# --- kept memory ---
# Keeps freed memory in the process during training and encoding, instead of returning it to the system every time.
#
# A step frees the same large blocks that the next step allocates. The C library returns each of them to the system
# and gets new zeroed pages, which on virtual machines can cost more than the arithmetic.

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
