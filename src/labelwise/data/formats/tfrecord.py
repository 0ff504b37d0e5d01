"""TFRecord files of tf.train.Example, as MACH's own scripts write them; neither TensorFlow nor protobuf is needed.

- A record holds the features `labels` (int64), `label_vals` (float), `input_idxs` (int64) and `input_vals` (float), in
  any order, packed or not. Without `label_vals` labels have relevance 1. Other features are ignored, with a warning.
- Labels are numbers from 0 up; of a duplicate label the first value counts; a label with the value 0 is ignored.
- Columns may be in any order; values of duplicate columns are added; zeros are not stored.
- The numbers of labels and features are the highest ones that occur plus one, even with a value of 0: when a file is
  written, the first record contains the highest ones for this purpose.
- The checksums of every length and every record are checked. The file may be compressed as a whole (.gz, .xz, .bz2).
- A folder with `a_train.tfrecords` and `b_train.tfrecords` has both as its train part, in the order of their names.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from labelwise.data.csr import read_only_arrays
from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.formats.sparse_text import (
    READ_BYTES,
    ParsedRows,
    SparseDatasetBuilder,
    sparse_features,
    write_rows,
)
from labelwise.data.options import (
    ReadOptions,
    files_in,
    plain_name,
    sharded_parts,
    sharded_split,
    split_of,
    stem_and_extension,
)
from labelwise.data.stream import (
    FIRST_BLOCK_BYTES,
    ByteBlock,
    InputStream,
    blocks_ahead,
    fill,
    first_bytes,
)
from labelwise.data.tables import refuse_empty
from labelwise.errors import DataError
from labelwise.runtime.threads import run_stream

# --- tfrecord blocks ---
# Streams TFRecord files as blocks of whole records that a thread reads ahead.
#
# The checksums of lengths are checked here, because blocks are cut by lengths.

COPY_AGAIN = "copy or write the file again"


@dataclass(frozen=True, eq=False)
class RecordBlock(ByteBlock):
    """Whole records: their bytes, the first one's number (`first_line`), the count (`lines`), and the offset."""

    first_byte: int = 0
    fault: str | None = None
    """The fault of the next record, in a last block without records, so that faults are reported in file order."""


def record_blocks(path: str | Path, block_bytes: int) -> Generator[RecordBlock, None, None]:
    """The file's records in blocks of about `block_bytes`; a longer record gets a longer block."""
    return blocks_ahead(path, block_bytes, _cut_records)


def _cut_records(stream: InputStream, block_bytes: int) -> Iterator[RecordBlock]:
    """Blocks that end at a record's end; an incomplete record at the end of a buffer is carried over to the next."""
    from labelwise.kernels import tfrecord as kernel

    carried = bytearray()
    number, offset = 1, 0
    size = min(block_bytes, FIRST_BLOCK_BYTES)
    ended = False
    while not ended:
        buffer = bytearray(max(size, 2 * len(carried)))
        buffer[: len(carried)] = carried
        size = block_bytes
        filled, ended = fill(stream, buffer, len(carried))
        data = np.frombuffer(buffer, np.uint8)
        fault, end, count = kernel.complete_records(data, filled)
        if count:
            yield RecordBlock(data[:end], number, count, first_byte=offset)
        number, offset = number + count, offset + end
        if fault != kernel.FINE:
            yield _faulty(number, offset, _tfrecord_blocks_explain(data, fault, end, number))
            return
        carried = buffer[end:filled]
    if carried:
        yield _faulty(number, offset, _explain_truncation(carried))


def _faulty(number: int, offset: int, what: str) -> RecordBlock:
    return RecordBlock(
        np.empty(0, np.uint8), number, 0, first_byte=offset, fault=f"{record_location(number, offset)}: {what}"
    )


def record_location(number: int, offset: int) -> str:
    """The location of a record, for messages."""
    return f"record {number:,} at byte {offset:,}"


