"""Sparse text of the extreme classification repository: `N D L`, then one `label,label column:value ...` per line.

- The first line holds the numbers of documents, features and labels; without it they are taken from the
  content. A header that the content contradicts is an error, unless the option `header` is
  `ignore`.
- A line that begins with a blank, or whose first word contains a colon, has no labels. An empty line is a
  document with neither labels nor features; only a last empty line that the header does not count is ignored.
- Labels are whole numbers from 0 up; duplicate labels in a line count once.
- Columns may be in any order; values of duplicate columns are added; zeros are not stored.
- Values are decimal numbers; nan, inf and what float32 cannot hold are errors. Indices go up to 2^31 - 2.
- Lines may end in CR LF. The file may be compressed (.gz, .xz, .bz2).

Labels are named by their numbers. The format cannot store label names, relevances or texts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.formats.checks import NO_DOCUMENTS, refuse_empty
from labelwise.data.formats.sparse_rows import (
    MAX_LABELS,
    READ_BYTES,
    ParsedRows,
    SparseDatasetBuilder,
    sparse_features,
    token_at,
    write_lines,
)
from labelwise.data.options import ReadOptions, how_to_set
from labelwise.data.splits import split_files
from labelwise.data.stream import NEWLINE, ByteBlock, first_bytes, line_blocks
from labelwise.errors import DataError
from labelwise.parallel import run_stream
from labelwise.strings import Strings

IGNORE = f"to take the counts from the content, {how_to_set('header', 'ignore')}"
MAX_COLUMNS = 2**31 - 1
"""Largest number of columns with 32-bit indices."""

_HEADER = re.compile(rb"[ \t]*(\d+)[ \t]+(\d+)[ \t]+(\d+)[ \t]*\r?")
_LABELS = re.compile(rb"\d+(?:,\d+)*")
_FEATURE = re.compile(rb"\d+:[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Header:
    """The counts of a file's first line."""

    documents: int
    features: int
    labels: int


def read(path: Path, options: ReadOptions, folder: Path | None = None) -> Dataset:
    """Read one file; with a folder, rows are written to files in it and mapped."""
    with closing(line_blocks(path, READ_BYTES)) as blocks:
        return _read_blocks(blocks, path, options.header == "check", folder)


def _read_blocks(blocks: Iterator[ByteBlock], path: Path, check_header: bool, folder: Path | None) -> Dataset:
    first = next(blocks, None)
    if first is None:
        raise DataError(f"{NO_DOCUMENTS}; at least a line `documents features labels` is needed", path)
    header, first = _take_header(first)
    has_header = header is not None
    if not check_header:
        header = None
    elif header is not None:
        _refuse_impossible(header, path)
    limits = (MAX_COLUMNS, MAX_COLUMNS) if header is None else (header.features, header.labels)

    def parse(block: ByteBlock) -> tuple[ParsedRows, bool]:
        return _parse(block, path, *limits), _ends_empty(block.data)

    builder, ends_empty = SparseDatasetBuilder(False, folder), False
    for part, empty in run_stream(parse, itertools.chain([first], blocks)):
        builder.add(part, part.fraction_read)
        ends_empty = empty
    if ends_empty and (header is None or builder.documents == header.documents + 1):
        builder.drop_last()
    if not has_header:
        refuse_empty(builder.documents, path)
    if header is not None:
        builder.n_features, builder.n_labels = header.features, header.labels
        if builder.documents != header.documents:
            what = f"the header says {header.documents:,} documents and the file has {builder.documents:,}; {IGNORE}"
            raise DataError(what, path, 1)
    return builder.dataset(path)


def _take_header(block: ByteBlock) -> tuple[Header | None, ByteBlock]:
    """Split off the header, if the first line is one."""
    end = int(np.argmax(block.data == NEWLINE))
    match = _HEADER.fullmatch(block.data[:end].tobytes()) if end < 200 else None
    if match is None:
        return None, block
    header = Header(*map(int, match.groups()))
    return header, ByteBlock(block.data[end + 1 :], block.first_line + 1, block.lines - 1, block.fraction_read)


def _refuse_impossible(header: Header, path: Path) -> None:
    """Refuse counts beyond the limits of a Dataset."""
    for what, count, most in (("features", header.features, MAX_COLUMNS), ("labels", header.labels, MAX_LABELS)):
        if count > most:
            raise DataError(f"the header says {count:,} {what}; at most {most:,} are possible; {IGNORE}", path, 1)


