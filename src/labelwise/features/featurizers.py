"""Featurizers: documents to the features that a scorer reads. What they learn is saved with the model.

Features are those of the data (`Given`), TF-IDF of texts (`Words`), or TF-IDF with dense features of the data next to
it (`WordsAndGiven`). `featurizer_of(config, train)` is the class for some training data:

    features, rows = featurizer_of(config, train).learn(config, train, job)

Vectors of a text encoder next to TF-IDF are in `labelwise.nn.featurizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from scipy import sparse

from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset, Documents
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.features.rows import FeatureRows, as_csr, unit_rows, unit_rows_on_disk
from labelwise.features.tfidf import Tfidf
from labelwise.io.folder import get_tensor
from labelwise.runtime.memory import block_bytes

if TYPE_CHECKING:
    from labelwise.runtime.job import Job


PREFIX = "tfidf."
"""Of the names of a model's tensors."""
COUNTED = 0.3
"""Fraction of the free memory for counts of terms, if texts are larger than memory."""


class Featurizer(Protocol):
    """What every featurizer has."""

    @property
    def n_features(self) -> int:
        """The number of columns."""

    @classmethod
    def learn(cls, config: Any, train: Dataset, job: Job) -> tuple[Self, Any]:
        """A featurizer that has learned from training documents, and their rows.

        With `job.scratch` sparse rows are in files of that folder, and mapped.
        """

    def rows(self, documents: Dataset | Documents) -> Any:
        """A row per document: CSR, `FeatureRows`, dense or `Blocks`."""

    def names(self, columns: np.ndarray) -> list[str] | None:
        """Names of some columns for explanations; None if they have none."""

    def counted(self, words: Sequence[str]) -> list[str]:
        """What words of a text are counted as."""

    def tensors(self) -> dict[str, np.ndarray]:
        """What was learned, as named arrays."""

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Any) -> Self:
        """Rebuild from `tensors`, checked."""


def featurizer_of(config: Any, train: Dataset) -> type[Featurizer]:
    """The featurizer for training documents, which have one type, or texts and features next to each other."""
    if train.kind == "texts" and getattr(config, "feature_norm", None) is not None:
        raise ConfigError(
            f"feature_norm is for features that the data has, and {train.name} is read as texts; the norm of TF-IDF "
            "is tfidf.norm"
        )
    return _featurizer(config, train.kind)


def saved_featurizer(tensors: Mapping[str, np.ndarray], about: Any) -> Featurizer:
    """The featurizer of a saved model."""
    return _featurizer(about.config, about.input).from_tensors(tensors, about)


def _featurizer(config: Any, kind: str) -> type[Featurizer]:
    if kind == "features":
        return Given
    return WordsAndGiven if config.reads_vectors else Words


def csr_rows(featurizer: Featurizer, documents: Dataset | Documents) -> Any:
    """A row per document as one CSR matrix, for scorers that read nothing else."""
    rows = featurizer.rows(documents)
    return rows.sparse if isinstance(rows, FeatureRows) else as_csr(rows)


class Given:
    """Features that the data has, with every document scaled to unit L2 norm if wanted."""

    def __init__(self, norm: str | None, n_features: int) -> None:
        self.norm, self.n_features = norm, n_features

    @classmethod
    def learn(cls, config: Any, train: Dataset, job: Job) -> tuple[Self, Any]:
        features: Any = train.features
        own = cls(getattr(config, "feature_norm", None), features.shape[1])
        if own.norm and job.scratch is not None and sparse.issparse(features):
            return own, unit_rows_on_disk(features, job.scratch)
        return own, own.rows(train)

    def rows(self, documents: Dataset | Documents) -> Any:
        return unit_rows(documents.features) if self.norm else documents.features

    def extended(self, documents: Dataset, n_documents: int) -> Given:
        """The same: columns of features do not change."""
        return self

    def names(self, columns: np.ndarray) -> None:
        return None

    def counted(self, words: Sequence[str]) -> list[str]:
        return [word.lower() for word in words]

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Any) -> Self:
        return cls(getattr(about.config, "feature_norm", None), 0 if about.width is None else about.width.columns)


class Words:
    """TF-IDF of texts."""

    def __init__(self, tfidf: Tfidf) -> None:
        self.tfidf = tfidf

    @property
    def n_features(self) -> int:
        return self.tfidf.n_features

    @classmethod
    def learn(cls, config: Any, train: Dataset, job: Job) -> tuple[Self, Any]:
        tfidf, texts = Tfidf(config.tfidf), train.texts
        assert texts is not None
        if job.scratch is None:
            return cls(tfidf), tfidf.fit_transform(texts)
        limit = block_bytes(getattr(config, "memory", "check"), COUNTED)
        return cls(tfidf), tfidf.fit_transform_mapped(texts, job.scratch, limit)

    def rows(self, documents: Dataset | Documents) -> FeatureRows:
        return self.tfidf.rows(documents.texts or ())

    def extended(self, documents: Dataset, n_documents: int) -> Words:
        """With columns for terms that only these documents have; it has counted `n_documents` before."""
        return Words(self.tfidf.extended(documents.texts or (), n_documents))

    def names(self, columns: np.ndarray) -> list[str] | None:
        return None if self.tfidf.config.hash_bits else self.tfidf.readable_terms(columns)

    def counted(self, words: Sequence[str]) -> list[str]:
        return self.tfidf.counted_words(words)

    def tensors(self) -> dict[str, np.ndarray]:
        return {f"{PREFIX}{name}": array for name, array in self.tfidf.state().items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Any) -> Self:
        own = {name.removeprefix(PREFIX): array for name, array in tensors.items() if name.startswith(PREFIX)}
        return cls(Tfidf(about.config.tfidf).restore(own, about.path))


