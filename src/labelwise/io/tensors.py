"""Files of named arrays in the safetensors format: written array by array, memory-mapped when read.

The library's own NumPy reader copies every array. Offsets and shapes come from the file, so they are checked first.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import ModelFormatError
from labelwise.io.atomic import replacing

# --- mapped ---
# Memory-mapped arrays: a pass over a whole array need not keep it in memory.
#
# Pages read from a mapped file count as memory of the process until the system reclaims them. Code that reads a whole
# array once does it in pieces and releases the pages after each.

PIECE_BYTES = 16 << 20
COUNT_BATCH = 1 << 22


def mapping_of(array: np.ndarray) -> mmap.mmap | None:
    """The mapped file an array is part of, or None."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, mmap.mmap) else None


def release_pages(array: np.ndarray) -> None:
    """Release the pages of a mapped array; they are read from the file again on access. Other arrays are left as is."""
    mapping = mapping_of(array)
    if mapping is not None and not array.flags.writeable and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def in_pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """A mapped vector in pieces, each released after use; any other vector as one piece."""
    if mapping_of(array) is None:
        yield array
        return
    size = max(1, PIECE_BYTES // array.itemsize)
    for begin in range(0, len(array), size):
        yield array[begin : begin + size]
        release_pages(array)


def counts_of(numbers: np.ndarray, size: int, table: np.ndarray | None = None) -> np.ndarray:
    """How often each number below `size` occurs, or each `table[number]`.

    Piece by piece, because NumPy copies what it counts, and index arrays, to int64.
    """
    counts = np.zeros(size, np.int64)
    batch = max(COUNT_BATCH, size)
    for begin in range(0, len(numbers), batch):
        piece = numbers[begin : begin + batch]
        counts += np.bincount(piece if table is None else table[piece], minlength=size)
        release_pages(numbers)
    return counts


MAX_HEADER_BYTES = 64 << 20

TYPE_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_TYPES = {name: np.dtype(dtype) for dtype, name in TYPE_NAMES.items()}


def write_tensor_file(path: str | Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write one file, which gets its name only when it is complete; a link is refused."""
    with replacing(path, binary=True, follow=False) as file:
        for part in tensor_file_parts(tensors):
            file.write(part)


def tensor_file_parts(tensors: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """Header and data of a safetensors file. Wide types come first so that every array is aligned to its type."""
    arrays = {key: np.asarray(value, order="C") for key, value in tensors.items()}  # a scalar stays one
    order = sorted(arrays, key=lambda key: (-arrays[key].dtype.itemsize, key))
    header: dict[str, Any] = {}
    offset = 0
    for key in order:
        array = arrays[key]
        if array.dtype.name not in TYPE_NAMES:
            raise TypeError(f"tensor {key}: dtype {array.dtype} cannot be stored")
        header[key] = {
            "dtype": TYPE_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for key in order:
        if arrays[key].nbytes:
            yield from (piece.data for piece in in_pieces(arrays[key].reshape(-1).view(np.uint8)))


def map_tensors(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of any safetensors file, mapped read-only; every offset and shape is checked first."""
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise ModelFormatError(f"{path}: not a safetensors file, or cut short")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise ModelFormatError(f"{path}: the safetensors header is damaged: {error}") from None
    if not isinstance(header, dict):
        raise ModelFormatError(f"{path}: the safetensors header is damaged")
    header.pop("__metadata__", None)
    begin = 8 + length
    # an empty range cannot be mapped; a plain array, because every call of a kernel with a memmap costs 10 us more
    mapped = np.asarray(np.memmap(path, np.uint8, "r", offset=begin)) if size > begin else np.empty(0, np.uint8)
    return {key: _tensor(path, key, entry, mapped) for key, entry in header.items()}


def _tensor(path: Path, key: str, entry: Any, data: np.ndarray) -> np.ndarray:
    damaged = ModelFormatError(f"{path}: tensor {key!r} has a damaged description")
    try:
        dtype = _TYPES[entry["dtype"]]
        shape, (start, end) = entry["shape"], entry["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
            raise damaged
    except (KeyError, TypeError, ValueError):
        raise damaged from None
    if start > end or end > len(data) or math.prod(shape) * dtype.itemsize != end - start or len(shape) > 32:
        raise ModelFormatError(f"{path}: tensor {key!r} does not lie inside the file")
    tensor = data[start:end].view(dtype)
    return (tensor if tensor.flags.aligned else tensor.copy()).reshape(shape)


# --- checks ---
# Checks of arrays read from files: offsets, indices and weights, checked once before a kernel reads them.
#
# Neighbours are compared, never subtracted: a difference of two int64 may overflow and look small. All checks work in
# pieces, so that they need little memory beside the array, which may be memory-mapped.

PIECE = 1 << 20
LARGEST_WEIGHT = 1e18


def is_non_decreasing(values: np.ndarray) -> bool:
    """Whether no value of a vector is smaller than the one before it."""
    return all(bool((piece[1:] >= piece[:-1]).all()) for piece in _pieces(values, overlap=1))


def is_increasing(values: np.ndarray) -> bool:
    """Whether every value of a vector is larger than the one before it."""
    return all(bool((piece[1:] > piece[:-1]).all()) for piece in _pieces(values, overlap=1))


def are_offsets(offsets: np.ndarray, end: int) -> bool:
    """Whether a vector of integers begins with 0, ends with `end` and never decreases."""
    return (
        offsets.ndim == 1
        and offsets.dtype.kind in "iu"
        and len(offsets) > 0
        and int(offsets[0]) == 0
        and int(offsets[-1]) == end
        and is_non_decreasing(offsets)
    )


def are_sizes(sizes: np.ndarray, total: int) -> bool:
    """Whether a vector holds non-negative integers that sum to `total`."""
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or not in_range(sizes, total + 1):
        return False
    # the sum of a piece cannot overflow as long as total * PIECE fits
    return total < 1 << 43 and sum(int(piece.sum(dtype=np.int64)) for piece in _pieces(sizes)) == total


def in_range(numbers: np.ndarray, end: int) -> bool:
    """Whether all integers of an array are from 0 to ``end - 1``."""
    return numbers.dtype.kind in "iu" and all(
        int(piece.min()) >= 0 and int(piece.max()) < end for piece in _pieces(numbers.reshape(-1))
    )


def all_finite(array: np.ndarray) -> bool:
    """Whether an array holds neither NaN nor infinity; integer arrays never do."""
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel()
    return all(bool(np.isfinite(piece).all()) for piece in _pieces(flat))


def are_weights(array: np.ndarray) -> bool:
    """Whether all numbers of an array are finite and small enough to be multiplied with each other in float32."""
    if array.dtype.kind != "f" or array.size == 0:
        return True
    # min and max propagate NaN, which fails both comparisons;
    # Python floats, because the limit itself is infinite in float16
    return all(
        float(piece.min()) >= -LARGEST_WEIGHT and float(piece.max()) <= LARGEST_WEIGHT
        for piece in _pieces(array.reshape(-1))
    )


def _pieces(values: np.ndarray, overlap: int = 0) -> Iterator[np.ndarray]:
    """A vector in non-empty pieces, each starting with the last `overlap` values of the piece before."""
    for begin in range(0, len(values), PIECE):
        yield values[max(0, begin - overlap) : begin + PIECE]
        if len(values) > PIECE:
            release_pages(values)


# --- pages ---
# Large arrays on huge memory pages.
#
# The first access to a page costs up to two microseconds, so a gigabyte in pages of 4 KB costs half a second before any
# work is done. NumPy requests huge pages too, but its arrays are not aligned to them, and memory that it has freed may
# stay with the process; these arrays are returned to the system at once.

PAGE = 1 << 21
LARGE = 2 * PAGE
_LINE = 64


def empty(size: int, dtype: Any) -> np.ndarray:
    """An uninitialised array, on huge pages if it is large."""
    if size < PAGE >> 4:  # small for any dtype: avoid the overhead
        return np.empty(size, dtype)
    pages = _pages(size * np.dtype(dtype).itemsize)
    return np.empty(size, dtype) if pages is None else pages.view(dtype)


def zeros(size: int, dtype: Any) -> np.ndarray:
    """Zeros aligned to a cache line, on huge pages if there are many."""
    count = size * np.dtype(dtype).itemsize
    pages = _pages(count)
    if pages is None:
        raw = np.zeros(count + _LINE, np.uint8)
        skip = -raw.__array_interface__["data"][0] % _LINE
        pages = raw[skip : skip + count]
    return pages.view(dtype)


def _pages(count: int) -> np.ndarray | None:
    """`count` zero bytes aligned to a huge page; None if they are few or the system has no huge pages."""
    if count < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(-1, count + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # not supported, or not enough memory: then NumPy raises the error
        return None
    raw = np.frombuffer(memory, np.uint8)
    skip = -raw.__array_interface__["data"][0] % PAGE
    return raw[skip : skip + count]
