"""CSR matrices larger than memory: choosing rows, and gathering rows block by block in memory or in files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from scipy import sparse

from labelwise.errors import DataError

# --- choosing rows --------------------------------------------------------------------------------------------------


def pick_rows(matrix: Any, rows: Any) -> Any:
    """``matrix[rows]`` for a slice, an index array or a mask, touching only those rows.

    SciPy does the same unless the offsets are wider than the columns, as they are from 2^31 numbers on: then it makes a
    wider copy of all columns first.
    """
    if not isinstance(matrix, sparse.csr_array) or matrix.indptr.dtype == matrix.indices.dtype:
        return matrix[rows]
    chosen = row_numbers(rows, matrix.shape[0])
    starts = matrix.indptr[chosen]
    counts = matrix.indptr[chosen + 1] - starts
    ends = np.cumsum(counts)
    places = np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())
    indptr = np.concatenate([[0], ends])
    picked = (matrix.data[places], matrix.indices[places], indptr)
    return sparse.csr_array(picked, shape=(len(chosen), matrix.shape[1]))


def row_numbers(rows: Any, count: int) -> np.ndarray:
    """The numbers of the rows that a slice, an index array or a mask chooses among `count`."""
    if isinstance(rows, slice):
        return np.arange(*rows.indices(count))
    rows = np.atleast_1d(np.asarray(rows))
    if rows.dtype == bool:
        if len(rows) != count:
            raise IndexError(f"a mask of {len(rows)} for {count} rows")
        return np.flatnonzero(rows)
    rows = rows.astype(np.int64, copy=False)
    if len(rows) and not (rows.min() >= -count and rows.max() < count):
        raise IndexError(f"rows from {rows.min()} to {rows.max()}, but there are {count}")
    return np.where(rows < 0, rows + count, rows)


def csr_of(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> sparse.csr_array:
    """A matrix of these very arrays; SciPy's constructor would copy columns of another type than the offsets."""
    matrix: Any = sparse.csr_array(shape, dtype=data.dtype)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


# --- gathering rows -------------------------------------------------------------------------------------------------


class RowsInMemory:
    """The rows of a CSR matrix, gathered block by block in file order.

    Its arrays are made from an estimate of the whole and cut to size at the end. Memory that was never
    written to costs nothing, so the rows are held once, and never a second time to be put together.
    """

    def __init__(self, valued: bool) -> None:
        self.size = 0
        self.counts: list[np.ndarray] = []
        self.indices = np.empty(0, np.int32)
        self.values = np.empty(0, np.float32) if valued else None

    def add(self, counts: np.ndarray, indices: np.ndarray, values: np.ndarray | None, share: float) -> None:
        """Add the rows of one block, with which `share` of the whole has been read."""
        begin, self.size = self.size, self.size + len(indices)
        self.counts.append(counts)
        if self.size > len(self.indices):
            expected = int(self.size / max(share, 1e-9) * 1.05)
            room = max(int(1.2 * self.size) + 1024, min(expected, 8 * self.size + (1 << 26)))
            self.indices = _enlarged(self.indices, begin, room)
            if self.values is not None:
                self.values = _enlarged(self.values, begin, room)
        self.indices[begin : self.size] = indices
        if self.values is not None:
            self.values[begin : self.size] = values

    def drop_last(self) -> None:
        """Take back the last row, which must be empty."""
        self.counts[-1] = self.counts[-1][:-1]

    def matrix(self, n_columns: int) -> sparse.csr_array:
        """The gathered rows; values are 1 where none were given."""
        self.indices.resize(self.size, refcheck=False)
        if self.values is not None:
            self.values.resize(self.size, refcheck=False)
        values = np.ones(self.size, np.float32) if self.values is None else self.values
        return _csr(self.counts, self.indices, values, n_columns)


class ArrayOnDisk:
    """A vector in a file of a folder.

    Once it is mapped its file has no name any more, where the system allows that: the room on the disk is free again as
    soon as nobody uses the array, and when the process ends, by whatever means.
    """

    def __init__(self, dtype: Any, folder: Path) -> None:
        self.size = 0
        self.dtype = np.dtype(dtype)
        self._place = folder / f"{uuid4().hex}.rows"

    def add(self, array: np.ndarray) -> None:
        """Put numbers at the end; those of a matrix row by row."""
        array = np.ascontiguousarray(array, self.dtype)
        try:
            with self._place.open("ab") as file:
                file.write(array.data)
        except OSError as error:
            raise DataError(f"rows cannot be written to: {error.strerror or error}", self._place.parent) from error
        self.size += array.size

    def mapped(self) -> np.ndarray:
        """All of it, read-only; nothing can be added any more."""
        if not self.size:  # an empty file cannot be mapped
            return np.empty(0, self.dtype)
        try:
            array = np.asarray(np.memmap(self._place, self.dtype, "r"))
        except OSError as error:
            raise DataError(f"rows cannot be mapped: {error.strerror or error}", self._place.parent) from error
        with suppress(OSError):
            self._place.unlink()
        return array


class RowsOnDisk:
    """`RowsInMemory` whose columns and values go to files in a folder and are mapped in the end.

    Only the counts stay in memory. The folder must stay until the matrix is made.
    """

    def __init__(self, valued: bool, folder: Path) -> None:
        self.size = 0
        self.valued = valued
        self.counts: list[np.ndarray] = []
        self._indices, self._values = ArrayOnDisk(np.int32, folder), ArrayOnDisk(np.float32, folder)

    def add(self, counts: np.ndarray, indices: np.ndarray, values: np.ndarray | None, share: float) -> None:
        """Add the rows of one block; `share` is not needed here."""
        self.counts.append(counts.copy())
        self.size += len(indices)
        self._indices.add(indices)
        self._values.add(np.ones(len(indices), np.float32) if values is None else values)

    def drop_last(self) -> None:
        """Take back the last row, which must be empty."""
        self.counts[-1] = self.counts[-1][:-1]

    def matrix(self, n_columns: int) -> sparse.csr_array:
        """The gathered rows, mapped."""
        return _csr(self.counts, self._indices.mapped(), self._values.mapped(), n_columns)


def new_rows(valued: bool, folder: Path | None) -> RowsInMemory | RowsOnDisk:
    """Rows in memory, or in files if there is a folder for them."""
    return RowsInMemory(valued) if folder is None else RowsOnDisk(valued, folder)


def _csr(counts: list[np.ndarray], indices: np.ndarray, values: np.ndarray, n_columns: int) -> sparse.csr_array:
    """The matrix of some rows, made of these very arrays."""
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int32), *counts]), dtype=np.int64)
    counts.clear()
    return csr_of(values, indices, narrow_offsets(ends), (len(ends) - 1, n_columns))


def narrow_offsets(ends: np.ndarray) -> np.ndarray:
    """Offsets of rows in 32 bits if that is enough, which is what SciPy makes of them too."""
    return ends if len(ends) and ends[-1] >= 2**31 else ends.astype(np.int32)


def _enlarged(array: np.ndarray, used: int, room: int) -> np.ndarray:
    larger = np.empty(room, array.dtype)
    larger[:used] = array[:used]
    return larger
