"""TFRecord files of tf.train.Example, as MACH's own scripts write them; neither TensorFlow nor protobuf is needed.

- A record holds the features `labels` (int64), `label_vals` (float), `input_idxs` (int64) and `input_vals` (float), in
  any order, packed or not. Without `label_vals` every label counts 1. Other features are passed over, and told once.
- Labels are numbers from 0 up; a label that stands twice counts once, as it stands first; one whose value is 0 is none.
- Columns may stand in any order; values of a column that stands twice are added; zeros are not stored.
- There are as many labels and features as the highest one that is mentioned plus one, be it with a value of 0: that is
  how the first record is made to tell the counts when a file is written.
- The checksums of every length and every record are checked. The file may be packed as a whole (.gz, .xz, .bz2).
- A folder with `a_train.tfrecords` and `b_train.tfrecords` has both as its train part, in the order of their names.
"""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.formats.checks import refuse_empty
from labelwise.data.formats.sparse_rows import READ_BYTES, GatheredRows, ParsedRows, sparse_features, write_rows
from labelwise.data.formats.tfrecord_blocks import AGAIN, RecordBlock, record_blocks, where
from labelwise.data.options import ReadOptions
from labelwise.data.splits import files_in, plain_name, sharded_parts, sharded_split, split_of, stem_and_extension
from labelwise.data.stream import first_bytes
from labelwise.errors import DataError
from labelwise.parallel import run_stream

log = logging.getLogger(__name__)

NAME = "tfrecord"
EXTENSION = ".tfrecords"
EXTENSIONS = (EXTENSION, ".tfrecord")
KINDS = {1: "bytes", 2: "floats", 3: "whole numbers"}


def read(path: Path, options: ReadOptions, folder: Path | None = None) -> Dataset:
    """Read one file, or all files of a part; with a folder, rows are written to files in it and mapped."""
    rows, files = GatheredRows(True, folder), _files_of(path)
    other: str | None = None
    for number, file in enumerate(files):
        before = rows.documents
        with closing(record_blocks(file, READ_BYTES)) as blocks:
            for part, name in run_stream(partial(_parse, path=file), blocks):
                rows.add(part, (number + part.share) / len(files))
                other = other or name
        refuse_empty(rows.documents - before, file)  # each shard: a copy may have failed
    if other is not None:
        log.warning("%s: there are features that are not read, such as %r", path, other)
    return rows.dataset(path)


def _parse(block: RecordBlock, path: Path) -> tuple[ParsedRows, str | None]:
    """The rows of a block, and the name of a feature that is not read, if there is one."""
    from labelwise.kernels.formats import example_records as kernel

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
        place = where(block.first_line + row, block.first_byte + position)
        raise DataError(f"{place}: {_explain(fault, kernel.NAMES[name], detail)}", path)
    rows = ParsedRows(
        feature_counts, indices[:stored], values[:stored], label_counts, labels[:tagged], relevances[:tagged],
        n_features, n_labels, block.share,
    )  # fmt: skip
    return rows, None if other < 0 else _name_at(data, other)


def _name_at(data: np.ndarray, position: int) -> str:
    """The name at this byte; its length stands in the byte before, or is too long to be shown whole."""
    length = min(int(data[position - 1]), 60) if position else 0
    return data[position : position + length].tobytes().decode("utf-8", "replace")


def _explain(fault: int, name: str, detail: int) -> str:
    """A sentence for a fault of the kernel."""
    from labelwise.kernels.formats import example_records as kernel

    other = {"input_idxs": "input_vals", "labels": "label_vals"}.get(name, "")
    sizes = f"{detail >> 32:,} numbers and '{other}' {detail & 0xFFFFFFFF:,}"
    wanted = "floats" if name.endswith("vals") else "whole numbers (int64)"
    sentences = {
        kernel.BAD_CHECKSUM: f"the checksum (CRC-32C) is wrong, so the record is damaged; {AGAIN}",
        kernel.BAD_MESSAGE: "this is not a tf.train.Example: the message is broken, or of another kind",
        kernel.WRONG_TYPE: f"'{name}' holds {KINDS.get(detail, 'something else')}; it should hold {wanted}",
        kernel.NO_FEATURES: f"it has neither 'input_idxs' nor 'input_vals'; wanted are {', '.join(kernel.NAMES)}",
        kernel.BAD_INDEX: f"'{name}' holds {detail:,}; numbers from 0 to {kernel.MAX_INDEX:,} are possible",
        kernel.NOT_FINITE: f"'{name}' holds NaN or infinity; only finite numbers are accepted",
        kernel.SIZES_DIFFER: f"'{name}' has {sizes}; both need as many",
        kernel.SUM_TOO_LARGE: "the values of a column that stands twice add up to more than a float32 holds",
    }
    return sentences[fault]


def write(dataset: Dataset, path: Path) -> None:
    """Write one file; labels are written as their column numbers."""
    from labelwise.kernels.formats.example_writing import ENTRY_BYTES, RECORD_BYTES, format_examples

    features, labels = sparse_features(dataset, path, NAME), dataset.labels
    refuse_empty(len(dataset), path)
    last_feature, last_label = (
        matrix.shape[1] - 1 if matrix.indices.max(initial=-1) < matrix.shape[1] - 1 else -1
        for matrix in (features, labels)
    )
    most = RECORD_BYTES + ENTRY_BYTES * (np.diff(features.indptr).astype(np.int64) + np.diff(labels.indptr))

    def records(rows: tuple[int, int]) -> np.ndarray:
        out = np.empty(int(most[slice(*rows)].sum()), np.uint8)
        start = format_examples(
            *rows, features.indptr, features.indices, features.data, labels.indptr, labels.indices, labels.data,
            last_feature, last_label, out,
        )  # fmt: skip
        return out[start:]

    write_rows(records, most, path)


# --- which files --------------------------------------------------------------------------------------------


def recognises(path: Path) -> bool:
    """Whether the name says so, or the file begins with a length and its checksum."""
    if stem_and_extension(path)[1] in EXTENSIONS:
        return path.is_file()
    head = np.frombuffer(bytearray(first_bytes(path, 12)), np.uint8)
    if len(head) < 12 or head[4:8].any():  # text never begins with four NULs, so the kernel is seldom needed
        return False
    from labelwise.kernels.formats import example_records as kernel

    return kernel.complete_records(head, 12)[0] == kernel.FINE


def parts(folder: Path) -> dict[str, Path]:
    """Files whose names speak of a split, or have the extension; several of one split are one part."""
    chosen: dict[str, Path] = {}
    for path in files_in(folder):
        stem, extension = stem_and_extension(path)
        wanted = extension in EXTENSIONS or split_of(stem) is not None
        if wanted and plain_name(path) not in chosen and recognises(path):
            chosen[plain_name(path)] = path
    return sharded_parts({path: stem_and_extension(path)[0] for path in chosen.values()}, folder, EXTENSION)


def _files_of(path: Path) -> list[Path]:
    """The files of a part: itself, or all of a split for the name with stars that `parts` gives."""
    split = sharded_split(path, EXTENSION)
    if split is None:
        return [path]
    files = {
        plain_name(file): file
        for file in reversed(files_in(path.parent))  # of a plain and a packed one the plain one comes last, and stays
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
    read_mapped=read,
)