def _parse(block: ByteBlock, path: Path, n_features: int, n_labels: int) -> ParsedRows:
    from labelwise.kernels.formats import sparse_text as kernel

    data = block.data
    colons = int(np.count_nonzero(data == kernel.COLON))
    commas = int(np.count_nonzero(data == kernel.COMMA))
    feature_counts, label_counts = np.empty(block.lines, np.int32), np.empty(block.lines, np.int32)
    indices, values = np.empty(colons, np.int32), np.empty(colons, np.float32)
    labels = np.empty(commas + block.lines, np.int32)
    fault, position, stored, tagged, feature_columns, label_columns = kernel.parse_xc(
        data, n_features, n_labels, feature_counts, label_counts, indices, values, labels
    )
    if fault != kernel.FINE:
        raise DataError(_explain(data, fault, position, n_features, n_labels), path, block.line_at(position))
    return ParsedRows(
        feature_counts, indices[:stored], values[:stored], label_counts, labels[:tagged], None,
        feature_columns, label_columns, block.fraction_read,
    )  # fmt: skip


def _ends_empty(data: np.ndarray) -> bool:
    """Whether the block's last line is empty."""
    tail = data[-3:].tobytes()
    return (b"\n" + tail if len(tail) < 3 else tail).endswith((b"\n\n", b"\n\r\n"))


def _explain(data: np.ndarray, fault: int, position: int, n_features: int, n_labels: int) -> str:
    """The message for a fault code of the kernel at a byte."""
    from labelwise.kernels.formats import sparse_text as kernel

    token = token_at(data, position, b" \t\r\n")
    part = token_at(data, position, b" \t\r\n,:")
    says = "but the header says"
    sentences = {
        kernel.BAD_LABEL: f"{token} is not a list of labels: whole numbers from 0 up, separated by commas",
        kernel.BAD_FEATURE: f"{token} is not a feature; features are written column:value",
        kernel.BAD_VALUE: f"the value of {token} is not a finite decimal number that fits a float32",
        kernel.INDEX_TOO_LARGE: f"the number {part} is too large; at most {kernel.MAX_INDEX} is possible",
        kernel.FEATURE_OUT_OF_RANGE: f"feature {part}, {says} {n_features} features, numbered from 0; {IGNORE}",
        kernel.LABEL_OUT_OF_RANGE: f"label {part}, {says} {n_labels} labels, numbered from 0; {IGNORE}",
        kernel.SUM_TOO_LARGE: "the sum of the values of a duplicate column does not fit a float32",
    }
    return sentences[fault]


def write(dataset: Dataset, path: Path) -> None:
    """Write one file with a header; labels are written as their column numbers."""
    features = sparse_features(dataset, path, FORMAT.name)
    header = f"{len(dataset)} {features.shape[1]} {dataset.n_labels}\n".encode()
    write_lines(dataset, features, Strings.numbers(dataset.n_labels), path, header, bar=False)


def recognises(path: Path) -> bool:
    """Whether the file's first lines look like this format."""
    head = first_bytes(path).removeprefix(b"\xef\xbb\xbf")
    lines = head.split(b"\n")[:20]
    header = _HEADER.fullmatch(lines[0]) is not None
    body = lines[1:] if header else lines
    return all(map(_looks_right, body)) and (header or any(b":" in line for line in body))


def _looks_right(line: bytes) -> bool:
    """Whether the first words of a line are labels and features; the last word may be truncated."""
    words = line.split()
    tagged = bool(words) and not line.startswith((b" ", b"\t")) and b":" not in words[0]
    if tagged and not _LABELS.fullmatch(words[0]):
        return False
    return all(map(_FEATURE.fullmatch, words[tagged:10][: len(words) - tagged - 1]))


def parts(folder: Path) -> dict[str, Path]:
    """Files named train, test, ... (or ending in _train and so on) that look like this format."""
    return split_files(folder, recognises)


FORMAT = Format(
    name="xc",
    about="sparse features as text, the format of the extreme classification repository",
    recognises=recognises,
    read=read,
    write=write,
    parts=parts,
    extension=".txt",
    other_extensions=(".xc", ".svm"),
    read_mapped=read,
)