def _tfrecord_blocks_explain(data: np.ndarray, fault: int, position: int, number: int) -> str:
    from labelwise.kernels import tfrecord as kernel

    if fault == kernel.TOO_LONG:
        length = int.from_bytes(data[position : position + 8].tobytes(), "little")
        return f"its length is {length:,} bytes; at most {kernel.MAX_RECORD_BYTES:,} are accepted"
    if number == 1:
        return f"the checksum of its length is wrong: this is not a TFRecord file, or it is damaged; {COPY_AGAIN}"
    return f"the checksum of its length is wrong: the file is damaged here or before; {COPY_AGAIN}"


def _explain_truncation(rest: bytearray) -> str:
    if len(rest) < 12:
        return f"the file is truncated: {len(rest)} bytes are left, but a record has a header of 12; {COPY_AGAIN}"
    needed = int.from_bytes(rest[:8], "little") + 16
    return f"the file is truncated: the record takes {needed:,} bytes and {len(rest):,} are left; {COPY_AGAIN}"


log = logging.getLogger(__name__)

NAME = "tfrecord"
EXTENSION = ".tfrecords"
EXTENSIONS = (EXTENSION, ".tfrecord")
TYPE_NAMES = {1: "bytes", 2: "floats", 3: "whole numbers"}


def read(path: Path, options: ReadOptions, folder: Path | None = None) -> Dataset:
    """Read one file, or all files of a part; with a folder, rows are written to files in it and mapped."""
    builder, files = SparseDatasetBuilder(True, folder), _files_of(path)
    ignored: str | None = None
    for number, file in enumerate(files):
        before = builder.documents
        with closing(record_blocks(file, READ_BYTES)) as blocks:
            for part, name in run_stream(partial(_parse, path=file), blocks):
                builder.add(part, (number + part.fraction_read) / len(files))
                ignored = ignored or name
        refuse_empty(builder.documents - before, file)  # an empty shard may be a failed copy
    if ignored is not None:
        log.warning("%s: there are features that are not read, such as %r", path, ignored)
    return builder.dataset(path)


def _parse(block: RecordBlock, path: Path) -> tuple[ParsedRows, str | None]:
    """The rows of a block, and the name of a feature that is not read, if there is one."""
    from labelwise.kernels import tfrecord as kernel

    if block.fault is not None:
        raise DataError(block.fault, path)
    data, records = block.data, block.lines
    feature_counts, label_counts = np.empty(records, np.int32), np.empty(records, np.int32)
    indices, labels = np.empty(len(data), np.int32), np.empty(len(data), np.int32)  # untouched memory costs nothing
    values, relevances = np.empty(len(data), np.float32), np.empty(len(data), np.float32)
    fault, row, position, name, detail, stored, tagged, n_features, n_labels, other = kernel.parse_examples(
        data, feature_counts, label_counts, indices, values, labels, relevances
    )
    if fault != kernel.FINE:
        location = record_location(block.first_line + row, block.first_byte + position)
        raise DataError(f"{location}: {_explain(fault, kernel.NAMES[name], detail)}", path)
    rows = ParsedRows(
        feature_counts, indices[:stored], values[:stored], label_counts, labels[:tagged], relevances[:tagged],
        n_features, n_labels, block.fraction_read,
    )  # fmt: skip
    return rows, None if other < 0 else _name_at(data, other)


def _name_at(data: np.ndarray, position: int) -> str:
    """The name at this byte; its length is in the byte before, or it is too long to be shown in full."""
    length = min(int(data[position - 1]), 60) if position else 0
    return data[position : position + length].tobytes().decode("utf-8", "replace")


