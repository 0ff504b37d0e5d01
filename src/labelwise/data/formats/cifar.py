"""`cifar`: the files of CIFAR-10 and CIFAR-100, binary or Python's, in a folder or in their tar archive. Only read.

Images become arrays [documents, 32, 32, 3]. Of CIFAR-100 the fine labels are read. Python's files are pickles, which
are interpreted without running anything (`restricted_pickle`).
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.archives import DAMAGED
from labelwise.data.dataset import Dataset
from labelwise.data.files import first_bytes, open_stream
from labelwise.data.formats.base import Format
from labelwise.data.formats.checks import refuse_empty
from labelwise.data.options import ReadOptions
from labelwise.data.restricted_pickle import read_pickle
from labelwise.data.splits import files_in, sort_parts
from labelwise.errors import DataError
from labelwise.strings import Strings

NAME = "cifar"
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
MAX_BYTES = 1 << 30
"""Most bytes of one file, and of all files of an archive; the largest real archive has 186 million."""
MAX_MEMBERS = 1000
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
BATCHES = re.compile(r"data_batch_\d+(\.bin)?")
PARTS = {
    "test_batch": "test", "test_batch.bin": "test", "train": "train", "test": "test", "train.bin": "train",
    "test.bin": "test",
}  # fmt: skip
"""Files of one part by name, besides the five batches of CIFAR-10's train."""
NAME_FILES = ("batches.meta.txt", "fine_label_names.txt", "batches.meta", "meta")
"""Files of label names, the first that is there counts."""
Open = Callable[[str], bytes | None]
"""The content of a file next to the data, by name."""


def part_of(name: str) -> str | None:
    """The part that a file belongs to, by its name."""
    return "train" if BATCHES.fullmatch(name) else PARTS.get(name)


def recognises(path: Path) -> bool:
    """Whether this is a file of one part; names without extension need a pickle and a file of label names."""
    if not path.is_file() or part_of(path.name) is None:
        return False
    if path.suffix == ".bin":
        size = path.stat().st_size
        return size > 0 and (size % (PIXELS + 1) == 0 or size % (PIXELS + 2) == 0)
    known = any((path.parent / name).is_file() for name in NAME_FILES)
    return known and first_bytes(path, 1)[:1] in (b"\x80", b"(")


def holds_parts(path: Path) -> bool:
    """Whether this is an archive whose first files are those of CIFAR, as far as it can be read.

    A truncated one is too, so that reading it reports what is wrong.
    """
    if not path.is_file() or not path.name.lower().endswith(TAR_SUFFIXES):
        return False
    known = {*PARTS, *NAME_FILES, "readme.html", "file.txt~", "coarse_label_names.txt"}
    names: list[str] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                names.append(member.name.rpartition("/")[2])
                if len(names) == 8 or member.size > MAX_BYTES:  # to find the next one, all of it would be unpacked
                    break
    except (OSError, ValueError):
        return False
    except DAMAGED:
        names.append(path.name)  # files may follow whose names cannot be read
        return any(name.startswith("cifar") or part_of(name) for name in names)
    return any(part_of(name) for name in names) and all(
        not name or name in known or part_of(name) or name.startswith("cifar") for name in names
    )


def parts(folder: Path) -> dict[str, Path]:
    """The parts of a folder, or of an archive, whose parts are named as if it were a folder."""
    if folder.is_file():
        return {"train": folder / "train", "test": folder / "test"}
    found: dict[str, Path] = {}
    for path in files_in(folder):
        if recognises(path):
            part = str(part_of(path.name))
            batch = BATCHES.fullmatch(path.name)
            found.setdefault(part, folder / f"data_batch_[0-9]*{batch[1] or ''}" if batch else path)
    return sort_parts(found)


def read(path: Path, options: ReadOptions) -> Dataset:
    """Read a file, or a part of an archive."""
    if path.parent.is_file():
        return _read_archive(path.parent, path.name, options)

    def beside(name: str) -> bytes | None:
        side = path.parent / name
        return _content(side) if side.is_file() else None

    return _dataset([(str(path), _content(path))], beside, options, str(path))


def _content(path: Path) -> bytes:
    with open_stream(path) as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise DataError(f"the file has more than {MAX_BYTES:,} bytes, which no file of CIFAR has", path)
    refuse_empty(len(content), path)
    return content


