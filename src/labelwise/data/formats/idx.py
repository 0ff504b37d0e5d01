"""`idx`: the files of MNIST and its relatives, images and labels apart, plain or compressed. Only read.

`train-images-idx3-ubyte` has its labels in `train-labels-idx1-ubyte`; `t10k` means test. A file begins with two zero
bytes, the type of its numbers and the number of its dimensions, then the size of each, in big-endian order.
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.options import (
    ReadOptions,
    files_in,
    named_parts,
    plain_name,
    split_of,
)
from labelwise.data.stream import first_bytes, open_stream
from labelwise.errors import DataError
from labelwise.runtime.memory import free_memory
from labelwise.strings import Strings

NAME = "idx"
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_BYTES = 64 << 30
MAX_LABELS = 1 << 20
CHUNK = 1 << 24


def recognises(path: Path) -> bool:
    """Whether this is a file of images with a header, called like one of MNIST or EMNIST."""
    if not path.is_file() or "images" not in path.name:
        return False
    head = first_bytes(path, 4)
    return len(head) == 4 and head[:2] == b"\0\0" and head[2] in TYPES and 2 <= head[3] <= 4


def labels_file(path: Path) -> Path | None:
    """The file of labels of a file of images, compressed or not."""
    plain = plain_name(path).replace("images", "labels")
    names = {plain, *(plain.replace(f"idx{n}", "idx1") for n in (2, 3, 4))}
    candidates = [path.with_name(name + suffix) for name in sorted(names) for suffix in ("", ".gz", ".xz", ".bz2")]
    return next((one for one in candidates if one.is_file()), None)


def parts(folder: Path) -> dict[str, Path]:
    chosen: dict[str, Path] = {}
    for path in files_in(folder):
        if recognises(path):
            chosen.setdefault(plain_name(path), path)
    return named_parts({path: _stem(path) for path in chosen.values()})


def _stem(path: Path) -> str:
    """The name of the part: MNIST calls its test images t10k."""
    stem = plain_name(path).partition("images")[0].rstrip("-_.")
    return "test" if stem.endswith("t10k") else stem if split_of(stem) else plain_name(path)


def read(path: Path, options: ReadOptions) -> Dataset:
    images = read_array(path)
    if images.ndim < 2:
        raise DataError("images have at least two dimensions, documents first", path)
    count = len(images)
    if not options.labels:
        return Dataset(None, arrays=images, name=str(path))  # type: ignore[arg-type]
    beside = labels_file(path)
    if beside is None:
        raise DataError(
            f"the file of labels, {plain_name(path).replace('images', 'labels')}, is missing beside it", path
        )
    labels = read_array(beside)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"labels are whole numbers in one dimension, got {labels.dtype} {list(labels.shape)}", beside)
    if len(labels) != count:
        raise DataError(f"{len(labels):,} labels for {count:,} images", beside)
    if count and not 0 <= int(labels.min()) <= int(labels.max()) < MAX_LABELS:
        raise DataError(f"labels are numbers from 0 to {MAX_LABELS:,}, got {int(labels.min())} and more", beside)
    n_labels = int(labels.max(initial=0)) + 1
    matrix = sparse.csr_array(
        (np.ones(count, np.float32), labels.astype(np.int32), np.arange(count + 1)), shape=(count, n_labels)
    )
    return Dataset(matrix, Strings.numbers(n_labels), arrays=images, name=str(path))


def read_array(path: Path) -> np.ndarray:
    """The array of a file; memory grows with what the file has, not with what its header says."""
    with open_stream(path) as stream:
        head = _exactly(stream, 4, path)
        if head[:2] != b"\0\0" or head[2] not in TYPES or not 1 <= head[3] <= 4:
            raise DataError("is not an idx file: it must begin with 00 00, a type and 1 to 4 dimensions", path)
        shape = struct.unpack(f">{head[3]}I", _exactly(stream, 4 * head[3], path))
        dtype = np.dtype(TYPES[head[2]])
        size = prod(shape) * dtype.itemsize
        _check_size(size, list(shape), stream.most_bytes(), path)
        content = bytearray()
        while piece := stream.read(min(CHUNK, size + 1 - len(content))):
            content += piece
            if len(content) > size:
                raise DataError(f"there are more bytes than the {size:,} of the sizes {list(shape)}", path)
    if len(content) < size:
        raise DataError(
            f"{len(content):,} bytes for the sizes {list(shape)}, which need {size:,}; the file is truncated", path
        )
    values = np.frombuffer(content, dtype).reshape(shape)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _check_size(size: int, shape: list[int], most: int | None, path: Path) -> None:
    """Refuse a header whose array cannot be in the file, or not in memory, before anything is read."""
    says = f"the header has the sizes {shape}: {size:,} bytes"
    if size > MAX_BYTES:
        raise DataError(f"{says}, more than are read", path)
    if most is not None and size > most:
        raise DataError(f"{says}, but the file holds at most {most:,}; it is truncated, or the header is wrong", path)
    free = free_memory()
    if free is not None and size > free:
        raise DataError(f"{says}, but only {free:,} bytes of memory are free", path)


def _exactly(stream: object, count: int, path: Path) -> bytes:
    content = b""
    while len(content) < count and (piece := stream.read(count - len(content))):  # type: ignore[missing-attribute]
        content += piece
    if len(content) < count:
        raise DataError("the file ends inside its header", path)
    return content


def siblings(path: Path) -> list[Path]:
    beside = labels_file(path)
    return [] if beside is None else [beside]


FORMAT = Format(
    name=NAME,
    about="MNIST's files: *images-idx3-ubyte with *labels-idx1-ubyte beside it, also compressed; only read",
    recognises=recognises,
    read=read,
    write=None,
    parts=parts,
    extension="",
    siblings=siblings,
    recognises_unlabelled=recognises,
)
