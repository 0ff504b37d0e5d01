"""Files and folders that appear whole or not at all: written under a hidden name beside the target, then renamed.

An existing folder is replaced by exchanging the two names in one atomic step, where system and disk support it (Linux
and macOS, on usual disks). Elsewhere it takes two renames, and a kill between them leaves the old folder under a hidden
name; `clean_up` moves it back at the next start.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from labelwise import __version__
from labelwise.errors import DataError, LabelwiseError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked
    fcntl = None

AT_FDCWD, RENAME_EXCHANGE, RENAME_SWAP = -100, 2, 2  # of Linux's renameat2 and macOS's renamex_np
OLD = "folder"
"""Name of the replaced folder inside its hidden parent."""


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Add the path to errors of writing, such as of a full disk, which have none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def replacing(path: str | Path, binary: bool = False, follow: bool = True) -> Iterator[IO]:
    """Open a temporary file that replaces `path` when the block ends without an error, and is removed otherwise.

    For a link, the file it points to is replaced; with `follow=False` links are refused. A pipe or a device cannot be
    replaced: it is written to directly.
    """
    if not follow and Path(path).is_symlink():
        raise DataError("this is a link, a regular file is needed; remove it", path)
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") if binary else target.open("w", encoding="utf-8", newline="\n") as file:
                yield file
            return
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", path) from error
    hidden = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.new")
    try:
        with hidden.open("xb") if binary else hidden.open("x", encoding="utf-8", newline="\n") as file:
            yield file
        os.replace(hidden, target)
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", path) from error
    finally:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)


def replace_folder(new: Path, target: Path) -> None:
    """Rename `new` to `target`; an existing target is removed only after the new one has its name."""
    if not target.exists():
        os.replace(new, target)
        return
    if _exchange(new, target):
        _remove(new)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    os.replace(target, old / OLD)
    try:
        os.replace(new, target)
    except BaseException:
        os.replace(old / OLD, target)
        raise
    finally:
        if target.exists():
            _remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two files atomically; False where the system cannot."""
    library, names = ctypes.CDLL(None) if os.name == "posix" else None, (os.fsencode(one), os.fsencode(other))
    if hasattr(library, "renameat2"):
        return library.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0
    return hasattr(library, "renamex_np") and library.renamex_np(*names, RENAME_SWAP) == 0


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """A hidden folder to fill, which replaces the target when the block ends without an error."""
    hidden = target.with_name(f".{target.name}.new-{secrets.token_hex(6)}")
    hidden.mkdir(parents=True)  # with the permissions that the umask leaves; `mkdtemp` would make it private
    try:
        yield hidden
        replace_folder(hidden, target)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def find_old_copy(target: Path) -> Path | None:
    """The hidden path of a folder whose replacement was interrupted; None if `target` exists or there is no copy."""
    if target.exists():
        return None
    copies = (path / OLD for path in target.parent.glob(f".{target.name}.old-*"))
    return next((path for path in copies if path.is_dir()), None)


def clean_up(folder: Path, files: Sequence[str], folders: Sequence[str]) -> None:
    """Remove the temporary files and folders that killed processes left; call only while no other process writes.

    A folder that is missing because its replacement was interrupted is restored first.
    """
    for name in folders:
        copy = find_old_copy(folder / name)
        if copy is not None:
            os.replace(copy, folder / name)
    for path in list(folder.iterdir()):
        if is_temporary_name(path.name, files, folders):
            _remove(path)


def is_temporary_name(name: str, files: Sequence[str], folders: Sequence[str]) -> bool:
    """Whether this is a temporary name of one of these files or folders."""
    names = "|".join(re.escape(file[:100]) for file in files)
    if names and re.fullmatch(rf"\.({names})\.[0-9a-f]{{12}}\.new", name):
        return True
    return any(name.startswith((f".{one}.new-", f".{one}.old-")) for one in folders)


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


