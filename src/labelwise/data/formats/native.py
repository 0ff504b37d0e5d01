"""`native`: the binary format of labelwise. Stores every part of a data set exactly, and is memory-mapped.

Folders `train-00`, `train-01` ... in one folder are shards of one part, in the order of their names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.options import (
    ReadOptions,
    canonical_split,
    sharded_parts,
    sharded_split,
    split_of,
)
from labelwise.data.out_of_core import merge_shards
from labelwise.errors import DataError, ModelFormatError
from labelwise.io.folder import (
    MANIFEST,
    Folder,
    csr_from_tensors,
    csr_to_tensors,
    get_tensor,
    new_folder,
    strings_from_tensors,
    strings_to_tensors,
)

NAME = "native"
KIND = "dataset"
TENSORS = "data.safetensors"
_TEXT_PARTS = ("label_names", "texts", "paths", "label_texts", "ids")


def recognises(path: Path) -> bool:
    try:
        with (path / MANIFEST).open("rb") as file:
            manifest = json.loads(file.read(1 << 20))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == f"labelwise-{KIND}"


def parts(folder: Path) -> dict[str, Path]:
    """The folder itself if it is in this format, else its sub-folders that are and whose names contain a split."""
    if recognises(folder):
        return {canonical_split(folder.name): folder}
    return sharded_parts({path: path.name for path in _folders_in(folder)}, folder)


def _folders_in(folder: Path) -> list[Path]:
    """Sub-folders in this format whose names contain a split, by name; none if unreadable."""
    try:
        folders = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and split_of(path.name))
    except OSError:
        return []
    return [path for path in folders if recognises(path)]


def read(path: Path, options: ReadOptions, folder: Path | None = None) -> Dataset:
    """Read one folder, or concatenate all shards of a part."""
    split = sharded_split(path)
    if split is None:
        return _read_folder(path)
    shards = [shard for shard in _folders_in(path.parent) if split_of(shard.name) == split]
    return merge_shards([_read_folder(shard) for shard in shards], str(path), folder)


def _read_folder(path: Path) -> Dataset:
    folder = Folder(path, KIND)
    tensors, where = folder.tensors(TENSORS), path / TENSORS
    texts: dict[str, Any] = {
        part: strings_from_tensors(part, tensors, where) for part in _TEXT_PARTS if f"{part}.ends" in tensors
    }
    features = None
    if "features.indptr" in tensors:
        features = csr_from_tensors("features", tensors, where)
    elif "features" in tensors:
        features = get_tensor(tensors, "features", where)
    if "arrays" in tensors:
        texts["arrays"] = get_tensor(tensors, "arrays", where)
    if "label_names" not in texts:
        raise ModelFormatError(f"{where}: the label names are missing")
    labels = csr_from_tensors("labels", tensors, where)
    try:
        return Dataset(labels, features=features, **texts, name=str(path))
    except DataError as error:
        raise ModelFormatError(f"{where}: {error}") from None


def write(dataset: Dataset, path: Path) -> None:
    tensors = csr_to_tensors("labels", dataset.labels)
    for part in _TEXT_PARTS:
        strings = getattr(dataset, part)
        if strings is not None:
            tensors |= strings_to_tensors(part, strings)
    if isinstance(dataset.features, np.ndarray):
        tensors["features"] = dataset.features
    elif dataset.features is not None:
        tensors |= csr_to_tensors("features", dataset.features)
    if dataset.arrays is not None:
        tensors["arrays"] = dataset.arrays
    about = {"documents": len(dataset), "labels": dataset.n_labels}
    with new_folder(path, KIND, about) as folder:
        folder.write_tensors(TENSORS, tensors)


FORMAT = Format(
    name=NAME,
    about="labelwise's binary folder: everything, exact, mapped; one part, or train/, valid/, test/, or train-00/ ...",
    recognises=recognises,
    read=read,
    write=write,
    parts=parts,
    extension="",
    read_mapped=read,
)
