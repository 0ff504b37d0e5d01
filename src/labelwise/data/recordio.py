"""RecordIO, MXNet's container of images (`train.rec` with `train.idx`), read without mxnet.

A record is a magic number, a length whose upper three bits are a flag, the content, and padding to four bytes. A
content that contains the magic number is written in several parts (first, middle, last), without the magic numbers
between them. The content of an image record is a header (number of labels, a label, two ids), that many labels if it
is not 0, and the encoded image. In files of faces record 0 holds no image but where the images end: records behind
them describe people.
"""

from __future__ import annotations

import os
import re
import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from labelwise.errors import DataError

MAGIC = 0xCED7230A
WHOLE, FIRST, MIDDLE, LAST = range(4)
MAX_RECORD = 1 << 28
"""Bytes of a record; longer ones are refused before they are read."""
MAX_CLASS = 2**31
MAX_LABELS = 1 << 16
RECORDS_AT_ONCE = 1 << 14
"""Records whose headers are read at a time."""
_PART = struct.Struct("<II")
_HEADER = struct.Struct("<IfQQ")
HEAD_BYTES = _PART.size + _HEADER.size + 4
"""Bytes of a record up to the first of its listed labels."""
_MEMBER = re.compile(r"(.+\.rec)#([0-9]{1,18})", re.DOTALL)


@dataclass(frozen=True)
class ImageRecord:
    """The content of an image record."""

    labels: np.ndarray
    image: bytes
    has_label_list: bool
    """Whether the labels were a list, as in records that describe people."""


def member_path(path: str | Path, offset: int) -> str:
    """How an image inside a record file is called where images are paths: `train.rec#1234`, with its offset."""
    return f"{path}#{offset}"


def split_member(path: str) -> tuple[str, int] | None:
    """Record file and offset of a `member_path`; None for other paths."""
    match = _MEMBER.fullmatch(path)
    return None if match is None else (match[1], int(match[2]))


def member_image(path: str, offset: int) -> bytes:
    """The encoded image at an offset of a record file."""
    with _opened(path) as file:
        return parse_record(read_record(file, offset, path), f"the record at byte {offset:,}", path).image


# --- single records ---


def read_record(file: IO[bytes], offset: int, path: str | Path) -> bytes:
    """The content of the record at an offset, all parts joined."""
    size = os.fstat(file.fileno()).st_size
    pieces: list[bytes] = []
    total, at = 0, offset
    while True:
        flag, length = _part_header(file, at, size, path)
        expected = (WHOLE, FIRST) if not pieces else (MIDDLE, LAST)
        if flag not in expected:
            what = "begins in the middle" if not pieces else "is not continued"
            raise DataError(
                f"the record at byte {offset:,} {what} (flag {flag} at byte {at:,}); the file is damaged", path
            )
        total += length
        if total > MAX_RECORD:
            raise DataError(f"the record at byte {offset:,} has more than {MAX_RECORD:,} bytes; that is no image", path)
        pieces.append(file.read(length))
        if flag in (WHOLE, LAST):
            return _PART.pack(MAGIC, 0)[:4].join(pieces)  # the magic number stood where parts were divided
        at += _PART.size + length + -length % 4


def parse_record(content: bytes, name: str, path: str | Path) -> ImageRecord:
    """Labels and image of a record."""
    if len(content) < _HEADER.size:
        raise DataError(f"{name} has {len(content)} bytes, too few for the header of an image", path)
    count, label, _, _ = _HEADER.unpack_from(content)
    if count == 0:
        return ImageRecord(np.array([label], np.float32), content[_HEADER.size :], False)
    end = _HEADER.size + 4 * count
    if count > MAX_LABELS or end > len(content):
        raise DataError(f"{name} claims {count:,} labels, more than it has bytes for; the file is damaged", path)
    return ImageRecord(np.frombuffer(content, "<f4", count, _HEADER.size), content[end:], True)


def scan_offsets(path: str | Path) -> np.ndarray:
    """The offsets of all records, by walking through the file; for files without an index."""
    with _opened(path) as file:
        return np.fromiter(_walk(file, path), np.int64)


def _walk(file: IO[bytes], path: str | Path) -> Iterator[int]:
    size, at, inside = os.fstat(file.fileno()).st_size, 0, False
    while at < size:
        flag, length = _part_header(file, at, size, path)
        begins = flag in (WHOLE, FIRST)
        if begins == inside:
            what = "before byte {:,} is not continued" if inside else "at byte {:,} begins in the middle"
            raise DataError(f"the record {what.format(at)}; the file is damaged", path)
        if not inside:
            yield at
        inside = flag in (FIRST, MIDDLE)
        at += _PART.size + length + -length % 4
    if inside:
        raise DataError("the last record is not complete; copy or download the file again", path)


