"""How the predictions of an ensemble's members become one: a value per label and member, weights, and their sum.

Each member ranks some labels of a document. A label that a member does not rank gets the member's last score for that
document, which is an upper bound of what the member would have given it; 0 would punish it for the length of the list.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from labelwise.errors import DataError, ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.linear.trees import MISSING, Candidates
from labelwise.metrics.names import Metric
from labelwise.metrics.ranking import discounts
from labelwise.model.calibration import Calibration
from labelwise.topk import TopK

Combine = Literal[
    "average", "rank_average", "softmax_average", "sigmoid_average", "probability_average", "logistic", "round_robin"
]
CALIBRATED = ("probability_average", "logistic")
"""Those that read probabilities: every member needs a calibration."""
LARGEST_WEIGHT = 1e6
EMPTY = np.empty(0)


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
        if self.rule in ("rank_average", "round_robin"):
            ranks = candidates.ranks
            unranked = ranks.max(1, keepdims=True) + 1
            ranks = np.where(ranks == MISSING, unranked, ranks)
            if self.rule == "rank_average":
                return 1.0 / (1.0 + ranks)
            turn = ranks * len(self.weights) + np.arange(len(self.weights))
            return np.where(candidates.ranks == MISSING, 0.0, 1.0 / (1.0 + turn))
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
        values = self.values(candidates)
        if self.rule == "round_robin":
            return np.where(values == values.max(2, keepdims=True), values, 0.0)
        return values * self.weights_of(candidates)

    def weights_of(self, candidates: Candidates) -> np.ndarray:
        """The weights, which depend on the label with `logistic`; [members] or [documents, candidates, members]."""
        if self.rule != "logistic":
            return self.weights
        return self.weights + self.growth[:-1] * self.frequencies_of(candidates)[..., None]

    def frequencies_of(self, candidates: Candidates) -> np.ndarray:
        """The frequencies of the candidates [documents, candidates]."""
        return self.frequencies[np.maximum(candidates.labels, 0)]

    def scores(self, candidates: Candidates, parts: np.ndarray) -> np.ndarray:
        """The candidates' scores from the members' contributions."""
        if self.rule != "logistic":
            return parts.sum(2)
        margins = self.bias + self.growth[-1] * self.frequencies_of(candidates) + parts.sum(2)
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


# --- ensemble learning ---
# Learn how to combine the members of an ensemble, on held-out documents.
#
# Weights of averages maximise a ranking metric by a search along one weight after the other: the metric is a step
# function, there are few weights, and the same documents always give the same result. The logistic combination
# minimises the log-loss of the candidates by Newton's method. Its coefficients depend on the frequency of a label,
# because members differ most on rare ones, and may be negative: a member that favours frequent labels more than others
# do corrects them.

log = logging.getLogger("labelwise")

FACTORS = (0.0, 0.25, 0.5, 0.7, 0.85, 1.15, 1.4, 2.0, 4.0)
"""A weight is multiplied by each of them in turn."""
ROUNDS = 6
LEARNED_RANKS = 20
"""Only labels that a member ranks so high take part in the search for weights: others are never among the best."""
LEAST_GAIN = 1e-5
"""A smaller gain in the metric does not change a weight."""
RIDGE = 1.0
"""Squared coefficients times this are added to the log-loss of all candidates."""
NEWTON_STEPS = 50


@dataclass(frozen=True, eq=False)
class Held:
    """Held-out documents: the candidates, which of them are right, and the number of true labels per document."""

    candidates: Candidates
    right: np.ndarray
    n_true: np.ndarray
    label_counts: np.ndarray
    """Training documents per label."""

    @property
    def members(self) -> int:
        """Number of members."""
        return self.candidates.scores.shape[2]


def fitted_calibrations(held: Held, known: Sequence[Calibration | None]) -> tuple[Calibration, ...]:
    """The calibration of each member; fitted to the labels that it ranks where none is known."""
    found = []
    for member, calibration in enumerate(known):
        if calibration is None:
            ranked = held.candidates.ranks[..., member] != MISSING
            scores, right = held.candidates.scores[..., member][ranked], held.right[ranked]
            if not len(scores):
                raise DataError(f"member {member} predicts no label for any held-out document")
            order = np.argsort(scores, kind="stable")
            calibration = Calibration.fit(scores[order], right[order])
        found.append(calibration)
    return tuple(found)


def learned(held: Held, start: Combination, metric: Metric) -> Combination:
    """The combination with weights that suit the held-out documents best."""
    if start.rule == "logistic":
        return _logistic(held, start)
    columns, right = _best_ranked(held)
    values = np.take_along_axis(start.values(held.candidates), columns[..., None], 1)
    filled = np.take_along_axis(held.candidates.filled, columns, 1)
    judge = _Judge(values, filled, right, held.n_true, metric)
    weights = np.full(held.members, 1.0 / held.members)
    best = before = judge.score(weights)
    for _ in range(ROUNDS):
        reached = best
        for member in range(held.members):
            for factor in FACTORS:
                tried = weights.copy()
                tried[member] *= factor
                if not tried.any():
                    continue
                tried = normalized(tried)
                score = judge.score(tried)
                if score > best + LEAST_GAIN:
                    best, weights = score, tried
        if best <= reached:
            break
    log.info(
        "weights learned on %s documents: %s; %s %.2f with equal weights, %.2f with these", f"{len(right):,}",
        ", ".join(f"{weight:.3f}" for weight in weights), metric.name, 100 * before, 100 * best,
    )  # fmt: skip
    return replace(start, weights=weights)


def _best_ranked(held: Held) -> tuple[np.ndarray, np.ndarray]:
    """The columns of the candidates that any member ranks high, as many per document as the longest row needs."""
    ranks = np.where(held.candidates.ranks == MISSING, np.iinfo(np.int32).max, held.candidates.ranks).min(2)
    width = max(1, int((ranks < LEARNED_RANKS).sum(1).max(initial=0)))
    columns = np.argsort(ranks, axis=1, kind="stable")[:, :width]
    columns.sort(axis=1)  # labels in ascending order, as they are ranked when scores are equal
    return columns, np.take_along_axis(held.right, columns, 1)


class _Judge:
    """A ranking metric of weighted values, as a mean over the documents that have labels."""

    def __init__(
        self, values: np.ndarray, filled: np.ndarray, right: np.ndarray, n_true: np.ndarray, metric: Metric
    ) -> None:
        rows = np.flatnonzero(n_true)
        self.values, self.filled, self.right = values[rows], filled[rows], right[rows]
        self.k = int(metric.k or 1)
        counts = np.minimum(n_true[rows], self.k)
        self.gains = discounts(self.k) if metric.kind == "nDCG" else np.ones(self.k)
        ideal = np.cumsum(self.gains)
        self.ideal = ideal[counts - 1] if metric.kind in ("nDCG", "RP") else np.full(len(counts), float(self.k))

    def score(self, weights: np.ndarray) -> float:
        """The metric."""
        sums = np.where(self.filled, self.values @ weights, -np.inf)
        order = np.argsort(-sums, axis=1, kind="stable")[:, : self.k]
        hits = np.take_along_axis(self.right, order, 1)
        return float(((hits * self.gains[: hits.shape[1]]).sum(1) / self.ideal).mean())


def _logistic(held: Held, start: Combination) -> Combination:
    """Coefficients of log-odds, and by how much they grow with a label's frequency."""
    filled = held.candidates.filled
    logarithms = np.log1p(held.label_counts.astype(np.float64))
    seen = logarithms[held.candidates.labels[held.right & filled]]
    mean, deviation = (float(seen.mean()), float(seen.std()) or 1.0) if len(seen) else (0.0, 1.0)
    start = replace(start, frequencies=(logarithms - mean) / deviation)
    values, right = start.values(held.candidates)[filled], held.right[filled].astype(np.float64)
    frequency = start.frequencies_of(held.candidates)[filled][:, None]
    found = _newton(np.concatenate([values, values * frequency, frequency], axis=1), right, held.members)
    weights, growth = found[1 : held.members + 1], found[held.members + 1 :]
    log.info(
        "logistic combination of %s candidates: coefficients %s, growing by %s with the frequency of a label",
        f"{len(right):,}", *(", ".join(f"{one:.3f}" for one in some) for some in (weights, growth[:-1])),
    )  # fmt: skip
    return replace(start, weights=weights, growth=growth, bias=float(found[0]))


