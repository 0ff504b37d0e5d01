"""Data sets larger than memory: scratch folders, and selecting, splitting and merging rows without loading them.

Rows are copied in chunks, so that memory holds the offsets of rows and little else.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.csr import (
    ArrayOnDisk,
    Blocks,
    MappedCsrBuilder,
    csr_builder,
    csr_of,
    narrow_offsets,
    pick_rows,
    row_indices,
)
from labelwise.data.dataset import RANDOM, Dataset, row_pieces
from labelwise.errors import DataError
from labelwise.io.atomic import SOURCE, hidden_folder
from labelwise.io.tensors import release_pages
from labelwise.strings import Strings

CHUNK_ENTRIES = 1 << 20
"""Entries copied at a time: 8 MB."""
CHUNK_BYTES = 16 << 20
"""Bytes of texts copied at a time."""


# --- scratch folders ------------------------------------------------------------------------------------------------


@contextmanager
def scratch_beside(output: Path) -> Iterator[Path]:
    """Create a hidden folder on the disk of the output, which needs the space anyway; it is removed at the end."""
    above = next(folder for folder in output.absolute().parents if folder.is_dir())
    try:
        with hidden_folder(above) as hidden:
            yield hidden
    except OSError as error:
        raise DataError(f"cannot be written to: {error.strerror or error}", above) from error


@contextmanager
def scratch_at(folder: Path, enabled: bool) -> Iterator[Path | None]:
    """Create this folder and remove it at the end; yields None if not enabled. Leftovers of killed runs are removed."""
    shutil.rmtree(folder, ignore_errors=True)
    if not enabled:
        yield None
        return
    try:
        folder.mkdir()
    except OSError as error:
        raise DataError(f"the folder cannot be created: {error.strerror or error}", folder) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- selecting rows -------------------------------------------------------------------------------------------------


def take_mapped(data: Dataset, rows: Any, folder: Path) -> Dataset:
    """`Dataset.take` without loading rows: a range is a view, other rows are copied to files in the folder."""
    if isinstance(rows, slice) and rows.step in (None, 1):
        chosen = range(len(data))[rows]
        select = partial(range_of_rows, first=chosen.start, last=max(chosen.start, chosen.stop))
    else:
        select = partial(_copy_rows, indices=row_indices(rows, len(data)), folder=folder)
    others = {part: getattr(data, part) for part in ("texts", "paths", "arrays", "ids")}
    picked = {part: value[rows] for part, value in others.items() if value is not None}
    return replace(data, labels=select(data.labels), features=select(data.features), **picked)


def split_mapped(data: Dataset, fraction: float, seed: int, folder: Path, by: str = RANDOM) -> tuple[Dataset, Dataset]:
    """`Dataset.split`, with both parts in files of the folder."""
    chosen = data.split_mask(fraction, seed, by)
    return take_mapped(data, ~chosen, folder), take_mapped(data, chosen, folder)


def range_of_rows(matrix: Any, first: int, last: int) -> Any:
    """Consecutive rows of a matrix of any type, as a view."""
    if matrix is None or isinstance(matrix, np.ndarray):
        return None if matrix is None else matrix[first:last]
    if isinstance(matrix, Blocks):
        return Blocks(range_of_rows(matrix.sparse, first, last), range_of_rows(matrix.dense, first, last))
    begin, end = int(matrix.indptr[first]), int(matrix.indptr[last])
    offsets = narrow_offsets(matrix.indptr[first : last + 1] - begin)
    return csr_of(matrix.data[begin:end], matrix.indices[begin:end], offsets, (last - first, matrix.shape[1]))


def _copy_rows(matrix: Any, indices: np.ndarray, folder: Path) -> Any:
    if matrix is None:
        return None
    if isinstance(matrix, Blocks):
        return Blocks(_copy_rows(matrix.sparse, indices, folder), _copy_rows(matrix.dense, indices, folder))
    if isinstance(matrix, np.ndarray):
        n_rows = max(1, CHUNK_ENTRIES // max(1, matrix.shape[1]))
        pieces = (matrix[indices[begin : begin + n_rows]] for begin in range(0, len(indices), n_rows))
        return _dense_on_disk(pieces, (len(indices), matrix.shape[1]), folder)
    builder = MappedCsrBuilder(True, folder)
    ends = np.concatenate([[0], np.cumsum(np.diff(matrix.indptr)[indices], dtype=np.int64)])
    for first, last in row_pieces(ends, CHUNK_ENTRIES):
        part = pick_rows(matrix, indices[first:last])
        builder.add(np.diff(part.indptr), part.indices, part.data, 1.0)
        release_pages(matrix.indices)
        release_pages(matrix.data)
    return builder.matrix(matrix.shape[1])


def _dense_on_disk(pieces: Any, shape: tuple[int, int], folder: Path) -> np.ndarray:
    array = ArrayOnDisk(np.float32, folder)
    for piece in pieces:
        array.add(piece)
    return array.map().reshape(shape)


# --- merging data sets ----------------------------------------------------------------------------------------------


def merge_shards(
    shards: Sequence[Dataset], name: str, folder: Path | None, relation: str = "are shards of one part"
) -> Dataset:
    """Concatenate data sets with the same labels and features; in files if a folder is given.

    `relation` is for messages: why they must agree.
    """
    first = shards[0]
    for other in shards[1:]:
        _check_compatible(first, other, relation)
    texts = {part: [getattr(shard, part) for shard in shards] for part in ("texts", "paths", "ids")}
    merged: dict[str, Any] = {
        part: concatenate_texts(strings, folder) for part, strings in texts.items() if strings[0] is not None
    }
    return Dataset(
        _stack([shard.labels for shard in shards], folder),
        first.label_names,
        features=_stack([shard.features for shard in shards], folder),
        arrays=None if first.arrays is None else np.concatenate([shard.arrays for shard in shards]),  # type: ignore
        label_texts=next((shard.label_texts for shard in shards if shard.label_texts is not None), None),
        **merged,
        name=name,
    )


def _check_compatible(first: Dataset, other: Dataset, relation: str) -> None:
    both = f"{first.name} and {other.name} {relation}, but"
    if len(first.label_names) != len(other.label_names):
        raise DataError(
            f"{both} the first has {first.n_labels:,} labels and the second {other.n_labels:,}; all shards "
            "need the same label names in the same order"
        )
    if first.label_names != other.label_names:
        pairs = enumerate(zip(first.label_names, other.label_names, strict=True))
        index, (mine, theirs) = next((index, pair) for index, pair in pairs if pair[0] != pair[1])
        raise DataError(
            f"{both} label {index} is {mine!r} in the first and {theirs!r} in the second; all shards need the "
            "same label names in the same order"
        )
    for part in ("texts", "features", "paths", "arrays", "ids"):
        mine, theirs = getattr(first, part), getattr(other, part)
        if (mine is None) != (theirs is None):
            raise DataError(f"{both} only one of them has {part}; all need the same")
    if first.arrays is not None and other.arrays is not None and first.arrays.shape[1:] != other.arrays.shape[1:]:
        shapes = f"{first.arrays.shape[1:]} in the first and {other.arrays.shape[1:]} in the second"
        raise DataError(f"{both} the arrays of a document have the shape {shapes}; all need the same")
    if first.features is None or other.features is None:
        return
    if type(first.features) is not type(other.features):
        raise DataError(f"{both} only one of them has dense features; all need the same")
    if first.features.shape[1] != other.features.shape[1]:
        raise DataError(
            f"{both} the first has {first.features.shape[1]:,} features and the second {other.features.shape[1]:,}; "
            "all shards need the same number"
        )


def _stack(matrices: Sequence[Any], folder: Path | None) -> Any:
    """Stack matrices with the same number of columns vertically."""
    if matrices[0] is None:
        return None
    if isinstance(matrices[0], Blocks):
        return Blocks(
            _stack([matrix.sparse for matrix in matrices], folder),
            _stack([matrix.dense for matrix in matrices], folder),
        )
    count, width = sum(matrix.shape[0] for matrix in matrices), matrices[0].shape[1]
    if isinstance(matrices[0], np.ndarray):
        return np.concatenate(matrices) if folder is None else _dense_on_disk(matrices, (count, width), folder)
    builder = csr_builder(True, folder)
    total = sum(len(matrix.indices) for matrix in matrices)
    for matrix in matrices:
        for first, last in row_pieces(matrix.indptr, CHUNK_ENTRIES):
            begin, end = int(matrix.indptr[first]), int(matrix.indptr[last])
            counts = np.diff(matrix.indptr[first : last + 1]).astype(np.int32)
            fraction = (builder.size + end - begin) / max(total, 1)
            builder.add(counts, matrix.indices[begin:end], matrix.data[begin:end], fraction)
            release_pages(matrix.indices)
            release_pages(matrix.data)
    return builder.matrix(width)


def concatenate_texts(parts: Sequence[Strings], folder: Path | None) -> Strings:
    """The texts of all, in a file of the folder if one is given."""
    if all(part.buffer is parts[0].buffer for part in parts):  # rows selected from one data set: no text is copied
        starts, ends = (np.concatenate([getattr(part, end) for part in parts]) for end in ("starts", "ends"))
        return Strings(parts[0].buffer, starts, ends)
    if folder is not None:
        return _copied_to_disk(parts, folder)
    packed = [part.compact() for part in parts]
    ends = np.cumsum(np.concatenate([part.ends - part.starts for part in packed]), dtype=np.int64)
    return Strings.packed(np.concatenate([part.buffer for part in packed]), ends)


def packed_on_disk(texts: Strings, folder: Path) -> Strings:
    """The same texts one after the other in their buffer; copied to a file in the folder if they are not."""
    if np.array_equal(texts.starts[1:], texts.ends[:-1]):
        return texts
    return _copied_to_disk([texts], folder)


def _copied_to_disk(parts: Sequence[Strings], folder: Path) -> Strings:
    ends = np.cumsum(np.concatenate([part.ends - part.starts for part in parts]), dtype=np.int64)
    buffer = ArrayOnDisk(np.uint8, folder)
    for part in parts:
        for some in text_groups(part, CHUNK_BYTES):
            buffer.add(some.compact().buffer)
    return Strings.packed(buffer.map(), ends)


def text_groups(texts: Strings, size: int) -> Iterator[Strings]:
    """Consecutive texts of about `size` bytes together, at least one; mapped pages are released after use."""
    sizes = np.cumsum(texts.ends - texts.starts)
    first = 0
    while first < len(texts):
        before = int(sizes[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(sizes, before + size, "right")))
        yield texts[first:last]
        release_pages(texts.buffer)
        first = last


# --- shard count ---
# Shards that `labelwise data shard` has written and that are no longer there: documents would be missing unnoticed.

SHARDS_OF, SHARDS = "shards_of", "shards"
"""Keys of source.json: what was sharded, and the number of shards of each part."""
MOST_SHARDS = 99_999
"""Of a part: their numbers have five digits."""


def shard_name(part: str, number: int) -> str:
    """The folder of a shard."""
    return f"{part}-{number:05d}"


def check_shards(folder: Path) -> None:
    """Raise DataError if one of the shards that source.json counts is missing.

    Folders of earlier versions have no counts: there the numbers of a part have to be those from 0 on.
    """
    try:
        about = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # no folder of ours
    if not isinstance(about, dict) or SHARDS_OF not in about:
        return
    counts = about.get(SHARDS)
    counted = _valid_counts(counts)
    if counted is None:
        if counts is not None:
            raise DataError(f"{SHARDS}: the number of shards of each part is needed, got {counts!r}", folder / SOURCE)
        counted = _highest_numbers(folder)
    for part, count in counted.items():
        missing = [
            shard_name(part, number) for number in range(count) if not (folder / shard_name(part, number)).is_dir()
        ]
        if missing:
            others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            raise DataError(
                f"this shard{others} of the {count} of {part} is missing; copy it again, or write all of them with "
                "labelwise data shard. A folder with some of them on purpose: read them by a pattern",
                folder / missing[0],
            )


def _valid_counts(counts: object) -> dict[str, int] | None:
    if not isinstance(counts, dict) or not all(
        type(count) is int and 0 <= count <= MOST_SHARDS for count in counts.values()
    ):
        return None
    return counts


def _highest_numbers(folder: Path) -> dict[str, int]:
    highest: dict[str, int] = {}
    for path in folder.iterdir():
        if (found := re.fullmatch(r"(\w+)-(\d{5})", path.name)) and path.is_dir():
            highest[found[1]] = max(highest.get(found[1], 0), int(found[2]) + 1)
    return highest
