"""Shared by the sparse formats: collecting parsed rows, limits, messages, and writing rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.blocks import Blocks
from labelwise.data.csr import csr_builder, read_only, read_only_arrays
from labelwise.data.dataset import Dataset
from labelwise.data.stream import write_stream
from labelwise.errors import DataError
from labelwise.parallel import run_stream
from labelwise.progress import progress
from labelwise.strings import Strings

READ_BYTES = 1 << 20
"""Smaller blocks than elsewhere: they stay in the processor's cache, and their memory is reused."""
WRITE_BYTES = 4 << 20
MAX_LABELS = 1 << 27
"""Each label has a name in memory, so a stray number of ten digits must not allocate gigabytes of names."""


@dataclass(frozen=True, eq=False)
class ParsedRows:
    """The rows of one block, and the numbers of columns they need."""

    feature_counts: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    label_counts: np.ndarray
    labels: np.ndarray
    relevances: np.ndarray | None
    n_features: int
    n_labels: int
    fraction_read: float
    """Fraction of the file read up to the end of this block."""


class SparseDatasetBuilder:
    """Builds a data set of features and numbered labels block by block, in memory or in files of a folder."""

    def __init__(self, rated: bool, folder: Path | None) -> None:
        self.features, self.labels = csr_builder(True, folder), csr_builder(rated, folder)
        self.documents = self.n_features = self.n_labels = 0

    def add(self, part: ParsedRows, fraction_read: float) -> None:
        """Add the rows of one block; `fraction_read` of all files has been read with it."""
        self.features.add(part.feature_counts, part.indices, part.values, fraction_read)
        self.labels.add(part.label_counts, part.labels, part.relevances, fraction_read)
        self.documents += len(part.label_counts)
        self.n_features = max(self.n_features, part.n_features)
        self.n_labels = max(self.n_labels, part.n_labels)

    def drop_last(self) -> None:
        """Remove the last row, which must be empty."""
        self.documents -= 1
        self.features.drop_last()
        self.labels.drop_last()

    def dataset(self, path: Path) -> Dataset:
        """The data set of all rows; labels are named by their numbers."""
        if self.n_labels > MAX_LABELS:
            what = f"label {self.n_labels - 1:,} is too large; at most {MAX_LABELS:,} labels are possible"
            raise DataError(what, path)
        labels, features = self.labels.matrix(self.n_labels), self.features.matrix(self.n_features)
        return Dataset(labels, features=features, name=str(path))


def token_at(data: np.ndarray, position: int, separators: bytes) -> str:
    """The token that begins at this byte, for messages."""
    head = data[position : position + 200].tobytes()
    end = next((index for index, byte in enumerate(head) if byte in separators), len(head))
    text = head[:end].decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:40] + "...")


def sparse_features(dataset: Dataset, path: Path, format_name: str) -> sparse.csr_array:
    """The features to write; DataError if there are none."""
    if dataset.features is None:
        if len(dataset) == 0:
            return sparse.csr_array((0, 0), dtype=np.float32)
        raise DataError(
            f"the format {format_name} needs features, which {dataset.name} does not have; "
            "labelwise.features.tfidf.Tfidf computes them from texts",
            path,
        )
    features = dataset.features
    return features.to_csr() if isinstance(features, Blocks) else sparse.csr_array(features)


def write_lines(
    dataset: Dataset, features: sparse.csr_array, names: Strings, path: Path, header: bytes, bar: bool
) -> None:
    """Write one line per document, formatted on all threads and written in order."""
    from labelwise.kernels.formats.sparse_text import MAX_ENTRY_BYTES, format_lines

    labels = dataset.labels
    names = names.compact()
    name_bytes = (names.ends - names.starts)[labels.indices]
    label_bytes = np.concatenate([[0], np.cumsum(name_bytes + 1)])[labels.indptr]
    max_bytes = np.diff(label_bytes) + 3 + MAX_ENTRY_BYTES * np.diff(features.indptr).astype(np.int64)

    arrays = (
        *read_only_arrays(features), *read_only_arrays(labels)[:2],
        read_only(names.buffer), read_only(names.starts), read_only(names.ends),
    )  # fmt: skip

    def lines(rows: tuple[int, int]) -> np.ndarray:
        begin, end = rows
        out = np.empty(int(max_bytes[begin:end].sum()), np.uint8)
        length = format_lines(begin, end, *arrays, bar, out)
        return out[:length]

    write_rows(lines, max_bytes, path, header)


def write_rows(
    format_range: Callable[[tuple[int, int]], np.ndarray], max_bytes: np.ndarray, path: Path, header: bytes = b""
) -> None:
    """Format ranges of rows on all threads and write them in order; `max_bytes` bounds the bytes per row."""
    ranges = _ranges(max_bytes)
    with write_stream(path) as file, progress(f"writing {path.name}", len(max_bytes)) as step:
        file.write(header)
        for (begin, end), text in zip(ranges, run_stream(format_range, ranges), strict=True):
            file.write(text.data)
            step(end - begin)


def _ranges(max_bytes: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of rows of about `WRITE_BYTES` each."""
    ends = np.cumsum(max_bytes)
    edges = [0]
    while edges[-1] < len(max_bytes):
        done = ends[edges[-1] - 1] if edges[-1] else 0
        edges.append(max(edges[-1] + 1, int(np.searchsorted(ends, done + WRITE_BYTES, "right"))))
    return list(itertools.pairwise(edges))
