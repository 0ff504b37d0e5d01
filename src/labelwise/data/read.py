"""Reading data sets: one function for all formats, files and folders.

A format is told by the file's name and first bytes. First come the formats whose files have fixed names, then
the one whose extension the file has, then all others in the order of `FORMATS`: the less a format's begin can
be mistaken, the earlier.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.data.splits import canonical_split, plain_name
from labelwise.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from labelwise.data.dataset import Dataset
    from labelwise.data.formats.base import Format
    from labelwise.data.options import ReadOptions

AUTO = "auto"
FORMATS: dict[str, str] = {
    "native": "labelwise.data.formats.native",
    "pecos": "labelwise.data.formats.pecos",
    "lines": "labelwise.data.formats.line_files",
    "jsonl": "labelwise.data.formats.jsonl",
    "fasttext": "labelwise.data.formats.fasttext",
    "xc": "labelwise.data.formats.xc",
    "csv": "labelwise.data.formats.csv_table",
    "tsv": "labelwise.data.formats.tsv",
    "vowpal": "labelwise.data.formats.vowpal",
}
FIXED_NAMES = ("native", "pecos", "lines")


def format_named(name: str) -> Format:
    """The format of this name."""
    if name not in FORMATS:
        raise ConfigError(f"format: there is no format '{name}'; {did_you_mean(name, FORMATS)}")
    return import_module(FORMATS[name]).FORMAT


def detect(path: str | Path) -> Format:
    """The format of a file or folder by its name and first bytes."""
    path = _existing(path)
    if path.is_dir():
        return find_parts(path)[0]
    formats = [format_named(name) for name in FORMATS]
    fixed = [one for one in formats if one.name in FIXED_NAMES]
    by_extension = [one for one in formats if one.extension and plain_name(path).endswith(one.extension)]
    for one in (*fixed, *by_extension, *formats):
        if one.recognises(path):
            return one
    raise DataError(f"the format is not recognised; name it with format, one of {', '.join(FORMATS)}", path)


def find_parts(folder: str | Path, format: str = AUTO) -> tuple[Format, dict[str, Path]]:
    """The format of a folder, and where each of its parts (train, valid, test) lies."""
    folder = _existing(folder)
    for name in FORMATS if format == AUTO else [format]:
        found = format_named(name)
        parts = found.parts(folder) if folder.is_dir() else {}
        if parts:
            return found, parts
    wanted = "any format" if format == AUTO else f"the format {format}"
    raise DataError(
        f"no data in {wanted} was found in the folder; files called train.*, valid.* or test.* are looked "
        f"for. Give the path of a file, and its format as one of {', '.join(FORMATS)}",
        folder,
    )


def read(path: str | Path, format: str = AUTO, split: str | None = None, options: ReadOptions | None = None) -> Dataset:
    """Read a data set, or one part of it.

    Parameters
    ----------
    path
        A file, or a folder with one or more parts.
    format
        One of `FORMATS`; `auto` looks at the name and the first bytes.
    split
        For a folder with several parts: train, valid or test (also trn, val, dev, tst, or a part's own name).
    options
        How to read what the file itself does not tell.
    """
    path = _existing(path)
    if path.is_dir():
        found, parts = find_parts(path, format)
        return _read_part(found, _chosen(path, parts, split), options)
    if split is not None:
        raise ConfigError(f"split: {path} is a file; a split is chosen from a folder, got split '{split}'")
    return _read_part(detect(path) if format == AUTO else format_named(format), path, options)


def read_splits(path: str | Path, format: str = AUTO, options: ReadOptions | None = None) -> dict[str, Dataset]:
    """Read all parts of a folder in one label space: that of train, then what only other parts have."""
    path = _existing(path)
    if not path.is_dir():
        raise DataError("is a file, not a folder with train, valid and test; read it alone", path)
    found, parts = find_parts(path, format)
    data: dict[str, Dataset] = {}
    for split in sorted(parts, key=lambda split: split != "train"):
        first = next(iter(data.values()), None)
        data[split] = _read_part(found, parts[split], options, first)
    return data


def _read_part(found: Format, path: Path, options: ReadOptions | None, first: Dataset | None = None) -> Dataset:
    """One part, in the label space of the first one if that is given."""
    from labelwise.data.label_texts import attach_label_texts_of_part
    from labelwise.data.options import ReadOptions

    options = options or ReadOptions()
    data = found.read(path, options)
    return attach_label_texts_of_part(data if first is None else data.align(first.label_names), path, options)


def _chosen(folder: Path, parts: dict[str, Path], split: str | None) -> Path:
    if split is None:
        if len(parts) == 1:
            return next(iter(parts.values()))
        raise DataError(f"the folder has the parts {', '.join(parts)}; choose one with split", folder)
    for name in (split, canonical_split(split)):
        if name in parts:
            return parts[name]
    raise DataError(f"the folder has no part '{split}'; it has {', '.join(parts)}", folder)


def _existing(path: str | Path) -> Path:
    path = Path(path)
    try:
        if path.exists():
            return path
    except (OSError, ValueError) as error:
        raise DataError(f"the path cannot be used: {error}") from None
    raise DataError("there is no such file or folder", path)
