"""Results of unfinished work in folders: of one fingerprint, whole or cut short by a time budget."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labelwise.runtime.budget import Budget
from labelwise.runtime.finished import KEY, find_finished, fingerprint, keep_finished

Arrays = Mapping[str, np.ndarray]

KIND, FILE, CUT = "finished part", "arrays.safetensors", "cut"
"""Type of the folders of results, their file, and the key of their manifest that says which budget has cut them."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Result(NamedTuple):
    """Arrays, and whether a budget has cut them short."""

    arrays: Arrays
    is_cut: bool


def find_result(paths: Sequence[Path], own: str, budget: Budget) -> Result | None:
    """The first result of this fingerprint; one that a budget has cut only under the same budget."""
    for path in paths:
        held = find_finished(path, KIND, own, under(own, budget))
        if held is not None:
            if held.manifest[KEY] != own:
                budget.end_early()
            return Result(held.tensors(FILE), held.manifest[KEY] != own)
    return None


def write_result(path: Path, own: str, result: Result, budget: Budget) -> bool:
    """Write a result; False, and a warning, if that is not possible."""
    if not result.is_cut:
        return keep_finished(path, KIND, own, FILE, result.arrays)
    about = {CUT: {"seconds": budget.seconds, "content": fingerprint(*flat(result.arrays))}}
    return keep_finished(path, KIND, under(own, budget), FILE, result.arrays, about)


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


def checked_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"'{name}': names of stages and results are letters, digits, - and _")
    return name
