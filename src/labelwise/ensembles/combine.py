"""How the predictions of an ensemble's members become one: a value per label and member, weights, and their sum.

Each member ranks some labels of a document. A label that a member does not rank gets the member's last score for that
document, which is an upper bound of what the member would have given it; 0 would punish it for the length of the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from labelwise.errors import ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.model.calibration import Calibration
from labelwise.topk import NO_LABEL, TopK

Combine = Literal["average", "rank_average", "softmax_average", "sigmoid_average", "probability_average", "logistic"]
CALIBRATED = ("probability_average", "logistic")
"""Those that read probabilities: every member needs a calibration."""
LARGEST_WEIGHT = 1e6
EMPTY = np.empty(0)
MISSING = -1
"""The rank of a label that a model does not predict."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The labels that any of several models predicts for a document, with the score and rank in each.

    A row holds its labels in ascending order, then NO_LABEL. Labels that a model does not predict have the rank MISSING
    and its score of the document's last predicted label, or NaN if it predicts none for the document.
    """

    labels: np.ndarray
    """[documents, candidates]"""
    scores: np.ndarray
    """float32 [documents, candidates, models]"""
    ranks: np.ndarray
    """int32 [documents, candidates, models], from 0"""

    @property
    def filled(self) -> np.ndarray:
        """Where there is a label [documents, candidates]."""
        return self.labels != NO_LABEL

    def best(self, values: np.ndarray, k: int) -> TopK:
        """The k candidates with the highest values [documents, candidates], ties by lower id."""
        scores = np.where(self.filled, values, -np.inf).astype(np.float32)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        ids, scores = np.take_along_axis(self.labels, order, 1), np.take_along_axis(scores, order, 1)
        return TopK(ids, scores).padded(k)


def side_by_side(tops: Sequence[TopK]) -> Candidates:
    """All labels of several predictions for the same documents, in one label space."""
    ids = np.concatenate([top.ids for top in tops], axis=1)
    scores = np.concatenate([top.scores for top in tops], axis=1)
    models = np.repeat(np.arange(len(tops)), [top.k for top in tops])
    ranks = np.concatenate([np.arange(top.k) for top in tops])
    last = np.iinfo(np.int64).max
    keys = ids.astype(np.int64)
    keys[ids == NO_LABEL] = last
    order = np.argsort(keys, axis=1, kind="stable")
    keys = np.take_along_axis(keys, order, 1)
    filled = keys != last
    first = filled.copy()
    first[:, 1:] &= keys[:, 1:] != keys[:, :-1]
    column = np.cumsum(first, axis=1) - 1
    shape = (len(ids), max(int(column.max(initial=0)) + 1, 1), len(tops))
    labels = np.full(shape[:2], NO_LABEL, np.int32)
    rows, places = np.nonzero(first)
    labels[rows, column[rows, places]] = keys[rows, places]
    rows, places = np.nonzero(filled)
    where = rows, column[rows, places], models[order[rows, places]]
    found_scores, found_ranks = np.empty(shape, np.float32), np.full(shape, MISSING, np.int32)
    found_scores[:] = _last_scores(tops)[:, None, :]
    found_scores[where] = scores[rows, order[rows, places]]
    found_ranks[where] = ranks[order[rows, places]]
    return Candidates(labels, found_scores, found_ranks)


def _last_scores(tops: Sequence[TopK]) -> np.ndarray:
    """Each model's score of the last label that it predicts for a document [documents, models], NaN if for none."""
    scores = np.full((len(tops[0]), len(tops)), np.nan, np.float32)
    for model, top in enumerate(tops):
        counts = (top.ids != NO_LABEL).sum(1)
        rows = np.flatnonzero(counts)
        scores[rows, model] = top.scores[rows, counts[rows] - 1]
    return scores


