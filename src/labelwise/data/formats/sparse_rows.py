"""What the sparse text formats share: CSR matrices gathered from parsed blocks, and written back as lines."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.blocks import Blocks
from labelwise.data.dataset import Dataset
from labelwise.data.on_disk import ArrayOnDisk
from labelwise.data.pick import csr_of
from labelwise.data.stream import write_stream
from labelwise.errors import DataError
from labelwise.parallel import run_stream
from labelwise.progress import progress
from labelwise.strings import Strings

READ_BYTES = 1 << 20
"""Smaller blocks than elsewhere: they stay in the processor's cache, and their memory is used again."""
WRITE_BYTES = 4 << 20
MAX_LABELS = 1 << 27
"""Each label has a name in memory, so a stray number of ten digits must not ask for gigabytes of names."""


class Rows:
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


class RowsOnDisk:
    """`Rows` whose columns and values go to files in a folder and are mapped in the end.

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


def new_rows(valued: bool, folder: Path | None) -> Rows | RowsOnDisk:
    """Rows in memory, or in files if there is a folder for them."""
    return Rows(valued) if folder is None else RowsOnDisk(valued, folder)


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


def token_at(data: np.ndarray, position: int, separators: bytes) -> str:
    """The token that begins at a byte, for a message."""
    head = data[position : position + 200].tobytes()
    end = next((place for place, byte in enumerate(head) if byte in separators), len(head))
    text = head[:end].decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:40] + "...")


def sparse_features(dataset: Dataset, path: Path, format_name: str) -> sparse.csr_array:
    """The features to write; an error when there are none."""
    if dataset.features is None:
        if len(dataset) == 0:
            return sparse.csr_array((0, 0), dtype=np.float32)
        raise DataError(
            f"the format {format_name} needs features, which {dataset.name} does not have; "
            "labelwise.features.tfidf.Tfidf makes them of texts",
            path,
        )
    features = dataset.features
    return features.to_csr() if isinstance(features, Blocks) else sparse.csr_array(features)


def write_lines(
    dataset: Dataset, features: sparse.csr_array, names: Strings, path: Path, header: bytes, bar: bool
) -> None:
    """Write one line a document, formatted on all threads and written in order."""
    from labelwise.kernels.formats.sparse_text import MAX_ENTRY_BYTES, format_lines

    labels = dataset.labels
    names = names.compact()
    name_bytes = (names.ends - names.starts)[labels.indices]
    label_bytes = np.concatenate([[0], np.cumsum(name_bytes + 1)])[labels.indptr]
    most = np.diff(label_bytes) + 3 + MAX_ENTRY_BYTES * np.diff(features.indptr).astype(np.int64)

    def lines(rows: tuple[int, int]) -> np.ndarray:
        begin, end = rows
        out = np.empty(int(most[begin:end].sum()), np.uint8)
        length = format_lines(
            begin, end, features.indptr, features.indices, features.data, labels.indptr, labels.indices,
            names.buffer, names.starts, names.ends, bar, out,
        )  # fmt: skip
        return out[:length]

    with write_stream(path) as file, progress(f"writing {path.name}", len(dataset)) as step:
        file.write(header)
        ranges = pieces(most)
        for (begin, end), text in zip(ranges, run_stream(lines, ranges), strict=True):
            file.write(text.data)
            step(end - begin)


def pieces(most: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of rows of about `WRITE_BYTES` each."""
    ends = np.cumsum(most)
    edges = [0]
    while edges[-1] < len(most):
        done = ends[edges[-1] - 1] if edges[-1] else 0
        edges.append(max(edges[-1] + 1, int(np.searchsorted(ends, done + WRITE_BYTES, "right"))))
    return list(itertools.pairwise(edges))
