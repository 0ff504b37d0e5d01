"""From scores to probabilities: isotonic regression on held-out predictions, made strictly increasing.

Pool adjacent violators gives the best non-decreasing step function from score to the fraction of right labels. Labels
of one step would all get the same probability and lose their order. So each step is placed at the mean score of its
pairs and the points are interpolated linearly ("centred" isotonic regression, Oron and Flournoy 2017);
at the lowest and highest score seen the probability is moved by 1 % of the remaining distance to 0 or 1. Where two
labels of a document differ in score but their probabilities are equal in 32 bits, or both scores lie outside the range
seen, the lower one gets the next smaller number. The order of a document's labels is therefore exactly that of the
scores: equal scores stay equal, all others stay different.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.data.dataset import Dataset, check_known, check_labelled
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.formatting import counted
from labelwise.io.folder import get_tensor
from labelwise.model.card import CalibrationNote
from labelwise.model.inputs import Overlap, predict_in_blocks, predict_in_time
from labelwise.model.predictions import CALIBRATION_K, MOST_LABELS, Ranked, checked_k, k_from_data
from labelwise.runtime.budget import Budget
from labelwise.topk import NO_LABEL, TopK

if TYPE_CHECKING:
    from labelwise.model.method import Method


MIN_PROBABILITY = 1e-30
"""Lower bound of the points' probabilities, which leaves enough smaller numbers for a whole row."""
TAIL = 0.01


