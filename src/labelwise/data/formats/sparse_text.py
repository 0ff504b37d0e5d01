"""Shared by the sparse formats: collecting parsed rows, limits, messages, and writing rows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.csr import Blocks, csr_builder, read_only, read_only_arrays
from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.options import ReadOptions, how_to_set, split_files
from labelwise.data.stream import (
    NEWLINE,
    ByteBlock,
    first_bytes,
    line_blocks,
    write_stream,
)
from labelwise.data.tables import NO_DOCUMENTS, refuse_empty
from labelwise.errors import DataError
from labelwise.runtime.progress import progress
from labelwise.runtime.threads import run_stream
from labelwise.strings import Strings

READ_BYTES = 1 << 20
"""Smaller blocks than elsewhere: they stay in the processor's cache, and their memory is reused."""
WRITE_BYTES = 4 << 20
MAX_LABELS = 1 << 27
"""Each label has a name in memory, so a stray number of ten digits must not allocate gigabytes of names."""


@dataclass(frozen=True, eq=False)
class ParsedRows:
    """The rows of one block, and the numbers of columns they need."""

    feature_counts: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    label_counts: np.ndarray
    labels: np.ndarray
    relevances: np.ndarray | None
    n_features: int
    n_labels: int
    fraction_read: float
    """Fraction of the file read up to the end of this block."""


class SparseDatasetBuilder:
    """Builds a data set of features and numbered labels block by block, in memory or in files of a folder."""

    def __init__(self, rated: bool, folder: Path | None) -> None:
        self.features, self.labels = csr_builder(True, folder), csr_builder(rated, folder)
        self.documents = self.n_features = self.n_labels = 0

    def add(self, part: ParsedRows, fraction_read: float) -> None:
        """Add the rows of one block; `fraction_read` of all files has been read with it."""
        self.features.add(part.feature_counts, part.indices, part.values, fraction_read)
        self.labels.add(part.label_counts, part.labels, part.relevances, fraction_read)
        self.documents += len(part.label_counts)
        self.n_features = max(self.n_features, part.n_features)
        self.n_labels = max(self.n_labels, part.n_labels)

    def drop_last(self) -> None:
        """Remove the last row, which must be empty."""
        self.documents -= 1
        self.features.drop_last()
        self.labels.drop_last()

    def dataset(self, path: Path) -> Dataset:
        """The data set of all rows; labels are named by their numbers."""
        if self.n_labels > MAX_LABELS:
            what = f"label {self.n_labels - 1:,} is too large; at most {MAX_LABELS:,} labels are possible"
            raise DataError(what, path)
        labels, features = self.labels.matrix(self.n_labels), self.features.matrix(self.n_features)
        return Dataset(labels, features=features, name=str(path))


def token_at(data: np.ndarray, position: int, separators: bytes) -> str:
    """The token that begins at this byte, for messages."""
    head = data[position : position + 200].tobytes()
    end = next((index for index, byte in enumerate(head) if byte in separators), len(head))
    text = head[:end].decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:40] + "...")


def sparse_features(dataset: Dataset, path: Path, format_name: str) -> sparse.csr_array:
    """The features to write; DataError if there are none."""
    if dataset.features is None:
        if len(dataset) == 0:
            return sparse.csr_array((0, 0), dtype=np.float32)
        raise DataError(
            f"the format {format_name} needs features, which {dataset.name} does not have; "
            "labelwise.features.tfidf.Tfidf computes them from texts",
            path,
        )
    features = dataset.features
    return features.to_csr() if isinstance(features, Blocks) else sparse.csr_array(features)


def write_lines(
    dataset: Dataset, features: sparse.csr_array, names: Strings, path: Path, header: bytes, bar: bool
) -> None:
    """Write one line per document, formatted on all threads and written in order."""
    from labelwise.kernels.sparse_text import MAX_ENTRY_BYTES, format_lines

    labels = dataset.labels
    names = names.compact()
    name_bytes = (names.ends - names.starts)[labels.indices]
    label_bytes = np.concatenate([[0], np.cumsum(name_bytes + 1)])[labels.indptr]
    max_bytes = np.diff(label_bytes) + 3 + MAX_ENTRY_BYTES * np.diff(features.indptr).astype(np.int64)

    arrays = (
        *read_only_arrays(features), *read_only_arrays(labels)[:2],
        read_only(names.buffer), read_only(names.starts), read_only(names.ends),
    )  # fmt: skip

    def lines(rows: tuple[int, int]) -> np.ndarray:
        begin, end = rows
        out = np.empty(int(max_bytes[begin:end].sum()), np.uint8)
        length = format_lines(begin, end, *arrays, bar, out)
        return out[:length]

    write_rows(lines, max_bytes, path, header)


def write_rows(
    format_range: Callable[[tuple[int, int]], np.ndarray], max_bytes: np.ndarray, path: Path, header: bytes = b""
) -> None:
    """Format ranges of rows on all threads and write them in order; `max_bytes` bounds the bytes per row."""
    ranges = _ranges(max_bytes)
    with write_stream(path) as file, progress(f"writing {path.name}", len(max_bytes)) as step:
        file.write(header)
        for (begin, end), text in zip(ranges, run_stream(format_range, ranges), strict=True):
            file.write(text.data)
            step(end - begin)


def _ranges(max_bytes: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of rows of about `WRITE_BYTES` each."""
    ends = np.cumsum(max_bytes)
    edges = [0]
    while edges[-1] < len(max_bytes):
        done = ends[edges[-1] - 1] if edges[-1] else 0
        edges.append(max(edges[-1] + 1, int(np.searchsorted(ends, done + WRITE_BYTES, "right"))))
    return list(itertools.pairwise(edges))


# --- xc ---
# Sparse text of the extreme classification repository: `N D L`, then one `label,label column:value ...` per line.
#
# - The first line holds the numbers of documents, features and labels; without it they are taken from the
#   content. A header that the content contradicts is an error, unless the option `header` is
#   `ignore`.
# - A line that begins with a blank, or whose first word contains a colon, has no labels. An empty line is a
#   document with neither labels nor features; only a last empty line that the header does not count is ignored.
# - Labels are whole numbers from 0 up; duplicate labels in a line count once.
# - Columns may be in any order; values of duplicate columns are added; zeros are not stored.
# - Values are decimal numbers; nan, inf and what float32 cannot hold are errors. Indices go up to 2^31 - 2.
# - Lines may end in CR LF. The file may be compressed (.gz, .xz, .bz2).
#
# Labels are named by their numbers. The format cannot store label names, relevances or texts.

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
    from labelwise.kernels import sparse_text as kernel

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
    from labelwise.kernels import sparse_text as kernel

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
