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

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from labelwise.errors import DataError, ModelFormatError
from labelwise.store import get_tensor
from labelwise.topk import NO_LABEL, TopK

MIN_PROBABILITY = 1e-30
"""Lower bound of the points' probabilities, which leaves enough smaller numbers for a whole row."""
TAIL = 0.01
PASS_FACTOR = 0.9


def isotonic_blocks(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The blocks of the weighted isotonic regression of `values` in the given order.

    Returns
    -------
    tuple of three arrays
        The start of each block, its weight and its mean. The means are strictly increasing.

    Notes
    -----
    The order in which violators are pooled does not matter, so whole decreasing runs are pooled at once, pass by pass.
    When passes become inefficient (some inputs allow one pooling per pass), a loop over the rest finishes.
    """
    starts = np.arange(len(values))
    sums, weights = values * weights, np.asarray(weights, np.float64)
    while len(starts) > 1:
        means = sums / weights
        begins = np.flatnonzero(np.append(True, means[1:] > means[:-1]))
        if len(begins) == len(starts):
            return starts, weights, means
        few = len(begins) > PASS_FACTOR * len(starts)
        starts, sums, weights = starts[begins], np.add.reduceat(sums, begins), np.add.reduceat(weights, begins)
        if few:
            return _pool_one_by_one(starts, sums, weights)
    return starts, weights, sums / weights


def _pool_one_by_one(
    starts: np.ndarray, sums: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    blocks: list[tuple[int, float, float]] = []
    for start, total, weight in zip(starts.tolist(), sums.tolist(), weights.tolist(), strict=True):
        begin = start
        while blocks and blocks[-1][1] / blocks[-1][2] >= total / weight:
            begin, before, weight_before = blocks.pop()
            total, weight = total + before, weight + weight_before
        blocks.append((begin, total, weight))
    begins, totals, widths = (np.array(column) for column in zip(*blocks, strict=True))
    return begins, widths, totals / widths


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
        levels, counts, hits = _distinct(np.asarray(scores, np.float64), right)
        begins, weights, means = isotonic_blocks(hits / counts, counts)
        ends = np.append(begins[1:], len(levels)) - 1
        centres = np.add.reduceat(levels * (counts / np.repeat(weights, ends - begins + 1)), begins)
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


def _distinct(scores: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct scores of an ascending vector, their counts, and how often the label was right."""
    begins = np.flatnonzero(np.append(True, scores[1:] > scores[:-1]))
    counts = np.diff(np.append(begins, len(scores)))
    return scores[begins], counts, np.add.reduceat(right.astype(np.float64), begins)


def _separated(probabilities: np.ndarray, falls: np.ndarray) -> np.ndarray:
    """Rows whose probabilities decrease exactly where the scores do (`falls`), and are equal elsewhere."""
    for rank in range(1, probabilities.shape[1]):
        before = probabilities[:, rank - 1]
        lower = np.minimum(probabilities[:, rank], np.nextafter(before, np.float32(0)))
        probabilities[:, rank] = np.where(falls[:, rank - 1], lower, before)
    return probabilities
