"""CSR matrices larger than memory: selecting rows, arrays for kernels, and building matrices block by block."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from scipy import sparse

from labelwise.errors import DataError

# --- selecting rows -------------------------------------------------------------------------------------------------


def pick_rows(matrix: Any, rows: Any) -> Any:
    """``matrix[rows]`` for a slice, an index array or a mask, touching only those rows.

    SciPy does the same unless the offsets are wider than the columns, as they are from 2^31 entries on: then it first
    copies all columns to the wider type.
    """
    if not isinstance(matrix, sparse.csr_array) or matrix.indptr.dtype == matrix.indices.dtype:
        return matrix[rows]
    chosen = row_indices(rows, matrix.shape[0])
    starts = matrix.indptr[chosen]
    counts = matrix.indptr[chosen + 1] - starts
    ends = np.cumsum(counts)
    positions = np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())
    indptr = np.concatenate([[0], ends])
    picked = (matrix.data[positions], matrix.indices[positions], indptr)
    return sparse.csr_array(picked, shape=(len(chosen), matrix.shape[1]))


def row_indices(rows: Any, count: int) -> np.ndarray:
    """The indices of the rows that a slice, an index array or a mask selects among `count`."""
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
    """A matrix that shares these arrays; SciPy's constructor would copy columns of another type than the offsets."""
    matrix: Any = sparse.csr_array(shape, dtype=data.dtype)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


def widened(matrix: Any, n_columns: int) -> Any:
    """A sparse matrix with additional empty columns; the arrays are shared."""
    if matrix.shape[1] == n_columns:
        return matrix
    return csr_of(matrix.data, matrix.indices, matrix.indptr, (matrix.shape[0], n_columns))


# --- arrays for kernels ---------------------------------------------------------------------------------------------


def offsets_of(matrix: Any) -> np.ndarray:
    """Where the rows of a CSR matrix begin and end, as kernels take it: int64 that may be written to."""
    return np.require(matrix.indptr, np.int64, ["C", "A", "W"])


def read_only(array: np.ndarray) -> np.ndarray:
    """A contiguous read-only view, so that kernels are compiled for one array type only."""
    view = np.ascontiguousarray(array)[:]
    view.flags.writeable = False
    return view


