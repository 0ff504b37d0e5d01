"""What every method must do when it is saved and loaded; with these, `CHECKS` has all checks."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, LabelwiseError, ModelFormatError
from labelwise.mapped import mapping_of
from labelwise.methods.base import Method, load
from labelwise.methods.card import PAGE_FILE
from labelwise.testing.checks import CHECKS, check
from labelwise.testing.require import refused, require, same_predictions
from labelwise.testing.subject import Subject

__all__ = ["CHECKS"]

MAPPINGS = Path("/proc/self/maps")


def is_mapped(array: np.ndarray) -> bool:
    """Whether the array's memory is a file's, by the process's own table of mappings where the system has one."""
    if not MAPPINGS.exists():
        return mapping_of(array) is not None
    address = array.__array_interface__["data"][0]
    for line in MAPPINGS.read_text(encoding="utf-8").splitlines():
        bounds, _, _, _, inode, *_ = line.split()
        first, _, last = bounds.partition("-")
        if int(first, 16) <= address < int(last, 16):
            return inode != "0"
    return False


@check
def check_save_and_load_are_exact(subject: Subject, tmp_path: Path) -> None:
    """A loaded model predicts the very same, its arrays are mapped from the files, and saving it again works."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        folder = tmp_path / kind
        model.save(folder)
        loaded = load(folder)
        require(type(loaded) is type(model), f"{kind}: the folder loads as {type(loaded).__name__}")
        require(loaded.get_params() == model.get_params(), f"{kind}: the loaded model has other parameters")
        same_predictions(loaded.predict(data, k=7), model.predict(data, k=7))
        np.testing.assert_array_equal(loaded.label_counts_, model.label_counts_)
        state = _arrays(loaded)
        mapped = sum(array.nbytes for array in state if is_mapped(array))
        require(
            mapped > 0.9 * sum(array.nbytes for array in state),
            f"{kind}: arrays must be mapped from the file, not copied: use labelwise.store (csr_from_tensors)",
        )
        loaded.save(tmp_path / f"{kind}-again")
        same_predictions(load(tmp_path / f"{kind}-again").predict(data, k=7), model.predict(data, k=7))
        with refused(ConfigError, "exists"):
            model.save(folder)


def _arrays(model: Method) -> list[np.ndarray]:
    """The learned arrays of a model, with those of its members."""
    members = [array for member in getattr(model, "members_", ()) for array in _arrays(member)]
    return [*model._state().values(), *members]


@check
def check_shrinks_or_refuses(subject: Subject, tmp_path: Path) -> None:
    """With `shrinks`, `shrink` gives another, smaller model that can be saved; without, it is refused."""
    model, data = subject.fitted(subject.kinds()[0])
    before = model.predict(data, k=3)
    if not model.shrinks:
        with refused(ConfigError, "shrunk"):
            model.shrink(precision="int8")
        return
    smaller = model.shrink(precision="int8", threshold=0.5)
    sizes = [sum(array.nbytes for array in _arrays(one)) for one in (smaller, model)]
    require(sizes[0] < sizes[1], f"the smaller model has {sizes[0]:,} bytes, the larger {sizes[1]:,}")
    same_predictions(model.predict(data, k=3), before)
    smaller.save(tmp_path / "smaller")
    same_predictions(load(tmp_path / "smaller").predict(data, k=3), smaller.predict(data, k=3))


@check
def check_damaged_folders_are_refused(subject: Subject, tmp_path: Path) -> None:
    """Each file cut short, changed in one bit, emptied or removed: a ModelFormatError that names the file."""
    model, data = subject.fitted(subject.kinds()[0])
    good = tmp_path / "good"
    model.save(good)
    for file in sorted(good.iterdir()):
        content = file.read_bytes()
        flips = [_flipped(content, place) for place in (0, len(content) // 4, len(content) // 2, len(content) - 2)]
        for damage in (content[: len(content) // 2], b"", content + b"x", None, *flips):
            bad = tmp_path / "bad"
            shutil.copytree(good, bad)
            if damage is None:
                (bad / file.name).unlink()
            else:
                (bad / file.name).write_bytes(damage)
            if file.name in ("manifest.json", PAGE_FILE):  # the page is for people, and is not read
                _refused_or_equal(bad, model, data)
            else:
                with refused(ModelFormatError, file.name.replace(".", r"\.")):
                    load(bad)
            shutil.rmtree(bad)


def _flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


def _refused_or_equal(folder: Path, model: Method, data: Dataset) -> None:
    """A change of the manifest that means nothing may load, but then the model must be the same."""
    try:
        loaded = load(folder)
    except ModelFormatError:
        return
    same_predictions(loaded.predict(data, k=3), model.predict(data, k=3))


class Bomb:
    """Leaves a file behind if anybody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


@check
def check_strangers_cannot_run_code(subject: Subject, tmp_path: Path) -> None:
    """No file of a folder is unpickled, and the manifest can name neither a module nor a path outside."""
    model, data = subject.fitted(subject.kinds()[0])
    good = tmp_path / "good"
    model.save(good)
    suffixes = {path.suffix for path in good.iterdir()}
    require(suffixes <= {".json", ".safetensors", ".txt", ".md", ".yml"}, f"files that may hold code: {suffixes}")
    marker = tmp_path / "exploded"
    payload = pickle.dumps(Bomb(marker))
    for file in sorted(good.iterdir()):
        bad = tmp_path / "bad"
        shutil.copytree(good, bad)
        (bad / file.name).write_bytes(payload)
        if file.name == PAGE_FILE:
            load(bad).predict(data, k=2)
        else:
            if file.name != "manifest.json":
                _rehash(bad, file.name)
            with refused(LabelwiseError):
                load(bad).predict(data, k=2)
        require(not marker.exists(), "a file of the folder was unpickled")
        shutil.rmtree(bad)
    for name in ("os:system", "labelwise.cli.main:main", "../../evil", "subprocess"):
        _set_manifest(good, method=name)
        with refused(ModelFormatError, "no method"):
            load(good)


def _rehash(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _set_manifest(folder: Path, **values: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **values}))
