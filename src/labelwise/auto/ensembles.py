"""Ensembles of tried models, from the predictions that the trials have kept.

What is learned (calibrations, weights, coefficients) is learned on one half of the validation documents and judged on
the other, both ways, so that the figure is that of new documents; the final combination is learned on all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.auto.judge import CANDIDATES, Judge
from labelwise.auto.trials import Trial
from labelwise.codes.average import Candidates, side_by_side
from labelwise.methods.base import Method
from labelwise.methods.combination import Combination, Combine, normalized
from labelwise.methods.ensemble import Ensemble
from labelwise.methods.ensemble_learning import Held, fitted_calibrations, learned
from labelwise.methods.threshold import are_right
from labelwise.methods.trained_ensemble import ensemble_of
from labelwise.metrics.names import Metric, parse_metric
from labelwise.topk import TopK

log = logging.getLogger("labelwise")

LOGISTIC: Combine = "logistic"
AVERAGE: Combine = "probability_average"
MANY_DOCUMENTS = 1000
"""With so many validation documents a logistic combination is always better than an average of probabilities."""
MOST_MEMBERS, MOST_ALONE = 5, 3
"""Members of an ensemble, and models that are ranked again on their own."""
LEAST_OF_BEST = 0.85
"""Members have at least this fraction of the best value."""
FEWEST_DOCUMENTS = 40
"""With fewer validation documents nothing is learned."""


@dataclass(frozen=True, eq=False)
class TriedEnsemble:
    """An ensemble and its cross-fitted predictions."""

    name: str
    rule: Combine
    members: tuple[Trial, ...]
    top: TopK

    def model(self, metric: Metric) -> dict[str, Any]:
        """The section `model` of a config: members are given by method and parameters."""
        return {"method": Ensemble.name, "members": [dict(one.model) for one in self.members],
                **_settings(self.rule, metric)}  # fmt: skip

    def fitted(self, judge: Judge) -> Method:
        """The ensemble of the trained models, with a combination learned on all validation documents."""
        held = _held(self.members, judge)
        combination = _learned(held, self.rule, judge.metric)
        members = [one.load() for one in self.members]
        settings = self.model(judge.metric)
        del settings["method"]
        return ensemble_of(members, combination, len(judge.valid), settings)


def rules_for(members: int, documents: int) -> tuple[Combine, ...]:
    """How so many members are combined, with so many validation documents to learn on."""
    return (LOGISTIC,) if members == 1 or documents >= MANY_DOCUMENTS else (LOGISTIC, AVERAGE)


def sets_of_members(trials: Sequence[Trial], values: Sequence[float], replaced: set[str]) -> list[tuple[Trial, ...]]:
    """The best of the distinct good models alone, then the two best, three best, ...; each from cheap to expensive.

    A logistic combination of one model ranks its labels again by their probability and frequency.
    """
    best = max(values, default=0.0)
    good = [
        (value, -number, one)
        for number, (one, value) in enumerate(zip(trials, values, strict=True))
        if one.name not in replaced and value >= LEAST_OF_BEST * best
    ]
    ranked = [one for _, _, one in sorted(good, key=lambda entry: entry[:2], reverse=True)][:MOST_MEMBERS]
    sets: list[tuple[Trial, ...]] = [(one,) for one in trials if one in ranked[:MOST_ALONE]]
    for count in range(2, len(ranked) + 1):
        chosen = {one.name for one in ranked[:count]}
        sets.append(tuple(one for one in trials if one.name in chosen))
    return sets


def cross_fitted(members: Sequence[Trial], rule: Combine, judge: Judge) -> TriedEnsemble:
    """An ensemble whose predictions for each half of the documents are learned on the other half."""
    held = _held(members, judge)
    first, second = judge.halves()
    ids = np.empty((len(judge.valid), judge.k), np.int32)
    scores = np.empty((len(judge.valid), judge.k), np.float32)
    for rows, others in ((first, second), (second, first)):
        combination = _learned(_some(held, others), rule, judge.metric)
        top = combination.best(_some(held, rows).candidates, judge.k)
        ids[rows], scores[rows] = top.ids, top.scores
    return TriedEnsemble(ensemble_name(members, rule), rule, tuple(members), TopK(ids, scores))


def ensemble_name(members: Sequence[Trial], rule: str) -> str:
    """A name from those of the members."""
    if len(members) == 1:
        return f"{members[0].name}, ranked again"
    how = "" if rule == LOGISTIC else f" ({rule.replace('_', ' ')})"
    return " + ".join(one.name for one in members) + how


def _settings(rule: Combine, metric: Metric) -> dict[str, Any]:
    if rule == LOGISTIC:
        return {"combine": rule, "candidates": CANDIDATES}
    return {"combine": rule, "weights": "learn", "metric": _learned_metric(metric).name, "candidates": CANDIDATES}


def _learned_metric(metric: Metric) -> Metric:
    """What weights are learned for: the metric itself if they can be."""
    fits = metric.kind in ("P", "RP", "nDCG") and (metric.k or 0) <= 100
    return metric if fits else parse_metric("nDCG@5")


def _held(members: Sequence[Trial], judge: Judge) -> Held:
    candidates = side_by_side([one.top for one in members])
    labels = judge.valid.labels
    return Held(candidates, are_right(candidates.labels, labels), np.diff(labels.indptr), judge.label_counts)


def _some(held: Held, rows: np.ndarray) -> Held:
    every = held.candidates
    some = Candidates(every.labels[rows], every.scores[rows], every.ranks[rows])
    return Held(some, held.right[rows], held.n_true[rows], held.label_counts)


def _learned(held: Held, rule: Combine, metric: Metric) -> Combination:
    start = Combination(rule, normalized([1.0] * held.members), fitted_calibrations(held, [None] * held.members))
    with _fewer_lines():
        return learned(held, start, _learned_metric(metric))


@contextmanager
def _fewer_lines() -> Iterator[None]:
    """Without a line of the log per combination: many are tried."""
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)