# --- file lock ---
# One process at a time in a folder: a lock on its file `.lock`, released when the process ends, even if killed.
#
# A single file that is being written is locked by a hidden file next to it.

LOCK = ".lock"
POLL_SECONDS = 0.1
IN_USE = "another process is using this folder"
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
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return fcntl is None
    except OSError:
        return True
    with os.fdopen(descriptor, "rb") as file:
        return fcntl is None or not _try_lock(file, fcntl.LOCK_SH)


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


def _try_lock(file: IO[bytes], kind: int | None = None) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if kind is None else kind) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# --- hidden folder ---
# Hidden folders for temporary files, `.labelwise-XXXXXXXX`: locked while in use, and removed at the end.
#
# A killed process leaves its folder, with a lock that nobody holds; the next one on the same machine that needs a
# folder in the same place removes it. Some file systems of clusters do not know the locks of other machines.

PREFIX = ".labelwise-"
NAME = re.compile(re.escape(PREFIX) + r"\w{8}")


@contextmanager
def hidden_folder(above: Path) -> Iterator[Path]:
    """Create a hidden folder in `above` and remove it at the end; leftovers of killed processes are removed."""
    _remove_leftovers(above)
    with ExitStack() as stack:
        hidden = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
        try:
            with suppress(LabelwiseError):  # where locks are not possible nobody removes the folder
                lock = stack.enter_context(lock_folder(hidden, DataError(IN_USE, hidden)))
                lock.write(_machine())  # only now, when it is locked, others look at it
            yield hidden
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


def keep_leftovers(hidden: Path) -> None:
    """From now on the folder is not removed if this process is killed: it holds files that exist nowhere else."""
    (hidden / LOCK).unlink(missing_ok=True)


def _remove_leftovers(above: Path) -> None:
    for path in above.glob(f"{PREFIX}*"):
        if not NAME.fullmatch(path.name) or path.is_symlink():
            continue
        try:
            if (path / LOCK).read_bytes() != _machine() or is_locked(path):
                continue
            with lock_folder(path, DataError(IN_USE, path)):
                shutil.rmtree(path, ignore_errors=True)
        except (LabelwiseError, OSError):
            continue  # in use after all, or of another user


def _machine() -> bytes:
    return socket.gethostname().encode()


# --- atomic folder ---
# Folders of data sets are written atomically, and only folders written by labelwise are ever replaced.

SOURCE = "source.json"
"""Every data folder written by labelwise contains this file, which records the source of the data."""


@contextmanager
def data_folder(target: str | Path, source: Mapping[str, Any], force: bool = False) -> Iterator[Path]:
    """Yield a hidden folder to fill; it replaces the target when the block ends without an error.

    `source` is written into it as source.json at the end, so the block may still add to it. With `force` a
    folder with a source.json of labelwise is replaced; any other is an error.
    """
    target = Path(target)
    check_free(target, force)
    try:
        with replacing_folder(target) as hidden:
            yield hidden
            text = json.dumps({"labelwise_version": __version__, **source}, ensure_ascii=False, indent=1)
            (hidden / SOURCE).write_text(text + "\n", encoding="utf-8")
            check_free(target, force)
    except OSError as error:
        raise DataError(f"the folder cannot be written: {error.strerror or error}", target) from error


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, DataError(f"{IN_USE}; wait until it has ended", folder)):
        yield


def check_free(target: Path, force: bool) -> None:
    """Refuse a path that exists and may not be replaced."""
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not force:
        raise DataError("exists already; choose another path, or replace it with force=True (--force)", target)
    if target.is_symlink() or not _written_by_labelwise(target / SOURCE):
        raise DataError(f"exists and was not written by labelwise (it has no {SOURCE}); it is not replaced", target)


def _written_by_labelwise(source: Path) -> bool:
    """Whether a source.json was written by labelwise and not by another program."""
    try:
        about = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and "labelwise_version" in about
