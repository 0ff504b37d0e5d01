"""NumPy's .npy and SciPy's .npz files from strangers: nothing is executed, no header is taken at its word.

Every array's header is compared with the bytes that are there before room is made for it, so neither a
damaged file nor one made to harm can ask for more memory than its own size says. All that is wrong is one
`DataError`.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from scipy import sparse

from labelwise.checks import are_offsets, in_range
from labelwise.data.dataset import canonical_csr
from labelwise.errors import DataError

_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    struct.error,
    NotImplementedError,
)
MAX_HEADER = 1 << 16
_LENGTH_BYTES: dict[tuple[int, ...], int] = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
_HEADER = re.compile(
    r"\{ *'descr': *'(?P<type>[<>|](?:b1|[iu][1248]|f[248]|[SU][1-9]\d?))', *"
    r"'fortran_order': *(?P<order>True|False), *"
    r"'shape': *\((?P<shape>(?:\d{1,18}, ?)*(?:\d{1,18})?)\),? *\} *\n?"
)


def load_npz_matrix(path: Path) -> sparse.csr_array:
    """A sparse matrix that `scipy.sparse.save_npz` has written, as CSR in float32."""
    try:
        with zipfile.ZipFile(path) as archive:
            kind = (_member(archive, "format", path).reshape(-1)[:1].tolist() or [""])[0]
            kind = kind.decode("latin-1") if isinstance(kind, bytes) else kind
            if kind not in ("csr", "csc"):
                raise DataError(f"a sparse matrix in the form csr or csc is needed, this is {kind!r}", path)
            data, indices, indptr, shape = (
                _member(archive, name, path) for name in ("data", "indices", "indptr", "shape")
            )
    except (*_DAMAGE, RuntimeError, MemoryError, OverflowError) as error:
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
    make = sparse.csr_array if kind == "csr" else sparse.csc_array
    major, minor = (rows, columns) if kind == "csr" else (columns, rows)
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
        matrix = make((data, indices, indptr), shape=(rows, columns))
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"the sparse matrix is damaged: {error}", path) from None
    return canonical_csr(matrix.tocsr(), f"{path}: the values")


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray:
    """One array of an archive."""
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise DataError(f"the array '{name}' of a sparse matrix is missing", path) from None
    with archive.open(info) as file:
        dtype, shape, columns_first = _header(file, path)
        size = _size(shape, dtype)
        header = file.tell()
        if header + size != info.file_size:
            raise DataError(f"the array '{name}' says {size:,} bytes, but {info.file_size - header:,} are there", path)
        raw = file.read(size + 1)
    if len(raw) != size:
        raise DataError(f"the array '{name}' is cut short", path)
    return _shaped(np.frombuffer(raw, dtype), shape, columns_first)


def load_npy_matrix(path: Path) -> np.ndarray:
    """A dense matrix that `numpy.save` has written, mapped into memory where it is float32 already."""
    try:
        with path.open("rb") as file:
            dtype, shape, columns_first = _header(file, path)
            begin = file.tell()
        size = path.stat().st_size - begin
        if _size(shape, dtype) != size:
            raise DataError(f"the header says {_size(shape, dtype):,} bytes, but {size:,} are there", path)
        raw = np.memmap(path, np.uint8, "r", offset=begin) if size else np.empty(0, np.uint8)
        array = _shaped(raw.view(dtype) if size else np.empty(0, dtype), shape, columns_first)
    except _DAMAGE as error:
        raise DataError(f"not an array written by numpy.save: {error}", path) from None
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(f"a matrix of numbers is needed, got {array.dtype} of shape {array.shape}", path)
    return array


def _header(file: IO[bytes], path: Path) -> tuple[np.dtype, tuple[int, ...], bool]:
    """Type, shape and order of an array. The header is matched, not evaluated as NumPy's own reader does."""
    if file.read(6) != b"\x93NUMPY":
        raise DataError("an array does not begin as NumPy's arrays do", path)
    version = tuple(file.read(2))
    if version not in _LENGTH_BYTES:
        raise DataError(f"NumPy's format version {version} is not read; write the array anew", path)
    length = int.from_bytes(file.read(_LENGTH_BYTES[version]), "little")
    text = file.read(length).decode("latin-1") if length <= MAX_HEADER else ""
    match = _HEADER.fullmatch(text)
    if match is None:
        raise DataError(f"arrays of plain numbers are read, this one is of another kind: {text[:80]!r}", path)
    shape = tuple(int(n) for n in match["shape"].split(",") if n.strip())
    return np.dtype(match["type"]), shape, match["order"] == "True"


def _size(shape: tuple[int, ...], dtype: np.dtype) -> int:
    size = dtype.itemsize
    for n in shape:
        size *= n
    return size


def _shaped(flat: np.ndarray, shape: tuple[int, ...], columns_first: bool) -> np.ndarray:
    return flat.reshape(shape[::-1]).T if columns_first and len(shape) > 1 else flat.reshape(shape)
