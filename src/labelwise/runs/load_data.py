"""The data of a run: named sets, folders with parts or single files, split as configured, all in one label space."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy import sparse

from labelwise.data.catalogue import dataset as named_dataset
from labelwise.data.catalogue import entry as known_entry
from labelwise.data.catalogue import names as named_sets
from labelwise.data.catalogue import near_sets
from labelwise.data.concat import concat
from labelwise.data.csr import widened
from labelwise.data.dataset import HASH, Dataset, EmptyPartError
from labelwise.data.highlights import doubt_about_labels
from labelwise.data.options import ReadOptions
from labelwise.data.out_of_core import scratch_beside, split_mapped, take_mapped
from labelwise.data.read import (
    AUTO,
    FORMATS,
    detect,
    expand_paths,
    find_parts,
    format_named,
    has_parts,
    read,
    read_splits,
)
from labelwise.data.splits import ALIASES
from labelwise.errors import ConfigError, DataError
from labelwise.metrics.evaluate import check_labelled
from labelwise.runs.config import DataSection
from labelwise.runs.vectors import attach_to_parts, vectors_file

log = logging.getLogger("labelwise")

LARGE_INPUT = 64 << 20
"""Bytes of files from which on the documents to predict for are not held in memory."""
FEW_DOCUMENTS = 100
"""A held-out part with fewer documents is too small to rely on."""


@dataclass(frozen=True)
class Purpose:
    """What documents are held out for."""

    name: str
    seed: int
    """Added to the seed of the splits, so that each is drawn independently."""
    without: str
    """What follows if there is no such part."""
    with_few: str
    """What follows if it has few documents."""


TEST = Purpose("test", 0, "the model is not evaluated", "the scores vary by chance, see their intervals")
VALID = Purpose("valid", 1, "nothing stops the training early", "early stopping and calibration are unreliable")
CALIBRATION = Purpose("calibration", 2, "scores are not probabilities", "probabilities and threshold are unreliable")


@dataclass(frozen=True)
class RunData:
    """The parts of a run's data; valid and test are aligned to the labels of train."""

    train: Dataset
    valid: Dataset | None
    test: Dataset | None


def load_run_data(section: DataSection, scratch: Path | None = None) -> RunData:
    """Read the data of a config's data section; with a `scratch` folder, rows are written there and memory-mapped."""
    if section.mapped:
        _refuse_unmapped(section)
    parts = _parts_of_path(section, scratch) if section.path is not None else _parts_of_files(section, scratch)
    if section.features is not None:
        parts = attach_to_parts(parts, vectors_file(section.features))
    train, valid, test = parts.pop("train"), parts.get("valid"), parts.get("test")  # pop frees the unsplit rows
    if not len(train):
        raise DataError(f"{train.name}: there are no documents")
    check_labelled(train.labels, train.name, "there is nothing to learn")
    doubt = doubt_about_labels(train.label_counts(), len(train), section.options.chosen_label_column)
    if doubt is not None:
        log.warning("%s: %s", train.name, doubt)
    if section.test_fraction is not None:
        if test is not None:
            raise DataError("data.test_fraction is given, but the data has a test part already; remove one of them")
        train, test = hold_out(train, section.test_fraction, section, TEST, scratch)
    if section.valid_fraction is not None:
        if valid is not None:
            raise DataError("data.valid_fraction is given, but the data has a valid part already; remove one of them")
        train, valid = hold_out(train, section.valid_fraction, section, VALID, scratch)
    if section.limit is not None:
        some = slice(0, section.limit)
        train = train.take(some) if scratch is None else take_mapped(train, some, scratch)
    return RunData(*_equal_width(train, valid, test))


def hold_out(
    data: Dataset, fraction: float, section: DataSection, purpose: Purpose, scratch: Path | None
) -> tuple[Dataset, Dataset | None]:
    """Split off documents for a purpose, in memory, or in files if there is a `scratch` folder.

    A split by hash takes about that fraction, so of a few documents it may take none: then there is no such part.
    """
    seed, by = section.split_seed + purpose.seed, section.split_by
    try:
        if scratch is None:
            rest, held_out = data.split(fraction, seed, by)
        else:
            rest, held_out = split_mapped(data, fraction, seed, scratch, by)
    except EmptyPartError:
        if by != HASH:
            raise
        log.warning(
            "%s: %s documents are too few to hold out %.3g of them for the %s part: there is none, and %s",
            data.name, f"{len(data):,}", fraction, purpose.name, purpose.without,
        )  # fmt: skip
        return data, None
    if by == HASH and not held_out.labels.nnz:
        log.warning(
            "none of the %s documents of the %s part has a label: there is no such part, and %s",
            f"{len(held_out):,}", purpose.name, purpose.without,
        )  # fmt: skip
        return data, None
    if by == HASH and len(held_out) < FEW_DOCUMENTS:
        log.warning(
            "the %s part has %s documents, too few to rely on: %s", purpose.name, len(held_out), purpose.with_few
        )
    return rest, held_out


