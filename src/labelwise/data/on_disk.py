"""Vectors that grow in files instead of memory, and are mapped when they are whole."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from labelwise.errors import DataError


class ArrayOnDisk:
    """A vector in a file of a folder.

    Once it is mapped its file has no name any more, where the system allows that: the room on the disk is free again as
    soon as nobody uses the array, and when the process ends, by whatever means.
    """

    def __init__(self, dtype: Any, folder: Path) -> None:
        self.size = 0
        self.dtype = np.dtype(dtype)
        self._place = folder / f"{uuid4().hex}.rows"

    def add(self, array: np.ndarray) -> None:
        """Put numbers at the end; those of a matrix row by row."""
        array = np.ascontiguousarray(array, self.dtype)
        try:
            with self._place.open("ab") as file:
                file.write(array.data)
        except OSError as error:
            raise DataError(f"rows cannot be written to: {error.strerror or error}", self._place.parent) from error
        self.size += array.size

    def mapped(self) -> np.ndarray:
        """All of it, read-only; nothing can be added any more."""
        if not self.size:  # an empty file cannot be mapped
            return np.empty(0, self.dtype)
        try:
            array = np.asarray(np.memmap(self._place, self.dtype, "r"))
        except OSError as error:
            raise DataError(f"rows cannot be mapped: {error.strerror or error}", self._place.parent) from error
        with suppress(OSError):
            self._place.unlink()
        return array
