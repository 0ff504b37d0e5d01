"""From scores to probabilities: isotonic regression on held-out predictions, made strictly increasing.

Pool adjacent violators gives the best non-falling step function from score to the share of right labels. A step has no
slope: labels of one step would all get the same probability and lose their order. So each step is put at the mean
score of its pairs and the points are joined by straight lines ("centred" isotonic regression, Oron and Flournoy 2017);
to the lowest and highest score seen the probability moves on by 1 % of what is left to 0 or 1. Where two labels of a
document differ in score and 32 bits cannot tell their probabilities apart, or both scores lie outside all that was
seen, the lower one takes the next smaller number. The order of a document's labels is therefore exactly that of the
scores: labels with equal scores stay equal, all others stay different.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from labelwise.errors import DataError, ModelFormatError
from labelwise.store import get_tensor
from labelwise.topk import NO_LABEL, TopK

LEAST = 1e-30
"""No probability of a point is below it, so that there is room for a whole row of smaller numbers."""
TAIL = 0.01
PASS_FACTOR = 0.9


def pool(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The blocks of the weighted isotonic regression of `values` in the given order.

    Returns
    -------
    tuple of three arrays
        Where each block begins, its weight and its mean. The means rise strictly.

    Notes
    -----
    The order in which violators are pooled does not matter, so whole falling runs are pooled at once, pass by pass.
    When passes stop paying (some inputs allow one pooling a pass), a loop over what is left finishes.
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
            return _finished(starts, sums, weights)
    return starts, weights, sums / weights


def _finished(starts: np.ndarray, sums: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
        The points that are joined, both strictly rising, float64.
    threshold
        Labels with this probability or more are worth giving out.
    expected
        Precision, recall and micro-F1 to expect of new documents at the threshold.
    """

    scores: np.ndarray
    probabilities: np.ndarray
    threshold: float = 0.5
    expected: tuple[float, float, float] = (0.0, 0.0, 0.0)
    _slopes: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            slopes = np.diff(self.probabilities) / np.diff(self.scores)
        object.__setattr__(self, "_slopes", np.append(slopes, 0.0))

    @classmethod
    def fit(cls, scores: np.ndarray, right: np.ndarray) -> Calibration:
        """Learn from predicted labels: their scores, rising, and whether each was right."""
        if len(scores) == 0:
            raise DataError("there is no predicted label to learn probabilities from")
        levels, counts, hits = _distinct(np.asarray(scores, np.float64), right)
        begins, weights, means = pool(hits / counts, counts)
        ends = np.append(begins[1:], len(levels)) - 1
        centres = np.add.reduceat(levels * (counts / np.repeat(weights, ends - begins + 1)), begins)
        centres = np.clip(centres, levels[begins], levels[ends])  # rounding must not lead out of the block
        least = 0.5 / len(scores)
        found = np.clip(means, least, 1 - least)
        if levels[0] < centres[0]:
            centres, found = np.append(levels[0], centres), np.append((1 - TAIL) * found[0], found)
        if levels[-1] > centres[-1]:
            centres, found = np.append(centres, levels[-1]), np.append(found, found[-1] + TAIL * (1 - found[-1]))
        return cls(centres, found)

    def transform(self, scores: np.ndarray) -> np.ndarray:
        """The probability of each score in float64. It depends on that score alone, to the last bit."""
        given = np.asarray(scores, np.float64)
        low, high = self.scores[0], self.scores[-1]
        place = self.scores[1:].searchsorted(given, "right")
        found = self._slopes[place]
        found *= np.minimum(np.maximum(given, low), high) - self.scores[place]
        found += self.probabilities[place]
        return found

    def apply(self, top: TopK) -> TopK:
        """Predictions with probabilities for scores, in the same order."""
        scores, empty = top.scores, top.ids == NO_LABEL
        gaps = bool(empty.any())
        if gaps:
            scores = np.where(empty, self.scores[0], scores)
        found = self.transform(scores).astype(np.float32)
        falls = scores[:, 1:] < scores[:, :-1]
        merged = falls & (found[:, 1:] >= found[:, :-1])
        if merged.any():
            rows = merged.any(1)
            found[rows] = _told_apart(found[rows], falls[rows])
        if gaps:
            found[empty] = -np.inf
        return TopK(top.ids, found, top.label_names)

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
        """Take back `to_tensors`, checked: whatever the file says, predictions stay sorted and finite."""
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
            and (np.diff(scores) > 1e-100).all()  # or a slope would be infinite
            and (np.diff(probabilities) > 0).all()
            and probabilities[0] >= LEAST
            and probabilities[-1] <= 1
            and 0 <= threshold[0] <= 2
            and ((expected >= 0) & (expected <= 1)).all()
        )
        if not sound:
            raise ModelFormatError(f"{path}: the calibration is damaged")
        precision, recall, f1 = expected.tolist()
        return cls(np.array(scores), np.array(probabilities), float(threshold[0]), (precision, recall, f1))


def _distinct(scores: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each different score of a rising vector, how often it is there, and how often the label was right."""
    begins = np.flatnonzero(np.append(True, scores[1:] > scores[:-1]))
    counts = np.diff(np.append(begins, len(scores)))
    return scores[begins], counts, np.add.reduceat(right.astype(np.float64), begins)


def _told_apart(found: np.ndarray, falls: np.ndarray) -> np.ndarray:
    """Rows in which a probability is below the one before wherever the score was, and equal where it was equal."""
    for place in range(1, found.shape[1]):
        before = found[:, place - 1]
        lower = np.minimum(found[:, place], np.nextafter(before, np.float32(0)))
        found[:, place] = np.where(falls[:, place - 1], lower, before)
    return found
