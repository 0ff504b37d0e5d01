"""Reads data sets: one function for all formats, files and folders.

A format is detected by the file's name and first bytes. Formats whose files have fixed names are tried first, then
the one with the file's extension, then all others in the order of `FORMATS`, the least ambiguous first.
"""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.data.options import (
    ALIASES,
    canonical_split,
    is_numbered,
    natural_order,
    plain_name,
    stem_and_extension,
)
from labelwise.data.stream import first_bytes
from labelwise.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from labelwise.data.dataset import Dataset
    from labelwise.data.formats.base import Format
    from labelwise.data.options import ReadOptions


log = logging.getLogger(__name__)

DataPath = str | Path | Sequence[str | Path]
"""One path or pattern, or several."""
AUTO = "auto"
FORMATS: dict[str, str] = {
    "native": "labelwise.data.formats.native",
    "pecos": "labelwise.data.formats.pecos",
    "cifar": "labelwise.data.formats.images",
    "idx": "labelwise.data.formats.idx",
    "lines": "labelwise.data.formats.lines",
    "fulltext": "labelwise.data.formats.fulltext",
    "tfrecord": "labelwise.data.formats.tfrecord",
    "recordio": "labelwise.data.formats.recordio",
    "jsonl": "labelwise.data.formats.jsonl",
    "fasttext": "labelwise.data.formats.fasttext",
    "xc": "labelwise.data.formats.sparse_text",
    "csv": "labelwise.data.formats.csv",
    "tsv": "labelwise.data.formats.tsv",
    "vowpal": "labelwise.data.formats.vowpal",
    "image_folder": "labelwise.data.formats.image_folder",
}
FIXED_NAMES = ("native", "pecos", "cifar", "idx", "lines")
LABELS_IN_ONE_STRING = ("csv", "tsv", "lines", "jsonl")
"""Formats whose labels may be one string, split at `label_separator`."""
READERS_THAT_REPORT = {".tsv": "tsv", ".npz": "pecos", ".npy": "pecos"}
"""Formats by extension for files that no format recognises: their readers report what is wrong."""
NAMES_CHECKED = 10_000
"""Label names that are checked for signs of a wrong separator."""


def format_named(name: str) -> Format:
    """The format of this name."""
    if name not in FORMATS:
        raise ConfigError(f"format: there is no format '{name}'; {did_you_mean(name, FORMATS)}")
    return import_module(FORMATS[name]).FORMAT


def detect(path: str | Path, labels: bool = True) -> Format:
    """Detect the format of a file or folder by name and first bytes; `labels=False` accepts unlabelled files too."""
    from labelwise.data.formats.csv import refuse_spreadsheet
    from labelwise.data.tables import refuse_empty

    path = _check_exists(path)
    if has_parts(path):
        return find_parts(path)[0]
    refuse_spreadsheet(path)
    formats = [format_named(name) for name in FORMATS]
    by_extension = [one for one in formats if one.extension and plain_name(path).endswith(one.extension)]
    candidates = [(one, one.recognises) for one in formats if one.name in FIXED_NAMES]
    candidates += [(one, one.recognises_unlabelled) for one in formats if one.recognises_unlabelled and not labels]
    candidates += [(one, one.recognises) for one in (*by_extension, *formats)]
    for one, recognises in candidates:
        if recognises(path):
            return one
    if path.is_file():
        refuse_empty(path.stat().st_size, path)
    for extension, name in READERS_THAT_REPORT.items():
        if stem_and_extension(path)[1] == extension:
            return format_named(name)
    json = first_bytes(path, 64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"{", b"["))
    hint = " It looks like JSON; the format jsonl needs one object per line." if json else ""
    named = f"name it with format (--format NAME), one of {', '.join(FORMATS)}"
    raise DataError(f"the format is not recognised; {named}.{hint}", path)