def read_only_arrays(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets (int64), columns and values of a CSR matrix as read-only views."""
    return read_only(offsets_of(matrix)), read_only(matrix.indices), read_only(matrix.data)


# --- building matrices ----------------------------------------------------------------------------------------------


class CsrBuilder:
    """Builds a CSR matrix from blocks of rows, in memory.

    Its arrays are allocated by an estimate of the final size and shrunk at the end. Memory that was never written to
    costs nothing, so the rows are held once, and need not be concatenated.
    """

    def __init__(self, valued: bool) -> None:
        self.size = 0
        self.counts: list[np.ndarray] = []
        self.indices = np.empty(0, np.int32)
        self.values = np.empty(0, np.float32) if valued else None

    def add(self, counts: np.ndarray, indices: np.ndarray, values: np.ndarray | None, fraction_read: float) -> None:
        """Add the rows of one block; `fraction_read` of the file has been read with it."""
        begin, self.size = self.size, self.size + len(indices)
        self.counts.append(counts)
        if self.size > len(self.indices):
            expected = int(self.size / max(fraction_read, 1e-9) * 1.05)
            capacity = max(int(1.2 * self.size) + 1024, min(expected, 8 * self.size + (1 << 26)))
            self.indices = _enlarged(self.indices, begin, capacity)
            if self.values is not None:
                self.values = _enlarged(self.values, begin, capacity)
        self.indices[begin : self.size] = indices
        if self.values is not None:
            self.values[begin : self.size] = values

    def drop_last(self) -> None:
        """Remove the last row, which must be empty."""
        self.counts[-1] = self.counts[-1][:-1]

    def matrix(self, n_columns: int) -> sparse.csr_array:
        """The matrix of all rows; values are 1 where none were given."""
        self.indices.resize(self.size, refcheck=False)
        if self.values is not None:
            self.values.resize(self.size, refcheck=False)
        values = np.ones(self.size, np.float32) if self.values is None else self.values
        return _csr(self.counts, self.indices, values, n_columns)


class ArrayOnDisk:
    """A vector in a file of a folder.

    Once it is mapped its file is unlinked, where the system allows that: the disk space is freed as soon as the array
    is no longer used, and when the process ends, even if it is killed.
    """

    def __init__(self, dtype: Any, folder: Path) -> None:
        self.size = 0
        self.dtype = np.dtype(dtype)
        self._path = folder / f"{uuid4().hex}.rows"

    def add(self, array: np.ndarray) -> None:
        """Append numbers; those of a matrix row by row."""
        array = np.ascontiguousarray(array, self.dtype)
        try:
            with self._path.open("ab") as file:
                file.write(array.data)
        except OSError as error:
            raise DataError(f"rows cannot be written to: {error.strerror or error}", self._path.parent) from error
        self.size += array.size

    def map(self) -> np.ndarray:
        """Map the whole vector read-only; nothing can be added afterwards."""
        if not self.size:  # an empty file cannot be mapped
            return np.empty(0, self.dtype)
        try:
            array = np.asarray(np.memmap(self._path, self.dtype, "r"))
        except OSError as error:
            raise DataError(f"rows cannot be mapped: {error.strerror or error}", self._path.parent) from error
        self.remove()
        return array

    def remove(self) -> None:
        """Remove the file; an array that maps it keeps its contents."""
        with suppress(OSError):
            self._path.unlink()


class MappedCsrBuilder:
    """A `CsrBuilder` that writes columns and values to files in a folder and maps them at the end.

    Only the counts stay in memory. The folder must exist until `matrix` has been called.
    """

    def __init__(self, valued: bool, folder: Path) -> None:
        self.size = 0
        self.valued = valued
        self.counts: list[np.ndarray] = []
        self._indices, self._values = ArrayOnDisk(np.int32, folder), ArrayOnDisk(np.float32, folder)

    def add(self, counts: np.ndarray, indices: np.ndarray, values: np.ndarray | None, fraction_read: float) -> None:
        """Add the rows of one block; `fraction_read` is not needed here."""
        self.counts.append(counts.copy())
        self.size += len(indices)
        self._indices.add(indices)
        self._values.add(np.ones(len(indices), np.float32) if values is None else values)

    def drop_last(self) -> None:
        """Remove the last row, which must be empty."""
        self.counts[-1] = self.counts[-1][:-1]

    def matrix(self, n_columns: int) -> sparse.csr_array:
        """The matrix of all rows, mapped."""
        return _csr(self.counts, self._indices.map(), self._values.map(), n_columns)

    def remove(self) -> None:
        """Remove the files, after an error."""
        self._indices.remove()
        self._values.remove()


def csr_builder(valued: bool, folder: Path | None) -> CsrBuilder | MappedCsrBuilder:
    """A builder that uses memory, or files if a folder is given."""
    return CsrBuilder(valued) if folder is None else MappedCsrBuilder(valued, folder)


def _csr(counts: list[np.ndarray], indices: np.ndarray, values: np.ndarray, n_columns: int) -> sparse.csr_array:
    """A matrix that shares these arrays; `counts` is emptied."""
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int32), *counts]), dtype=np.int64)
    counts.clear()
    return csr_of(values, indices, narrow_offsets(ends), (len(ends) - 1, n_columns))


def narrow_offsets(ends: np.ndarray) -> np.ndarray:
    """Row offsets as int32 if they fit, as SciPy does too."""
    return ends if len(ends) and ends[-1] >= 2**31 else ends.astype(np.int32)


def _enlarged(array: np.ndarray, used: int, capacity: int) -> np.ndarray:
    larger = np.empty(capacity, array.dtype)
    larger[:used] = array[:used]
    return larger
