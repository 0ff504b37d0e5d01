"""What commands read: configs, models and texts, from files or standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.config import ConfigSource
from labelwise.errors import DataError

if TYPE_CHECKING:
    from labelwise.methods.base import Method


def config_source(path: str) -> ConfigSource:
    """The config in a file, or on standard input for `-`."""
    if path == "-":
        return ConfigSource.from_yaml(sys.stdin.read(), "stdin")
    return ConfigSource.from_file(path)


def open_model(path: str) -> Method:
    """The model in a model folder or in a run folder."""
    from labelwise.methods.base import load
    from labelwise.store import MANIFEST

    folder = Path(path)
    if not (folder / MANIFEST).exists() and (folder / "model" / MANIFEST).exists():
        folder = folder / "model"
    return load(folder)


def refuse_existing(path: str | Path, force: bool) -> Path:
    """The path, unless something is there and may not be replaced."""
    target = Path(path)
    if target.exists() and not force:
        raise DataError(f"{target} exists already; --force replaces it")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent}: there is no such folder")
    return target
