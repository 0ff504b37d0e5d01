"""From whatever a user holds to a `Dataset`: texts, matrices, lists of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset, canonical_features, labels_from_lists
from labelwise.errors import DataError
from labelwise.strings import Strings


def as_dataset(data: Any, labels: Any) -> Dataset:
    """Training data from a Dataset, or from documents and labels."""
    if isinstance(data, Dataset):
        if labels is not None:
            raise DataError("the data set has its labels already; do not give labels beside it")
        return data
    if labels is None:
        raise DataError("labels are missing: give a Dataset, or fit(documents, labels)")
    names = None
    if not sparse.issparse(labels) and not isinstance(labels, np.ndarray):
        if isinstance(labels, str):
            raise DataError("labels must be a list with each document's labels, got one string")
        lists: list[Any] = [[row] if isinstance(row, str | int | np.integer) else row for row in labels]
        labels, names = labels_from_lists(lists)
    kind, documents = _documents(data)
    return Dataset(labels, names, **{kind: documents})  # type: ignore[arg-type]


def as_inputs(documents: Any, kind: str, n_features: int | None, label_names: Strings) -> Dataset:
    """Documents to predict for, of the kind the model was trained on, in the model's label space."""
    if isinstance(documents, Dataset):
        value = getattr(documents, kind)
        if value is None and len(documents):
            raise DataError(f"{documents.name}: the model was trained on {kind}, the data has none")
    else:
        found, value = _documents(documents)
        if found != kind:
            if value.shape[0] if found == "features" else len(value):
                raise DataError(f"the model was trained on {kind}, but {found} were given")
            value = _nothing(kind, n_features)
    if kind == "features":
        value = _as_wide_as_the_model(value, n_features)
    rows = value.shape[0] if kind == "features" else len(value)
    empty: Any = sparse.csr_array((rows, len(label_names)), dtype=np.float32)
    return Dataset(empty, label_names, **{kind: value})


def _documents(data: Any) -> tuple[str, Any]:
    """The kind of the documents ('texts' or 'features') and the documents."""
    if isinstance(data, str):
        return "texts", Strings.of([data])
    if isinstance(data, Strings):
        return "texts", data
    if sparse.issparse(data):
        return "features", canonical_features(data)
    if isinstance(data, np.ndarray) and data.dtype.kind in "biuf":
        return "features", canonical_features(data)
    if isinstance(data, dict | bytes) or not hasattr(data, "__iter__"):
        raise DataError(f"documents must be texts or a feature matrix, got {type(data).__name__}")
    return "texts", Strings.of(data)


def _nothing(kind: str, n_features: int | None) -> Any:
    if kind == "features":
        return sparse.csr_array((0, n_features or 0), dtype=np.float32)
    return Strings.of([])


def _as_wide_as_the_model(features: Any, n_features: int | None) -> Any:
    """Features with the model's number of columns; a sparse file may simply not mention the last ones."""
    columns = features.shape[1]
    if n_features is None or columns == n_features:
        return features
    if columns > n_features or isinstance(features, np.ndarray):
        raise DataError(f"the model was trained on {n_features:,} features, the documents have {columns:,}")
    return widened(features, n_features)


def widened(features: Any, n_features: int) -> Any:
    """A sparse matrix with further, empty columns."""
    if features.shape[1] == n_features:
        return features
    return sparse.csr_array((features.data, features.indices, features.indptr), shape=(features.shape[0], n_features))
