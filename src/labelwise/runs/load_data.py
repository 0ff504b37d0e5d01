"""The data of a run: named sets, folders with parts or single files, split where asked, all in one label space."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labelwise.data.catalogue import dataset as named_dataset
from labelwise.data.catalogue import names as named_sets
from labelwise.data.dataset import Dataset
from labelwise.data.read import read, read_splits
from labelwise.errors import DataError, did_you_mean
from labelwise.runs.config import DataSection


@dataclass(frozen=True)
class RunData:
    """The parts of a run's data; valid and test are aligned to the labels of train."""

    train: Dataset
    valid: Dataset | None
    test: Dataset | None


def load_run_data(section: DataSection) -> RunData:
    """Read what a config's data section asks for."""
    parts = _parts_of_path(section) if section.path is not None else _parts_of_files(section)
    train, valid, test = parts["train"], parts.get("valid"), parts.get("test")
    if section.test_fraction is not None:
        if test is not None:
            raise DataError("data.test_fraction is given, but the data has a test part already; leave one out")
        train, test = train.split(section.test_fraction, section.split_seed)
    if section.valid_fraction is not None:
        if valid is not None:
            raise DataError("data.valid_fraction is given, but the data has a valid part already; leave one out")
        train, valid = train.split(section.valid_fraction, section.split_seed + 1)
    if section.limit is not None:
        train = train.take(slice(0, section.limit))
    return RunData(train, valid, test)


def _parts_of_path(section: DataSection) -> dict[str, Dataset]:
    path = str(section.path)
    if Path(path).exists():
        parts = read_splits(path, section.format, section.options)
    elif path in named_sets():
        parts = named_dataset(path)
    else:
        raise DataError(f"data.path: there is no folder {path}, and no known data set of that name; "
                        f"{did_you_mean(path, named_sets())}")  # fmt: skip
    if "train" not in parts:
        raise DataError(f"{path}: there is no training part; found: {', '.join(parts) or 'none'}")
    return parts


def _parts_of_files(section: DataSection) -> dict[str, Dataset]:
    parts: dict[str, Dataset] = {}
    for name in ("train", "valid", "test"):
        path = getattr(section, name)
        if path is not None:
            split = name if Path(path).is_dir() else None
            part = read(path, section.format, split, section.options)
            parts[name] = part.align(parts["train"].label_names) if parts else part
    return parts
