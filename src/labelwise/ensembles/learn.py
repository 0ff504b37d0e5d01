"""Learn how to combine the members of an ensemble, on held-out documents.

Weights of averages maximise a ranking metric by a search along one weight after the other: the metric is a step
function, there are few weights, and the same documents always give the same result. The logistic combination
minimises the log-loss of the candidates by Newton's method. Its coefficients depend on the frequency of a label,
because members differ most on rare ones, and may be negative: a member that favours frequent labels more than others
do corrects them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.ensembles.combine import CALIBRATED, MISSING, Candidates, Combination, normalized, side_by_side
from labelwise.ensembles.model import EnsembleModel, MergedLabels, member_top
from labelwise.errors import DataError
from labelwise.metrics.formulas import discounts
from labelwise.metrics.names import Metric, parse_metric
from labelwise.model.calibration import Calibration, are_right
from labelwise.model.inputs import Overlap, content_of, predict_in_blocks, split_for_early_stopping
from labelwise.model.method import Method
from labelwise.runtime.job import Job
from labelwise.topk import TopK

log = logging.getLogger("labelwise")

FRACTION, MOST_DOCUMENTS = 0.1, 5000
"""Documents held out from the training of members, if none are given."""
MOSTLY = 0.5
"""Documents are not held out if members were trained on more than this fraction of them."""
LEARNING_TIME = 0.9
"""The fraction of the remaining time in which held-out documents are ranked."""
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


def is_learned(config: Any) -> bool:
    """Whether a combination has something to learn in any case."""
    return config.combine == "logistic" or config.weights == "learn"


def held_out_part(data: Dataset, valid: Dataset | None, needed: bool) -> tuple[Dataset, Dataset | None]:
    """Documents to train members on, and those to learn the combination on."""
    if not needed or valid is not None:
        return data, valid
    train, held_out = split_for_early_stopping(data, None, FRACTION, MOST_DOCUMENTS, seed=0)
    if held_out is not None:
        log.info("%s documents are held out to learn the combination on", f"{len(held_out):,}")
    return train, held_out


def learn_combination(
    members: Sequence[Method], labels: MergedLabels, held_out: Dataset | None, config: Any, job: Job, chosen: bool
) -> EnsembleModel:
    """The ensemble of trained members; `chosen`: the user has given the documents as held-out ones."""
    known = [member.calibration_ for member in members]
    given = config.weights if isinstance(config.weights, list) else [1.0] * len(members)
    start = Combination(config.combine, normalized(given))
    why = needs_data(config.combine, config.weights, known)
    if why is None:
        calibrations = tuple(one for one in known if one is not None) if config.combine in CALIBRATED else ()
        return EnsembleModel(members, labels, replace(start, calibrations=calibrations), (0, 0))
    if held_out is None or not len(held_out):
        raise DataError(f"{why}: held-out documents with their labels are needed; call fit(valid_data)")
    seen = _overlap(members, held_out)
    if seen.seen and not chosen and seen.seen > MOSTLY * seen.documents:
        raise DataError(
            f"{held_out.name}: {seen.remark('learn the combination on others')}; give held-out documents "
            "(data.valid or data.valid_fraction in a config)"
        )
    if seen.seen:
        log.warning("%s: %s", held_out.name, seen.remark("the learned combination favours members that remember them"))
    held = ranked_by_members(members, labels, held_out.align(labels.names), config.candidates, job)
    if config.combine in CALIBRATED:
        start = replace(start, calibrations=fitted_calibrations(held, known))
    if is_learned(config):
        start = learned(held, start, parse_metric(config.metric))
    return EnsembleModel(members, labels, start, (seen.documents, seen.seen))


def needs_data(rule: str, weights: object, calibrations: Sequence[Calibration | None]) -> str | None:
    """Why held-out documents are needed; None if they are not."""
    if rule == "logistic":
        return "combine: logistic is learned"
    if weights == "learn":
        return "weights: learn"
    if rule in CALIBRATED and None in calibrations:
        return f"combine: {rule} needs probabilities, and member {list(calibrations).index(None)} is not calibrated"
    return None


def _overlap(members: Sequence[Method], documents: Dataset) -> Overlap:
    """How many documents any one member was trained on, at most."""
    known = [(member.trained_on_, member.input_) for member in members]
    found = [trained.overlap(documents, kind) for trained, kind in known if trained is not None]
    return Overlap(len(documents), max((one.seen for one in found if one is not None), default=0))


def ranked_by_members(
    members: Sequence[Method], labels: MergedLabels, documents: Dataset, count: int, job: Job
) -> Held:
    """The members' candidates for held-out documents, or for a sample of them if there is little time."""

    def ranked(some: Dataset) -> list[TopK]:
        return [
            predict_in_blocks(
                lambda part, member=member, columns=columns: member_top(
                    member, columns, member._as_documents(part), count, None
                ),
                some, f"member {number}",
            )
            for number, (member, columns) in enumerate(zip(members, labels.columns, strict=True))
        ]  # fmt: skip

    job.follow(content_of(documents))  # they are no part of the identity, which members share
    (documents,) = job.some((documents,), ranked, LEARNING_TIME)
    candidates = side_by_side(ranked(documents))
    right = are_right(candidates.labels, documents.labels)
    return Held(candidates, right, np.diff(documents.labels.indptr), labels.counts)


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
    score_of = _judge(held, start, metric)
    weights = np.full(held.members, 1.0 / held.members)
    best = before = score_of(weights)
    for _ in range(ROUNDS):
        reached = best
        for member in range(held.members):
            for factor in FACTORS:
                tried = weights.copy()
                tried[member] *= factor
                if not tried.any():
                    continue
                tried = normalized(tried)
                score = score_of(tried)
                if score > best + LEAST_GAIN:
                    best, weights = score, tried
        if best <= reached:
            break
    log.info(
        "weights learned on %s documents: %s; %s %.2f with equal weights, %.2f with these", f"{len(held.right):,}",
        ", ".join(f"{weight:.3f}" for weight in weights), metric.name, 100 * before, 100 * best,
    )  # fmt: skip
    return replace(start, weights=weights)


