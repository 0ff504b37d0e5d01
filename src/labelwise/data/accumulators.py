"""Accumulate what readers parse block by block: texts in one buffer, labels as ids until all names are known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.csr import ArrayOnDisk
from labelwise.data.label_space import sorted_label_names
from labelwise.strings import Strings

Bounds = tuple[np.ndarray, np.ndarray]


class TextAccumulator:
    """Texts of one or more columns that are slices of the same blocks of bytes; the blocks are kept, not copied.

    With a folder the blocks are written to a file in it, which is mapped at the end.
    """

    def __init__(self, columns: int = 1, folder: Path | None = None) -> None:
        self._blocks: list[np.ndarray] = []
        self._file = None if folder is None else ArrayOnDisk(np.uint8, folder)
        self._size = 0
        self._bounds: list[list[Bounds]] = [[] for _ in range(columns)]

    def add(self, data: np.ndarray, *columns: Bounds) -> None:
        """Add a block of valid UTF-8 and, for each column, where its texts begin and end in it."""
        for pieces, (starts, ends) in zip(self._bounds, columns, strict=True):
            pieces.append((starts + self._size, ends + self._size))
        if self._file is None:
            self._blocks.append(data)
        else:
            self._file.add(data)
        self._size += len(data)

    def add_encoded(self, texts: Sequence[bytes]) -> None:
        """Add texts of the only column, in UTF-8."""
        data, starts, ends = concatenated(texts)
        self.add(data, (starts, ends))

    def columns(self) -> list[Strings]:
        """All texts so far, one Strings per column over the same buffer. Nothing can be added afterwards."""
        buffer = _join(self._blocks) if self._file is None else self._file.map()
        return [
            Strings(buffer, _join([s for s, _ in pieces], np.int64), _join([e for _, e in pieces], np.int64))
            for pieces in self._bounds
        ]


class LabelAccumulator:
    """Labels of documents, row by row."""

    def __init__(self) -> None:
        from labelwise.kernels.formats.fields import Interner

        self._interner = Interner()
        self._ids: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        self._values: list[np.ndarray] = []
        self._rated = False

    def add_tokens(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, first: np.ndarray) -> None:
        """Add rows whose labels are ``data[starts[i]:ends[i]]``; those of row r are first[r] to first[r + 1]."""
        self._ids.append(self._interner.add(data, starts, ends))
        self._counts.append(np.diff(first))
        self._values.append(np.broadcast_to(np.float32(1), len(starts)))

    def add_fields(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, separator: bytes = b"") -> None:
        """Add rows whose labels are in ``data[starts[r]:ends[r]]``, separated by blanks or by the separator."""
        from labelwise.kernels.formats.fields import split_fields

        self.add_tokens(data, *split_fields(data, starts, ends, separator))

    def add_encoded(self, names: Sequence[bytes], counts: Sequence[int], values: Sequence[float] | None = None) -> None:
        """Add rows with `counts` labels each; `names` are those of all rows, `values` their relevances if not 1."""
        self._ids.append(self._interner.add(*concatenated(names)))
        self._counts.append(np.asarray(counts, np.int64))
        if values is None:
            self._values.append(np.broadcast_to(np.float32(1), len(names)))
        else:
            self._values.append(np.asarray(values, np.float32))
            self._rated = True

    def matrix(self) -> tuple[sparse.csr_array, Strings]:
        """The label matrix without duplicates, and the names in label order. Nothing can be added afterwards."""
        interned = list(self._interner.names())
        names = sorted_label_names(interned)
        column_of = names.positions
        columns = np.fromiter((column_of[name] for name in interned), np.int32, len(interned))
        indices = columns[_join(self._ids, np.int32)]
        counts = _join(self._counts, np.int64)
        first = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=first[1:])
        values = _join(self._values, np.float32) if self._rated else np.ones(len(indices), np.float32)
        matrix = sparse.csr_array((values, indices, first), shape=(len(counts), len(names)))
        matrix.sum_duplicates()
        if not self._rated:
            matrix.data[:] = 1
        return matrix, names


def no_labels(documents: int) -> sparse.csr_array:
    """The label matrix of documents that are read without labels."""
    shape = (documents, 0)
    return sparse.csr_array(shape, dtype=np.float32)


def concatenated(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The texts concatenated, and where each begins and ends."""
    ends = np.fromiter(accumulate(map(len, texts)), np.int64, len(texts))
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    return np.frombuffer(b"".join(texts), np.uint8), starts, ends


def _join(pieces: list[np.ndarray], dtype: type = np.uint8) -> np.ndarray:
    """Concatenate the pieces. The list is emptied meanwhile, so that memory holds each piece only once."""
    if len(pieces) == 1:
        return np.asarray(pieces.pop(), dtype)
    whole = np.empty(sum(map(len, pieces)), dtype)
    start = 0
    pieces.reverse()
    while pieces:
        piece = pieces.pop()
        whole[start : start + len(piece)] = piece
        start += len(piece)
    return whole
