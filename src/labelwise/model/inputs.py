"""Converts what users pass (texts, features, paths of files, arrays, lists of labels) to a `Dataset`.

The input types of a method decide how documents are interpreted: strings are texts or paths, a matrix is features or
arrays. Anything else is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from labelwise.config import PART, Config, deciding_fields, without_fields
from labelwise.data.csr import Blocks, labels_from_lists, widened
from labelwise.data.dataset import Dataset, Documents, canonical_arrays, canonical_features, is_canonical_csr
from labelwise.data.hashing import KINDS, dataset_hash, document_hashes, sample_order, text_hashes
from labelwise.errors import DataError, ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.io.tensors import is_increasing
from labelwise.nn.config import TrainingConfig, without_validation
from labelwise.runtime.budget import Budget
from labelwise.runtime.job import fingerprint
from labelwise.runtime.progress import progress
from labelwise.strings import Strings
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.model.method import Method


# --- feature width ---
# The columns of the features that a model was trained on, and whether other documents have the same ones.

MAX_FEATURES = 1 << 31


@dataclass(frozen=True)
class FeatureWidth:
    """Number of columns, and how many of them, the last ones, are the dense block of `Blocks`."""

    columns: int
    dense: int = 0

    @classmethod
    def of(cls, features: Any) -> FeatureWidth:
        """The width of training features."""
        dense = features.dense if isinstance(features, Blocks) else None
        return cls(features.shape[1], 0 if dense is None else dense.shape[1])

    def fitted(self, features: Any, open_columns: bool) -> Any:
        """Features with these columns, or a DataError.

        With `open_columns`, sparse features may lack the last columns. Never does a dense block count as missing.
        """
        if isinstance(features, Blocks):
            return self._fitted_blocks(features, open_columns)
        given = features.shape[1]
        if given == self.columns:
            return features
        if open_columns and given < self.columns and not self.dense and sparse.issparse(features):
            return widened(features, self.columns)
        raise self._error(FeatureWidth.of(features))

    def _fitted_blocks(self, features: Blocks, open_columns: bool) -> Blocks:
        given = FeatureWidth.of(features)
        if not self.dense:  # both blocks stand for one matrix
            if given.columns != self.columns:
                raise self._error(given)
            return features
        left, columns = features.sparse, self.columns - self.dense
        if open_columns and left is not None and left.shape[1] < columns:
            features = Blocks(widened(left, columns), features.dense)
            given = FeatureWidth.of(features)
        if given != self:
            raise self._error(given)
        return features

    def _error(self, given: FeatureWidth) -> DataError:
        if not self.dense and not given.dense:
            return DataError(
                f"the model was trained on {self.columns:,} features, the documents have {given.columns:,}; "
                "they need the same columns in the same order"
            )
        return DataError(f"the model was trained on {self}, the documents have {given}; give Blocks with these widths")

    def __str__(self) -> str:
        return f"{self.columns - self.dense:,} sparse and {self.dense:,} dense features"

    def to_manifest(self) -> dict[str, int]:
        """The keys of a model's manifest."""
        return {"n_features": self.columns, "n_dense_features": self.dense}

    @classmethod
    def from_manifest(cls, manifest: dict[str, Any], path: Any, next_to_texts: bool = False) -> FeatureWidth | None:
        """From the keys of a manifest, which may be untrusted; None for a model that reads no features."""
        columns, dense = manifest.get("n_features"), manifest.get("n_dense_features")
        if manifest.get("input") != "features" and not next_to_texts:
            sound = columns is None and dense is None
        else:
            sound = type(columns) is int and type(dense) is int and 0 <= dense <= columns < MAX_FEATURES
        if not sound:
            raise ModelFormatError(f"{path}: the numbers of features do not fit the manifest")
        return None if columns is None or dense is None else cls(columns, dense)


AT_ONCE = 16_384
FORMS = {
    "texts": "a list of texts",
    "features": "a matrix with a row per document",
    "paths": "a list of paths to files",
    "arrays": "an array whose first axis is the documents",
}
"""How documents of each type are given, for messages."""


def as_dataset(data: Any, labels: Any, kinds: Sequence[str], known: Strings | None = None) -> Dataset:
    """Labelled documents from a Dataset, or from labels and documents of one of the types.

    `known` are the labels of a model: lists of labels are column numbers if the model's labels have no names.
    """
    if isinstance(data, Dataset):
        if labels is not None:
            raise DataError("the data set already has labels; do not pass labels too")
        return data
    if labels is None:
        raise DataError("labels are missing: pass a Dataset, or documents and labels: fit(documents, labels)")
    names = None
    if not sparse.issparse(labels) and not isinstance(labels, np.ndarray):
        if isinstance(labels, str):
            raise DataError("labels must be a list with each document's labels, got one string")
        labels, names = labels_from_lists(labels, known if known is not None and known.column_numbers else None)
    kind, documents = _documents(data, kinds)
    return Dataset(labels, names, **{kind: documents})  # type: ignore[arg-type]