def _refuse_unmapped(section: DataSection) -> None:
    """Refuse data in a format whose rows cannot be memory-mapped."""
    given = [path for part in (section.train, section.valid, section.test) if part for path in expand_paths(part)]
    for path in [section.path, *map(str, given)]:
        if path is not None and Path(path).exists():
            format = detect(path) if section.format == AUTO else format_named(section.format)
        elif path is not None and path == section.path:
            format = format_named(known_entry(known_name(path, "data.path")).format)
        else:
            continue  # a missing file is reported when it is read
        if format.read_mapped is None:
            mappable = [name for name in FORMATS if format_named(name).read_mapped is not None]
            raise ConfigError(
                f"data.mapped: {path} is in the format {format.name}, whose documents are read into memory; rows of "
                f"{', '.join(mappable)} can be mapped. Leave out data.mapped"
            )


def _equal_width(*parts: Dataset | None) -> list[Any]:
    """Sparse parts with the same number of features: a file without a header may lack the last ones."""
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
        return {"train": read(path, section.format, None, section.options, scratch=scratch)}
    if Path(path).exists():
        found = find_parts(path, section.format)[1]
        only = tuple(ALIASES) if "train" in found else None  # other files of the folder are none of this run's data
        parts = read_splits(path, section.format, section.options, scratch, only)
        if len(found) == 1 and not found.keys() & ALIASES.keys():
            parts = {"train": next(iter(parts.values()))}
    else:
        name = known_name(path, "data.path")
        if section.format != "auto" or section.options != ReadOptions():
            raise ConfigError(f"data: {name} is a known data set; its format is known, leave out format and options")
        parts = named_dataset(name, scratch=scratch)
    if "train" not in parts:
        hint = "; the folder is one part itself, give it as data.train" if _is_a_part(path, section.format) else ""
        raise DataError(f"{path}: there is no training part; parts: {', '.join(parts) or 'none'}{hint}")
    return parts


def known_name(name: str, where: str) -> str:
    """Return the name of a known data set, or raise an error: there is no such file or folder either."""
    if name in named_sets():
        return name
    question = near_sets(name)
    hint = f"; {question}" if question else ", nor a known data set of that name"
    raise DataError(f"{where}: there is no file or folder {name}{hint}")


def read_part(
    path: str,
    format: str,
    split: str | None,
    options: ReadOptions | None = None,
    labels: bool = True,
    scratch: Path | None = None,
) -> Dataset:
    """One part of a file, a folder or a known data set; with a `scratch` folder, documents are mapped from there."""
    if Path(path).exists():
        return read(path, format, split if has_parts(path) else None, options, labels, scratch)
    data = named_dataset(known_name(path, "data"), split, scratch=scratch)
    if not isinstance(data, Dataset):
        raise DataError(f"{path} has the parts {', '.join(data)}; choose one with --split")
    return data


@contextmanager
def scratch_for(path: str, output: str | None = None) -> Iterator[Path | None]:
    """A folder for the documents of a large file or folder while they are read; None for small ones.

    It is beside the output file, which is on a disk with space, or where temporary files are.
    """
    if _bytes_in(Path(path)) < LARGE_INPUT:
        yield None
    elif output not in (None, "-"):
        with scratch_beside(Path(output)) as folder:
            yield folder
    else:
        with scratch_beside(Path(tempfile.gettempdir()) / "documents") as folder:
            yield folder


def _bytes_in(path: Path) -> int:
    try:
        files = path.rglob("*") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0


def _is_a_part(path: str, format: str) -> bool:
    """Whether this is a single part of any name, and not a folder of parts."""
    return not has_parts(path) or Path(path) in find_parts(path, format)[1].values()


def _parts_of_files(section: DataSection, scratch: Path | None) -> dict[str, Dataset]:
    parts: dict[str, Dataset] = {}
    for name in ("train", "valid", "test"):
        given = getattr(section, name)
        if given is not None:
            part = _read_joined(expand_paths(given), name, section, scratch)
            parts[name] = part.align(parts["train"].label_names) if parts else part
    return parts


def _read_joined(paths: list[Path], name: str, section: DataSection, scratch: Path | None) -> Dataset:
    """One part from one or several files or folders."""
    pieces = []
    for path in paths:
        chosen = None if _is_a_part(str(path), section.format) else name
        pieces.append(read(path, section.format, chosen, section.options, scratch=scratch))
    return concat(pieces, pieces[0].name if len(pieces) == 1 else None, scratch=scratch)
