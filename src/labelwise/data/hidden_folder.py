"""Hidden folders for temporary files, `.labelwise-XXXXXXXX`: locked while in use, and removed at the end.

A killed process leaves its folder, with a lock that nobody holds; the next one on the same machine that needs a folder
in the same place removes it. Some file systems of clusters do not know the locks of other machines.
"""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from labelwise.errors import DataError, LabelwiseError
from labelwise.file_lock import LOCK, is_locked, lock_folder

PREFIX = ".labelwise-"
NAME = re.compile(re.escape(PREFIX) + r"\w{8}")


@contextmanager
def hidden_folder(above: Path) -> Iterator[Path]:
    """Create a hidden folder in `above` and remove it at the end; leftovers of killed processes are removed."""
    _remove_leftovers(above)
    with ExitStack() as stack:
        hidden = _create(above, stack)
        try:
            yield hidden
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


def keep_leftovers(hidden: Path) -> None:
    """From now on the folder is not removed if this process is killed: it holds files that exist nowhere else."""
    (hidden / LOCK).unlink(missing_ok=True)


def _create(above: Path, stack: ExitStack) -> Path:
    hidden = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
    try:
        with suppress(LabelwiseError):  # where locks are not possible nobody removes the folder
            lock = stack.enter_context(lock_folder(hidden, DataError("another process is using this folder", hidden)))
            lock.write(_machine())  # only now, when it is locked, others look at it
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return hidden


def _remove_leftovers(above: Path) -> None:
    for path in above.glob(f"{PREFIX}*"):
        if not NAME.fullmatch(path.name) or path.is_symlink():
            continue
        try:
            if (path / LOCK).read_bytes() != _machine() or is_locked(path):
                continue
            with lock_folder(path, DataError("another process is using this folder", path)):
                shutil.rmtree(path, ignore_errors=True)
        except (LabelwiseError, OSError):
            continue  # in use after all, or of another user


def _machine() -> bytes:
    return socket.gethostname().encode()
