"""How much memory work on data larger than memory may use: one setting decides the sizes of all its blocks.

`memory` is a limit in GB for the whole process, or a word (`check`, `ignore`), which stands for what is free. Pages of
mapped files are not counted: the system reclaims them when memory is needed for something else.
"""

from __future__ import annotations

from pathlib import Path

from labelwise.free_memory import free_memory

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