def training_kind(data: Dataset, inputs: Sequence[str], method: str, with_vectors: bool = False) -> str:
    """The type of documents that a method reads, of those that the data has; with vectors, texts and features."""
    if with_vectors:
        if data.texts is None or not isinstance(data.features, np.ndarray):
            raise DataError(
                f"{data.name}: vector_scale is for texts with dense features next to them; give a Dataset with both "
                "(in a config data.features: [tfidf, vectors-{split}.npy])"
            )
        return "texts"
    for kind in inputs:
        if getattr(data, kind) is not None:
            return kind
    hint = ""
    if tuple(inputs) == ("features",) and data.texts is not None:
        hint = "; texts become features with labelwise.features.tfidf.Tfidf"
    elif "paths" in inputs and data.texts is not None:
        hint = "; the column of a table with paths of files is named by data.options.path_column"
    raise DataError(f"{data.name}: {method} needs {' or '.join(inputs)}, the data has none{hint}")


def kinds_to_train_on(model: Method, data: Dataset) -> set[str]:
    """The types of documents that a method learns from, of those that the data has: one, or texts and features."""
    config = model.config
    kinds = config.kinds_to_train_on(data)
    if kinds is None:
        kind = training_kind(data, model.inputs, model.name, config.reads_vectors)
        kinds = {kind, "features"} if config.reads_vectors else {kind}
    return kinds


def as_held_out(valid: Dataset, train: Dataset, width: FeatureWidth | None) -> Dataset:
    """Held-out documents of the type and the label space of the training documents, with as many features."""
    aligned = valid.align(train.label_names).only(train.kind, train.texts is not None and train.features is not None)
    if width is not None and aligned.features is not None:
        return replace(aligned, features=width.fitted(aligned.features, aligned.open_columns))
    return aligned


def as_documents(documents: Any, kind: str, width: FeatureWidth | None) -> Documents:
    """Documents to predict for, of the type the model was trained on; `width` is that of its features."""
    if width is not None and kind == "texts":
        return _texts_with_features(documents, width)
    open_columns = False
    if isinstance(documents, Dataset):
        value = getattr(documents, kind)
        if value is None and len(documents):
            raise DataError(f"{documents.name}: the model was trained on {kind}, the data has none")
        value, open_columns = _nothing(kind, width) if value is None else value, documents.open_columns
    elif kind == "features" and is_canonical_csr(documents):
        value = documents  # also SciPy's older csr_matrix: converting it takes longer than many predictions
    else:
        given, value = _documents(documents, (kind,))
        if given != kind:
            if value.shape[0] if given == "features" else len(value):
                raise DataError(f"the model was trained on {kind}, but {given} were given; give {FORMS[kind]}")
            value = _nothing(kind, width)
    if width is not None:
        value = width.fitted(value, open_columns)
    return Documents(**{kind: value})


def as_any_documents(documents: Any, usual: str, kinds: Sequence[str]) -> Documents:
    """Documents of any type in `kinds`; a Dataset with several types has those of the type `usual`."""
    if isinstance(documents, Dataset):
        given = [kind for kind in (usual, *kinds) if getattr(documents, kind) is not None]
        return as_documents(documents, given[0] if given else usual, None)
    kind, value = _documents(documents, (usual, *kinds))
    return Documents(**{kind: value}) if kind in kinds else as_documents(documents, usual, None)


def _texts_with_features(documents: Any, width: FeatureWidth) -> Documents:
    """Documents for a model that was trained on texts and features next to each other."""
    if not isinstance(documents, Dataset) or documents.texts is None or documents.features is None:
        raise DataError(
            f"the model was trained on texts and {width.columns:,} more features of each document; give both: "
            "Dataset(texts=..., features=...), on the command line --features FILE.npy"
        )
    return Documents(texts=documents.texts, features=width.fitted(documents.features, documents.open_columns))


def _documents(data: Any, kinds: Sequence[str]) -> tuple[str, Any]:
    """The type of the documents, one of `kinds` if possible, and the documents."""
    if isinstance(data, str | os.PathLike | Strings):
        return _strings([data] if not isinstance(data, Strings) else data, kinds)
    if sparse.issparse(data) or isinstance(data, Blocks):
        return "features", canonical_features(data)
    if isinstance(data, np.ndarray) and data.dtype.kind in "biuf":
        return _numbers(data, kinds)
    if isinstance(data, dict | bytes) or not hasattr(data, "__iter__"):
        raise DataError(f"documents must be {' or '.join(FORMS[kind] for kind in kinds)}, got {type(data).__name__}")
    items = data if isinstance(data, list | tuple) else list(data)
    if len(items) and isinstance(items[0], np.ndarray):
        return _numbers(_stacked(items), kinds)
    return _strings(items, kinds)


