"""Files and folders that appear whole or not at all: written under a hidden name beside the target, then renamed.

A folder that is there is replaced by exchanging the two names in one step, where system and disk can do that (Linux and
macOS, on usual disks). Elsewhere it takes two renames, and a kill between them leaves the old folder under a hidden
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
"""Name of the replaced folder inside of its hidden one."""


@contextmanager
def replacing(path: str | Path, binary: bool = False, follow: bool = True) -> Iterator[IO]:
    """A file that takes the place of `path` when the block ends without an error, and is removed otherwise.

    Of a link, what it points to is replaced; with `follow=False` it is refused. A pipe or a device is no place to put
    a file: it is written to.
    """
    if not follow and Path(path).is_symlink():
        raise DataError("this is a link, where a file of our own is needed; remove it", path)
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
    """Put `new` in the place of `target`; what was there is removed only after the new one is in place."""
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
    """Give each of two files the name of the other, in one step; False where that cannot be done."""
    if os.name != "posix":
        return False
    library, names = ctypes.CDLL(None), (os.fsencode(one), os.fsencode(other))
    if hasattr(library, "renameat2"):
        return library.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0
    if hasattr(library, "renamex_np"):
        return library.renamex_np(*names, RENAME_SWAP) == 0
    return False


def replaced_copy(target: Path) -> Path | None:
    """Where an interrupted replacement has left a folder that is missing under its name."""
    if target.exists():
        return None
    found = (path / OLD for path in target.parent.glob(f".{target.name}.old-*"))
    return next((path for path in found if path.is_dir()), None)


def clean_up(folder: Path, files: Sequence[str], folders: Sequence[str]) -> None:
    """Remove what killed processes have left of these files and folders; only where no other process writes.

    A folder that is missing because its replacement was interrupted is put back first.
    """
    for name in folders:
        held = replaced_copy(folder / name)
        if held is not None:
            os.replace(held, folder / name)
    for path in list(folder.iterdir()):
        if is_left_over(path.name, files, folders):
            _remove(path)


def is_left_over(name: str, files: Sequence[str], folders: Sequence[str]) -> bool:
    """Whether this is a hidden name under which one of these files or folders is written."""
    names = "|".join(re.escape(file[:100]) for file in files)
    if names and re.fullmatch(rf"\.({names})\.[0-9a-f]{{12}}\.new", name):
        return True
    return any(name.startswith((f".{one}.new-", f".{one}.old-")) for one in folders)


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