def _read_archive(archive: Path, part: str, options: ReadOptions) -> Dataset:
    """All files of a part, in the order of their names."""
    files: dict[str, bytes] = {}
    for name, content in _members(archive):
        if part_of(name) == part or name in NAME_FILES:
            if name in files:
                raise DataError(f"the archive has two files {name!r}; one data set per archive is read", archive)
            files[name] = content()
    chosen = sorted(name for name in files if part_of(name) == part)
    if not chosen:
        raise DataError(f"the archive has no files of the part '{part}'", archive)
    batches = [(f"{archive}: {name}", files[name]) for name in chosen]
    return _dataset(batches, files.get, options, str(archive / part))


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Names of plain files of an archive without their folders, and how to read each; nothing is written to disk."""
    try:
        with tarfile.open(archive) as tar:
            total = 0
            for count, member in enumerate(tar):
                total += member.size
                if count > MAX_MEMBERS:
                    raise DataError(f"the archive has more than {MAX_MEMBERS:,} members, CIFAR has 9", archive)
                if total > MAX_BYTES:
                    raise DataError(
                        f"the archive has more than {MAX_BYTES:,} bytes up to {member.name!r}, which no archive of "
                        "CIFAR has; it is refused",
                        archive,
                    )
                if not member.isreg() or member.issparse():
                    continue
                source: Any = tar.extractfile(member)
                yield member.name.rpartition("/")[2], partial(_member_content, source, archive)
    except (*DAMAGED, OSError) as error:
        raise _unreadable(archive, error) from None


def _member_content(source: Any, archive: Path) -> bytes:
    try:
        return source.read()
    except (*DAMAGED, OSError) as error:
        raise _unreadable(archive, error) from None


def _unreadable(archive: Path, error: Exception) -> DataError:
    if isinstance(error, EOFError) or "unexpected end of data" in str(error):
        return DataError("the archive is truncated: it ends before its last file does; download it again", archive)
    if isinstance(error, DAMAGED):
        return DataError(f"the archive is damaged ({error}); download it again", archive)
    return DataError(f"the archive cannot be read: {getattr(error, 'strerror', None) or error}", archive)


# --- contents ---------------------------------------------------------------------------------------------


def _dataset(batches: list[tuple[str, bytes]], beside: Open, options: ReadOptions, name: str) -> Dataset:
    images, labels = [], []
    for where, content in batches:
        pixels, numbers = _binary(where, content) if where.endswith(".bin") else _pickled(where, content)
        images.append(pixels)
        labels.append(numbers)
    numbers, names = np.concatenate(labels), _label_names(beside, name)
    count = len(names) if names is not None else 100 if numbers.max(initial=0) > 9 else 10
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= count):
        raise DataError(f"the label {int(numbers.max())} is not one of the {count} labels", name)
    matrix = sparse.csr_array(
        (np.ones(len(numbers), np.float32), numbers.astype(np.int32), np.arange(len(numbers) + 1)),
        shape=(len(numbers), count),
    )
    pixels = np.concatenate(images).reshape(-1, *SHAPE).transpose(0, 2, 3, 1)
    label_names = Strings.of(names) if names is not None else Strings.numbers(count)
    return Dataset(matrix, label_names, arrays=np.ascontiguousarray(pixels), name=name)


def _binary(where: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label byte (CIFAR-10) or two (CIFAR-100: coarse, fine) and the pixels, channel by channel."""
    batch = BATCHES.fullmatch(Path(where).name) or "test_batch" in where
    sizes = (PIXELS + 1, PIXELS + 2) if batch else (PIXELS + 2, PIXELS + 1)
    size = next((size for size in sizes if len(content) % size == 0), None)
    if size is None or not content:
        raise DataError(
            f"{len(content):,} bytes are no whole number of records of {PIXELS + 1:,} or {PIXELS + 2:,} bytes; the "
            "file is truncated or not of CIFAR",
            where,
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, size - PIXELS :], records[:, size - PIXELS - 1].astype(np.int64)


def _pickled(where: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    batch = read_pickle(content, where)
    pixels, labels = (_entry(batch, *names) for names in (("data",), ("fine_labels", "labels")))
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise DataError(f"the entry 'data' must be an array of bytes [images, {PIXELS}]", where)
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 1000 for label in labels):
        raise DataError("the entry 'labels' or 'fine_labels' must be a list of label numbers", where)
    if len(labels) != len(pixels):
        raise DataError(f"{len(labels):,} labels for {len(pixels):,} images", where)
    return pixels, np.array(labels, np.int64)


def _entry(mapping: Any, *names: str) -> Any:
    """An entry of a dict whose keys are bytes (Python 2) or str."""
    if not isinstance(mapping, dict):
        return None
    return next((mapping[key] for name in names for key in (name.encode(), name) if key in mapping), None)


def _label_names(beside: Open, where: str) -> list[str] | None:
    for name in NAME_FILES:
        content = beside(name)
        if content is None:
            continue
        if name.endswith(".txt"):
            lines = [line.strip() for line in io.StringIO(content.decode("utf-8", "replace"))]
            names: Any = [line for line in lines if line]
        else:
            names = _entry(read_pickle(content, f"{where}: {name}"), "fine_label_names", "label_names")
            if not isinstance(names, list) or not all(isinstance(one, bytes | str) for one in names):
                raise DataError(f"{name} has no list of label names", where)
            names = [one if isinstance(one, str) else one.decode("utf-8", "replace") for one in names]
        if len(set(names)) != len(names) or not 1 <= len(names) <= 1000:
            raise DataError(f"{name}: {len(names)} label names, which must be distinct and at most 1,000", where)
        return names
    return None


FORMAT = Format(
    name=NAME,
    about="CIFAR-10 and CIFAR-100, binary or Python's: a folder, or the .tar.gz as it is; only read",
    recognises=recognises,
    read=read,
    write=None,
    parts=parts,
    extension="",
    holds_parts=holds_parts,
)
