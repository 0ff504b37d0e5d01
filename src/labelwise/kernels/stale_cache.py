"""Compiled kernels on disk are dropped when any kernel's source has changed.

Numba looks only at the file of the kernel itself. A kernel that calls one of another file would go on running the old
code of it after an upgrade.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

STAMP = "sources.sha256"


def stamp_of(folder: Path) -> str:
    """A word that changes when any source in the folder does."""
    digest = hashlib.sha256()
    for source in sorted(folder.glob("*.py")):
        found = source.stat()
        digest.update(f"{source.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def drop_stale_kernels(folder: Path) -> bool:
    """Remove what Numba keeps beside the sources in a folder unless all of them are as they were; tells whether it did.

    Where nothing may be written nothing is done: Numba then keeps its files elsewhere or not at all.
    """
    cache, stamp = folder / "__pycache__", stamp_of(folder)
    with suppress(OSError):
        if (cache / STAMP).read_text() == stamp:
            return False
    with suppress(OSError):
        cache.mkdir(exist_ok=True)
        for compiled in [*cache.glob("*.nbi"), *cache.glob("*.nbc")]:
            compiled.unlink(missing_ok=True)
        written = cache / f"{STAMP}.{os.getpid()}"
        written.write_text(stamp)
        written.replace(cache / STAMP)
        return True
    return False
