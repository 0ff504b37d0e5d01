"""Data sets larger than memory: folders for their rows, and taking, splitting and merging them without loading them.

Rows are copied some at a time, so that memory holds the offsets of rows and little else.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.blocks import Blocks
from labelwise.data.csr import ArrayOnDisk, RowsOnDisk, csr_of, narrow_offsets, new_rows, pick_rows, row_numbers
from labelwise.data.dataset import Dataset, row_pieces
from labelwise.errors import DataError
from labelwise.mapped import in_pieces, release_pages
from labelwise.strings import Strings

AT_ONCE = 1 << 20
"""Numbers that are on their way at a time: 8 MB of entries."""


# --- folders for rows -----------------------------------------------------------------------------------------------


@contextmanager
def scratch_beside(output: Path) -> Iterator[Path]:
    """A hidden folder on the disk of the output, as that must have room anyway."""
    above = next(folder for folder in output.absolute().parents if folder.is_dir())
    hidden = None
    try:
        hidden = Path(tempfile.mkdtemp(prefix=".labelwise-", dir=above))
        yield hidden
    except OSError as error:
        raise DataError(f"cannot be written to: {error.strerror or error}", above) from error
    finally:
        if hidden is not None:
            shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def scratch_at(place: Path, wanted: bool) -> Iterator[Path | None]:
    """This very folder, empty, or None if none is wanted; what a killed process left there is removed either way."""
    shutil.rmtree(place, ignore_errors=True)
    if not wanted:
        yield None
        return
    try:
        place.mkdir()
    except OSError as error:
        raise DataError(f"the folder cannot be made: {error.strerror or error}", place) from error
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


# --- some documents -------------------------------------------------------------------------------------------------


def take_mapped(data: Dataset, rows: Any, folder: Path) -> Dataset:
    """`Dataset.take` without rows in memory: the first ones stay where they are, others are copied into the folder."""
    if isinstance(rows, slice) and rows.start in (None, 0) and rows.step in (None, 1):
        place = partial(_first_rows, count=len(range(len(data))[rows]))
    else:
        place = partial(_copied, numbers=row_numbers(rows, len(data)), folder=folder)
    others = {part: getattr(data, part) for part in ("texts", "paths", "arrays", "ids")}
    picked = {part: value[rows] for part, value in others.items() if value is not None}
    return replace(data, labels=place(data.labels), features=place(data.features), **picked)


def split_mapped(data: Dataset, fraction: float, seed: int, folder: Path) -> tuple[Dataset, Dataset]:
    """`Dataset.split`, with both parts in files of the folder."""
    chosen = data.drawn(fraction, seed)
    return take_mapped(data, ~chosen, folder), take_mapped(data, chosen, folder)


def _first_rows(matrix: Any, count: int) -> Any:
    if matrix is None or isinstance(matrix, np.ndarray):
        return None if matrix is None else matrix[:count]
    if isinstance(matrix, Blocks):
        return Blocks(_first_rows(matrix.sparse, count), _first_rows(matrix.dense, count))
    end = int(matrix.indptr[count])
    offsets = narrow_offsets(matrix.indptr[: count + 1])
    return csr_of(matrix.data[:end], matrix.indices[:end], offsets, (count, matrix.shape[1]))


def _copied(matrix: Any, numbers: np.ndarray, folder: Path) -> Any:
    if matrix is None:
        return None
    if isinstance(matrix, Blocks):
        return Blocks(_copied(matrix.sparse, numbers, folder), _copied(matrix.dense, numbers, folder))
    if isinstance(matrix, np.ndarray):
        at_once = max(1, AT_ONCE // max(1, matrix.shape[1]))
        pieces = (matrix[numbers[begin : begin + at_once]] for begin in range(0, len(numbers), at_once))
        return _dense_on_disk(pieces, (len(numbers), matrix.shape[1]), folder)
    rows = RowsOnDisk(True, folder)
    ends = np.concatenate([[0], np.cumsum(np.diff(matrix.indptr)[numbers], dtype=np.int64)])
    for first, last in row_pieces(ends, AT_ONCE):
        part = pick_rows(matrix, numbers[first:last])
        rows.add(np.diff(part.indptr), part.indices, part.data, 1.0)
        release_pages(matrix.indices)
        release_pages(matrix.data)
    return rows.matrix(matrix.shape[1])


def _dense_on_disk(pieces: Any, shape: tuple[int, int], folder: Path) -> np.ndarray:
    array = ArrayOnDisk(np.float32, folder)
    for piece in pieces:
        array.add(piece)
    return array.mapped().reshape(shape)


# --- several data sets ----------------------------------------------------------------------------------------------


def merged(shards: Sequence[Dataset], name: str, folder: Path | None) -> Dataset:
    """Data sets of the same labels and features one after the other; in files if there is a folder for them."""
    first = shards[0]
    for other in shards[1:]:
        _check_alike(first, other)
    texts = {part: [getattr(shard, part) for shard in shards] for part in ("texts", "paths", "ids")}
    found: dict[str, Any] = {part: _texts(strings, folder) for part, strings in texts.items() if strings[0] is not None}
    return Dataset(
        _stacked([shard.labels for shard in shards], folder),
        first.label_names,
        features=_stacked([shard.features for shard in shards], folder),
        label_texts=next((shard.label_texts for shard in shards if shard.label_texts is not None), None),
        **found,
        name=name,
    )


def _check_alike(first: Dataset, other: Dataset) -> None:
    both = f"{first.name} and {other.name} are shards of one part, but"
    if len(first.label_names) != len(other.label_names):
        raise DataError(
            f"{both} the one has {first.n_labels:,} labels and the other {other.n_labels:,}; all shards need the same "
            "label names in the same order"
        )
    if first.label_names != other.label_names:
        pairs = enumerate(zip(first.label_names, other.label_names, strict=True))
        place, (mine, theirs) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
        raise DataError(
            f"{both} label {place} is {mine!r} in the one and {theirs!r} in the other; all shards need the same label "
            "names in the same order"
        )
    for part in ("texts", "features", "paths", "ids"):
        mine, theirs = getattr(first, part), getattr(other, part)
        if (mine is None) != (theirs is None):
            raise DataError(f"{both} only one of them has {part}; all need the same")
    if first.features is None or other.features is None:
        return
    if isinstance(first.features, np.ndarray) != isinstance(other.features, np.ndarray):
        raise DataError(f"{both} only one of them has dense features; all need the same")
    if first.features.shape[1] != other.features.shape[1]:
        raise DataError(
            f"{both} the one has {first.features.shape[1]:,} features and the other {other.features.shape[1]:,}; all "
            "shards need the same number"
        )


def _stacked(matrices: Sequence[Any], folder: Path | None) -> Any:
    """Matrices of one width below each other."""
    if matrices[0] is None:
        return None
    count, width = sum(matrix.shape[0] for matrix in matrices), matrices[0].shape[1]
    if isinstance(matrices[0], np.ndarray):
        return np.concatenate(matrices) if folder is None else _dense_on_disk(matrices, (count, width), folder)
    rows = new_rows(True, folder)
    total = sum(len(matrix.indices) for matrix in matrices)
    for matrix in matrices:
        for first, last in row_pieces(matrix.indptr, AT_ONCE):
            begin, end = int(matrix.indptr[first]), int(matrix.indptr[last])
            counts = np.diff(matrix.indptr[first : last + 1]).astype(np.int32)
            share = (rows.size + end - begin) / max(total, 1)
            rows.add(counts, matrix.indices[begin:end], matrix.data[begin:end], share)
            release_pages(matrix.indices)
            release_pages(matrix.data)
    return rows.matrix(width)


def _texts(parts: Sequence[Strings], folder: Path | None) -> Strings:
    packed = [part.compact() for part in parts]
    offsets = np.cumsum([0, *(len(part.buffer) for part in packed)])
    ends = np.concatenate([part.ends + offset for part, offset in zip(packed, offsets, strict=False)])
    if folder is None:
        return Strings.packed(np.concatenate([part.buffer for part in packed]), ends)
    buffer = ArrayOnDisk(np.uint8, folder)
    for part in packed:
        for piece in in_pieces(part.buffer):
            buffer.add(piece)
    return Strings.packed(buffer.mapped(), ends)
