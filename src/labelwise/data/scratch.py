"""Folders for rows of data that is larger than memory; gone when the work is done, or has failed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labelwise.errors import DataError


@contextmanager
def scratch_beside(output: Path) -> Iterator[Path]:
    """A hidden folder on the disk of the output, as that must have room anyway."""
    above = next(folder for folder in output.absolute().parents if folder.is_dir())
    hidden = None
    try:
        hidden = Path(tempfile.mkdtemp(prefix=".labelwise-", dir=above))
        yield hidden
    except OSError as error:
        raise DataError(f"cannot be written to: {error.strerror or error}", above) from error
    finally:
        if hidden is not None:
            shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def scratch_at(place: Path, wanted: bool) -> Iterator[Path | None]:
    """This very folder, empty, or None if none is wanted; what a killed process left there is removed either way."""
    shutil.rmtree(place, ignore_errors=True)
    if not wanted:
        yield None
        return
    try:
        place.mkdir()
    except OSError as error:
        raise DataError(f"the folder cannot be made: {error.strerror or error}", place) from error
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
