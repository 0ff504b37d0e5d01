"""From whatever a user holds to a `Dataset`: texts, features, paths of files, arrays, lists of labels.

The kinds a method reads decide what the documents are taken for: strings are texts or paths, a matrix is features or
arrays. What fits no kind is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.blocks import Blocks
from labelwise.data.csr import csr_of, pick_rows
from labelwise.data.dataset import (
    Dataset,
    Features,
    canonical_arrays,
    canonical_features,
    is_canonical_csr,
    labels_from_lists,
)
from labelwise.errors import DataError
from labelwise.progress import progress
from labelwise.strings import Strings
from labelwise.topk import TopK

AT_ONCE = 16_384
FORMS = {
    "texts": "a list of texts",
    "features": "a matrix with a row per document",
    "paths": "a list of paths to files",
    "arrays": "an array whose first axis is the documents",
}
"""How documents of each kind are given."""


def as_dataset(data: Any, labels: Any, kinds: Sequence[str]) -> Dataset:
    """Training data from a Dataset, or from labels and documents of one of the kinds."""
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
    kind, documents = _documents(data, kinds)
    return Dataset(labels, names, **{kind: documents})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents to predict for: a `Dataset` without labels, and without the time it takes to make one."""

    texts: Strings | None = None
    features: Features | None = None
    paths: Strings | None = None
    arrays: np.ndarray | None = None

    def _parts(self) -> tuple[Any, ...]:
        return self.texts, self.features, self.paths, self.arrays

    def __len__(self) -> int:
        if self.features is not None:
            return self.features.shape[0]
        return next((len(part) for part in self._parts() if part is not None), 0)

    def take(self, rows: Any) -> Documents:
        """Some of the documents, as `Dataset.take`."""
        return Documents(*(None if part is None else pick_rows(part, rows) for part in self._parts()))


def as_inputs(documents: Any, kind: str, n_features: int | None) -> Documents:
    """Documents to predict for, of the kind the model was trained on."""
    if isinstance(documents, Dataset):
        value = getattr(documents, kind)
        if value is None and len(documents):
            raise DataError(f"{documents.name}: the model was trained on {kind}, the data has none")
        value = _nothing(kind, n_features) if value is None else value
    elif kind == "features" and is_canonical_csr(documents):
        value = documents  # also of SciPy's older kind: turning it into the newer takes longer than many a prediction
    else:
        found, value = _documents(documents, (kind,))
        if found != kind:
            if value.shape[0] if found == "features" else len(value):
                raise DataError(f"the model was trained on {kind}, but {found} were given; give {FORMS[kind]}")
            value = _nothing(kind, n_features)
    if kind == "features":
        value = _as_wide_as_the_model(value, n_features)
    return Documents(**{kind: value})


def _documents(data: Any, kinds: Sequence[str]) -> tuple[str, Any]:
    """The kind of the documents, one of `kinds` where they allow it, and the documents."""
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
    """Strings are of the first kind that is made of them; path objects are paths."""
    if isinstance(items, Strings):
        return _first_of(("texts", "paths"), kinds), items
    if any(isinstance(item, os.PathLike) for item in items):
        return "paths", Strings.of(os.fspath(item) if isinstance(item, os.PathLike) else item for item in items)
    return _first_of(("texts", "paths"), kinds), Strings.of(items)


def _numbers(array: np.ndarray, kinds: Sequence[str]) -> tuple[str, Any]:
    """A matrix is of the first kind that takes one; what has more axes can only be arrays."""
    kind = "arrays" if array.ndim > 2 else _first_of(("features", "arrays"), kinds)
    return kind, canonical_arrays(array) if kind == "arrays" else canonical_features(array)


def _stacked(items: Sequence[Any]) -> np.ndarray:
    """One array of the documents' arrays."""
    shape = items[0].shape
    for row, item in enumerate(items):
        if not isinstance(item, np.ndarray) or item.shape != shape or item.dtype.kind not in "biuf":
            found = f"{item.dtype} of shape {item.shape}" if isinstance(item, np.ndarray) else type(item).__name__
            raise DataError(
                f"document {row}: an array of numbers of the first one's shape {shape} is needed, got {found}"
            )
    return np.stack(items)


def _first_of(possible: Sequence[str], kinds: Sequence[str]) -> str:
    return next((kind for kind in kinds if kind in possible), possible[0])


def _nothing(kind: str, n_features: int | None) -> Any:
    if kind == "features":
        return sparse.csr_array((0, n_features or 0), dtype=np.float32)
    return np.empty((0, 0), np.float32) if kind == "arrays" else Strings.of([])


def _as_wide_as_the_model(features: Any, n_features: int | None) -> Any:
    """Features with the model's number of columns; a sparse file may simply not mention the last ones."""
    columns = features.shape[1]
    if n_features is None or columns == n_features:
        return features
    if columns > n_features or not sparse.issparse(features):
        raise DataError(f"the model was trained on {n_features:,} features, the documents have {columns:,}")
    return widened(features, n_features)


def widened(features: Any, n_features: int) -> Any:
    """A sparse matrix with further, empty columns."""
    if features.shape[1] == n_features:
        return features
    return csr_of(features.data, features.indices, features.indptr, (features.shape[0], n_features))


def split_for_early_stopping(
    data: Dataset, valid: Dataset | None, fraction: float, most: int, seed: int
) -> tuple[Dataset, Dataset | None]:
    """Training and held-out documents: a part that was given is used whole, else a share, `most` of them at most."""
    share = min(fraction, most / len(data))
    if valid is not None or round(share * len(data)) in (0, len(data)):
        return data, valid
    return data.split(share, seed)


def in_blocks(predict: Callable[[Dataset], TopK], data: Dataset, what: str) -> TopK:
    """Predictions for many documents in large blocks, so that there is progress to show."""
    parts = []
    with progress(what, len(data)) as step:
        for begin in range(0, max(len(data), 1), AT_ONCE):
            part = data.take(slice(begin, begin + AT_ONCE))
            parts.append(predict(part))
            step(len(part))
    return TopK.concatenate(parts)
