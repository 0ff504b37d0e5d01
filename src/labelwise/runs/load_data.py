"""The data of a run: named sets, folders with parts or single files, split where asked, all in one label space."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy import sparse

from labelwise.data.catalogue import dataset as named_dataset
from labelwise.data.catalogue import entry as known_entry
from labelwise.data.catalogue import names as named_sets
from labelwise.data.dataset import Dataset
from labelwise.data.options import ReadOptions
from labelwise.data.out_of_core import split_mapped, take_mapped
from labelwise.data.read import AUTO, FORMATS, detect, find_parts, format_named, read, read_splits
from labelwise.errors import ConfigError, DataError
from labelwise.methods.inputs import widened
from labelwise.runs.config import DataSection


@dataclass(frozen=True)
class RunData:
    """The parts of a run's data; valid and test are aligned to the labels of train."""

    train: Dataset
    valid: Dataset | None
    test: Dataset | None


def load_run_data(section: DataSection, scratch: Path | None = None) -> RunData:
    """Read what a config's data section asks for; with a `scratch` folder, rows go to files there and are mapped."""
    if section.mapped:
        _refuse_unmapped(section)
    parts = _parts_of_path(section, scratch) if section.path is not None else _parts_of_files(section, scratch)
    train, valid, test = parts.pop("train"), parts.get("valid"), parts.get("test")  # rows of a whole are let go of
    if section.test_fraction is not None:
        if test is not None:
            raise DataError("data.test_fraction is given, but the data has a test part already; leave one out")
        train, test = split(train, section.test_fraction, section.split_seed, scratch)
    if section.valid_fraction is not None:
        if valid is not None:
            raise DataError("data.valid_fraction is given, but the data has a valid part already; leave one out")
        train, valid = split(train, section.valid_fraction, section.split_seed + 1, scratch)
    if section.limit is not None:
        some = slice(0, section.limit)
        train = train.take(some) if scratch is None else take_mapped(train, some, scratch)
    return RunData(*_one_width(train, valid, test))


def split(data: Dataset, fraction: float, seed: int, scratch: Path | None) -> tuple[Dataset, Dataset]:
    """Two data sets drawn at random, in memory, or in files if there is a folder for them."""
    return data.split(fraction, seed) if scratch is None else split_mapped(data, fraction, seed, scratch)


def _refuse_unmapped(section: DataSection) -> None:
    """An error if any of the data is in a format whose rows cannot be put into files."""
    for path in (section.path, section.train, section.valid, section.test):
        if path is not None and Path(path).exists():
            found = detect(path) if section.format == AUTO else format_named(section.format)
        elif path is not None and path == section.path:
            found = format_named(known_entry(known_name(path, "data.path")).format)
        else:
            continue  # what is not there is told when it is read
        if found.read_mapped is None:
            can = [name for name in FORMATS if format_named(name).read_mapped is not None]
            raise ConfigError(
                f"data.mapped: {path} is in the format {found.name}, whose documents are read into memory; rows of "
                f"{', '.join(can)} can be mapped. Leave data.mapped out"
            )


def _one_width(*parts: Dataset | None) -> list[Any]:
    """Sparse parts with the same number of features: a file without counts may not mention the last ones."""
    sparse_parts: list[Any] = [p.features for p in parts if p is not None and sparse.issparse(p.features)]
    width = max((features.shape[1] for features in sparse_parts), default=0)
    return [
        part
        if part is None or not sparse.issparse(part.features) or part.features.shape[1] == width
        else replace(part, features=widened(part.features, width))
        for part in parts
    ]


def _parts_of_path(section: DataSection, scratch: Path | None) -> dict[str, Dataset]:
    path = str(section.path)
    if Path(path).is_file():
        raise DataError(f"data.path: {path} is a file; give a single file as data.train (and data.test)")
    if Path(path).exists():
        parts = read_splits(path, section.format, section.options, scratch)
    else:
        name = known_name(path, "data.path")
        if section.format != "auto" or section.options != ReadOptions():
            raise ConfigError(
                f"data: {name} is a known data set; how it is read is settled, leave out format and options"
            )
        parts = named_dataset(name, scratch=scratch)
    if "train" not in parts:
        alone = "; the folder is one part itself, give it as data.train" if _is_a_part(path, section.format) else ""
        raise DataError(f"{path}: there is no training part; found: {', '.join(parts) or 'none'}{alone}")
    return parts


def known_name(name: str, where: str) -> str:
    """The name of a known data set, or an error: nothing else of that name is there."""
    if name in named_sets():
        return name
    near = difflib.get_close_matches(name, named_sets(), n=1)
    hint = f"; did you mean the data set '{near[0]}'?" if near else ", nor a known data set of that name"
    raise DataError(f"{where}: there is no file or folder {name}{hint}")


def read_part(
    path: str, format: str, split: str | None, options: ReadOptions | None = None, labels: bool = True
) -> Dataset:
    """One part of a file, a folder or a known data set."""
    if Path(path).exists():
        return read(path, format, split if Path(path).is_dir() else None, options, labels)
    found = named_dataset(known_name(path, "data"), split)
    if not isinstance(found, Dataset):
        raise DataError(f"{path} has the parts {', '.join(found)}; choose one with --split")
    return found


def _is_a_part(path: str, format: str) -> bool:
    """Whether this is a single part, whatever it is called, and not a folder with parts in it."""
    return not Path(path).is_dir() or Path(path) in find_parts(path, format)[1].values()


def _parts_of_files(section: DataSection, scratch: Path | None) -> dict[str, Dataset]:
    parts: dict[str, Dataset] = {}
    for name in ("train", "valid", "test"):
        path = getattr(section, name)
        if path is not None:
            chosen = None if _is_a_part(path, section.format) else name
            part = read(path, section.format, chosen, section.options, scratch=scratch)
            parts[name] = part.align(parts["train"].label_names) if parts else part
    return parts
