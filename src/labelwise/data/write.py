"""Writes data sets atomically; nothing is overwritten without `force`, and nothing is dropped silently.

The files are written into a hidden folder beside the target and moved when all are complete. Parts that the format
cannot store are an error, unless `drop` names them.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset
from labelwise.data.label_texts import side_file_name
from labelwise.data.options import ReadOptions, plain_name
from labelwise.data.out_of_core import scratch_beside
from labelwise.data.read import (
    AUTO,
    FORMATS,
    DataPath,
    format_named,
    has_parts,
    parts_by_format,
    read,
    read_splits,
)
from labelwise.data.tables import refuse_bytes, refuse_line_ends, refuse_mark
from labelwise.errors import ConfigError, DataError
from labelwise.io.atomic import hidden_folder, keep_leftovers
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.data.formats.base import Format


PARTS = ("texts", "features", "paths", "arrays", "ids", "relevances", "label_names", "label_texts")
HOLDS: dict[str, frozenset[str]] = {
    "native": frozenset({"texts", "features", "paths", "arrays", "ids", "relevances", "label_names"}),
    "jsonl": frozenset({"texts", "features", "paths", "ids", "relevances", "label_names"}),
    "csv": frozenset({"texts", "paths", "ids", "label_names"}),
    "tsv": frozenset({"texts", "ids", "label_names"}),
    "lines": frozenset({"texts", "label_names"}),
    "fulltext": frozenset({"texts", "ids", "label_names"}),
    "fasttext": frozenset({"texts", "label_names"}),
    "pecos": frozenset({"texts", "features"}),
    "xc": frozenset({"features"}),
    "tfrecord": frozenset({"features", "relevances"}),
    "vowpal": frozenset({"features", "label_names"}),
    "cifar": frozenset({"arrays", "label_names"}),
    "idx": frozenset({"arrays"}),
    "image_folder": frozenset({"paths", "label_names"}),
    "recordio": frozenset({"paths", "ids", "label_names"}),
}
"""What each format can store, besides the labels themselves."""
CAN_BE_EMPTY = ("native", "csv", "pecos", "xc")
"""Formats that can represent a data set without documents; in the others that would be an empty file."""
FORCE = "force=True (--force)"
OWN_LABEL_TEXTS = ("native", "pecos")
"""Formats that store label texts; for all others they are written to a separate file."""


def write(
    dataset: Dataset,
    path: str | Path,
    format: str | None = None,
    force: bool = False,
    drop: Iterable[str] = (),
) -> None:
    """Write a data set, or one part of it.

    Parameters
    ----------
    path
        The file; for `native` the folder, for `lines` train_texts.txt, for `pecos` Y.trn.npz (or tst, val).
    format
        A name from `labelwise.data.read.FORMATS`; not given: by the extension, and `native` if there is none.
    force
        Replace existing files.
    drop
        Parts to leave out: texts, features, paths, ids, relevances (then all 1), label_texts, or
        label_names (then labels are numbered, and their names become their texts if they have none).
    """
    path = Path(path)
    if path.name in ("", ".."):
        raise ConfigError(f"{path}: the name of a new file or folder is needed")
    chosen = _format_of(path, format)
    refuse_existing_path(path, force)
    hint = f". The extension {path.suffix} means {chosen.name}; choose another format with format (--to NAME)"
    with _stage(path.parent, force) as staging:
        _write_part(dataset, staging.new / path.name, chosen, drop, hint if format is None and path.suffix else "")
        staging.mark_outdated(path, chosen)


def refuse_existing_path(path: Path, force: bool) -> None:
    """Refuse a path that exists, unless it may be replaced."""
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; choose another path or replace it with {FORCE}")


def write_splits(
    parts: Mapping[str, Dataset],
    folder: str | Path,
    format: str,
    force: bool = False,
    drop: Iterable[str] = (),
) -> None:
    """Write train, valid and test into one folder, in one label space; all of them or none.

    A folder that has parts already is refused; with `force` parts of the same format are replaced. Parts in another
    format are always refused, as only one of the two formats would be read.
    """
    chosen, folder = format_named(format), Path(folder)
    refuse_parts(folder, chosen, force)
    with _stage(folder, force) as staging:
        for split, part in _in_one_space(parts).items():
            name = chosen.part_name(split) if chosen.part_name else split + chosen.extension
            _write_part(part, staging.new / name, chosen, drop)
            staging.mark_outdated(folder / name, chosen)


def refuse_parts(folder: Path, chosen: Format, force: bool) -> None:
    """Refuse a folder in which old parts would be read with the new ones, or instead of them."""
    found = parts_by_format(folder)
    others = {
        name: parts
        for name, parts in found.items()
        if name != chosen.name or folder in parts.values() or any(not path.exists() for path in parts.values())
    }  # shards, whose path is a pattern, would be read with the new part
    shown = "; ".join(f"{', '.join(path.name for path in parts.values())} ({name})" for name, parts in found.items())
    if others and force:
        raise ConfigError(
            f"{folder} has parts that {FORCE} does not replace: {shown}. In one folder only one format is read, and "
            "shards are never mixed with a new part; remove them or choose another path"
        )
    if found and not force:
        raise ConfigError(f"{folder} has parts already: {shown}; choose another path or replace them with {FORCE}")


def _in_one_space(parts: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """All parts in the union of their label spaces, with the union of their label texts."""
    names, texts = Strings.of([]), {}
    for part in parts.values():
        names = part.align(names).label_names if len(names) else part.label_names
        if part.label_texts is not None:
            pairs = zip(part.label_names, part.label_texts, strict=True)
            texts = dict((name, text) for name, text in pairs if text != name) | texts
    aligned = {split: part.align(names) for split, part in parts.items()}
    if not any(part.label_texts is not None for part in parts.values()):
        return aligned
    label_texts = Strings.of(texts.get(name, name) for name in names)
    return {split: replace(part, label_texts=label_texts) for split, part in aligned.items()}


def _format_of(path: Path, format: str | None) -> Format:
    if format is not None:
        return format_named(format)
    if not path.suffix:
        return format_named("native")
    known = sorted(map(format_named, FORMATS), key=lambda one: -len(one.extension))
    for one in known:
        if one.extension and plain_name(path).endswith(one.extension):
            return one
    accepted = ", ".join(f"{one.extension} ({one.name})" for one in known if one.extension)
    raise ConfigError(
        f"{path}: no format has this extension; {accepted} are known, or name one with format (--to NAME)"
    )


# --- one part ---------------------------------------------------------------------------------------------


def _write_part(dataset: Dataset, path: Path, chosen: Format, drop: Iterable[str], hint: str = "") -> None:
    if isinstance(dataset.features, Blocks):  # no format stores two blocks
        dataset = replace(dataset, features=dataset.features.to_csr())
    elif isinstance(dataset.features, np.ndarray):  # files hold float32
        dataset = replace(dataset, features=dataset.features.astype(np.float32, copy=False))
    dataset = _without(dataset, drop)
    _refuse_loss(dataset, chosen.name, hint)
    if chosen.write is None:
        raise ConfigError(f"format: {chosen.name} can only be read")
    if dataset.label_texts is not None and chosen.name not in OWN_LABEL_TEXTS:
        _write_side_file(dataset.label_names, dataset.label_texts, path, chosen.name)
        dataset = replace(dataset, label_texts=None)
    chosen.write(dataset, path)


def _without(dataset: Dataset, drop: Iterable[str]) -> Dataset:
    for part in drop:
        if part not in PARTS:
            raise ConfigError(f"drop: '{part}' is not a part that can be dropped; choose from {', '.join(PARTS)}")
        if part == "relevances":
            ones = dataset.labels.copy()
            ones.data[:] = 1
            dataset = replace(dataset, labels=ones)
        elif part == "label_names":
            texts = dataset.label_names if dataset.label_texts is None else dataset.label_texts
            numbers = Strings.numbers(dataset.n_labels)
            if dataset.label_names != numbers:
                dataset = replace(dataset, label_names=numbers, label_texts=texts)
        else:
            nothing: dict[str, Any] = {part: None}
            dataset = replace(dataset, **nothing)
    return dataset


def _refuse_loss(dataset: Dataset, format_name: str, hint: str = "") -> None:
    """Refuse parts that the format cannot store; `hint` is appended to the message."""
    if not len(dataset) and format_name not in CAN_BE_EMPTY:
        raise DataError(f"{dataset.name} has no documents, which the format {format_name} cannot represent")
    holds = HOLDS[format_name]
    lost = [part for part in ("texts", "features", "paths", "arrays", "ids") if getattr(dataset, part) is not None]
    lost = [part for part in lost if part not in holds]
    if "relevances" not in holds and (dataset.labels.data != 1).any():
        lost.append("relevances")
    if "label_names" not in holds and dataset.label_names != Strings.numbers(dataset.n_labels):
        lost.append("label_names")
    held = [part for part in ("texts", "features", "paths", "arrays") if part in holds]
    if len(dataset) and all(getattr(dataset, part) is None for part in held):
        raise DataError(f"{dataset.name} has no {' or '.join(held)}, which the format {format_name} requires{hint}")
    if lost:
        raise DataError(
            f"the format {format_name} cannot store the {' and '.join(lost)} of {dataset.name}. The "
            f"format native stores everything but arrays; to leave parts out, name them with drop "
            f"({' '.join(f'--drop {part}' for part in lost)}){hint}"
        )


def _write_side_file(names: Strings, texts: Strings, path: Path, format_name: str) -> None:
    """Write label texts to a separate file, for formats that cannot store them."""
    from labelwise.data.stream import write_stream

    target = path.with_name(side_file_name(path))
    refuse_bytes(names, b"\t\n", "label", target, format_name)
    refuse_line_ends(texts, "label text", target, format_name)
    if len(names):
        refuse_mark(names[0], target, format_name)
    with write_stream(target) as file:
        for name, text in zip(names, texts, strict=True):
            file.write(f"{name}\t{text}\n".encode())


# --- atomic writing ---------------------------------------------------------------------------------------


@contextmanager
def _stage(folder: Path, force: bool) -> Iterator[_Staging]:
    """Yield a hidden folder whose contents are moved into `folder` if the block ends without an error."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    hidden = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hidden_folder(folder) as hidden:
            staging = _Staging(hidden, folder, force)
            yield staging
            staging.move()
    except DataError as error:
        if hidden is None or error.path is None or hidden not in Path(error.path).parents:
            raise
        raise DataError(error.what, folder / Path(error.path).name, error.line) from None
    except OSError as error:
        raise DataError(f"cannot be written to: {error.strerror or error}", folder) from error
    finally:
        for path in missing:
            with suppress(OSError):  # folders that are not empty remain
                path.rmdir()


