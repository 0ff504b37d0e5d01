"""Files of named arrays in the safetensors format: written array by array, memory-mapped when read.

The library's own NumPy reader copies every array. Offsets and shapes come from the file, so they are checked first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.atomic import replacing
from labelwise.errors import ModelFormatError
from labelwise.mapped import in_pieces

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
    count = 1
    for n in shape:
        count *= n
    if start > end or end > len(data) or count * dtype.itemsize != end - start or len(shape) > 32:
        raise ModelFormatError(f"{path}: tensor {key!r} does not lie inside the file")
    tensor = data[start:end].view(dtype)
    return (tensor if tensor.flags.aligned else tensor.copy()).reshape(shape)