def _strings(items: Sequence[Any] | Strings, kinds: Sequence[str]) -> tuple[str, Strings]:
    """Strings have the first type of `kinds` that consists of strings; path objects are paths."""
    if isinstance(items, Strings):
        return _first_of(("texts", "paths"), kinds), items
    if any(isinstance(item, os.PathLike) for item in items):
        return "paths", Strings.of(os.fspath(item) if isinstance(item, os.PathLike) else item for item in items)
    return _first_of(("texts", "paths"), kinds), Strings.of(items)


def _numbers(array: np.ndarray, kinds: Sequence[str]) -> tuple[str, Any]:
    """A matrix has the first type of `kinds` that accepts one; arrays with more axes can only be arrays."""
    kind = "arrays" if array.ndim > 2 else _first_of(("features", "arrays"), kinds)
    return kind, canonical_arrays(array) if kind == "arrays" else canonical_features(array)


def _stacked(items: Sequence[Any]) -> np.ndarray:
    """Stack the arrays of the documents."""
    shape = items[0].shape
    for row, item in enumerate(items):
        if not isinstance(item, np.ndarray) or item.shape != shape or item.dtype.kind not in "biuf":
            given = f"{item.dtype} of shape {item.shape}" if isinstance(item, np.ndarray) else type(item).__name__
            raise DataError(
                f"document {row}: an array of numbers of the first one's shape {shape} is needed, got {given}"
            )
    return np.stack(items)


def _first_of(possible: Sequence[str], kinds: Sequence[str]) -> str:
    return next((kind for kind in kinds if kind in possible), possible[0])


def _nothing(kind: str, width: FeatureWidth | None) -> Any:
    if kind == "features":
        return sparse.csr_array((0, width.columns if width is not None else 0), dtype=np.float32)
    return np.empty((0, 0), np.float32) if kind == "arrays" else Strings.of([])


def split_for_early_stopping(
    data: Dataset, valid: Dataset | None, fraction: float, max_documents: int, seed: int
) -> tuple[Dataset, Dataset | None]:
    """Training and held-out documents: `valid` if given, else a fraction of `data`, at most `max_documents`."""
    fraction = min(fraction, max_documents / len(data))
    if valid is not None or round(fraction * len(data)) in (0, len(data)):
        return data, valid
    return data.split(fraction, seed)


def hold_out(
    data: Dataset, valid: Dataset | None, config: Any, most: int
) -> tuple[Dataset, Dataset | None, TrainingConfig]:
    """Training and held-out documents by the config, and its settings of training: without any, no validation."""
    training = config.training
    train, held_out = split_for_early_stopping(data, valid, config.valid_fraction, most, training.seed)
    return train, held_out, training if held_out is not None else without_validation(training, type(config)().training)


def _joined(parts: Sequence[TopK]) -> TopK:
    """Predictions of blocks, which with a threshold are as wide as each needs."""
    widest = max(part.k for part in parts)
    return TopK.concatenate([part.padded(widest) for part in parts])


def predict_in_time(
    predict: Callable[[Dataset], TopK], data: Dataset, what: str, budget: Budget
) -> tuple[np.ndarray, TopK]:
    """Indices and predictions of as many documents as the time budget allows: a random sample, or all."""
    blocks, parts = [], []
    with progress(what, len(data), seconds_left=budget.remaining) as step:
        for rows in budget.blocks(sample_order(data)):
            with step.part(len(rows)):
                parts.append(predict(data.take(rows)))
            blocks.append(rows)
    rows = np.concatenate(blocks)
    order, top = np.argsort(rows), _joined(parts)
    return rows[order], TopK(top.ids[order], top.scores[order], top.label_names)


def predict_in_blocks(predict: Callable[[Dataset], TopK], data: Dataset, what: str) -> TopK:
    """Predict for many documents in large blocks, with a progress bar."""
    parts = []
    with progress(what, len(data)) as step:
        for begin in range(0, max(len(data), 1), AT_ONCE):
            part = data.take(slice(begin, begin + AT_ONCE))
            with step.part(len(part)):
                parts.append(predict(part))
    return _joined(parts)


# --- training documents ---
# What a model remembers of its training documents: 8 bytes each, to recognise them, and how many labels they have.
#
# Scores on documents that a model was trained on say little about new ones, and neither do probabilities and thresholds
# fitted to them. Evaluation and calibration therefore count such documents.

