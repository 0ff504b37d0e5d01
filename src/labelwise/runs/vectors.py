"""Dense vectors from a .npy file as features next to the texts or sparse features of documents, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError
from labelwise.model.method import Method
from labelwise.strings import Strings

TFIDF = "tfidf"
SPLIT = "{split}"


def vectors_file(features: list[str]) -> str:
    """The file in `data.features`, which is TF-IDF and one file of vectors."""
    if len(features) != 2 or features[0] != TFIDF or not features[1].endswith(".npy"):
        raise ConfigError(f"write [tfidf, vectors-{SPLIT}.npy]: TF-IDF of the texts, and a .npy file of vectors")
    return features[1]


def attach_to_parts(parts: Mapping[str, Dataset], file: str) -> dict[str, Dataset]:
    """All parts of a data set with the vectors of their files, which are named by the part."""
    if len(parts) > 1 and SPLIT not in file:
        raise ConfigError(
            f"data.features: {file} is one file, but the data has the parts {', '.join(parts)}; write the part's name "
            f"as {SPLIT}, such as vectors-{SPLIT}.npy"
        )
    return {name: with_vectors(part, file.replace(SPLIT, name)) for name, part in parts.items()}


def with_vectors(data: Dataset, path: str) -> Dataset:
    """Documents with the vectors of a file as dense features, next to sparse ones if they have some."""
    vectors = read_vectors(path)
    if len(vectors) != len(data):
        raise DataError(f"{len(vectors):,} vectors for {len(data):,} documents of {data.name}", path)
    return _joined(data, vectors, path)


def vector_batches(batches: Iterator[Strings | Dataset], path: str) -> Iterator[Dataset]:
    """`with_vectors` for documents that arrive in batches."""
    vectors, begin = read_vectors(path), 0
    for batch in batches:
        end = begin + len(batch)
        if end > len(vectors):
            raise DataError(f"{len(vectors):,} vectors, but there are more documents", path)
        data = batch if isinstance(batch, Dataset) else Dataset(texts=batch)
        yield _joined(data, vectors[begin:end], path)
        begin = end
    if begin != len(vectors):
        raise DataError(f"{len(vectors):,} vectors for {begin:,} documents", path)


def check_reads_vectors(model: Method) -> None:
    """Raise unless the model was trained on vectors next to texts or sparse features."""
    width = model.feature_width_
    if width is None or (model.input_ == "features" and width.dense == 0):
        raise ConfigError("--features: the model was trained without vectors next to its documents; leave it out")


def read_vectors(path: str) -> np.ndarray:
    """A matrix of numbers with a row per document, mapped from the file."""
    try:
        vectors = np.load(Path(path), mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError("there is no such file of vectors; `labelwise encode` writes one", path) from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"vectors cannot be read: {error}", path) from None
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind != "f":
        shape = getattr(vectors, "shape", ())
        raise DataError(f"a matrix of floats with a row per document is needed, this has the shape {shape}", path)
    return vectors


def _joined(data: Dataset, vectors: np.ndarray, path: str) -> Dataset:
    if data.features is None:
        return replace(data, features=vectors)
    if not sparse.issparse(data.features):
        raise DataError(f"{data.name} has dense features already; vectors go next to texts or sparse features", path)
    return replace(data, features=Blocks(data.features, np.asarray(vectors)))
