"""Learn probabilities and a threshold from held-out documents, and tell honestly how good both will be.

The figures told are cross-fitted: the documents are cut in five parts, and each part is judged by what the other four
taught. Labels that the model never proposes count as missed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError
from labelwise.methods.calibration import Calibration
from labelwise.topk import NO_LABEL, TopK

FOLDS = 5
BINS = 10


@dataclass(frozen=True)
class ReliabilityBin:
    """Predicted labels whose score lies in [low, high): their number, mean score and the share that was right."""

    low: float
    high: float
    pairs: int
    mean: float | None
    share: float | None


@dataclass(frozen=True)
class CalibrationReport:
    """What `Method.calibrate` found. All figures but the threshold are cross-fitted."""

    n_documents: int
    n_pairs: int
    """Predicted labels looked at."""
    n_true: int
    """True labels, those never predicted included."""
    k: int
    wanted_precision: float | None
    """None: the threshold is the one with the best micro-F1."""
    reached: bool
    """Whether any threshold gives the wanted precision; otherwise the one that comes nearest was taken."""
    threshold: float
    precision: float
    recall: float
    f1: float
    error_before: float | None
    """Expected calibration error of the scores; None where they are no probabilities to begin with."""
    error_after: float
    before: tuple[ReliabilityBin, ...]
    after: tuple[ReliabilityBin, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            **vars(self),
            "before": [vars(one) for one in self.before],
            "after": [vars(one) for one in self.after],
        }

    def __str__(self) -> str:
        wanted = "best micro-F1" if self.wanted_precision is None else f"precision {self.wanted_precision:g}"
        before = "" if self.error_before is None else f" (before: {self.error_before:.4f})"
        missed = "" if self.reached else "; the wanted precision is out of reach"
        return (
            f"threshold {self.threshold:.4g} for {wanted}{missed}: precision {self.precision:.3f}, recall "
            f"{self.recall:.3f}, micro-F1 {self.f1:.3f}; calibration error {self.error_after:.4f}{before}; from "
            f"{self.n_documents:,} documents, {self.n_pairs:,} predicted labels"
        )


@dataclass(frozen=True)
class _Pairs:
    """Predicted labels by rising score: whether they were right, the document's fold, and true labels a fold."""

    scores: np.ndarray
    right: np.ndarray
    folds: np.ndarray
    n_true: np.ndarray


def calibrate(top: TopK, truth: Dataset, precision: float | None = None) -> tuple[Calibration, CalibrationReport]:
    """Probabilities and a threshold from predictions and the truth, both in the model's label space.

    Parameters
    ----------
    top
        Uncalibrated predictions for held-out documents.
    truth
        The same documents with their labels.
    precision
        The share of labels above the threshold that shall be right; None: the best micro-F1.
    """
    if precision is not None and not 0 < precision <= 1:
        raise ConfigError(f"precision must be above 0 and at most 1, got {precision!r}")
    pairs = _pairs(top, truth)
    if len(pairs.scores) == 0:
        raise DataError(f"{truth.name}: no label is predicted for its documents, so nothing can be calibrated")
    whole = Calibration.fit(pairs.scores, pairs.right)
    probabilities = whole.transform(pairs.scores).astype(np.float32)
    threshold, reached = choose_threshold(probabilities, pairs.right, int(pairs.n_true.sum()), precision)
    honest, counts = _cross_fitted(pairs, precision)
    shares = _shares(*counts)
    before = _bins(pairs.scores, pairs.right) if pairs.scores[0] >= 0 and pairs.scores[-1] <= 1 else ()
    after = _bins(honest, pairs.right)
    report = CalibrationReport(
        len(truth), len(pairs.scores), int(pairs.n_true.sum()), top.k, precision, reached, threshold, *shares,
        _error(before) if before else None, _error(after), before, after,
    )  # fmt: skip
    return replace(whole, threshold=threshold, expected=shares), report