def _part_header(file: IO[bytes], at: int, size: int, path: str | Path) -> tuple[int, int]:
    """Flag and length of the part at an offset; the file is then at its content."""
    if at < 0 or at + _PART.size > size:
        raise DataError(
            f"a record would begin at byte {at:,}, but the file has {size:,}; it is truncated, or the index is of "
            "another file",
            path,
        )
    file.seek(at)
    magic, word = _PART.unpack(file.read(_PART.size))
    if magic != MAGIC:
        raise DataError(f"no record begins at byte {at:,} (magic number {magic:08x}, expected {MAGIC:08x})", path)
    flag, length = word >> 29, word & ((1 << 29) - 1)
    if flag > LAST:
        raise DataError(f"the record at byte {at:,} has the unknown flag {flag}", path)
    if at + _PART.size + length > size:
        raise DataError(
            f"the record at byte {at:,} claims {length:,} bytes, beyond the end of the file; copy or download it again",
            path,
        )
    return flag, length


def _opened(path: str | Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise DataError("there is no such file", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path) from None


# --- whole files ---


@dataclass(frozen=True)
class RecordIndex:
    """The image records of a file, in the order of their keys."""

    keys: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray
    """The first label of each image, whole numbers."""


def read_index(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Keys and offsets of an `.idx` file, sorted by key."""
    with _opened(path) as file:
        text = file.read()
    numbers = whole_numbers(text, 2)
    if numbers is None:
        raise DataError("an index has two whole numbers per line, the key of a record and its offset", path)
    keys, offsets = numbers.T
    order = np.argsort(keys, kind="stable")
    keys, offsets = keys[order], offsets[order]
    if len(keys) == 0:
        raise DataError("the index is empty", path)
    if (np.diff(keys) == 0).any():
        raise DataError(f"key {keys[:-1][np.diff(keys) == 0][0]} is listed twice", path)
    if len(np.unique(offsets)) != len(offsets):
        raise DataError("two keys have the same offset", path)
    if offsets.min() < 0:
        raise DataError(f"an offset is below 0: {offsets.min()}", path)
    return keys, offsets


def whole_numbers(text: bytes, count: int) -> np.ndarray | None:
    """A text with `count` whole numbers per line [lines, count]; None if it is something else.

    By NumPy's own parser: such texts have millions of lines.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            numbers = np.fromstring(text, np.int64, sep=" ")  # any white space
    except (ValueError, DeprecationWarning):
        return None
    text = text.rstrip()
    lines = text.count(b"\n") + bool(text)
    return numbers.reshape(-1, count) if len(numbers) == count * lines else None


def image_records(path: str | Path) -> RecordIndex:
    """All image records of a file, by its `.idx` file, or by walking through it if there is none."""
    path = Path(path)
    index = path.with_suffix(".idx")
    if index.is_file():
        keys, offsets = read_index(index)
    else:
        offsets = scan_offsets(path)
        keys = np.arange(len(offsets))
    if len(keys) == 0:
        raise DataError("the file has no records", path)
    with _opened(path) as file:
        first = parse_record(read_record(file, int(offsets[0]), path), f"record {keys[0]}", path)
    if first.has_label_list and not first.image:  # no image: where images end, and people begin
        end = float(first.labels[0])
        if keys[0] != 0 or not end.is_integer() or not 1 < end <= keys[-1] + 1:
            raise DataError(f"record {keys[0]} says that images end before record {end:g}, which does not exist", path)
        chosen = (keys > 0) & (keys < end)
        keys, offsets = keys[chosen], offsets[chosen]
        if len(keys) != int(end) - 1:
            raise DataError(f"the index lacks {int(end) - 1 - len(keys):,} of the {int(end) - 1:,} images", index)
    return RecordIndex(keys, offsets, _labels(path, keys, offsets))


def _labels(path: Path, keys: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The first label of each record; of usual records only the headers are read."""
    labels = np.empty(len(offsets))
    content = np.memmap(path, np.uint8, "r")
    with _opened(path) as file:
        for begin in range(0, len(offsets), RECORDS_AT_ONCE):
            some = offsets[begin : begin + RECORDS_AT_ONCE]
            rows = np.flatnonzero(some <= len(content) - HEAD_BYTES)  # an offset may be the largest number
            heads = content[some[rows, None] + np.arange(HEAD_BYTES)].view("<u4")
            usual = _are_usual(heads, some[rows], len(content))
            rows, heads = rows[usual], heads[usual]
            values = heads.view("<f4")
            labels[begin + rows] = np.where(heads[:, 2] > 0, values[:, 8], values[:, 3])
            for row in np.setdiff1d(np.arange(len(some)), rows).tolist():
                record = parse_record(read_record(file, int(some[row]), path), f"record {keys[begin + row]}", path)
                labels[begin + row] = record.labels[0]
    wrong = np.flatnonzero(~((labels == np.floor(labels)) & (labels >= 0) & (labels < MAX_CLASS)))
    if len(wrong):
        raise DataError(
            f"the label of record {keys[wrong[0]]} is {labels[wrong[0]]:g}; a class is a whole number below 2^31", path
        )
    return labels.astype(np.int64)


def _are_usual(heads: np.ndarray, offsets: np.ndarray, size: int) -> np.ndarray:
    """Which records are in one part and undamaged, by their first bytes as numbers; others are read one by one."""
    length, flag = heads[:, 1] & np.uint32((1 << 29) - 1), heads[:, 1] >> np.uint32(29)
    count = heads[:, 2].astype(np.int64)
    complete = offsets + _PART.size + length <= size
    return (heads[:, 0] == MAGIC) & (flag == WHOLE) & complete & (_HEADER.size + 4 * count <= length)