def find_parts(folder: str | Path, format: str = AUTO) -> tuple[Format, dict[str, Path]]:
    """The format of a folder, and the path of each of its parts (train, valid, test)."""
    from labelwise.data.out_of_core import check_shards

    folder = _check_exists(folder)
    check_shards(folder)
    unnamed = None
    for name in FORMATS if format == AUTO else [format]:
        candidate = format_named(name)
        parts = candidate.parts_of(folder)
        if parts.keys() & ALIASES.keys() or folder in parts.values():
            return candidate, parts
        if parts and unnamed is None:
            unnamed = candidate, parts
    if unnamed is not None:
        return unnamed
    described = "any format" if format == AUTO else f"the format {format}"
    raise DataError(
        f"no data in {described} was found in the folder, which needs files called train.*, valid.* or "
        f"test.*. Give the path of a file, and its format as one of {', '.join(FORMATS)}",
        folder,
    )


def has_parts(path: str | Path) -> bool:
    """Whether this is a folder, or a file that holds several parts, such as an archive of CIFAR."""
    path = Path(path)
    formats = map(format_named, FORMATS)
    return path.is_dir() or any(one.holds_parts is not None and one.holds_parts(path) for one in formats)


def parts_by_format(folder: Path) -> dict[str, dict[str, Path]]:
    """The parts of a folder by format; each file is assigned to one format only."""
    by_format: dict[str, dict[str, Path]] = {}
    claimed: set[Path] = set()
    for name in FORMATS:
        one = format_named(name)
        parts = one.parts_of(folder)
        mine = {split: path for split, path in parts.items() if path not in claimed and _has_format(path, one)}
        if mine:
            by_format[name] = mine
        for path in mine.values():
            claimed |= {path, *(one.siblings(path) if one.siblings else ())}
    return by_format


def _has_format(path: Path, one: Format) -> bool:
    if is_numbered(path):
        path = expand_paths(path)[0]
    if path.is_dir() or not path.exists():  # the path of a sharded part is a pattern with *
        return True
    try:
        return detect(path).name == one.name
    except DataError:
        return False


def read(
    path: DataPath,
    format: str = AUTO,
    split: str | None = None,
    options: ReadOptions | Mapping[str, Any] | None = None,
    labels: bool = True,
    scratch: str | Path | None = None,
) -> Dataset:
    """Read a data set, or one part of it.

    Parameters
    ----------
    path
        A file, or a folder with one or more parts; a list of them, or a pattern such as `parts/*.csv`, is read as one.
    format
        One of `FORMATS`; `auto` detects it by the name and the first bytes.
    split
        For a folder with several parts: train, valid or test (also trn, val, dev, tst, or the name of a part).
    options
        `ReadOptions`, or a mapping with its fields, for what the file itself does not specify.
    labels
        False reads documents for prediction: they need no labels, and get none.
    scratch
        For data larger than memory: a folder for temporary files. Formats of numbered features (xc, vowpal,
        tfrecord) and shards of native folders write their rows there and map them. Remove it when the data set is no
        longer used.
    """
    from labelwise.data.options import as_options

    options = as_options(options)
    if not labels:
        options = options.model_copy(update={"labels": False})
    paths = expand_paths(path)
    if len(paths) > 1:
        from labelwise.data.rows import concat

        shown = str(path) if isinstance(path, str | Path) else None
        return concat((read(one, format, split, options, scratch=scratch) for one in paths), shown, scratch=scratch)
    path = _check_exists(paths[0])
    if has_parts(path):
        detected, parts = _parts_to_read(path, format, options.labels)
        return _read_part(detected, _select_part(path, parts, split), options, scratch=scratch)
    if split is not None:
        raise ConfigError(f"split: {path} is a file; a split is chosen from a folder, got split '{split}'")
    detected = detect(path, options.labels) if format == AUTO else format_named(format)
    return _read_part(detected, path, options, scratch=scratch)


