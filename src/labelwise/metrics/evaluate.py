"""Metrics of predictions: all in one call (`evaluate`), or in chunks that arrive one by one (`Evaluator`).

Blocks of 4096 documents are evaluated on the shared threads and summed in the order of the documents: results are
bitwise independent of the number of threads and of how the documents were split into chunks. Memory is a few vectors
with one element per label, plus two numbers per metric and resampling group.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset, canonical_csr, canonical_labels, check_labelled
from labelwise.errors import ConfigError, DataError
from labelwise.kernels import metrics as kernels
from labelwise.metrics.formulas import (
    PROPENSITY_SCORED,
    RANKING,
    RESAMPLING_GROUPS,
    THRESHOLDED,
    LabelGroups,
    Propensity,
    Terms,
    check_boundaries,
    discounts,
    propensity_constants,
    ratio,
)
from labelwise.metrics.names import check_depth, default_metrics, parse_metrics
from labelwise.metrics.result import Evaluation, ResamplingSums, check_repeats
from labelwise.runtime.threads import run_stream
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


# --- block ---
# DocumentBlock: consecutive documents and the arrays that metrics share, each computed once, when a metric needs it.
#
# A block holds at most one document per resampling group (see result.py), 4096 in all. Its arrays fit in the
# processor's cache, and sums over blocks do not depend on how the documents were split into calls of `update`.

NO_WEIGHTS = np.zeros(1)
_PROBLEMS = {
    kernels.OUT_OF_RANGE: "label id {label} is out of range; there are {n_labels:,} labels, ids start at 0",
    kernels.DUPLICATE: "label id {label} is predicted twice; a row may not contain duplicates",
    kernels.SCORE_IS_NAN: "the score of label id {label} is NaN, which has no rank",
    kernels.UNSORTED: "the score is higher than the one before; a row must be sorted by score, best first",
    kernels.AFTER_PADDING: "label id {label} follows an empty position; empty positions (-1) come last in a row",
}


class DocumentBlock:
    """Predictions and truth of consecutive documents.

    Parameters
    ----------
    top, truth, rows
        Predictions, label matrix (canonical), and the range of rows to use of both, as (start, stop).
    n_known
        Upper bound (exclusive) of predicted label ids.
    first
        Index of the first document of the block, for messages.
    depth
        Largest k of the metrics.
    weights
        Inverse propensity per label, plus one element for missing predictions; only needed for gains.
    threshold
        Lowest score that counts as predicted, for F1 without k.
    """

    def __init__(
        self,
        top: TopK,
        truth: sparse.csr_array,
        rows: tuple[int, int],
        *,
        n_known: int,
        first: int = 0,
        depth: int = 0,
        weights: np.ndarray = NO_WEIGHTS,
        threshold: float | None = None,
    ) -> None:
        start, stop = rows
        scores = top.scores[start:stop]
        self.ids = _as_int32(top.ids[start:stop], n_known, first)
        self.scores = np.ascontiguousarray(scores, np.float32 if scores.dtype == np.float32 else np.float64)
        indptr = truth.indptr[start : stop + 1].astype(np.int64)
        self.indices = truth.indices[indptr[0] : indptr[-1]].astype(np.int32, copy=False)
        self.indptr = indptr - indptr[0]
        self.n_true = np.diff(indptr)
        self.depth, self.weights, self.threshold = depth, weights, threshold
        self.hits = np.empty(self.ids.shape, np.uint8)
        self.filled = np.empty(len(self.ids), np.int64)
        problem, row, column = kernels.find_hits(
            self.ids, self.scores, self.indptr, self.indices, n_known, self.hits, self.filled
        )
        if problem != kernels.FINE:
            what = _PROBLEMS[problem].format(label=self.ids[row, column], n_labels=n_known)
            raise DataError(f"predictions of document {first + row:,}, position {column + 1}: {what}")

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def hit_counts(self) -> np.ndarray:
        """Hits within the first j positions, for j = 0 to `depth`."""
        return _running_sums(self.hits[:, : self.depth], np.int64)

    @cached_property
    def discounted(self) -> np.ndarray:
        """As `hit_counts`, with a hit at rank i weighted 1 / log2(i + 1)."""
        return _running_sums(self.hits[:, : self.depth] * discounts(self.depth), np.float64)

    @cached_property
    def ideal(self) -> np.ndarray:
        """Ideal DCG of j hits, at ranks 1 to j, for j = 0 to `depth`."""
        return np.concatenate([[0.0], np.cumsum(discounts(self.depth))])

    @cached_property
    def gains(self) -> np.ndarray:
        """Weight per hit within `depth`, 0 for a miss."""
        # A missing prediction (-1) reads the last weight, which is multiplied by its hit of 0.
        return self.hits[:, : self.depth] * self.weights[self.ids[:, : self.depth]]

    @cached_property
    def best_gains(self) -> np.ndarray:
        """Gains of the ideal list, which ranks the document's labels by weight."""
        best = np.empty((len(self), self.depth))
        kernels.best_weights(self.indptr, self.indices, self.weights, best)
        return best

    @cached_property
    def gain_sums(self) -> np.ndarray:
        """Sum of gains within the first j positions, for j = 0 to `depth`."""
        return _running_sums(self.gains, np.float64)

    @cached_property
    def best_gain_sums(self) -> np.ndarray:
        """The ideal (largest possible) `gain_sums`."""
        return _running_sums(self.best_gains, np.float64)

    @cached_property
    def discounted_gains(self) -> np.ndarray:
        """`gain_sums` with the discount of `discounted`."""
        return _running_sums(self.gains * discounts(self.depth), np.float64)

    @cached_property
    def best_discounted_gains(self) -> np.ndarray:
        """The ideal (largest possible) `discounted_gains`."""
        return _running_sums(self.best_gains * discounts(self.depth), np.float64)

    @cached_property
    def n_above_threshold(self) -> np.ndarray:
        """Predictions per document whose score reaches the threshold; rows are sorted, so these come first."""
        # In the precision of the scores, as TopK.above compares: a float32 0.7 reaches a threshold of 0.7.
        reached = self.scores >= self.scores.dtype.type(self.threshold)
        return np.minimum(reached.sum(1), self.filled)

    def n_predicted(self, k: int | None) -> np.ndarray:
        """Number of predictions per document that count: the first k, or those that reach the threshold."""
        return self.n_above_threshold if k is None else np.minimum(self.filled, k)

    def hits_within(self, counts: np.ndarray) -> np.ndarray:
        """Hits among the first `counts[i]` predictions of each document i."""
        return self.hit_counts[np.arange(len(self)), counts]


