"""evaluate: compute all metrics of a set of predictions in one call."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset, canonical_csr, canonical_labels
from labelwise.errors import ConfigError, DataError
from labelwise.metrics.names import default_metrics
from labelwise.metrics.result import Evaluation
from labelwise.strings import Strings
from labelwise.topk import TopK

# --- inputs ---
# Converts predictions, truth and training counts of any supported type to one label space.
#
# Labels are matched by name if both sides have names, and by column index otherwise. Labels of the truth that are not
# among the predictions' names become additional columns: they cannot be predicted, and count as misses.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Truth:
    """The label matrix in the common label space; predicted ids are below `n_known`."""

    labels: sparse.csr_array
    n_known: int
    label_names: Strings | None = None
    label_texts: Strings | None = None

    @property
    def n_labels(self) -> int:
        """Columns of the common label space."""
        return self.labels.shape[1]


@dataclass(frozen=True, eq=False)
class TrainingCounts:
    """Training documents per label, and the total number of training documents, if known."""

    counts: np.ndarray
    n_documents: int | None = None
    label_names: Strings | None = None

    @classmethod
    def of(cls, train: Any, n_documents: int | None = None) -> TrainingCounts:
        """Build from a data set, a label matrix, or a vector of counts and the number of documents."""
        counts = cls._of(train)
        if n_documents is None:
            return counts
        if isinstance(n_documents, bool) or not isinstance(n_documents, int | np.integer) or n_documents < 1:
            raise ConfigError(f"train_documents is a whole number from 1 up, got {n_documents!r}")
        if counts.n_documents not in (None, n_documents):
            raise ConfigError(f"train_documents is {n_documents:,} but train has {counts.n_documents:,} documents")
        return replace(counts, n_documents=int(n_documents))

    @classmethod
    def _of(cls, train: Any) -> TrainingCounts:
        if isinstance(train, cls):
            return train
        if isinstance(train, Dataset):
            return cls(train.label_counts(), len(train), train.label_names)
        if sparse.issparse(train) or (isinstance(train, np.ndarray) and train.ndim == 2):
            matrix = canonical_csr(train, "training labels")
            return cls(np.bincount(matrix.indices, minlength=matrix.shape[1]), matrix.shape[0])
        return cls(_whole_numbers(train))

    def padded(self, n_known: int, n_labels: int) -> TrainingCounts:
        """Pad with zeros for labels that only the truth has; raise DataError for counts of another label space."""
        if len(self.counts) not in (n_known, n_labels):
            raise DataError(
                f"training counts of {len(self.counts):,} labels for predictions over {n_known:,}; "
                "both must have the same label space, or label names to match them by"
            )
        largest = self.counts.max(initial=0)
        if self.n_documents is not None and largest > self.n_documents:
            raise DataError(f"a label has {largest:,} training documents, more than the total of {self.n_documents:,}")
        if len(self.counts) == n_labels:
            return self
        missing = np.zeros(n_labels - len(self.counts), self.counts.dtype)
        return TrainingCounts(np.append(self.counts, missing), self.n_documents)

    def within(self, truth: Truth) -> TrainingCounts:
        """The counts in the columns of the truth; 0 for a label without training documents."""
        if self.label_names is not None and truth.label_names is not None:
            if self.label_names == truth.label_names:
                return self
            column_of = self.label_names.positions
            columns = np.fromiter((column_of.get(name, -1) for name in truth.label_names), np.int64, truth.n_labels)
            padded = np.append(self.counts, 0)
            return TrainingCounts(padded[columns], self.n_documents, truth.label_names)
        return self.padded(truth.n_known, truth.n_labels)


def _whole_numbers(values: Any) -> np.ndarray:
    try:
        counts = np.asarray(values)
    except ValueError:
        counts = np.empty((0, 0))
    if counts.ndim != 1 or counts.dtype.kind not in "iuf" or (len(counts) and not (counts >= 0).all()):
        raise DataError(
            "train must be a data set, a label matrix, or a vector with the number of training documents "
            "per label, none of them negative"
        )
    if counts.dtype.kind == "f" and not (counts == np.floor(counts)).all():
        raise DataError("training counts must be whole numbers of documents")
    return counts.astype(np.int64)


def common_labels(top: TopK, truth: Any, at_least: int = 0) -> Truth:
    """The truth in the label space of the predictions.

    Lists of label ids do not contain the number of labels; `at_least` is a lower bound known from elsewhere.
    """
    if not isinstance(top, TopK):
        raise DataError(f"predictions must be a TopK, got {type(top).__name__}; TopK.from_csr builds one from scores")
    if top.ids.dtype.kind not in "iu":
        raise DataError(f"predicted label ids must be whole numbers, got {top.ids.dtype}")
    names = None if top.label_names is None else Strings.of(top.label_names)
    common = _truth(top, truth, names, at_least)
    if common.labels.shape[0] != len(top):
        raise DataError(f"predictions of {len(top):,} documents for {common.labels.shape[0]:,} documents of truth")
    if common.labels.nnz and common.labels.indices.min() >= common.n_known:
        logger.warning(
            "none of the labels of the truth is among the label names of the predictions (%r, ...): do both "
            "come from the same data?",
            "" if names is None else names[0],
        )
    return common


def _truth(top: TopK, truth: Any, names: Strings | None, at_least: int) -> Truth:
    if isinstance(truth, Dataset):
        if names is None:
            return Truth(truth.labels, truth.n_labels, truth.label_names, truth.label_texts)
        aligned = truth.align(names)
        return Truth(aligned.labels, len(names), aligned.label_names, aligned.label_texts)
    if sparse.issparse(truth) or isinstance(truth, np.ndarray):
        labels = canonical_labels(truth, "truth")
        if names is not None and len(names) != labels.shape[1]:
            raise DataError(f"truth has {labels.shape[1]:,} columns but predictions have {len(names):,} label names")
        return Truth(labels, labels.shape[1], names)
    if not isinstance(truth, Sequence) or isinstance(truth, str):
        raise DataError(
            f"truth must be a Dataset, a sparse label matrix or a list of labels per document, "
            f"got {type(truth).__name__}"
        )
    rows = [_row(position, row) for position, row in enumerate(truth)]
    if any(isinstance(label, str) for row in rows for label in row):
        return _from_names(rows, names)
    n_labels = len(names) if names is not None else max(int(top.ids.max(initial=-1)) + 1, at_least)
    return _from_ids(rows, names, n_labels)


def _row(position: int, row: Any) -> list[Any]:
    if isinstance(row, str) or not isinstance(row, Iterable):
        raise DataError(f"truth of document {position:,} is {row!r}; a list of labels is needed for each document")
    return list(row)


def _from_names(rows: list[list[Any]], names: Strings | None) -> Truth:
    if names is None:
        raise DataError("truth has label names but the predictions have none; set TopK.label_names, or give label ids")
    column_of, new = names.positions, {}
    columns = []
    for position, row in enumerate(rows):
        for label in row:
            if not isinstance(label, str):
                raise DataError(f"truth of document {position:,} mixes names and ids: {label!r}; give all by name")
            column = column_of.get(label)
            columns.append(new.setdefault(label, len(names) + len(new)) if column is None else column)
    all_names = names + list(new) if new else names
    return Truth(_matrix(rows, columns, len(all_names)), len(names), all_names)


def _from_ids(rows: list[list[Any]], names: Strings | None, n_labels: int) -> Truth:
    columns = []
    for position, row in enumerate(rows):
        for label in row:
            if isinstance(label, bool) or not isinstance(label, int | np.integer) or label < 0:
                raise DataError(f"truth of document {position:,} has the label {label!r}; ids are whole numbers from 0")
            if names is not None and label >= n_labels:
                raise DataError(f"truth of document {position:,} has label id {label}; there are {n_labels:,} labels")
            columns.append(int(label))
    n_labels = max(n_labels, max(columns, default=-1) + 1)
    return Truth(_matrix(rows, columns, n_labels), n_labels, names)


def _matrix(rows: list[list[Any]], columns: list[int], n_labels: int) -> sparse.csr_array:
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    ones = np.ones(len(columns), np.float32)
    matrix = sparse.csr_array((ones, np.array(columns, np.int64), indptr), shape=(len(rows), n_labels))
    return canonical_csr(matrix, "truth")


def evaluate(
    top: TopK,
    truth: Any,
    metrics: str | Sequence[str] | None = None,
    *,
    train: Any = None,
    train_documents: int | None = None,
    propensity: str | tuple[float, float] | None = None,
    threshold: float | None = None,
    groups: Sequence[int] | None = (10, 100),
    bootstrap: int = 0,
    seed: int = 0,
) -> Evaluation:
    """Compute metrics of predictions.

    Parameters
    ----------
    top
        Predictions, one row per document.
    truth
        A Dataset, a sparse (or small dense) documents x labels matrix, or a list of labels per document: names
        as str, ids as int. Labels are matched by name if both sides have label names.
    metrics
        Names such as ``["P@1", "nDCG@5", "PSP@5", "macro-F1@5"]``; `default_metrics` when None.
    train
        The training data: a Dataset, a label matrix, or a vector with the number of training documents per label.
        Needed for PSP, PSnDCG and groups.
    train_documents
        Number of training documents, for PSP and PSnDCG if `train` is a vector.
    propensity
        The constants (A, B), the name of a data set such as ``"Amazon-670K"``, or None for (0.55, 1.5).
    threshold
        Lowest score at which a label counts as predicted, for F1 without k.
    groups
        Lower bounds of the label groups, in training documents; empty or None for no groups.
    bootstrap, seed
        Number of bootstrap repeats for 95 % intervals (0: no intervals), and the random seed.

    Notes
    -----
    A truth without any label is an error.
    The rules for ties, documents without labels, unseen labels and short lists are in docs/metrics.md.
    """
    counts = None if train is None else TrainingCounts.of(train, train_documents)
    common = common_labels(top, truth, 0 if counts is None else len(counts.counts))
    if counts is not None:
        counts = counts.within(common)
    if metrics is None:
        has_propensity = counts is not None and counts.n_documents is not None
        metrics = default_metrics(top.k, has_propensity, threshold is not None)
        if not metrics:
            raise ConfigError("the predictions are empty lists (k = 0); predict with k=1 or more")

    from labelwise.metrics.streaming import Evaluator

    evaluator = Evaluator(
        metrics,
        common.n_labels,
        train=counts,
        propensity=propensity,
        threshold=threshold,
        groups=groups,
        bootstrap=bootstrap,
        seed=seed,
        n_known=common.n_known,
    )
    evaluator.update(top, common.labels)
    check_labelled(common.labels, "the truth")
    return evaluator.result()


def check_labelled(labels: Any, name: str, without: str = "there is nothing to compare predictions with") -> None:
    """Refuse documents of which none has a label: nothing could be learned from them, and all metrics would be 0."""
    if labels.shape[0] and labels.nnz == 0:
        raise DataError(
            f"{name}: none of the {labels.shape[0]:,} documents has a label, so {without}; "
            "is this a file without labels, or are they in another column?"
        )


def check_known(data: Dataset, n_known: int) -> None:
    """Refuse documents of which no label is among the first `n_known`, those of the model: all metrics would be 0."""
    labels = data.labels
    if labels.nnz and labels.indices.min() >= n_known:
        names = data.label_names
        raise DataError(
            f"{data.name}: none of its {len(set(labels.indices.tolist())):,} labels is known to the model, so every "
            f"prediction would count as wrong; a label is called '{names[int(labels.indices[0])]}', one of the model's "
            f"'{names[0]}': are these documents of another vocabulary, or ids where the model has names?"
        )