def choose_threshold(
    probabilities: np.ndarray, right: np.ndarray, n_true: int, precision: float | None = None
) -> tuple[float, bool]:
    """The threshold with the best micro-F1, or the lowest one that keeps a precision, and whether one does.

    `probabilities` rise. The threshold lies half-way between the last label taken and the first one left out.
    """
    values = probabilities[::-1]
    ends = np.flatnonzero(np.append(values[1:] < values[:-1], True))
    hits = np.cumsum(right[::-1])[ends]
    taken = ends + 1
    reached = True
    if precision is None:
        best = int(np.argmax(2 * hits / (taken + n_true)))
    else:
        shares = hits / taken
        enough = np.flatnonzero(shares >= precision)
        reached = len(enough) > 0
        best = int(enough[-1]) if reached else int(len(ends) - 1 - np.argmax(shares[::-1]))
    last = values[ends[best]]
    rest = values[ends[best] + 1] if best + 1 < len(ends) else np.float32(0)
    middle = np.float32((float(last) + float(rest)) / 2)
    return float(middle if middle > rest else last), reached


def _pairs(top: TopK, truth: Dataset) -> _Pairs:
    filled = top.ids != NO_LABEL
    documents = np.broadcast_to(np.arange(len(top))[:, None], top.ids.shape)[filled]
    scores = top.scores[filled]
    true_counts = np.diff(truth.labels.indptr)
    known = np.repeat(np.arange(len(truth)), true_counts) * truth.n_labels + truth.labels.indices
    wanted = documents * truth.n_labels + top.ids[filled]
    place = np.searchsorted(known, wanted)
    right = np.append(known, -1)[place] == wanted
    folds = np.random.default_rng(0).permutation(len(truth)) % min(FOLDS, max(len(truth), 1))
    order = np.argsort(scores, kind="stable")
    n_true = np.bincount(folds, true_counts, minlength=FOLDS).astype(np.int64)
    return _Pairs(scores[order], right[order], folds[documents][order], n_true)


def _cross_fitted(pairs: _Pairs, precision: float | None) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Each pair's probability by what other documents taught; and hits, predictions and true labels at thresholds."""
    found = np.empty(len(pairs.scores), np.float32)
    hits = predictions = 0
    for fold in range(FOLDS):
        mine = pairs.folds == fold
        if not mine.any():
            continue
        alone = bool(mine.all())  # a single document has nobody else to learn from
        others = mine if alone else ~mine
        learned = Calibration.fit(pairs.scores[others], pairs.right[others])
        seen = learned.transform(pairs.scores[others]).astype(np.float32)
        n_true = int(pairs.n_true.sum() - (0 if alone else pairs.n_true[fold]))
        threshold, _ = choose_threshold(seen, pairs.right[others], n_true, precision)
        found[mine] = learned.transform(pairs.scores[mine])
        above = found[mine] >= threshold
        predictions += int(above.sum())
        hits += int((above & pairs.right[mine]).sum())
    return found, (hits, predictions, int(pairs.n_true.sum()))


def _shares(hits: int, predictions: int, n_true: int) -> tuple[float, float, float]:
    """Precision, recall, micro-F1."""
    return hits / max(predictions, 1), hits / max(n_true, 1), 2 * hits / max(predictions + n_true, 1)


def _bins(scores: np.ndarray, right: np.ndarray) -> tuple[ReliabilityBin, ...]:
    place = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    means = np.bincount(place, scores, minlength=BINS) / np.maximum(counts, 1)
    shares = np.bincount(place, right, minlength=BINS) / np.maximum(counts, 1)
    return tuple(
        ReliabilityBin(
            bin / BINS,
            (bin + 1) / BINS,
            int(counts[bin]),
            float(means[bin]) if counts[bin] else None,
            float(shares[bin]) if counts[bin] else None,
        )
        for bin in range(BINS)
    )


def _error(bins: tuple[ReliabilityBin, ...]) -> float:
    """Expected calibration error: how far a bin's share is from its mean score, weighed by its pairs."""
    off = sum(one.pairs * abs(one.share - one.mean) for one in bins if one.share is not None and one.mean is not None)
    return off / max(sum(one.pairs for one in bins), 1)