def block_rows(first: int, count: int) -> list[tuple[int, int]]:
    """Split `count` rows, beginning with document `first`, where document indices are multiples of RESAMPLING_GROUPS.

    Each document then has the same position in its block however documents arrive, and sums are accumulated in the
    same order.
    """
    edges = [0, *range(RESAMPLING_GROUPS - first % RESAMPLING_GROUPS, count, RESAMPLING_GROUPS), count]
    return [(start, stop) for start, stop in pairwise(edges) if start < stop]


def _running_sums(values: np.ndarray, dtype: Any) -> np.ndarray:
    sums = np.zeros((len(values), values.shape[1] + 1), dtype)
    np.cumsum(values, axis=1, dtype=dtype, out=sums[:, 1:])
    return sums


def _as_int32(ids: np.ndarray, n_known: int, first: int) -> np.ndarray:
    """Ids as int32, the only type the kernels are compiled for; values that do not fit are out of range."""
    if ids.dtype.kind not in "iu":
        raise DataError(f"predicted label ids must be whole numbers, got {ids.dtype}")
    limits = np.iinfo(np.int32)
    if not np.can_cast(ids.dtype, np.int32):
        overflows = ((ids > limits.max) | (ids < limits.min)).any(1)
        if overflows.any():
            document = first + int(overflows.argmax())
            raise DataError(
                f"predictions of document {document:,}: a label id is out of range; there are {n_known:,} labels"
            )
    return np.ascontiguousarray(ids, np.int32)


def check_threshold(threshold: float | None, needing: list[str]) -> float | None:
    """Validate the threshold, which is required if there are metrics `needing` it."""
    if threshold is None:
        if needing:
            raise ConfigError(
                f"{needing[0]} needs the lowest score at which a label counts as predicted; pass threshold="
            )
        return None
    is_number = isinstance(threshold, int | float | np.number) and not isinstance(threshold, bool)
    if not is_number or np.isnan(threshold):
        raise ConfigError(f"threshold is a score, a number; got {threshold!r}")
    return float(threshold)


