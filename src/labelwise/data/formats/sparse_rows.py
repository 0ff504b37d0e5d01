"""What the sparse text formats share: limits, messages, and writing rows as lines."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.blocks import Blocks
from labelwise.data.dataset import Dataset
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
