"""Judges predictions for the validation documents, and chooses: the cheapest model within noise of the best.

Noise is one standard error of the paired difference on the same documents (the one-standard-error rule of Breiman et
al., 1984). F1 without @k needs a threshold: each half of the documents gets the one that suits the other half best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError
from labelwise.methods.threshold import are_right, choose_threshold
from labelwise.metrics.bootstrap import Difference, ResamplingSums
from labelwise.metrics.names import Metric, parse_metric
from labelwise.metrics.streaming import Evaluator
from labelwise.report.paired import PairedScores
from labelwise.topk import NO_LABEL, TopK

CANDIDATES = 50
"""Labels that are predicted per document, as many as an ensemble reads of each member."""
STANDARD_ERRORS = 2 * 1.959964
"""Width of a 95 % interval (`bootstrap.LEVEL`) in standard errors."""


def checked_metric(name: str) -> Metric:
    """A metric that models can be compared by on the same documents."""
    metric = parse_metric(name)
    if not metric.is_sum:
        raise ConfigError(f"--metric: {metric.name} is not a mean over documents, so differences cannot be judged; "
                          "P@5, nDCG@5, PSP@5 or micro-F1 can")  # fmt: skip
    return metric


@dataclass(frozen=True, eq=False)
class Judge:
    """The validation documents with the metric.

    Parameters
    ----------
    valid
        Held-out documents, in the label space of the training documents; columns after those are unknown labels.
    label_counts
        Training documents per label.
    n_train
        Training documents.
    metric
        What is compared.
    propensity
        As in the section `evaluate` of a config.
    """

    valid: Dataset
    label_counts: np.ndarray
    n_train: int
    metric: Metric
    propensity: str | tuple[float, float] | None = None

    @property
    def k(self) -> int:
        """Labels to predict per document."""
        return max(CANDIDATES, self.metric.k or 0)

    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of every other document, and the rest: what is learned on one half is judged on the other."""
        rows = np.arange(len(self.valid))
        return rows[::2], rows[1::2]

    def sums(self, top: TopK) -> ResamplingSums:
        """The metric per resampling group."""
        threshold = None
        if self.metric.needs_threshold:
            top, threshold = self._relative_to_threshold(top), 0.0
        counts = np.zeros(self.valid.n_labels, np.int64)
        counts[: len(self.label_counts)] = self.label_counts
        evaluator = Evaluator(
            [self.metric.name], self.valid.n_labels, train=counts, train_documents=self.n_train,
            propensity=self.propensity, threshold=threshold, groups=(), n_known=len(self.label_counts),
        )  # fmt: skip
        evaluator.update(top.padded(len(self.label_counts) + 1) if threshold is not None else top, self.valid.labels)
        sums = evaluator.result(warn=False).sums
        assert sums is not None
        return sums

    def _relative_to_threshold(self, top: TopK) -> TopK:
        """Scores minus the threshold that suits the other half of the documents best."""
        right, first, second = are_right(top.ids, self.valid.labels), *self.halves()
        scores = top.scores.astype(np.float64)
        relative = scores.copy()
        for rows, others in ((first, second), (second, first)):
            filled = top.ids[others] != NO_LABEL
            values = scores[others][filled]
            order = np.argsort(values, kind="stable")
            n_true = int(np.diff(self.valid.labels.indptr)[others].sum())
            threshold = choose_threshold(values[order], right[others][filled][order], n_true)[0] if len(values) else 0.0
            relative[rows] -= threshold
        return TopK(top.ids, np.where(top.ids == NO_LABEL, -np.inf, relative).astype(np.float32), top.label_names)


def standard_error(difference: Difference) -> float:
    """The standard error of a difference, from its bootstrap interval."""
    return (difference.high - difference.low) / STANDARD_ERRORS


def is_better(one: ResamplingSums, other: ResamplingSums) -> bool:
    """Whether the first is more than one standard error better."""
    difference = PairedScores([one, other]).difference(0, 1, one.metrics[0])
    assert difference is not None
    return difference.value > standard_error(difference)


@dataclass(frozen=True)
class Verdict:
    """The comparison of all options."""

    chosen: str
    best: str
    behind: dict[str, Difference]
    """The best value minus that of each option."""
    intervals: dict[str, tuple[float, float]]

    def within_noise(self, name: str) -> bool:
        """Whether an option is as good as the best, as far as the documents can show."""
        return self.behind[name].value <= standard_error(self.behind[name])


def choose(sums: Mapping[str, ResamplingSums]) -> Verdict:
    """The first option, in the order from cheap to expensive, that is within noise of the best."""
    names: Sequence[str] = list(sums)
    paired = PairedScores(list(sums.values()))
    values = [float(one.values()[0]) for one in sums.values()]
    best = max(range(len(names)), key=lambda index: (values[index], -index))
    metric = sums[names[best]].metrics[0]
    behind, intervals = {}, {}
    for index, name in enumerate(names):
        difference, interval = paired.difference(best, index, metric), paired.interval(index, metric)
        assert difference is not None
        assert interval is not None
        behind[name], intervals[name] = difference, interval
    verdict = Verdict(names[best], names[best], behind, intervals)
    chosen = next(name for name in names if verdict.within_noise(name))
    return Verdict(chosen, names[best], behind, intervals)