def _newton(values: np.ndarray, right: np.ndarray, members: int) -> np.ndarray:
    """Bias and coefficients of a logistic regression, from the point where all members have the same coefficient."""
    rows = np.concatenate([np.ones((len(values), 1)), values], axis=1)
    ridge = np.full(rows.shape[1], RIDGE)
    ridge[0] = 1e-6
    found = np.zeros(rows.shape[1])
    found[1 : members + 1] = 1.0 / members

    def loss(at: np.ndarray) -> float:
        margins = rows @ at
        return float(np.logaddexp(0.0, margins).sum() - right @ margins + 0.5 * (ridge * at**2).sum())

    now = loss(found)
    for _ in range(NEWTON_STEPS):
        probabilities = 1.0 / (1.0 + np.exp(-np.clip(rows @ found, -700, 700)))
        gradient = rows.T @ (probabilities - right) + ridge * found
        curvature = (rows * (probabilities * (1.0 - probabilities))[:, None]).T @ rows + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while (then := loss(found - size * step)) > now and size > 1e-6:
            size /= 2
        if then >= now:
            break
        found, done, now = found - size * step, now - then < 1e-9 * now, then
        if done:
            break
    return found


def needs_data(rule: str, weights: object, calibrations: Sequence[Calibration | None]) -> str | None:
    """Why held-out documents are needed; None if they are not."""
    if rule == "logistic":
        return "combine: logistic is learned"
    if weights == "learn":
        return "weights: learn"
    if rule in CALIBRATED and None in calibrations:
        return f"combine: {rule} needs probabilities, and member {list(calibrations).index(None)} is not calibrated"
    return None