class _Staging:
    """New files before they are moved, and old files that they replace."""

    def __init__(self, hidden: Path, folder: Path, force: bool) -> None:
        self.hidden, self.folder, self.force = hidden, folder, force
        self.new, self.old = hidden / "new", hidden / "old"
        self.new.mkdir()
        self.old.mkdir()
        self.outdated: list[Path] = []

    def mark_outdated(self, path: Path, chosen: Format) -> None:
        """Mark existing files that are not written now but would be read with this part."""
        for target in chosen.siblings(path) if chosen.siblings else ():
            if target.exists() and not (self.new / target.name).exists():
                if not self.force:
                    raise ConfigError(f"{target} exists already and would be read with {path}; remove it with {FORCE}")
                self.outdated.append(target)

    def move(self) -> None:
        """Move all files to the target; if one move fails, the previous files are restored."""
        entries = sorted(self.new.iterdir())
        for entry in entries:
            self._refuse_overwrite(entry, self.folder / entry.name)
        is_single_file = len(entries) == 1 and not self.outdated and entries[0].is_file()
        done: list[tuple[Path, Path]] = []
        if not is_single_file:
            keep_leftovers(self.hidden)
        try:
            for target in () if is_single_file else (*self.outdated, *(self.folder / entry.name for entry in entries)):
                if target.exists():
                    done.append((self.old / target.name, target))
                    os.replace(target, self.old / target.name)
            for entry in entries:
                done.append((self.folder / entry.name, entry))
                os.replace(entry, self.folder / entry.name)
        except BaseException:
            for destination, origin in reversed(done):
                if destination.exists() and not origin.exists():
                    os.replace(destination, origin)
            raise

    def _refuse_overwrite(self, entry: Path, target: Path) -> None:
        """Refuse to overwrite, except an identical file, which several parts may share, or a data folder by another."""
        if not target.exists():
            return
        if entry.is_file() and target.is_file() and (self.force or filecmp.cmp(entry, target, shallow=False)):
            return
        if not self.force:
            raise ConfigError(f"{target} exists already with other contents; choose another path or {FORCE}")
        empty = target.is_dir() and not any(target.iterdir())
        if not entry.is_dir() or not (empty or format_named("native").recognises(target)):
            raise ConfigError(
                f"{target} exists and is not a {'data folder' if entry.is_dir() else 'file'} of labelwise; "
                "choose another path"
            )