def isotonic_blocks(hits: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The blocks of the isotonic regression of the fractions `hits / counts`: starts, and strictly increasing means."""
    from scipy.optimize import isotonic_regression  # takes half a second to import

    begins = isotonic_regression(hits / counts, weights=counts).blocks[:-1]
    for _ in range(2):
        means = np.add.reduceat(hits, begins) / np.add.reduceat(counts, begins)
        rises = np.append(True, means[1:] > means[:-1])  # whole numbers are exact, running means are rounded
        begins = begins[rises]
    return begins, means[rises]


@dataclass(frozen=True, eq=False)
class Calibration:
    """A strictly increasing function from score to probability, and a threshold for probabilities.

    Parameters
    ----------
    scores, probabilities
        The points of the piecewise linear function, both strictly increasing, float64.
    threshold
        Labels with at least this probability are to be assigned.
    expected
        Expected precision, recall and micro-F1 on new documents at the threshold.
    """

    scores: np.ndarray
    probabilities: np.ndarray
    threshold: float = 0.5
    expected: tuple[float, float, float] = (0.0, 0.0, 0.0)
    _slopes: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            per_segment = np.diff(self.probabilities) / np.diff(self.scores)
        object.__setattr__(self, "_slopes", np.append(per_segment, 0.0))

    @classmethod
    def fit(cls, scores: np.ndarray, right: np.ndarray) -> Calibration:
        """Fit to predicted labels: their scores, ascending, and whether each was right."""
        if len(scores) == 0:
            raise DataError("there are no predicted labels to fit probabilities to")
        scores = np.asarray(scores, np.float64)
        first = np.flatnonzero(np.append(True, scores[1:] > scores[:-1]))
        levels, counts = scores[first], np.diff(np.append(first, len(scores)))
        hits = np.add.reduceat(right.astype(np.float64), first)
        begins, means = isotonic_blocks(hits, counts)
        ends = np.append(begins[1:], len(levels)) - 1
        weights = np.repeat(np.add.reduceat(counts.astype(np.float64), begins), ends - begins + 1)
        centres = np.add.reduceat(levels * (counts / weights), begins)
        centres = np.clip(centres, levels[begins], levels[ends])  # rounding must not leave the block
        least = 0.5 / len(scores)
        probabilities = np.clip(means, least, 1 - least)
        if levels[0] < centres[0]:
            centres = np.append(levels[0], centres)
            probabilities = np.append((1 - TAIL) * probabilities[0], probabilities)
        if levels[-1] > centres[-1]:
            centres = np.append(centres, levels[-1])
            probabilities = np.append(probabilities, probabilities[-1] + TAIL * (1 - probabilities[-1]))
        return cls(centres, probabilities)

    def transform(self, scores: np.ndarray) -> np.ndarray:
        """The probability of each score in float64. It depends on that score alone, to the last bit."""
        given = np.asarray(scores, np.float64)
        low, high = self.scores[0], self.scores[-1]
        segment = self.scores[1:].searchsorted(given, "right")
        probabilities = self._slopes[segment]
        probabilities *= np.minimum(np.maximum(given, low), high) - self.scores[segment]
        probabilities += self.probabilities[segment]
        return probabilities

    def apply(self, top: TopK) -> TopK:
        """Replace the scores of predictions by probabilities; the order stays the same."""
        scores, empty = top.scores, top.ids == NO_LABEL
        gaps = bool(empty.any())
        if gaps:
            scores = np.where(empty, self.scores[0], scores)
        probabilities = self.transform(scores).astype(np.float32)
        falls = scores[:, 1:] < scores[:, :-1]
        merged = falls & (probabilities[:, 1:] >= probabilities[:, :-1])
        if merged.any():
            rows = merged.any(1)
            probabilities[rows] = _separated(probabilities[rows], falls[rows])
        if gaps:
            probabilities[empty] = -np.inf
        return TopK(top.ids, probabilities, top.label_names)

    def to_tensors(self) -> dict[str, np.ndarray]:
        """As named arrays for a model folder."""
        return {
            "scores": self.scores,
            "probabilities": self.probabilities,
            "threshold": np.array([self.threshold]),
            "expected": np.array(self.expected),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], path: Path) -> Calibration:
        """Rebuild from `to_tensors`, checked so that predictions stay sorted and finite for any file."""
        scores, probabilities, threshold, expected = (
            get_tensor(tensors, name, path) for name in ("scores", "probabilities", "threshold", "expected")
        )
        sound = (
            all(array.dtype == np.float64 for array in (scores, probabilities, threshold, expected))
            and scores.ndim == 1
            and scores.shape == probabilities.shape
            and len(scores) > 0
            and threshold.shape == (1,)
            and expected.shape == (3,)
            and np.isfinite(scores).all()
            and np.abs(scores).max() < 1e100
            and (np.diff(scores) > 1e-100).all()  # or a segment would be vertical
            and (np.diff(probabilities) > 0).all()
            and probabilities[0] >= MIN_PROBABILITY
            and probabilities[-1] <= 1
            and 0 <= threshold[0] <= 2
            and ((expected >= 0) & (expected <= 1)).all()
        )
        if not sound:
            raise ModelFormatError(f"{path}: the calibration is damaged")
        precision, recall, f1 = expected.tolist()
        return cls(np.array(scores), np.array(probabilities), float(threshold[0]), (precision, recall, f1))


def _separated(probabilities: np.ndarray, falls: np.ndarray) -> np.ndarray:
    """Rows whose probabilities decrease exactly where the scores do (`falls`), and are equal elsewhere."""
    for rank in range(1, probabilities.shape[1]):
        before = probabilities[:, rank - 1]
        lower = np.minimum(probabilities[:, rank], np.nextafter(before, np.float32(0)))
        probabilities[:, rank] = np.where(falls[:, rank - 1], lower, before)
    return probabilities


# --- threshold ---
# Fits calibration and threshold to held-out documents, with unbiased estimates of their quality.
#
# Reported figures are cross-fitted: the documents are split into five folds, and each fold is evaluated with what was
# fitted to the other four. True labels that the model does not predict count as missed.

FOLDS = 5
BINS = 10
CURVE_STEPS = 50
SEEN_IN_TRAINING = (
    "the model has seen them with their labels, so probabilities, threshold and expected figures are too high"
)


@dataclass(frozen=True)
class ReliabilityBin:
    """Predicted labels whose score lies in [low, high): their number, mean score and the fraction that was right."""

    low: float
    high: float
    pairs: int
    mean: float | None
    share: float | None


@dataclass(frozen=True)
class ThresholdPoint:
    """Precision, recall and micro-F1 of the labels whose probability reaches a threshold."""

    threshold: float
    precision: float | None
    """None if no label reaches the threshold."""
    recall: float
    f1: float


@dataclass(frozen=True)
class CalibrationReport:
    """The result of `Method.calibrate`. All figures except the threshold are cross-fitted."""

    n_documents: int
    n_pairs: int
    """Number of predicted labels used."""
    n_true: int
    """Number of true labels, including those never predicted."""
    k: int
    """Predicted labels per document; without a given k more where more reach the threshold."""
    wanted_precision: float | None
    """The requested precision. None: the threshold has the best micro-F1."""
    reached: bool
    """Whether any threshold has the requested precision; otherwise the one with the highest was chosen."""
    threshold: float
    precision: float
    recall: float
    f1: float
    error_before: float | None
    """Expected calibration error of the scores; None if they are not in [0, 1]."""
    error_after: float
    before: tuple[ReliabilityBin, ...]
    after: tuple[ReliabilityBin, ...]
    curve: tuple[ThresholdPoint, ...]
    """From low to high thresholds, on the predicted labels; below the chosen one these are the best k per document."""
    n_cut: int = 0
    """Documents in which the last of the k labels reaches the threshold, so that others may reach it too."""
    n_seen: int | None = None
    """Documents that the model was trained on; None if it does not know its training documents."""
    n_available: int | None = None
    """Documents that were given, if a time budget ended the prediction before all were used."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {**asdict(self), "remarks": self.remarks()}

    def __str__(self) -> str:
        target = "best micro-F1" if self.wanted_precision is None else f"precision {self.wanted_precision:g}"
        before = "" if self.error_before is None else f" (before: {self.error_before:.4f})"
        missed = "" if self.reached else "; the requested precision cannot be reached"
        return (
            f"threshold {self.threshold:.4g} for {target}{missed}: precision {self.precision:.3f}, recall "
            f"{self.recall:.3f}, micro-F1 {self.f1:.3f}; calibration error {self.error_after:.4f}{before}; from "
            f"{self.n_documents:,} documents, {self.n_pairs:,} predicted labels"
        )

    def remarks(self) -> list[str]:
        """What to know about threshold and figures before relying on them, in words."""
        found = []
        if self.n_available is not None:
            used = counted(self.n_documents, self.n_available)
            found.append(f"fitted on {used} documents: the time budget ended the prediction")
        if self.n_seen:
            found.append(Overlap(self.n_documents, self.n_seen).remark(SEEN_IN_TRAINING))
        if self.n_cut:
            found.append(
                f"in {self.n_cut:,} of {self.n_documents:,} documents all {self.k} predicted labels reach the "
                "threshold and so may others that the figures do not count; without k as many labels as needed are used"
            )
        return found


@dataclass(frozen=True)
class _Pairs:
    """Predicted labels by ascending score: whether they were right, the document's fold, and true labels per fold."""

    scores: np.ndarray
    right: np.ndarray
    folds: np.ndarray
    n_true: np.ndarray


def calibration_of(top: TopK, truth: Dataset, precision: float | None = None) -> tuple[Calibration, CalibrationReport]:
    """Fit calibration and threshold to predictions and true labels, both in the model's label space.

    Parameters
    ----------
    top
        Uncalibrated predictions for held-out documents.
    truth
        The same documents with their labels.
    precision
        The requested precision at the threshold; None: the best micro-F1.
    """
    if precision is not None and not 0 < precision <= 1:
        raise ConfigError(f"precision must be above 0 and at most 1, got {precision!r}")
    pairs = _pairs(top, truth)
    if len(pairs.scores) == 0:
        raise DataError(f"{truth.name}: no label is predicted for any document, so there is nothing to calibrate")
    whole = Calibration.fit(pairs.scores, pairs.right)
    probabilities = whole.transform(pairs.scores).astype(np.float32)
    threshold, reached = choose_threshold(probabilities, pairs.right, int(pairs.n_true.sum()), precision)
    cross_fitted, counts = _cross_fitted(pairs, precision)
    expected = _precision_recall_f1(*counts)
    before = _bins(pairs.scores, pairs.right) if pairs.scores[0] >= 0 and pairs.scores[-1] <= 1 else ()
    after = _bins(cross_fitted, pairs.right)
    report = CalibrationReport(
        len(truth), len(pairs.scores), int(pairs.n_true.sum()), top.k, precision, reached, threshold, *expected,
        _error(before) if before else None, _error(after), before, after,
        _threshold_curve(cross_fitted, pairs.right, int(pairs.n_true.sum())),
    )  # fmt: skip
    return replace(whole, threshold=threshold, expected=expected), report


def calibrated(
    ranked: Ranked, truth: Dataset, k: int, precision: float | None, n_labels: int | None
) -> tuple[Calibration, CalibrationReport]:
    """`calibrate` on the best k labels per document and, if `n_labels` is given, all others that reach the threshold.

    Documents whose last label reaches the threshold are ranked again with twice as many labels, so that threshold and
    figures are those of predictions that only the threshold cuts.
    """
    top, depths, width = ranked(None, k), np.full(len(truth), k), k
    while True:
        calibration, report = calibration_of(top, truth, precision)
        cut = _cut(top, depths, calibration)
        if width >= min(n_labels or 0, MOST_LABELS) or not len(cut):
            return calibration, replace(report, k=k, n_cut=0 if width == n_labels else len(cut))
        width = min(2 * width, n_labels or 0, MOST_LABELS)
        deeper, top = ranked(cut, width), top.padded(width)
        top.ids[cut], top.scores[cut], depths[cut] = deeper.ids, deeper.scores, width


def _cut(top: TopK, depths: np.ndarray, calibration: Calibration) -> np.ndarray:
    """The documents whose last label reaches the threshold, given how many labels each was ranked for."""
    last = np.arange(len(top)), depths - 1
    filled = top.ids[last] != NO_LABEL
    scores = np.where(filled, top.scores[last], calibration.scores[0])
    return np.flatnonzero(filled & (calibration.transform(scores).astype(np.float32) >= calibration.threshold))


def choose_threshold(
    probabilities: np.ndarray, right: np.ndarray, n_true: int, precision: float | None = None
) -> tuple[float, bool]:
    """The threshold with the best micro-F1, or the lowest with the given precision; and whether there is one.

    `probabilities` are ascending. The threshold is half-way between the last label above it and the first below.
    """
    values = probabilities[::-1]
    ends = np.flatnonzero(np.append(values[1:] < values[:-1], True))
    hits = np.cumsum(right[::-1])[ends]
    taken = ends + 1
    reached = True
    if precision is None:
        best = int(np.argmax(2 * hits / (taken + n_true)))
    else:
        precisions = hits / taken
        enough = np.flatnonzero(precisions >= precision)
        reached = len(enough) > 0
        best = int(enough[-1]) if reached else int(len(ends) - 1 - np.argmax(precisions[::-1]))
    last = values[ends[best]]
    rest = values[ends[best] + 1] if best + 1 < len(ends) else np.float32(0)
    middle = np.float32((float(last) + float(rest)) / 2)
    return float(middle if middle > rest else last), reached


def are_right(ids: np.ndarray, labels: Any) -> np.ndarray:
    """Which of some labels per document [documents, n] are among its true ones, a canonical CSR matrix."""
    n_documents, n_labels = labels.shape
    known = np.repeat(np.arange(n_documents), np.diff(labels.indptr)) * n_labels + labels.indices
    given = np.arange(n_documents)[:, None] * n_labels + ids
    found = np.append(known, -1)[np.searchsorted(known, given)] == given
    return found & (ids != NO_LABEL)


def _pairs(top: TopK, truth: Dataset) -> _Pairs:
    filled = top.ids != NO_LABEL
    documents = np.broadcast_to(np.arange(len(top))[:, None], top.ids.shape)[filled]
    scores = top.scores[filled]
    true_counts = np.diff(truth.labels.indptr)
    right = are_right(top.ids, truth.labels)[filled]
    folds = np.random.default_rng(0).permutation(len(truth)) % min(FOLDS, max(len(truth), 1))
    order = np.argsort(scores, kind="stable")
    n_true = np.bincount(folds, true_counts, minlength=FOLDS).astype(np.int64)
    return _Pairs(scores[order], right[order], folds[documents][order], n_true)


def _cross_fitted(pairs: _Pairs, precision: float | None) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Each pair's probability, fitted to other folds; and hits, predictions and true labels at the thresholds."""
    probabilities = np.empty(len(pairs.scores), np.float32)
    hits = predictions = 0
    for fold in range(FOLDS):
        mine = pairs.folds == fold
        if not mine.any():
            continue
        alone = bool(mine.all())  # a single document has no other fold to fit to
        others = mine if alone else ~mine
        fitted = Calibration.fit(pairs.scores[others], pairs.right[others])
        seen = fitted.transform(pairs.scores[others]).astype(np.float32)
        n_true = int(pairs.n_true.sum() - (0 if alone else pairs.n_true[fold]))
        threshold, _ = choose_threshold(seen, pairs.right[others], n_true, precision)
        probabilities[mine] = fitted.transform(pairs.scores[mine])
        above = probabilities[mine] >= threshold
        predictions += int(above.sum())
        hits += int((above & pairs.right[mine]).sum())
    return probabilities, (hits, predictions, int(pairs.n_true.sum()))


def _precision_recall_f1(hits: int, predictions: int, n_true: int) -> tuple[float, float, float]:
    """Precision, recall, micro-F1."""
    return hits / max(predictions, 1), hits / max(n_true, 1), 2 * hits / max(predictions + n_true, 1)


def _bins(scores: np.ndarray, right: np.ndarray) -> tuple[ReliabilityBin, ...]:
    index = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(index, minlength=BINS)
    means = np.bincount(index, scores, minlength=BINS) / np.maximum(counts, 1)
    fractions = np.bincount(index, right, minlength=BINS) / np.maximum(counts, 1)
    known = [(float(mean), float(share)) if count else (None, None)
             for count, mean, share in zip(counts, means, fractions, strict=True)]  # fmt: skip
    return tuple(ReliabilityBin(bin / BINS, (bin + 1) / BINS, int(counts[bin]), *known[bin]) for bin in range(BINS))


def _threshold_curve(probabilities: np.ndarray, right: np.ndarray, n_true: int) -> tuple[ThresholdPoint, ...]:
    """Figures at evenly spaced thresholds."""
    order = np.argsort(probabilities, kind="stable")
    hits_from = np.append(np.cumsum(right[order][::-1])[::-1], 0)
    points = []
    for step in range(1, CURVE_STEPS):
        first = int(np.searchsorted(probabilities[order], np.float32(step / CURVE_STEPS)))
        predictions, hits = len(order) - first, int(hits_from[first])
        precision, recall, f1 = _precision_recall_f1(hits, predictions, n_true)
        points.append(ThresholdPoint(step / CURVE_STEPS, precision if predictions else None, recall, f1))
    return tuple(points)


def _error(bins: tuple[ReliabilityBin, ...]) -> float:
    """Expected calibration error: |fraction right - mean score| per bin, weighted by its pairs."""
    off = sum(one.pairs * abs(one.share - one.mean) for one in bins if one.share is not None and one.mean is not None)
    return off / max(sum(one.pairs for one in bins), 1)


# --- calibrate ---
# Calibrate a model on held-out documents: rank labels for them, fit probabilities and choose a threshold.

log = logging.getLogger("labelwise")


def calibrate(
    model: Method, dataset: Dataset, k: int | None, precision: float | None, budget: Budget
) -> CalibrationReport:
    """Set the calibration of a fitted model; `dataset` is in its label space. See `Method.calibrate`."""
    if len(dataset) == 0:
        raise DataError(f"{dataset.name}: there are no documents to calibrate on")
    check_labelled(dataset.labels, dataset.name)
    check_known(dataset, len(model.label_names_))
    count = k_from_data(CALIBRATION_K, model.trained_on_) if k is None else checked_k(k)

    def best(part: Dataset, k: int) -> TopK:
        return model._ranked(model._as_documents(part), k)

    known, n_given = None, len(dataset)
    if budget.is_limited:
        rows, known = predict_in_time(lambda part: best(part, count), dataset, "calibrating", budget)
        if len(rows) < n_given:
            log.info("calibrating: ended by the time budget after %s of %s documents", f"{len(rows):,}", f"{n_given:,}")
            dataset = dataset.take(rows)

    def ranked(rows: np.ndarray | None, k: int) -> TopK:
        if rows is None and k == count and known is not None:
            return known
        chosen = dataset if rows is None else dataset.take(rows)
        return predict_in_blocks(lambda part: best(part, k), chosen, "calibrating")

    # further labels are ranked while there is time
    most = None if k is not None or budget.expired() else len(model.label_names_)
    model.calibration_, report = calibrated(ranked, dataset, count, precision, most)
    overlap = None if model.trained_on_ is None else model.trained_on_.overlap(dataset, model.input_)
    report = replace(
        report,
        n_available=None if len(dataset) == n_given else n_given,
        n_seen=None if overlap is None else overlap.seen,
    )
    model.card_ = model.card_.model_copy(update={"calibration": CalibrationNote.of(report, dataset.name)})
    for remark in report.remarks():
        log.warning("calibration: %s", remark)
    return report