def _explain(fault: int, name: str, detail: int) -> str:
    """The message for a fault code of the kernel."""
    from labelwise.kernels import tfrecord as kernel

    other = {"input_idxs": "input_vals", "labels": "label_vals"}.get(name, "")
    sizes = f"{detail >> 32:,} numbers and '{other}' {detail & 0xFFFFFFFF:,}"
    expected = "floats" if name.endswith("vals") else "whole numbers (int64)"
    sentences = {
        kernel.BAD_CHECKSUM: f"the checksum (CRC-32C) is wrong, so the record is damaged; {COPY_AGAIN}",
        kernel.BAD_MESSAGE: "this is not a tf.train.Example: the message is invalid, or of another type",
        kernel.WRONG_TYPE: f"'{name}' contains {TYPE_NAMES.get(detail, 'something else')}; it needs {expected}",
        kernel.NO_FEATURES: f"it has neither 'input_idxs' nor 'input_vals'; expected {', '.join(kernel.NAMES)}",
        kernel.BAD_INDEX: f"'{name}' contains {detail:,}; numbers from 0 to {kernel.MAX_INDEX:,} are accepted",
        kernel.NOT_FINITE: f"'{name}' contains NaN or infinity; only finite numbers are accepted",
        kernel.SIZES_DIFFER: f"'{name}' has {sizes}; both need the same number",
        kernel.SUM_TOO_LARGE: "the sum of the values of a duplicate column does not fit a float32",
    }
    return sentences[fault]


def write(dataset: Dataset, path: Path) -> None:
    """Write one file; labels are written as their column numbers."""
    from labelwise.kernels.tfrecord import ENTRY_BYTES, RECORD_BYTES, format_examples

    features, labels = sparse_features(dataset, path, NAME), dataset.labels
    refuse_empty(len(dataset), path)
    last_feature, last_label = (
        matrix.shape[1] - 1 if matrix.indices.max(initial=-1) < matrix.shape[1] - 1 else -1
        for matrix in (features, labels)
    )
    arrays = *read_only_arrays(features), *read_only_arrays(labels)
    max_bytes = RECORD_BYTES + ENTRY_BYTES * (np.diff(features.indptr).astype(np.int64) + np.diff(labels.indptr))

    def records(rows: tuple[int, int]) -> np.ndarray:
        out = np.empty(int(max_bytes[slice(*rows)].sum()), np.uint8)
        start = format_examples(*rows, *arrays, last_feature, last_label, out)
        return out[start:]

    write_rows(records, max_bytes, path)


# --- finding files ------------------------------------------------------------------------------------------


def recognises(path: Path) -> bool:
    """Whether the name has the extension, or the file begins with a length and its checksum."""
    if stem_and_extension(path)[1] in EXTENSIONS:
        return path.is_file()
    head = np.frombuffer(bytearray(first_bytes(path, 12)), np.uint8)
    if len(head) < 12 or head[4:8].any():  # text never begins with four NULs, so the kernel is seldom needed
        return False
    from labelwise.kernels import tfrecord as kernel

    return kernel.complete_records(head, 12)[0] == kernel.FINE


def parts(folder: Path) -> dict[str, Path]:
    """Files whose names contain a split or have the extension; several of one split are one part."""
    chosen: dict[str, Path] = {}
    for path in files_in(folder):
        stem, extension = stem_and_extension(path)
        relevant = extension in EXTENSIONS or split_of(stem) is not None
        if relevant and plain_name(path) not in chosen and recognises(path):
            chosen[plain_name(path)] = path
    return sharded_parts({path: stem_and_extension(path)[0] for path in chosen.values()}, folder, EXTENSION)


def _files_of(path: Path) -> list[Path]:
    """The files of a part: itself, or all files of a split for a pattern returned by `parts`."""
    split = sharded_split(path, EXTENSION)
    if split is None:
        return [path]
    files = {
        plain_name(file): file
        for file in reversed(files_in(path.parent))  # reversed: a plain file replaces a compressed one
        if split_of(stem_and_extension(file)[0]) == split and recognises(file)
    }
    return [files[name] for name in sorted(files)]


FORMAT = Format(
    name=NAME,
    about="TFRecord files of tf.train.Example, as MACH's scripts write them",
    recognises=recognises,
    read=read,
    write=write,
    parts=parts,
    extension=EXTENSION,
    other_extensions=(".tfrecord",),
    read_mapped=read,
)
