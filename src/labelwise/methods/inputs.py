"""From whatever a user holds to a `Dataset`: texts, matrices, lists of labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.blocks import Blocks
from labelwise.data.csr import csr_of, pick_rows
from labelwise.data.dataset import Dataset, Features, canonical_features, is_canonical_csr, labels_from_lists
from labelwise.errors import DataError
from labelwise.progress import progress
from labelwise.strings import Strings
from labelwise.topk import TopK

AT_ONCE = 16_384


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


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents to predict for: a `Dataset` without labels, and without the time it takes to make one."""

    texts: Strings | None = None
    features: Features | None = None
    paths: Strings | None = None

    def __len__(self) -> int:
        if self.features is not None:
            return self.features.shape[0]
        return len(self.texts if self.texts is not None else self.paths or ())

    def take(self, rows: Any) -> Documents:
        """Some of the documents, as `Dataset.take`."""
        parts: Any = (
            None if part is None else pick_rows(part, rows) for part in (self.texts, self.features, self.paths)
        )
        return Documents(*parts)


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
        found, value = _documents(documents)
        if found != kind:
            if value.shape[0] if found == "features" else len(value):
                raise DataError(f"the model was trained on {kind}, but {found} were given")
            value = _nothing(kind, n_features)
    if kind == "features":
        value = _as_wide_as_the_model(value, n_features)
    return Documents(**{kind: value})


def _documents(data: Any) -> tuple[str, Any]:
    """The kind of the documents ('texts' or 'features') and the documents."""
    if isinstance(data, str):
        return "texts", Strings.of([data])
    if isinstance(data, Strings):
        return "texts", data
    if sparse.issparse(data) or isinstance(data, Blocks):
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
    if columns > n_features or not sparse.issparse(features):
        raise DataError(f"the model was trained on {n_features:,} features, the documents have {columns:,}")
    return widened(features, n_features)


def widened(features: Any, n_features: int) -> Any:
    """A sparse matrix with further, empty columns."""
    if features.shape[1] == n_features:
        return features
    return csr_of(features.data, features.indices, features.indptr, (features.shape[0], n_features))


def with_held_out(
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