class WordsAndGiven:
    """TF-IDF of texts, and next to it the dense features of the data, multiplied by a number."""

    def __init__(self, words: Words, scale: float, width: int) -> None:
        self.words, self.tfidf, self.scale, self.width = words, words.tfidf, scale, width

    @property
    def n_features(self) -> int:
        return self.words.n_features + self.width

    @classmethod
    def learn(cls, config: Any, train: Dataset, job: Job) -> tuple[Self, Any]:
        if job.scratch is not None:
            raise ConfigError("vector_scale: vectors next to texts are held in memory; leave out data.mapped")
        words, rows = Words.learn(config, train, job)
        vectors: Any = train.features
        own = cls(words, config.vector_scale, vectors.shape[1])
        return own, Blocks(rows, own._scaled(vectors))

    def rows(self, documents: Dataset | Documents) -> Blocks:
        return Blocks(self.tfidf.transform(documents.texts or ()), self._scaled(documents.features))

    def _scaled(self, vectors: Any) -> np.ndarray:
        if not isinstance(vectors, np.ndarray):
            raise DataError("features next to texts must be dense vectors")
        return vectors if self.scale == 1 else vectors * vectors.dtype.type(self.scale)

    def names(self, columns: np.ndarray) -> list[str] | None:
        return names_of_blocks(self.words, columns, lambda number: f"vector[{number}]")

    def counted(self, words: Sequence[str]) -> list[str]:
        return self.words.counted(words)

    def tensors(self) -> dict[str, np.ndarray]:
        return self.words.tensors()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Any) -> Self:
        width = 0 if about.width is None else about.width.columns
        return cls(Words.from_tensors(tensors, about), about.config.vector_scale, width)


def names_of_blocks(words: Words, columns: np.ndarray, dense: Callable[[int], str]) -> list[str] | None:
    """Names of some columns where dense ones, named by their number, follow those of words."""
    count = words.n_features
    named = words.names(columns[columns < count])
    if named is None:
        return None
    terms = iter(named)
    return [next(terms) if column < count else dense(column - count) for column in columns.tolist()]


# --- vectors ---
# Document vectors of an encoder as features next to TF-IDF: centred, partly whitened, of a given norm.
#
# The vectors of a pretrained encoder have a large common component, their mean: it says nothing about a document, acts
# as a second bias in every classifier, and makes the sums of vectors that describe labels point in the same direction.
# A few other directions have most of the variance; whitening makes the differences in all others count as well.

MEAN, WHITENING = "vectors.mean", "vectors.whitening"
AT_ONCE = 8192
"""Vectors that are scaled at a time."""
SMALLEST = 1e-4
"""Variance of a direction, as a fraction of the largest, below which it is not amplified further: the rest is noise."""


@dataclass(frozen=True)
class VectorScaling:
    """The mean of the training vectors, the norm that scaled vectors have, and a matrix to multiply with, or None."""

    mean: np.ndarray
    norm: float
    matrix: np.ndarray | None = None

    @classmethod
    def learn(cls, vectors: np.ndarray, norm: float, whitening: float = 0.0) -> VectorScaling:
        """The scaling for these training vectors, of which there is at least one.

        Every principal direction is divided by its variance to the power of `whitening`: 0 keeps the vectors, 0.5
        makes all directions equal.
        """
        mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        return cls(mean, norm, _whitening_matrix(vectors, mean, whitening) if whitening else None)

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """Scaled vectors, float32; one that equals the mean has the norm 0."""
        scaled = np.empty(vectors.shape, np.float32)
        for begin in range(0, len(vectors), AT_ONCE):
            part = scaled[begin : begin + AT_ONCE]
            np.subtract(vectors[begin : begin + AT_ONCE], self.mean, out=part)
            if self.matrix is not None:
                part[:] = part @ self.matrix
            norms = np.linalg.norm(part, axis=1, keepdims=True)
            part *= np.divide(self.norm, norms, out=np.zeros_like(norms), where=norms > 0)
        return scaled

    def state(self) -> dict[str, np.ndarray]:
        """As named arrays; the norm is a parameter of the method."""
        return {MEAN: self.mean} | ({} if self.matrix is None else {WHITENING: self.matrix})

    @classmethod
    def restored(
        cls, tensors: Mapping[str, np.ndarray], width: int, norm: float, whitened: bool, path: Path
    ) -> VectorScaling:
        """Restore what `state` returned, for vectors of this width."""
        mean = _checked(tensors, MEAN, (width,), path)
        return cls(mean, norm, _checked(tensors, WHITENING, (width, width), path) if whitened else None)


def _whitening_matrix(vectors: np.ndarray, mean: np.ndarray, power: float) -> np.ndarray:
    """Symmetric, so that directions keep their meaning; float32."""
    width = len(mean)
    covariance = np.zeros((width, width))
    for begin in range(0, len(vectors), AT_ONCE):
        centred = vectors[begin : begin + AT_ONCE].astype(np.float64) - mean
        covariance += centred.T @ centred
    variances, directions = np.linalg.eigh(covariance / len(vectors))
    largest = variances[-1]
    if largest <= 0:
        return np.eye(width, dtype=np.float32)  # all vectors are equal
    amplified = np.maximum(variances / largest, SMALLEST) ** -power
    return ((directions * amplified) @ directions.T).astype(np.float32)


def _checked(tensors: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], path: Path) -> np.ndarray:
    array = get_tensor(tensors, name, path)
    if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
        raise ModelFormatError(f"{path}: {name} does not fit vectors of {shape[0]} numbers")
    return array