def read_splits(
    path: str | Path,
    format: str = AUTO,
    options: ReadOptions | Mapping[str, Any] | None = None,
    scratch: str | Path | None = None,
    only: Collection[str] | None = None,
) -> dict[str, Dataset]:
    """Read all parts of a folder, or `only` those of these names, in one label space.

    The labels of train come first, then those that occur only in other parts.
    """
    from labelwise.data.options import as_options

    path, options = _check_exists(path), as_options(options)
    if not has_parts(path):
        raise DataError("is a file, not a folder with train, valid and test; use read for a single file", path)
    detected, parts = _parts_to_read(path, format)
    data: dict[str, Dataset] = {}
    chosen = parts if only is None else [split for split in parts if split in only]
    for split in sorted(chosen, key=lambda split: split != "train"):
        first = next(iter(data.values()), None)
        data[split] = _read_part(detected, parts[split], options, first, scratch)
    return data


def _parts_to_read(folder: Path, format: str, labels: bool = True) -> tuple[Format, dict[str, Path]]:
    """`find_parts`, with a warning about parts that exist in another format as well.

    Without labels, a folder of texts alone is a part.
    """
    try:
        detected, parts = find_parts(folder, format)
    except DataError:
        formats = map(format_named, () if labels else FORMATS if format == AUTO else (format,))
        bare = next((one for one in formats if one.recognises_unlabelled and one.recognises_unlabelled(folder)), None)
        if bare is None:
            raise
        return bare, {folder.name: folder}
    if format == AUTO and folder not in parts.values():
        for name, others in parts_by_format(folder).items():
            both = [split for split in parts if split in others]
            if name != detected.name and both:
                log.warning(
                    "%s: %s there in two formats: %s is read, %s is ignored; choose with format (--format NAME)",
                    folder, f"{' and '.join(both)} {'is' if len(both) == 1 else 'are'}", detected.name, name,
                )  # fmt: skip
    return detected, parts


def _read_part(
    format: Format,
    path: Path,
    options: ReadOptions,
    first: Dataset | None = None,
    scratch: str | Path | None = None,
) -> Dataset:
    """Read one part, in the label space of `first` if that is given."""
    if is_numbered(path):
        from labelwise.data.rows import concat

        shards = (_read_part(format, shard, options, scratch=scratch) for shard in expand_paths(path))
        joined = concat(shards, str(path), scratch=scratch)
        return joined if first is None else joined.align(first.label_names)
    from labelwise.data.dataset import mark_as_read
    from labelwise.data.label_texts import attach_label_texts
    from labelwise.data.options import refuse_without_effect

    refuse_without_effect(options, format.name, path)

    if scratch is not None and format.read_mapped is not None:
        data = format.read_mapped(path, options, Path(scratch))
    else:
        data = format.read(path, options)
    data = mark_as_read(_beside_file(data, path))
    if not options.labels:
        return _without_labels(data)
    if format.name in LABELS_IN_ONE_STRING and options.label_separator is None:
        _warn_about_separator(data)
    return attach_label_texts(data if first is None else data.align(first.label_names), path, options)


def _beside_file(data: Dataset, path: Path) -> Dataset:
    """The data with the paths in a table resolved: they are relative to its folder if the first of them is there."""
    first = data.paths[0] if data.paths is not None and len(data.paths) and path.is_file() else ""
    try:
        beside = first and not Path(first).is_absolute() and (path.parent / first).is_file()
    except (OSError, ValueError):
        return data
    if not beside:
        return data
    from labelwise.strings import Strings

    return replace(data, paths=Strings.of(str(path.parent / one) for one in data.paths or ()))


def _without_labels(data: Dataset) -> Dataset:
    return replace(data, labels=data.labels[:, :0], label_names=data.label_names[:0], label_texts=None)