class LabelCounter:
    """Counts predictions and correct predictions per label, among the first k or above the threshold."""

    def __init__(self, n_labels: int, k: int | None) -> None:
        self.k = k
        self.predicted = np.zeros(n_labels, np.int64)
        self.correct = np.zeros(n_labels, np.int64)

    def add(self, block: DocumentBlock) -> None:
        """Count the predictions of a block."""
        kernels.count_labels(block.ids, block.hits, block.n_predicted(self.k), self.predicted, self.correct)

    def f1(self, occurrences: np.ndarray) -> np.ndarray:
        """F1 per label, given its occurrences in the truth; 0 if it is neither there nor predicted."""
        return ratio(2 * self.correct, self.predicted + occurrences)

    def macro_f1(self, occurrences: np.ndarray) -> float:
        """The mean F1 of the labels that occur in the truth or are predicted."""
        used = (self.predicted + occurrences) > 0
        return float(self.f1(occurrences)[used].mean()) if used.any() else 0.0


class CoverageCounter:
    """The best rank at which each label was a hit; one vector serves all k."""

    def __init__(self, n_labels: int, depth: int) -> None:
        self.depth = depth
        self.best = np.full(n_labels, np.iinfo(np.int32).max, np.int32)

    def add(self, block: DocumentBlock) -> None:
        """Update the best ranks with the hits of a block."""
        kernels.first_ranks(block.ids, block.hits, self.depth, self.best)

    def coverage(self, k: int, occurrences: np.ndarray) -> float:
        """Fraction of the labels in the truth that are a hit among the first k predictions of some document."""
        present = int(np.count_nonzero(occurrences))
        return int(np.count_nonzero(self.best < k)) / present if present else 0.0


# --- ties ---
# Effect of ties: the lowest and highest P@k over all orders of predictions with equal scores.
#
# Tools break ties differently (lower id first, higher id first, or at random), and with coarse scores that alone
# can change P@k by more than a point. Here the lower label id comes first; the range shows how much that matters.


class TieCounter:
    """Fewest and most hits per cut, and the number of documents in which a tie extends to the end of the list."""

    def __init__(self, cuts: Sequence[int]) -> None:
        self.cuts = np.array(cuts, np.int64)
        self.totals = np.zeros((3, len(cuts)), np.int64)

    def count(self, block: DocumentBlock) -> np.ndarray:
        """The three counts per cut, for one block."""
        lowest, highest, cut_off = totals = np.zeros_like(self.totals)
        kernels.tie_range(block.scores, block.hits, block.filled, self.cuts, lowest, highest, cut_off)
        return totals

    def ranges(self, n_documents: int) -> dict[str, tuple[float, float]]:
        """Lowest and highest P@k."""
        return {
            f"P@{k}": (int(low) / (k * n_documents), int(high) / (k * n_documents))
            for k, low, high in zip(self.cuts.tolist(), *self.totals[:2], strict=True)
        }

    def cut_off(self) -> dict[str, int]:
        """Documents in which labels beyond the list may have the score at rank k: the range may be wider."""
        return {f"P@{k}": int(count) for k, count in zip(self.cuts.tolist(), self.totals[2], strict=True)}


_FORMULAS: dict[str, Any] = {**RANKING, **PROPENSITY_SCORED, **THRESHOLDED}


@dataclass(frozen=True, eq=False)
class _BlockResult:
    """The contribution of one block to the sums."""

    block: DocumentBlock
    start: int
    terms: list[Terms]
    ties: np.ndarray
    group_hits: np.ndarray | None
    full_lists: int


