"""Workers compile every kernel once: where one compiles it, another waits for its machine code.

The lock of a kernel is held from the moment its file is found missing until the file is written. If that never happens
(a kernel that cannot be compiled), others wait for a limited time and then compile it themselves.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

MAX_WAIT = 60.0
POLL = 0.05


class CompileLocks:
    """The locks that this process holds, by the file that it is about to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[Path, int] = {}
        self._owner = os.getpid()

    def before_compiling(self, path: Path) -> None:
        """Wait while another process compiles this file; hold its lock if the file is still missing then."""
        if os.getpid() != self._owner or path in self._held:
            return
        import fcntl

        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
        try:
            lock = os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # the other worker has ended
            return
        begin = time.monotonic()
        while not path.exists() and time.monotonic() < begin + MAX_WAIT:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(POLL)
                continue
            if path.exists():  # written between the look and the lock
                break
            self._held[path] = lock
            return
        os.close(lock)

    def release(self, path: Path) -> None:
        """The file is written, or cannot be."""
        lock = self._held.pop(path, None)
        if lock is not None:
            os.close(lock)

    def remove(self) -> None:
        """Remove all locks: a worker that is still running compiles what it needs."""
        shutil.rmtree(self.folder, ignore_errors=True)


def install(run: str) -> CompileLocks | None:
    """Compile once among the processes of a test run with this name; None where there are no locks."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        return None
    from labelwise.kernels import jit

    folder = Path(tempfile.gettempdir()) / f"labelwise-tests-{os.getuid()}-{run}"
    folder.mkdir(mode=0o700, exist_ok=True)
    locks, save = CompileLocks(folder), jit._Files.save

    def saving(files, key, data) -> None:
        try:
            save(files, key, data)
        finally:
            locks.release(files._path(key))

    jit.before_compiling, jit._Files.save = locks.before_compiling, saving
    return locks