@dataclass(frozen=True, eq=False)
class Combination:
    """A rule, the weight of each member, and what else was learned.

    Parameters
    ----------
    rule
        One of `Combine`.
    weights
        float64 [members]; they sum to 1, except those of `logistic`, which are coefficients of log-odds.
    calibrations
        From each member's scores to probabilities, for the rules that need them.
    frequencies
        Of `logistic`: float64 [labels], the logarithm of each label's training documents with mean 0 and deviation 1.
    growth
        Of `logistic`: by how much the coefficient of each member, and last the bias, grows with the frequency.
    bias
        Of `logistic`, at the mean frequency.
    """

    rule: str
    weights: np.ndarray
    calibrations: tuple[Calibration, ...] = ()
    frequencies: np.ndarray = field(default_factory=lambda: EMPTY)
    growth: np.ndarray = field(default_factory=lambda: EMPTY)
    bias: float = 0.0

    def values(self, candidates: Candidates) -> np.ndarray:
        """What each member says about each candidate, before weights, float64 [documents, candidates, members]."""
        if self.rule == "rank_average":
            ranks = candidates.ranks
            unranked = ranks.max(1, keepdims=True) + 1
            return 1.0 / (1.0 + np.where(ranks == MISSING, unranked, ranks))
        scores = candidates.scores.astype(np.float64)
        if self.rule in CALIBRATED:
            return self._probabilities(scores)
        scores = np.nan_to_num(scores, nan=0.0)
        if self.rule == "sigmoid_average":
            return 1.0 / (1.0 + np.exp(-np.clip(scores, -700, 700)))
        if self.rule == "softmax_average":
            ranked = candidates.ranks != MISSING
            powers = np.exp(scores - scores.max(1, keepdims=True))
            sums = np.where(ranked, powers, 0.0).sum(1, keepdims=True)
            return np.divide(powers, sums, out=np.zeros_like(powers), where=sums > 0)
        return scores

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities, as log-odds for `logistic`."""
        values = np.empty(scores.shape)
        for member, calibration in enumerate(self.calibrations):
            own = scores[..., member]
            values[..., member] = calibration.transform(np.where(np.isnan(own), calibration.scores[0], own))
        return log_odds(values) if self.rule == "logistic" else values

    def parts(self, candidates: Candidates) -> np.ndarray:
        """How much each member contributes to each candidate [documents, candidates, members]."""
        return self.values(candidates) * self.weights_of(candidates.labels)

    def weights_of(self, labels: np.ndarray) -> np.ndarray:
        """The weights [members]; with `logistic`, where they depend on the label, [*labels.shape, members]."""
        if self.rule != "logistic":
            return self.weights
        return self.weights + self.growth[:-1] * self.frequencies_of(labels)[..., None]

    def bias_of(self, labels: np.ndarray) -> np.ndarray:
        """The part of the labels' scores, with `logistic` of their log-odds, that is no member's."""
        if self.rule != "logistic":
            return np.zeros(labels.shape)
        return self.bias + self.growth[-1] * self.frequencies_of(labels)

    def frequencies_of(self, labels: np.ndarray) -> np.ndarray:
        """The frequencies of labels; of the first one in place of NO_LABEL."""
        return self.frequencies[np.maximum(labels, 0)]

    def scores(self, candidates: Candidates, parts: np.ndarray) -> np.ndarray:
        """The candidates' scores from the members' contributions."""
        if self.rule != "logistic":
            return parts.sum(2)
        margins = self.bias_of(candidates.labels) + parts.sum(2)
        return 1.0 / (1.0 + np.exp(-np.clip(margins, -700, 700)))

    def best(self, candidates: Candidates, k: int, factors: np.ndarray | None = None) -> TopK:
        """The best k labels; scores are multiplied by the labels' `factors` if given."""
        scores = self.scores(candidates, self.parts(candidates))
        if factors is not None:
            scores = scores * factors[np.maximum(candidates.labels, 0)]
        return candidates.best(scores, k)

    def to_tensors(self) -> dict[str, np.ndarray]:
        """As named arrays for a model folder."""
        tensors = {"weights": self.weights}
        if self.rule == "logistic":
            tensors |= {"frequencies": self.frequencies, "growth": self.growth, "bias": np.array([self.bias])}
        for member, calibration in enumerate(self.calibrations):
            tensors |= {f"calibration{member}.{name}": array for name, array in calibration.to_tensors().items()}
        return tensors

    @classmethod
    def from_tensors(cls, rule: str, tensors: Mapping[str, np.ndarray], n_labels: int, path: Path) -> Combination:
        """Rebuild from `to_tensors`, checked."""
        logistic = rule == "logistic"
        weights = get_tensor(tensors, "weights", path)
        names = ("frequencies", "growth", "bias") if logistic else ()
        frequencies, growth, bias = (get_tensor(tensors, name, path) for name in names) if names else (EMPTY,) * 3
        arrays = (weights, frequencies, growth, bias)
        sound = (
            all(array.dtype == np.float64 and array.ndim == 1 for array in arrays)
            and all((np.abs(array) <= LARGEST_WEIGHT).all() for array in arrays)
            and len(weights) > 0
            and (logistic or (weights >= 0).all())
            and (not logistic or (len(frequencies), len(growth), len(bias)) == (n_labels, len(weights) + 1, 1))
        )
        if not sound:
            raise ModelFormatError(f"{path}: the weights of the ensemble's members are damaged")
        count = len(weights) if rule in CALIBRATED else 0
        calibrations = tuple(Calibration.from_tensors(_under(tensors, f"calibration{m}."), path) for m in range(count))
        return cls(rule, weights, calibrations, frequencies, growth, float(bias[0]) if logistic else 0.0)


def _under(tensors: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def log_odds(probabilities: np.ndarray) -> np.ndarray:
    """The logarithm of p / (1 - p), between those of 1e-6 and 1 - 1e-6."""
    bounded = np.clip(probabilities, 1e-6, 1 - 1e-6)
    return np.log(bounded) - np.log1p(-bounded)


def normalized(weights: Sequence[float] | np.ndarray) -> np.ndarray:
    """Weights with the sum 1."""
    given = np.asarray(weights, np.float64)
    return given / given.sum()