class Evaluator:
    """Metrics of predictions that arrive in chunks.

    Parameters
    ----------
    metrics
        Names such as ``["P@1", "nDCG@5"]``.
    n_labels
        Columns of the truth; predictions and truth use the same label ids.
    train
        Training data in the same label space: a Dataset, a label matrix, or a vector with the number of
        training documents per label. Needed for PSP, PSnDCG and groups.
    train_documents
        Number of training documents, for PSP and PSnDCG if `train` is a vector.
    propensity
        (A, B), the name of a data set, or None for (0.55, 1.5).
    threshold
        Lowest score at which a label counts as predicted, for F1 without k.
    groups
        Lower bounds of the label groups, in training documents; empty for no groups.
    bootstrap, seed
        Repeats for 95 % intervals, 0 for none, and where the random numbers start.
    n_known
        Upper bound (exclusive) of predicted ids; the columns from there on are labels that only the truth has.
    """

    def __init__(
        self,
        metrics: str | Sequence[str],
        n_labels: int,
        *,
        train: Any = None,
        train_documents: int | None = None,
        propensity: str | tuple[float, float] | None = None,
        threshold: float | None = None,
        groups: Sequence[int] | None = (10, 100),
        bootstrap: int = 0,
        seed: int = 0,
        n_known: int | None = None,
    ) -> None:
        if n_labels > np.iinfo(np.int32).max:
            raise DataError(f"{n_labels:,} labels are too many; at most 2^31 - 1 can be evaluated")
        self.metrics = parse_metrics(metrics)
        self.n_labels = n_labels
        self.n_known = n_labels if n_known is None else n_known
        self.repeats, self.seed = check_repeats(bootstrap), seed
        self.threshold = check_threshold(threshold, [m.name for m in self.metrics if m.needs_threshold])
        self.counts = None
        if train is not None:
            self.counts = TrainingCounts.of(train, train_documents).padded(self.n_known, n_labels)
        self.propensity = self._propensity(propensity)
        self._weights = NO_WEIGHTS
        if self.propensity is not None and self.counts is not None:
            self._weights = self.propensity.weights(np.append(self.counts.counts, 0))

        self.cuts = sorted({metric.k for metric in self.metrics if metric.k is not None})
        depth = self.cuts[-1] if self.cuts else 0
        self._sums = [metric for metric in self.metrics if metric.is_sum]
        self._numerators = np.zeros((len(self._sums), RESAMPLING_GROUPS))
        self._denominators = np.zeros((len(self._sums), RESAMPLING_GROUPS))
        self._occurrences = np.zeros(n_labels, np.int64)
        self._ties = TieCounter(self.cuts)
        self._groups = None
        boundaries = check_boundaries(groups)
        if self.counts is not None and boundaries:
            self._groups = LabelGroups(self.counts.counts, boundaries, depth)
        self._macro = {m.k: LabelCounter(n_labels, m.k) for m in self.metrics if m.kind == "macro-F1"}
        covered = [m.k for m in self.metrics if m.kind == "coverage" and m.k is not None]
        self._coverage = CoverageCounter(n_labels, max(covered)) if covered else None
        self._truth = hashlib.blake2b(digest_size=8)
        self.n_documents = self.n_without_labels = self._full_lists = 0
        self._failed = False

    def _propensity(self, given: str | tuple[float, float] | None) -> Propensity | None:
        a, b = propensity_constants(given)
        needing = [metric.name for metric in self.metrics if metric.needs_propensity]
        if not needing:
            return None
        if self.counts is None:
            raise ConfigError(
                f"{needing[0]} weights labels by their training documents; pass train=, the training data "
                "set, or the number of training documents per label with train_documents="
            )
        if self.counts.n_documents is None:
            raise ConfigError(
                f"{needing[0]} needs the number of training documents as well as the counts; pass train_documents="
            )
        return Propensity(a, b, self.counts.n_documents)

    def update(self, top: TopK, truth: Any) -> None:
        """Add documents: their predictions and their rows of the truth (a Dataset or a sparse matrix)."""
        labels = truth.labels if isinstance(truth, Dataset) else canonical_csr(truth, "truth")
        if labels.shape[0] != len(top):
            raise DataError(f"predictions of {len(top):,} documents for {labels.shape[0]:,} documents of truth")
        if labels.shape[1] != self.n_labels:
            raise DataError(f"truth has {labels.shape[1]:,} columns; {self.n_labels:,} labels are evaluated")
        if isinstance(truth, Dataset) and top.label_names is not None:
            known = truth.label_names[: len(top.label_names)]
            if known is not top.label_names and known != top.label_names:
                raise DataError(
                    "the label names of the truth and of the predictions differ; "
                    "pass truth.align(top.label_names), and its number of labels to the Evaluator"
                )
        check_depth(self.metrics, top.k)
        self._refuse_after_failure()
        self._failed = True
        for result in self._evaluate_blocks(top, labels):
            self._add(result)
        self._failed = False

    def _evaluate_blocks(self, top: TopK, labels: sparse.csr_array) -> Iterator[_BlockResult]:
        """Evaluate the blocks of a chunk, in order; a single block without a thread."""
        rows = block_rows(self.n_documents, len(top))
        evaluate = partial(self._evaluate_block, top, labels, self.n_documents)
        return run_stream(evaluate, rows) if len(rows) > 1 else map(evaluate, rows)

    def _evaluate_block(self, top: TopK, labels: sparse.csr_array, before: int, rows: tuple[int, int]) -> _BlockResult:
        """Compute what depends on one block only."""
        by_threshold = any(metric.needs_threshold for metric in self.metrics)
        block = DocumentBlock(
            top,
            labels,
            rows,
            n_known=self.n_known,
            first=before + rows[0],
            depth=top.k if by_threshold else self.cuts[-1],
            weights=self._weights,
            threshold=self.threshold,
        )
        return _BlockResult(
            block=block,
            start=(before + rows[0]) % RESAMPLING_GROUPS,
            terms=[_FORMULAS[metric.kind](block, metric.k) for metric in self._sums],
            ties=self._ties.count(block),
            group_hits=None if self._groups is None else self._groups.count(block.ids, block.hits),
            full_lists=int(np.count_nonzero(block.n_above_threshold == top.k)) if by_threshold else 0,
        )

    def _add(self, result: _BlockResult) -> None:
        """Add one block to the sums; called from one thread, in the order of the documents."""
        block = result.block
        columns = slice(result.start, result.start + len(block))
        for row, (numerator, denominator) in enumerate(result.terms):
            self._numerators[row, columns] += numerator
            self._denominators[row, columns] += denominator
        np.add.at(self._occurrences, block.indices, 1)
        self._ties.totals += result.ties
        if self._groups is not None and result.group_hits is not None:
            self._groups.hits += result.group_hits
        for counter in self._macro.values():
            counter.add(block)
        if self._coverage is not None:
            self._coverage.add(block)
        self._truth.update(block.n_true.astype("<i8").tobytes())
        self.n_documents += len(block)
        self.n_without_labels += int(np.count_nonzero(block.n_true == 0))
        self._full_lists += result.full_lists

    def result(self, warn: bool = True) -> Evaluation:
        """The metrics of all documents so far; its remarks are logged as warnings."""
        self._refuse_after_failure()
        if self.n_documents == 0:
            raise DataError("there are no documents to evaluate")
        names = [metric.name for metric in self._sums]
        sums = self._resampling_sums()
        summed = dict(zip(names, sums.values().tolist(), strict=True))
        intervals = sums.intervals(self.repeats, self.seed) if self.repeats and names else {}
        groups = []
        if self._groups is not None:
            groups = self._groups.rows(self._occurrences, self.cuts, self.n_documents)
        ties, cut_off = self._ties.ranges(self.n_documents), self._ties.cut_off()
        evaluation = Evaluation(
            values={m.name: summed[m.name] if m.is_sum else self._by_label(m.kind, m.k) for m in self.metrics},
            intervals=intervals,
            groups=groups,
            ties=ties,
            ties_cut_off=cut_off,
            propensity=self.propensity,
            n_documents=self.n_documents,
            n_without_labels=self.n_without_labels,
            n_unseen_labels=self._unseen_labels(),
            n_cut=self._full_lists,
            sums=sums,
        )
        if warn:
            for remark in evaluation.remarks():
                logger.warning("%s", remark)
        return evaluation

    def _resampling_sums(self) -> ResamplingSums:
        groups = min(self.n_documents, RESAMPLING_GROUPS)
        return ResamplingSums(
            metrics=tuple(metric.name for metric in self._sums),
            numerators=self._numerators[:, :groups].copy(),
            denominators=self._denominators[:, :groups].copy(),
            n_documents=self.n_documents,
            truth=int.from_bytes(self._truth.digest(), "little"),
        )

    def _by_label(self, kind: str, k: int | None) -> float:
        """Value of a metric that is not a ratio of sums over documents."""
        if kind == "coverage" and self._coverage is not None and k is not None:
            return self._coverage.coverage(k, self._occurrences)
        return self._macro[k].macro_f1(self._occurrences)

    def _unseen_labels(self) -> int:
        if self.counts is not None:
            return int(np.count_nonzero(self._occurrences[self.counts.counts == 0]))
        return int(np.count_nonzero(self._occurrences[self.n_known :]))

    def _refuse_after_failure(self) -> None:
        if self._failed:
            raise DataError(
                "an earlier chunk of predictions was invalid and is partly counted; start again with a new Evaluator"
            )