def _judge(held: Held, start: Combination, metric: Metric) -> Callable[[np.ndarray], float]:
    """A function from weights to the metric, as a mean over the held-out documents that have labels."""
    ranks = np.where(held.candidates.ranks == MISSING, np.iinfo(np.int32).max, held.candidates.ranks).min(2)
    width = max(1, int((ranks < LEARNED_RANKS).sum(1).max(initial=0)))  # as the longest row of labels ranked so high
    columns = np.argsort(ranks, axis=1, kind="stable")[:, :width]
    columns.sort(axis=1)  # labels in ascending order, as they are ranked when scores are equal
    rows = np.flatnonzero(held.n_true)
    filled, right = (np.take_along_axis(part, columns, 1)[rows] for part in (held.candidates.filled, held.right))
    values = np.take_along_axis(start.values(held.candidates), columns[..., None], 1)[rows]
    k = int(metric.k or 1)
    counts = np.minimum(held.n_true[rows], k)
    gains = discounts(k) if metric.kind == "nDCG" else np.ones(k)
    ideal = np.cumsum(gains)[counts - 1] if metric.kind in ("nDCG", "RP") else np.full(len(counts), float(k))

    def score(weights: np.ndarray) -> float:
        sums = np.where(filled, values @ weights, -np.inf)
        order = np.argsort(-sums, axis=1, kind="stable")[:, :k]
        hits = np.take_along_axis(right, order, 1)
        return float(((hits * gains[: hits.shape[1]]).sum(1) / ideal).mean())

    return score


def _logistic(held: Held, start: Combination) -> Combination:
    """Coefficients of log-odds, and by how much they grow with a label's frequency."""
    filled = held.candidates.filled
    logarithms = np.log1p(held.label_counts.astype(np.float64))
    seen = logarithms[held.candidates.labels[held.right & filled]]
    mean, deviation = (float(seen.mean()), float(seen.std()) or 1.0) if len(seen) else (0.0, 1.0)
    start = replace(start, frequencies=(logarithms - mean) / deviation)
    values, right = start.values(held.candidates)[filled], held.right[filled].astype(np.float64)
    frequency = start.frequencies_of(held.candidates.labels)[filled][:, None]
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
