"""One process at a time in a folder: a lock on its file `.lock`, released when the process ends, even if killed.

A single file that is being written is locked by a hidden file next to it.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from labelwise.errors import DataError, LabelwiseError

LOCK = ".lock"
POLL_SECONDS = 0.1
PROBE_SECONDS = 0.2
"""How long at least to wait for a lock: a process that only asks (`is_locked`) holds it for a moment."""


@contextmanager
def lock_folder(folder: Path, busy: LabelwiseError, wait: float = 0.0) -> Iterator[IO[bytes]]:
    """Hold the folder's lock, or raise `busy` if another process still does after `wait` seconds.

    Child processes that inherit the file keep the lock. Without flock (Windows) nothing is locked.
    """
    with _open_lock_file(folder / LOCK) as file:
        _wait_for_lock(file, busy, wait)
        yield file


@contextmanager
def lock_output(target: Path) -> Iterator[None]:
    """Be the only process that writes a file, or raise DataError; the hidden lock file is removed at the end."""
    busy = DataError("another process writes this file; wait until it has ended, or choose another name", target)
    path = target.with_name(f".{target.name}{LOCK}")
    while True:
        with _open_lock_file(path) as file:
            _wait_for_lock(file, busy)
            if not _is_at(file, path):  # it was removed by its owner in the meantime, and another process may have one
                continue
            try:
                yield
            finally:
                with suppress(OSError):
                    path.unlink()
            return


def is_locked(folder: Path) -> bool:
    """Whether a process holds the folder's lock; True where that cannot be known."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(descriptor, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _open_lock_file(path: Path) -> IO[bytes]:
    """Open the file, created if missing; links are not followed and the contents are not changed."""
    if path.is_symlink():
        raise DataError("this is a link, a regular lock file is needed; remove it", path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise DataError(f"the folder cannot be locked: {error.strerror or error}", path) from None
    file = os.fdopen(descriptor, "r+b", buffering=0)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise DataError("this is not a regular file, which the lock needs; remove it", path)
    return file


def _wait_for_lock(file: IO[bytes], busy: LabelwiseError, wait: float = 0.0) -> None:
    attempts = 1 + math.ceil(max(wait, PROBE_SECONDS) / POLL_SECONDS)
    while not _try_lock(file):
        attempts -= 1
        if not attempts:
            raise busy
        time.sleep(POLL_SECONDS)


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether the open file is the one that has this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _try_lock(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
