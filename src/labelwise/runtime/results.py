"""Results of unfinished work in folders: of one fingerprint, whole or cut short by a time budget."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labelwise.errors import DataError, LabelwiseError
from labelwise.io.folder import Folder, FolderWriter, new_folder
from labelwise.io.tensors import in_pieces
from labelwise.runtime.budget import Budget

# --- finished ---
# Finished parts of an interrupted training, kept in store folders that are identified by a fingerprint.
#
# The fingerprint is a hash of everything that decides the result. Folders of another training, or damaged ones, are
# ignored with a warning, and the work is done again; so are chunks of linear trees with an older type of hash. If
# finished work cannot be written, a warning is logged and training continues; for unfinished work it is an error.

log = logging.getLogger("labelwise")

RESULT_VERSION = 4
"""Increased when a new version of labelwise computes other results from the same settings and data: older work is then
ignored. 1 is not hashed, so that work from before versions existed is still used."""
KEY = "fingerprint"


def fingerprint(*parts: Any) -> str:
    """A hash of texts, JSON values, arrays and tensors; trainings with different fingerprints are different."""
    digest = hashlib.sha256()
    for part in parts if RESULT_VERSION == 1 else (RESULT_VERSION, *parts):
        plain = _plain(part)
        if isinstance(plain, np.ndarray):
            about = f"array {plain.dtype} {plain.shape}"
            digest.update(f"{len(about)} {about}".encode())
            for piece in in_pieces(np.ascontiguousarray(plain).reshape(-1).view(np.uint8)):
                digest.update(piece.data)
        else:
            text = json.dumps(plain, sort_keys=True)
            digest.update(f"{len(text)} {text}".encode())
    return digest.hexdigest()


def _plain(part: Any) -> Any:
    """A tensor as an array of its bytes, because NumPy lacks some dtypes; a scalar tensor as a number."""
    if not hasattr(part, "detach"):
        return part
    import torch

    return part.detach().cpu().contiguous().view(torch.uint8).numpy() if part.ndim else part.item()


def fingerprint_by_budget(own: str, time_budget: float | None) -> str:
    """The fingerprint of work that a time budget ended: it is only used again under the same budget."""
    return fingerprint(own, "time budget", time_budget)


def find_finished(path: Path, kind: str, *expected: str) -> Folder | None:
    """Finished work with one of these fingerprints, all files verified; None if it is missing or cannot be used."""
    if not path.exists():
        return None
    try:
        folder = Folder(path, kind)
        if folder.manifest.get(KEY) not in expected:
            log.warning("%s: not used: it belongs to another training, with other settings, parameters or data", path)
            return None
        for name in folder.manifest["files"]:
            _ = folder.tensors(name) if name.endswith(".safetensors") else folder.read_json(name)
    except (LabelwiseError, OSError) as error:
        log.warning("%s: not used: %s", path, error)
        return None
    folder.verify = False  # all hashes have been compared
    return folder


def keep_finished(
    path: Path,
    kind: str,
    own: str,
    file: str,
    tensors: Mapping[str, np.ndarray],
    about: Mapping[str, Any] | None = None,
) -> bool:
    """Write finished work with this fingerprint, in one file; False, and a warning, if that is not possible.

    The work itself is not lost then: training continues with what is in memory.
    """
    try:
        with finished_folder(path, kind, own, about) as folder:
            folder.write_tensors(file, tensors)
    except LabelwiseError as error:
        log.warning("%s; training continues, but if it is interrupted this part is trained again", error)
        return False
    return True


@contextmanager
def finished_folder(path: Path, kind: str, own: str, about: Mapping[str, Any] | None = None) -> Iterator[FolderWriter]:
    """Write work with this fingerprint to a folder, atomically; a damaged one is replaced."""
    try:
        if path.exists() and fingerprint_in(path, kind) is None and _holds_only_ours(path):
            shutil.rmtree(path)
        with new_folder(path, kind, {KEY: own, **(about or {})}, force=True) as folder:
            yield folder
    except OSError as error:
        raise DataError(
            f"cannot be written: {error.strerror or error}; fix that and start the same training again: it resumes "
            "from what was written before",
            path,
        ) from error


def _holds_only_ours(path: Path) -> bool:
    """Whether a folder holds only files of the types that labelwise writes."""
    if path.is_symlink() or not path.is_dir():
        return False
    return all(item.is_file() and item.suffix in (".json", ".safetensors") for item in path.iterdir())


def fingerprint_in(path: Path, kind: str) -> str | None:
    """The fingerprint of the work in a folder; None if the folder is missing or of another type."""
    try:
        return Folder(path, kind).manifest.get(KEY)
    except LabelwiseError:
        return None


Arrays = Mapping[str, np.ndarray]

KIND, FILE, CUT = "finished part", "arrays.safetensors", "cut"
"""Type of the folders of results, their file, and the key of their manifest that says which budget has cut them."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def as_made(value: Any) -> Any:
    """A result that is the same before it is written and after it is read."""
    return value


class Stored(NamedTuple):
    """How results of one type are kept in folders: functions at the top level of a module, because tasks get them."""

    write: Callable[[FolderWriter, Any], None]
    read: Callable[[Folder], Any]
    content: Callable[[Any], Sequence[Any]]
    """What a fingerprint takes."""
    ready: Callable[[Any], Any] = as_made
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