def _warn_about_separator(data: Dataset) -> None:
    """Warn if labels look like lists that were not split: mostly one per document, with commas or the like in most."""
    from labelwise.data.options import how_to_set

    counts = data.labels.indptr[1:] - data.labels.indptr[:-1]
    if 2 * (counts == 1).sum() <= (counts > 0).sum():
        return
    names = list(data.label_names[:NAMES_CHECKED])
    counts_by_mark = {mark: sum(mark in name for name in names) for mark in ",;|"}
    mark = max(counts_by_mark, key=lambda mark: counts_by_mark[mark])
    if 2 * counts_by_mark[mark] > len(names):
        log.warning(
            "%s: most documents have one label, and most labels contain '%s', as in %r. If it separates labels, %s",
            data.name, mark, next(name for name in names if mark in name)[:60], how_to_set("label_separator", mark),
        )  # fmt: skip


def _select_part(folder: Path, parts: dict[str, Path], split: str | None) -> Path:
    if split is None:
        if len(parts) == 1:
            return next(iter(parts.values()))
        raise DataError(
            f"the folder has the parts {', '.join(parts)}; choose one with split (--split {next(iter(parts))})", folder
        )
    for name in (split, canonical_split(split)):
        if name in parts:
            return parts[name]
    if folder in parts.values() and not parts.keys() & ALIASES.keys():
        return folder  # one part that is not named like a split
    raise DataError(f"the folder has no part '{split}'; it has {', '.join(parts)}", folder)


def expand_paths(path: DataPath) -> list[Path]:
    """The paths that are meant: one, those of a list, or those that match a pattern, by name; each exists once."""
    given = [path] if isinstance(path, str | Path) else list(path)
    if not given:
        raise ConfigError("a path, or a list of paths, is needed; the list is empty")
    expanded: list[Path] = []
    for one in map(Path, given):
        if _is_pattern(one):
            matches = sorted(map(Path, glob(str(one), recursive=True)), key=natural_order)
            if not matches:
                raise DataError("no file or folder matches this pattern", one)
            expanded += matches
        else:
            expanded.append(one)
    twice = [one for index, one in enumerate(expanded) if one in expanded[:index]]
    if twice:
        raise DataError("is given more than once; its documents would count twice", twice[0])
    return expanded


def _is_pattern(path: Path) -> bool:
    """Whether a path is a pattern: it has a *, ? or [ and does not exist under that name."""
    try:
        return any(mark in str(path) for mark in "*?[") and not path.exists()
    except (OSError, ValueError):
        return False


def _check_exists(path: str | Path) -> Path:
    path = Path(path)
    try:
        if path.exists():
            return path
    except (OSError, ValueError) as error:
        raise DataError(f"the path cannot be used: {error}") from None
    raise DataError("there is no such file or folder", path)


# --- prediction files ---
# Recognises files that `labelwise predict` has written, so that a folder is not read as if they were its documents.

SCORES = ("score", "probability", "scores", "probabilities")
"""Columns of predicted tables; of long ones the first two, after `label`, of wide ones the others, after `labels`."""
PREFIX = "predicted_"
"""Of the columns of a wide table whose input has a column of the same name."""


def is_prediction_file(path: Path) -> bool:
    """Whether the first line is that of predictions as JSONL, TSV or CSV."""
    extension = stem_and_extension(path)[1]
    if extension not in (".jsonl", ".ndjson", ".tsv", ".csv"):
        return False
    line = first_bytes(path).removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].decode("utf-8", "replace").rstrip("\r")
    if extension in (".jsonl", ".ndjson"):
        return _is_prediction(line)
    return any(_is_header(line, delimiter) for delimiter in ("\t" if extension == ".tsv" else ",;\t"))


def _is_header(line: str, delimiter: str) -> bool:
    try:
        names = [name.removeprefix(PREFIX) for name in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return False
    long = "label" in names and names[:1] == ["id"] and bool(set(SCORES[:2]) & set(names))
    return long or ("labels" in names and bool(set(SCORES[2:]) & set(names)))


def _is_prediction(line: str) -> bool:
    """Whether labels are objects with a score; those of documents are names, or a mapping to relevances."""
    try:
        labels = json.loads(line)["labels"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return False
    listed = labels if isinstance(labels, list) else []
    return any(isinstance(one, dict) and one.keys() >= {"label", "score"} for one in listed)