# --- convert ---
# Converts a data set from one format to another, also if it is larger than memory.
#
# Rows of formats with numbered features are written to temporary files beside the output while they are read, and
# memory-mapped while they are written, so that only their offsets are in memory. The files are removed at the end, also
# after an error.


def convert(
    path: DataPath,
    output: str | Path,
    from_format: str = AUTO,
    to_format: str | None = None,
    split: str | None = None,
    options: ReadOptions | Mapping[str, Any] | None = None,
    force: bool = False,
    drop: Iterable[str] = (),
) -> int:
    """Write a data set in another format; returns the number of documents.

    Parameters
    ----------
    path
        A file or a folder; of a folder all parts are written, or the one that `split` names. Several, or a pattern, are
        read and written as one.
    output
        The file or folder to write.
    from_format, to_format
        As `format` of `labelwise.read` and `labelwise.write`; a folder with all parts is written as `native` by
        default.
    options, force, drop
        As those of `labelwise.read` and `labelwise.write`.
    """
    output = Path(output)
    if split is None and isinstance(path, str | Path) and has_parts(path):
        chosen = to_format or "native"
        refuse_parts(output, format_named(chosen), force)
        with scratch_beside(output) as scratch:
            parts = read_splits(path, from_format, options, scratch)
            write_splits(parts, output, chosen, force, drop)
            return sum(map(len, parts.values()))
    refuse_existing_path(output, force)
    with scratch_beside(output) as scratch:
        data = read(path, from_format, split, options, scratch=scratch)
        write(data, output, to_format, force, drop)
        return len(data)
