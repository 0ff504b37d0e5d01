"""One process at a time in a folder: a lock on its file `.lock`, gone when the process ends, by whatever means."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from labelwise.errors import DataError, LabelwiseError

LOCK = ".lock"
LOOK_EVERY = 0.1


@contextmanager
def locked(folder: Path, busy: LabelwiseError, wait: float = 0.0) -> Iterator[IO[bytes]]:
    """Hold the folder's lock, or raise `busy` if another process still does after `wait` seconds.

    Processes that inherit the file keep the lock. Systems without flock go unlocked.
    """
    with _opened(folder / LOCK) as file:
        begin = time.monotonic()
        while not _take(file):
            if time.monotonic() - begin >= wait:
                raise busy
            time.sleep(LOOK_EVERY)
        yield file


def _opened(path: Path) -> IO[bytes]:
    """The file, made if it is not there; a link is not followed, and nothing of the file is changed."""
    if path.is_symlink():
        raise DataError("this is a link, where a lock file of our own is needed; remove it", path)
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise DataError(f"the folder cannot be locked: {error.strerror or error}", path) from None
    file = os.fdopen(number, "r+b", buffering=0)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        file.close()
        raise DataError("this is not a file, where a lock file of our own is needed; remove it", path)
    return file


def _take(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
