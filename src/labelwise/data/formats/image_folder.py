"""`image_folder`: image files in folders that are called like their labels. Only read.

`train/<label>/*.jpg` as in ImageNet, or `<label>/*.png` without parts. Folders may be nested, as in Omniglot: a label
is the path of its folder, such as `Greek/character01`. Documents are the paths of the files, in the order of names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.csr import sorted_label_names
from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.images import EXTENSIONS, is_image_name
from labelwise.data.options import (
    ReadOptions,
    canonical_split,
    files_in,
    named_parts,
    natural_order,
    split_of,
    stem_and_extension,
)
from labelwise.data.stream import first_bytes
from labelwise.errors import DataError
from labelwise.strings import Strings

NAME = "image_folder"
LOOKED_AT = 200
"""Folders that are looked at to recognise the format."""
MAX_DEPTH = 8
TABLES = (".csv", ".tsv", ".jsonl")


def recognises(path: Path) -> bool:
    """Whether a folder has images in folders of their labels: neither parts inside it, nor a table that lists them."""
    return path.is_dir() and not _part_folders(path) and any(_image_folders(path)) and not _is_listed(path)


def _is_listed(folder: Path) -> bool:
    """Whether a table in the folder has a column of paths."""
    tables = [file for file in files_in(folder) if stem_and_extension(file)[1] in TABLES]
    heads = (first_bytes(file, 4096).partition(b"\n")[0] for file in tables)
    return any(re.search(rb"\bpath\b", head) for head in heads)


def recognises_unlabelled(path: Path) -> bool:
    """Whether this is an image, or a folder of images."""
    if path.is_file():
        return is_image_name(path.name)
    return path.is_dir() and (_has_image(path) or any(_image_folders(path)))


def parts(folder: Path) -> dict[str, Path]:
    """The folders train, valid, test and the like, or the folder itself."""
    inside = _part_folders(folder)
    if inside:
        return named_parts({path: path.name for path in inside})
    return {canonical_split(folder.name): folder} if recognises(folder) else {}


def _part_folders(folder: Path) -> list[Path]:
    """Folders that are named like a part and have images in folders of labels."""
    return [path for path in _folders(folder) if split_of(path.name) and any(_image_folders(path))]


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(one.path) for one in entries if not one.name.startswith((".", "__")) and one.is_dir()]
    except OSError:
        return []


def _has_image(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(is_image_name(one.name) and not one.name.startswith(".") for one in islice(entries, 1000))
    except OSError:
        return False


def _image_folders(folder: Path) -> Iterator[Path]:
    """Folders below this one that have images, breadth first, of the first few."""
    pending, seen = [(path, 1) for path in _folders(folder)], 0
    while pending and seen < LOOKED_AT:
        path, depth = pending.pop(0)
        seen += 1
        if _has_image(path):
            yield path
        elif depth < MAX_DEPTH:
            pending += [(inner, depth + 1) for inner in _folders(path)]


def read(path: Path, options: ReadOptions) -> Dataset:
    if path.is_file() and is_image_name(path.name):
        if options.labels:
            raise DataError("is one image without a label; give a folder of images, or a table with paths", path)
        return Dataset(None, paths=Strings.of([str(path)]), name=str(path))  # type: ignore[arg-type]
    found: list[tuple[str, str]] = []
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(path, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            raise DataError("a link leads to this folder a second time; remove it", folder)
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        relative = Path(folder).relative_to(path)
        if len(relative.parts) > MAX_DEPTH:
            raise DataError(f"folders are nested more than {MAX_DEPTH} deep", folder)
        images = [name for name in files if is_image_name(name) and not name.startswith(".")]
        if images and not relative.parts and options.labels:
            raise DataError(
                f"{images[0]} is not in a folder of its label; put images into folders, or list them in a CSV file "
                "with the columns path and labels",
                path,
            )
        found += [(relative.as_posix(), os.path.join(folder, name)) for name in images]
    if not found:
        raise DataError("there are no images in the folder or in its folders", path)
    found.sort(key=lambda item: natural_order(Path(item[1])))
    for _, file in found:
        _check_name(file, path)
    paths = Strings.of(file for _, file in found)
    if not options.labels:
        return Dataset(None, paths=paths, name=str(path))  # type: ignore[arg-type]
    names = sorted_label_names({label for label, _ in found})
    column = {name: index for index, name in enumerate(names)}
    columns = np.fromiter((column[label] for label, _ in found), np.int32, len(found))
    ones = np.ones(len(found), np.float32)
    labels = sparse.csr_array((ones, columns, np.arange(len(found) + 1)), shape=(len(found), len(names)))
    return Dataset(labels, names, paths=paths, name=str(path))


def _check_name(file: str, folder: Path) -> None:
    try:
        file.encode()
    except UnicodeEncodeError:
        raise DataError(f"the name {os.fsencode(file)!r} is not valid UTF-8; rename the file", folder) from None


FORMAT = Format(
    name=NAME,
    about="images in folders named by their labels: train/LABEL/*.jpg, or LABEL/*.png; only read",
    recognises=recognises,
    read=read,
    write=None,
    parts=parts,
    extension="",
    other_extensions=EXTENSIONS,
    recognises_unlabelled=recognises_unlabelled,
)
