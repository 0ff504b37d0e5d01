"""A hash of each document's content, 8 bytes: equal documents have equal hashes, in whatever file or order they come.

Splits by hash, models that remember their training documents, and the search for duplicates all use it. Documents that
are files, such as images, are hashed by their size, their first and their last 64 KB: small ones whole, large ones in
little time.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.csr import Blocks
from labelwise.data.recordio import member_image, split_member
from labelwise.errors import DataError
from labelwise.io.tensors import release_pages
from labelwise.runtime.threads import ranges, run_all
from labelwise.strings import Strings

KINDS = ("texts", "features", "paths", "arrays")
"""Types of documents, the first that is present is hashed."""
PIECE = 1 << 20
EDGE = 1 << 16
"""Bytes at either end of a file that its hash is of."""
FILES_AT_ONCE = 256
DOCUMENTS_AT_ONCE = 1 << 16
"""Documents whose bounds and hashes are Python objects at a time: these take many times the bytes of arrays."""
SAMPLE_SEED = 1 << 40
"""No seed of a split by hash, from whose parts a sample would otherwise be drawn unevenly."""

RELEASED_ENTRIES, RELEASED_BYTES = 1 << 20, 1 << 24
"""Entries of a mapped matrix, and bytes of mapped texts, after which pages are released."""


def document_hashes(data: Any, kind: str | None = None) -> np.ndarray:
    """One uint64 per document of a `Dataset` or `Documents`, of its content of this type (the first it has, if None).

    A row of sparse features has the same hash whatever the number of columns.
    """
    chosen = kind or next((one for one in KINDS if getattr(data, one) is not None), None)
    if chosen is None:
        return np.empty(0, np.uint64)
    return file_hashes(data.paths) if chosen == "paths" else _numbers(*_contents(getattr(data, chosen)))


def file_hashes(paths: Strings) -> np.ndarray:
    """One uint64 per file, or image inside a record file: of size, beginning and end, or of the path if unreadable."""
    parts = ranges(len(paths), -(-len(paths) // FILES_AT_ONCE))
    found = run_all(lambda part: _numbers(part[1] - part[0], map(_ends_of_file, paths[part[0] : part[1]])), parts)
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def _ends_of_file(path: str) -> bytes:
    try:
        member = split_member(path)
        if member is not None:
            content = member_image(*member)
            size, first, last = len(content), content[:EDGE], content[max(EDGE, len(content) - EDGE) :]
        else:
            if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe would wait for whoever writes into it
                raise OSError
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                first = file.read(EDGE)
                file.seek(max(EDGE, size - EDGE))
                last = file.read(EDGE)
    except (OSError, ValueError, DataError):
        return b"unreadable\0" + path.encode("utf-8", "surrogatepass")
    return size.to_bytes(8, "little") + first + last


def text_hashes(texts: Strings) -> np.ndarray:
    """One uint64 per text, the same as those of documents that have only texts."""
    return _numbers(*_contents(texts))


def dataset_hash(data: Any, hashes: np.ndarray | None = None) -> str:
    """One hash of all documents of a `Dataset` and of their labels, in order: 16 hexadecimal digits.

    `hashes` are those of the documents, computed here unless given.
    """
    digest = hashlib.blake2b(digest_size=8)
    labels, names = data.labels, data.label_names.compact()
    for array in (
        document_hashes(data) if hashes is None else hashes,
        labels.indptr,
        labels.indices,
        names.ends,
        names.buffer,
        labels.data,
    ):
        stored = array.dtype if array.dtype == np.uint8 else "<f4" if array.dtype.kind == "f" else "<i8"
        for begin in range(0, len(array), PIECE):
            digest.update(np.ascontiguousarray(array[begin : begin + PIECE]).astype(stored).data)
        release_pages(array)
    return digest.hexdigest()


def hash_fraction(text: str, seed: int) -> float:
    """A hash of text and seed as a number in [0, 1)."""
    return int(_numbers(1, [text.encode()], seed)[0]) / 2**64


def hash_fractions(hashes: np.ndarray, seed: int) -> np.ndarray:
    """For each hash a number in [0, 1); different seeds give independent numbers."""
    return _numbers(len(hashes), _rows(hashes), seed) / 2.0**64


def _numbers(count: int, contents: Iterable[Any], seed: int = 0) -> np.ndarray:
    """One uint64 per content. A prepared hash is copied each time, which takes half the time of making one."""
    prepared = hashlib.blake2b(digest_size=8, key=seed.to_bytes(8, "little", signed=True))

    def digest(content: Any) -> bytes:
        one = prepared.copy()
        one.update(content)
        return one.digest()

    numbers, digests = np.empty(count, np.uint64), map(digest, contents)
    for begin in range(0, count, DOCUMENTS_AT_ONCE):
        some = b"".join(islice(digests, min(DOCUMENTS_AT_ONCE, count - begin)))
        numbers[begin : begin + DOCUMENTS_AT_ONCE] = np.frombuffer(some, "<u8")
    return numbers


def _contents(documents: Any) -> tuple[int, Iterable[Any]]:
    """How many documents there are, and the bytes of each."""
    if isinstance(documents, Strings):
        return len(documents), _text_bytes(documents)
    if isinstance(documents, Blocks):
        parts = [_contents(block)[1] for block in (documents.sparse, documents.dense) if block is not None]
        return documents.shape[0], (b"".join(map(bytes, row)) for row in zip(*parts, strict=True))
    if sparse.issparse(documents):
        return len(documents.indptr) - 1, _sparse_rows(documents)  # type: ignore[missing-attribute]
    return len(documents), _rows(documents)


def _bounds(starts: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, int]]:
    for begin in range(0, len(starts), DOCUMENTS_AT_ONCE):
        some = slice(begin, begin + DOCUMENTS_AT_ONCE)
        yield from zip(starts[some].tolist(), ends[some].tolist(), strict=True)


def _text_bytes(texts: Strings) -> Iterable[memoryview]:
    view, released = texts.buffer.data, 0
    for begin, end in _bounds(texts.starts, texts.ends):
        yield view[begin:end]
        if end - released > RELEASED_BYTES:
            released = end
            release_pages(texts.buffer)


def _sparse_rows(matrix: Any) -> Iterable[bytes]:
    released = 0
    for begin, end in _bounds(matrix.indptr[:-1], matrix.indptr[1:]):
        columns, values = matrix.indices[begin:end], matrix.data[begin:end]
        yield columns.astype("<i8").tobytes() + values.astype("<f4").tobytes()
        if end - released > RELEASED_ENTRIES:
            released = end
            release_pages(matrix.indices)
            release_pages(matrix.data)


def _rows(array: np.ndarray) -> Iterable[bytes]:
    return (np.ascontiguousarray(row).tobytes() for row in array)


def sample_order(data: Any) -> np.ndarray:
    """A random order of the documents that depends on their content alone: a sample is the first ones of it."""
    return np.argsort(hash_fractions(document_hashes(data), SAMPLE_SEED), kind="stable")
