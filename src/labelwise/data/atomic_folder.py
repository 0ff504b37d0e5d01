"""Folders of data sets are written atomically, and only folders written by labelwise are ever replaced."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labelwise import __version__
from labelwise.atomic import replace_folder
from labelwise.errors import DataError
from labelwise.file_lock import lock_folder

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
    hidden = target.parent / f".{target.name}.new-{secrets.token_hex(4)}"
    try:
        hidden.mkdir(parents=True)
        yield hidden
        text = json.dumps({"labelwise_version": __version__, **source}, ensure_ascii=False, indent=1)
        (hidden / SOURCE).write_text(text + "\n", encoding="utf-8")
        check_free(target, force)
        replace_folder(hidden, target)
    except OSError as error:
        raise DataError(f"the folder cannot be written: {error.strerror or error}", target) from error
    finally:
        if hidden.exists():
            shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, DataError("another process is using this folder; wait until it has ended", folder)):
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
