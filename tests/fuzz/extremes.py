"""Extreme numbers in every field of a folder: single elements, pairs and runs of tensors, numbers in JSON, shapes.

Each case changes one thing in an otherwise sound folder whose manifest agrees with it, as a stranger would make it.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from labelwise.io.folder import MANIFEST, map_tensors

INTEGERS = (0, -1, 1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63))
FLOATS = ("nan", "inf", "-inf", "1e308", "-1e300", "3e38", "-3e38", "1e-310", "1e-45", "0", "-1")
JSON_NUMBERS = (0, -1, 1, 2**31, 2**62, -(2**63), 10**30, 0.5, 1e308, "x", None)
WRAPPING = (0, 2**63 - 1, -(2**63), -1)
"""Differences of neighbours are all positive in 64 bits."""


@dataclass(frozen=True)
class Case:
    """One change: `where` is the name of a tensor, a dotted way into JSON, or both (`tensor:way`)."""

    file: str
    where: str
    changes: tuple[tuple[int, Any], ...] = ()
    """New values by place in a tensor, or a single one for JSON."""

    def __str__(self) -> str:
        places, values = zip(*self.changes, strict=True)
        shown = f"{places[0]} to {places[-1]}" if len(places) > 4 else list(places)
        return f"{self.file} {self.where.replace(chr(0), '.')} {shown} = {list(dict.fromkeys(values))}"


def cases_of(folder: Path) -> list[Case]:
    """All cases of a folder, in a fixed order."""
    found: list[Case] = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            tensors = map_tensors(path)
        elif path.suffix == ".npz":
            tensors = dict(np.load(path))
        elif path.suffix == ".json":
            found += _json_cases(name, "", json.loads(path.read_bytes()))
            continue
        else:
            continue
        for key, array in sorted(tensors.items()):
            found += _tensor_cases(name, key, array)
    return found


def _tensor_cases(file: str, key: str, array: np.ndarray) -> Iterator[Case]:
    if array.dtype == np.uint8 and bytes(array.reshape(-1)[:1]) == b"{":
        yield from _json_cases(file, f"{key}:", json.loads(array.tobytes()))
        return
    last = array.size - 1
    if last < 0 or array.dtype.kind not in "iuf":
        return
    values = FLOATS if array.dtype.kind == "f" else INTEGERS
    for place in sorted({0, min(1, last), last // 2, last}):
        for value in values:
            yield Case(file, key, ((place, value),))
    for value in values:
        yield Case(file, key, ((0, value), (last, value)))
        if last < 1 << 16:
            yield Case(file, key, tuple((place, value) for place in range(last + 1)))
    if array.dtype.kind != "f":
        for begin in {0, max(0, (last - len(WRAPPING)) // 2), max(0, last - len(WRAPPING))}:
            run = tuple((begin + place, value) for place, value in enumerate(WRAPPING) if begin + place < last)
            yield Case(file, key, run)
            yield Case(file, key, tuple((place + 1, value) for place, value in run if place + 1 <= last))


def _json_cases(file: str, way: str, value: Any) -> Iterator[Case]:
    if isinstance(value, dict | list) and len(value) <= 100:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            if key != "files":
                yield from _json_cases(file, f"{way}{key}\0", inner)
    elif isinstance(value, int | float) or value is None:
        for other in JSON_NUMBERS:
            yield Case(file, way, ((0, other),))


def apply(case: Case, folder: Path) -> None:
    """Make the change; the manifest then agrees with the file."""
    path = folder / case.file
    if path.suffix == ".json":
        path.write_text(json.dumps(_changed(json.loads(path.read_bytes()), case.where, case.changes[0][1])))
    else:
        tensors = dict(map_tensors(path) if path.suffix == ".safetensors" else np.load(path))
        key, _, way = case.where.partition(":")
        if way:
            text = json.dumps(_changed(json.loads(tensors[key].tobytes()), way, case.changes[0][1]))
            tensors[key] = np.frombuffer(text.encode(), np.uint8)
        else:
            tensors[key] = _with(tensors[key], case.changes)
        if path.suffix == ".npz":
            np.savez(path, **tensors)
        else:
            path.unlink()  # the mapped file stays readable while it is written again
            save_file(tensors, path)
    rehash(path)


def _with(array: np.ndarray, changes: tuple[tuple[int, Any], ...]) -> np.ndarray:
    changed = array.copy()
    flat = changed.reshape(-1)
    for place, value in changes:
        if array.dtype.kind == "f":
            with np.errstate(over="ignore"):
                flat[place] = float(value)
        else:
            kept = int(value) & (2 ** (8 * array.itemsize) - 1)  # the same bits in a narrower type
            flat[place : place + 1].view(f"u{array.itemsize}")[0] = kept
    return changed


def _changed(value: Any, way: str, new: Any) -> Any:
    inner = value
    *steps, last = way.removesuffix("\0").split("\0")
    for step in steps:
        inner = inner[int(step) if isinstance(inner, list) else step]
    inner[int(last) if isinstance(inner, list) else last] = new
    return value


def rehash(victim: Path) -> None:
    """Let the manifest agree with the changed file."""
    manifest = victim.parent / MANIFEST
    if victim.name == MANIFEST or not manifest.exists():
        return
    content = victim.read_bytes()
    about = json.loads(manifest.read_bytes())
    about["files"][victim.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.write_text(json.dumps(about))


def sampled(cases: list[Case], count: int, rng: random.Random) -> list[Case]:
    """Some of the cases: every field of the folder gets its turn before one has a second."""
    by_field: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        by_field.setdefault((case.file, case.where), []).append(case)
    fields = list(by_field.values())
    rng.shuffle(fields)
    for field in fields:
        rng.shuffle(field)
    chosen: list[Case] = []
    while len(chosen) < min(count, len(cases)):
        chosen += [field.pop() for field in fields if field]
    return chosen[:count]