MANY = 0.99


@dataclass(frozen=True)
class Overlap:
    """How many of some documents were in the training data."""

    documents: int
    seen: int

    def remark(self, consequence: str) -> str:
        """Count and fraction in words, and what follows from it."""
        fraction = f"{self.seen / max(self.documents, 1):.1%}".replace("%", " %")
        return f"{self.seen:,} of {self.documents:,} documents ({fraction}) were in the training data: {consequence}"


@dataclass(frozen=True, eq=False)
class TrainingDocuments:
    """Hashes of the training documents, ascending, and the labels that 99 % of them have at most."""

    hashes: np.ndarray
    labels_per_document: int

    @classmethod
    def of(cls, labels: Any, hashes: np.ndarray) -> TrainingDocuments:
        """From the label matrix and the hashes of the documents, none for methods that ignore the document."""
        return cls(np.unique(hashes), int(np.quantile(np.diff(labels.indptr), MANY, method="higher")))

    def overlap(self, documents: Any, kind: str) -> Overlap | None:
        """How many of these documents were trained on, where documents had this type; None if these do not have it."""
        if len(self.hashes) and getattr(documents, kind) is None:
            return None
        given = document_hashes(documents, kind) if len(self.hashes) else np.empty(0, np.uint64)
        index = np.minimum(np.searchsorted(self.hashes, given), len(self.hashes) - 1)
        return Overlap(len(documents), int(np.count_nonzero(self.hashes[index] == given)))

    def to_tensors(self) -> dict[str, np.ndarray]:
        """As named arrays for a model folder."""
        return {"hashes": self.hashes, "labels_per_document": np.array([self.labels_per_document], np.int64)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], path: Path, verify: bool) -> TrainingDocuments:
        """Rebuild from `to_tensors`; the hashes stay mapped from the file."""
        hashes, many = (get_tensor(tensors, name, path) for name in ("hashes", "labels_per_document"))
        sound = (
            hashes.ndim == 1
            and hashes.dtype == np.uint64
            and many.shape == (1,)
            and many.dtype == np.int64
            and many[0] >= 0
            and (not verify or is_increasing(hashes))
        )
        if not sound:
            raise ModelFormatError(f"{path}: the hashes of the training documents are damaged")
        return cls(hashes, int(many[0]))


# --- identity ---
# The identity of a fit: one hash of everything that decides its result, so that no unfinished work is used wrongly.
#
# It is computed once per fit: of the method, the settings that decide a trained part, the contents of files and folders
# that they name, all of the training data and, where a method reads them, the held-out documents.


def fit_identity(
    method: Any, config: Config, train: Dataset | None, valid: Dataset | None = None, hashes: np.ndarray | None = None
) -> str:
    """The identity of one fit of a method with this config; `hashes` are those of the training documents, if known.

    Without the fields that are `elsewhere` by the config, such as a folder with one lookup table per repetition.
    """
    parameters = without_fields(deciding_fields(config, PART), dict(config.elsewhere))
    reads_valid = valid is not None and method.validates and "valid" not in config.elsewhere
    held_out = content_of(valid) if reads_valid and valid is not None else None
    data = None if train is None else content_of(train, hashes)
    return fingerprint(method.name, parameters, config.contents(), data, held_out)


def content_of(data: Dataset, hashes: np.ndarray | None = None) -> list[Any]:
    """All of a data set that a method can learn from, as JSON values.

    Documents of every kind that it has, the number of columns of features, which may be larger than any that occurs,
    types of numbers, labels with their values and names, and the texts of labels.
    """
    kinds = [kind for kind in KINDS if getattr(data, kind) is not None]
    given = {data.kind: hashes} if hashes is not None and len(hashes) == len(data) else {}
    hashes_of = {kind: given[kind] if kind in given else document_hashes(data, kind) for kind in kinds}
    shapes = {kind: _shapes(getattr(data, kind)) for kind in ("features", "arrays") if kind in kinds}
    labels = [dataset_hash(data, hashes_of[kinds[0]]) if kinds else "", list(data.labels.shape), data.open_columns]
    texts = None if data.label_texts is None else fingerprint(text_hashes(data.label_texts))
    return [{kind: fingerprint(of_kind) for kind, of_kind in hashes_of.items()}, shapes, labels, texts]


def _shapes(values: Any) -> list[Any]:
    """Shapes and types of a matrix, or of each block; the first axis is the documents."""
    blocks = (values.sparse, values.dense) if isinstance(values, Blocks) else (values,)
    return [None if block is None else [list(map(int, block.shape)), str(block.dtype)] for block in blocks]
