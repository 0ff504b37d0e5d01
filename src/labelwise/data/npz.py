"""NumPy's .npy and SciPy's .npz files from untrusted sources.

NumPy's readers run without pickle, and only after the size in an array's header has been compared with the bytes that
are there: neither a damaged nor a hostile file can allocate more memory than its own size.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from scipy import sparse

from labelwise.checks import are_offsets, in_range
from labelwise.data.dataset import canonical_csr
from labelwise.errors import DataError

DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError)


def load_npz_matrix(path: Path) -> sparse.csr_array:
    """Read a sparse matrix written by `scipy.sparse.save_npz`, as CSR in float32."""
    return canonical_csr(load_npz_sparse(path).tocsr(), f"{path}: the values")


def load_npz_sparse(path: Path) -> Any:
    """Read a matrix written by `scipy.sparse.save_npz` as it is stored: CSR or CSC of any type, with its duplicates."""
    try:
        with zipfile.ZipFile(path) as archive:
            layout = (_member(archive, "format", path).reshape(-1)[:1].tolist() or [""])[0]
            layout = layout.decode("latin-1") if isinstance(layout, bytes) else layout
            if layout not in ("csr", "csc"):
                raise DataError(f"a sparse matrix in the format csr or csc is needed, this is {layout!r}", path)
            data, indices, indptr, shape = (
                _member(archive, name, path) for name in ("data", "indices", "indptr", "shape")
            )
    except (*DAMAGE, RuntimeError, MemoryError, OverflowError) as error:
        raise DataError(f"not a sparse matrix written by scipy.sparse.save_npz: {error or 'damaged'}", path) from None
    sound = (
        all(array.ndim == 1 and array.dtype.kind in "iu" for array in (indices, indptr, shape))
        and data.ndim == 1
        and data.dtype.kind in "biuf"
        and len(shape) == 2
        and int(shape.min()) >= 0
        and int(shape.max()) < 1 << 31
    )
    if not sound:
        raise DataError("the arrays of the sparse matrix have wrong types or shapes", path)
    rows, columns = (int(n) for n in shape)
    matrix_type = sparse.csr_array if layout == "csr" else sparse.csc_array
    major, minor = (rows, columns) if layout == "csr" else (columns, rows)
    sound = (
        len(indptr) == major + 1
        and len(indices) == len(data)
        and are_offsets(indptr, len(indices))
        and in_range(indices, minor)
    )
    if not sound:
        raise DataError("the sparse matrix is damaged: offsets or indices point outside it", path)
    try:
        indices, indptr = (array.astype(np.int64, copy=False) for array in (indices, indptr))
        matrix = matrix_type((data, indices, indptr), shape=(rows, columns))
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"the sparse matrix is damaged: {error}", path) from None
    return matrix


def load_npy_matrix(path: Path) -> np.ndarray:
    """Map a dense matrix written by `numpy.save`."""
    try:
        with path.open("rb") as file:
            _check_header(file, path.stat().st_size, path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except DAMAGE as error:
        raise DataError(f"not an array written by numpy.save: {error}", path) from None
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(f"a numeric matrix is needed, got {array.dtype} of shape {array.shape}", path)
    return array


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray:
    """Read one array of an archive."""
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise DataError(f"the array '{name}' of a sparse matrix is missing", path) from None
    with archive.open(info) as file:
        _check_header(file, info.file_size, path)
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)


def _check_header(file: IO[bytes], size: int, path: Path) -> None:
    """Refuse an array whose header does not describe plain numbers of the size in the file."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise DataError(
            f"NumPy's format version {version} is not supported; write the array again with version 1.0 or 2.0", path
        )
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    try:
        shape, _, dtype = read_header(file)
    except Exception as error:  # NumPy parses it as Python, which fails in many ways
        raise DataError(f"the header of an array cannot be read: {error}", path) from None
    if dtype.kind not in "biufSU" or min(shape, default=0) < 0:
        raise DataError(
            f"only arrays of plain numbers are supported, this one has type {dtype} and shape {shape}", path
        )
    needed, present = math.prod(shape) * dtype.itemsize, size - file.tell()
    if needed != present:
        raise DataError(f"the header says {needed:,} bytes, but there are {present:,}", path)
