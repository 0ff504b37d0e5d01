"""Features in two blocks side by side: sparse ones, such as TF-IDF, and dense ones, such as embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from scipy import sparse

from labelwise.errors import DataError
from labelwise.strings import Strings

# --- csr ---
# CSR matrices larger than memory: selecting rows, arrays for kernels, and building matrices block by block.

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


ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Blocks:
    """A CSR and a dense block of the same rows; the sparse columns come first. Either may be None.

    Scale the blocks relative to each other: the one with the larger norm dominates.
    """

    sparse: sparse.csr_array | None
    dense: np.ndarray | None

    def __post_init__(self) -> None:
        if not (self.sparse is None or sparse.issparse(self.sparse)) or not isinstance(self.dense, np.ndarray | None):
            raise DataError("blocks of features are a sparse matrix and then a dense array; either may be None")
        rows = {block.shape[0] for block in self._parts()}
        if len(rows) != 1:
            raise DataError(f"blocks of features need the same number of rows, got {sorted(rows) or 'no block'}")

    def _parts(self) -> list[Any]:
        return [block for block in (self.sparse, self.dense) if block is not None]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and columns of both blocks."""
        parts = self._parts()
        return parts[0].shape[0], sum(part.shape[1] for part in parts)

    def __getitem__(self, rows: Any) -> Blocks:
        """Some of the rows."""
        picked: list[Any] = [None if block is None else pick_rows(block, rows) for block in (self.sparse, self.dense)]
        return Blocks(*picked)

    def to_csr(self) -> sparse.csr_array:
        """Both blocks as one sparse matrix, 8 bytes for each dense number; built in chunks of rows."""
        n, columns = self.shape
        left = self.sparse if self.sparse is not None else sparse.csr_array((n, 0), dtype=np.float32)
        width = columns - left.shape[1]
        indptr = left.indptr.astype(np.int64) + width * np.arange(n + 1)
        indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
        for first in range(0, n, ROWS_AT_ONCE):
            last = min(first + ROWS_AT_ONCE, n)
            begin, end = left.indptr[first], left.indptr[last]
            moved = np.repeat(width * np.arange(first, last), np.diff(left.indptr[first : last + 1]))
            positions = moved + np.arange(begin, end)
            indices[positions], data[positions] = left.indices[begin:end], left.data[begin:end]
            if self.dense is not None:
                positions = (indptr[first + 1 : last + 1] - width)[:, None] + np.arange(width)
                indices[positions], data[positions] = np.arange(left.shape[1], columns), self.dense[first:last]
        if indptr[-1] <= np.iinfo(np.int32).max:
            indptr = indptr.astype(np.int32)  # otherwise SciPy makes the columns int64 too
        return sparse.csr_array((data, indices, indptr), shape=(n, columns))


# --- label space ---
# Label spaces: positions of names in another one, and label matrices from lists. Kernels are for large spaces.
#
# A dictionary of ten million names costs gigabytes and seconds; the kernel's table a fraction of both.

LARGE = 100_000


def positions_in(names: Strings, within: Strings) -> np.ndarray:
    """For each name its index in `within` (which has no duplicates), or -1."""
    if len(names) + len(within) < LARGE:
        index_of = within.positions
        return np.fromiter((index_of.get(name, -1) for name in names), np.int64, len(names))
    from labelwise.kernels.fields import Interner

    table = Interner()
    table.add(within.buffer, within.starts, within.ends)
    indices = table.add(names.buffer, names.starts, names.ends).astype(np.int64)
    return np.where(indices < len(within), indices, -1)


def check_distinct(names: Strings, what: str) -> None:
    """Refuse duplicate names; the result is cached in `names.distinct`."""
    if names.distinct is None:
        duplicate = first_duplicate(names)
        if duplicate is not None:
            raise DataError(f"{what}: duplicate label name {duplicate!r}; names must be unique")
        names.distinct = True


def first_duplicate(names: Strings) -> str | None:
    """The first name that occurs more than once, or None."""
    if len(names) < LARGE:
        if len(names.positions) == len(names):
            return None
        return next(name for index, name in enumerate(names) if names.positions[name] != index)
    from labelwise.kernels.fields import Interner

    indices = Interner().add(names.buffer, names.starts, names.ends)
    duplicates = np.flatnonzero(indices != np.arange(len(names)))
    return names[int(duplicates[0])] if len(duplicates) else None


def labels_from_lists(lists: Iterable[Any], label_names: Strings | None = None) -> tuple[sparse.csr_array, Strings]:
    """A label matrix from a list of labels, or one label, per document; names as `sorted_label_names` sorts them."""
    rows = [_label_list(row, index) for index, row in enumerate(lists)]
    names = label_names if label_names is not None else sorted_label_names({n for row in rows for n in row})
    column_of = names.positions
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    try:
        indices = np.fromiter((column_of[n] for row in rows for n in row), np.int64, int(indptr[-1]))
    except KeyError as error:
        raise DataError(f"label {error.args[0]!r} is not among the {len(names):,} given label names") from None
    matrix = sparse.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(len(rows), len(names)))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix, names


def _label_list(row: Any, index: int) -> list[str]:
    if isinstance(row, str | int | np.integer):
        return [str(row)]
    if not isinstance(row, Iterable) or not all(isinstance(label, str | int | np.integer) for label in row):
        raise DataError(f"document {index}: its labels must be a list of names or numbers, got {row!r}")
    return [str(label) for label in row]


def sorted_label_names(names: Iterable[str]) -> Strings:
    """Names in the order of label ids: by number when all are plain numbers, else by code point."""
    listed = list(names)
    plain = all(name.isascii() and name.isdigit() and (name == "0" or name[0] != "0") for name in listed)
    return Strings.of(sorted(listed, key=int) if plain else sorted(listed))
