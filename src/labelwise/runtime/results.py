"""Results of unfinished work in folders: of one fingerprint, whole or cut short by a time budget."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labelwise.errors import LabelwiseError
from labelwise.io.folder import Folder, FolderWriter
from labelwise.runtime.budget import Budget
from labelwise.runtime.finished import KEY, find_finished, fingerprint, finished_folder

log = logging.getLogger("labelwise")

Arrays = Mapping[str, np.ndarray]

KIND, FILE, CUT = "finished part", "arrays.safetensors", "cut"
"""Type of the folders of results, their file, and the key of their manifest that says which budget has cut them."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Stored(NamedTuple):
    """How results of one type are kept in folders: functions at the top level of a module, because tasks get them."""

    write: Callable[[FolderWriter, Any], None]
    read: Callable[[Folder], Any]
    content: Callable[[Any], Sequence[Any]]
    """What a fingerprint takes."""
    ready: Callable[[Any], Any]
    """What was made, as it is after reading."""


class Result(NamedTuple):
    """What was made, and whether a budget has cut it short."""

    value: Any
    is_cut: bool


def find_result(paths: Sequence[Path], own: str, budget: Budget, stored: Stored) -> Result | None:
    """The first result of this fingerprint; one that a budget has cut only under the same budget."""
    for path in paths:
        held = find_finished(path, KIND, own, under(own, budget))
        if held is not None:
            if held.manifest[KEY] != own:
                budget.end_early()
            try:
                return Result(stored.read(held), held.manifest[KEY] != own)
            except LabelwiseError as error:
                log.warning("%s: not used: %s", path, error)
    return None


def write_result(path: Path, own: str, result: Result, budget: Budget, stored: Stored) -> bool:
    """Write a result; False, and a warning, if that is not possible: training continues with what is in memory."""
    about = {}
    if result.is_cut:
        about = {CUT: {"seconds": budget.seconds, "content": fingerprint(*stored.content(result.value))}}
    try:
        with finished_folder(path, KIND, under(own, budget) if result.is_cut else own, about) as folder:
            stored.write(folder, result.value)
    except LabelwiseError as error:
        log.warning("%s; training continues, but if it is interrupted this part is trained again", error)
        return False
    return True


def under(own: str, budget: Budget) -> str:
    """The fingerprint of a result that this budget has cut short."""
    return fingerprint(own, "time budget", budget.seconds if math.isfinite(budget.seconds) else None)


def flat(parts: Any) -> Sequence[Any]:
    """What a fingerprint takes: the items of a mapping in the order of their names, or a sequence as it is."""
    return [part for item in sorted(parts.items()) for part in item] if isinstance(parts, Mapping) else parts


def frozen(arrays: Arrays) -> Arrays:
    """The arrays as they are read from a file: C-contiguous and read-only, so that both attempts compute the same."""
    views = {name: np.asarray(array, order="C").view() for name, array in arrays.items()}
    for array in views.values():
        array.flags.writeable = False
    return views


def _write_arrays(folder: FolderWriter, arrays: Arrays) -> None:
    folder.write_tensors(FILE, arrays)


def _read_arrays(folder: Folder) -> Arrays:
    return folder.tensors(FILE)


ARRAYS = Stored(_write_arrays, _read_arrays, flat, frozen)
"""Most results: named arrays in one file."""


def checked_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"'{name}': names of stages and results are letters, digits, - and _")
    return name
