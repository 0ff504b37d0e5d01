"""Files and folders that appear whole or not at all: written under a hidden name beside the target, then renamed.

An existing folder is replaced by exchanging the two names in one atomic step, where system and disk support it (Linux
and macOS, on usual disks). Elsewhere it takes two renames, and a kill between them leaves the old folder under a hidden
name; `clean_up` moves it back at the next start.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from labelwise.errors import DataError

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
    if os.name != "posix":
        return False
    library, names = ctypes.CDLL(None), (os.fsencode(one), os.fsencode(other))
    if hasattr(library, "renameat2"):
        return library.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0
    if hasattr(library, "renamex_np"):
        return library.renamex_np(*names, RENAME_SWAP) == 0
    return False


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
