"""F1 and coverage, for which predictions are a set: the first k of a list, or those that reach a threshold.

Micro-F1 weights all (document, label) pairs equally, example-based F1 averages over documents, macro-F1 over labels.
Macro-F1 and coverage need counts per label, so they are not sums over documents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from labelwise.errors import ConfigError
from labelwise.metrics.ranking import Terms, ratio

if TYPE_CHECKING:
    from labelwise.metrics.block import DocumentBlock


def micro_f1(block: DocumentBlock, k: int | None) -> Terms:
    """Twice the hits, divided by predictions plus labels, over all documents."""
    n_predicted = block.n_predicted(k)
    return 2 * block.hits_within(n_predicted), n_predicted + block.n_true


def example_f1(block: DocumentBlock, k: int | None) -> Terms:
    """F1 per document, 0 if it has neither labels nor predictions."""
    numerator, denominator = micro_f1(block, k)
    return ratio(numerator, denominator), 1


FORMULAS: dict[str, Callable[[DocumentBlock, int | None], Terms]] = {"micro-F1": micro_f1, "example-F1": example_f1}


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
        from labelwise.kernels.metrics.hits import count_labels

        count_labels(block.ids, block.hits, block.n_predicted(self.k), self.predicted, self.correct)

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
        from labelwise.kernels.metrics.hits import first_ranks

        first_ranks(block.ids, block.hits, self.depth, self.best)

    def coverage(self, k: int, occurrences: np.ndarray) -> float:
        """Fraction of the labels in the truth that are a hit among the first k predictions of some document."""
        present = int(np.count_nonzero(occurrences))
        return int(np.count_nonzero(self.best < k)) / present if present else 0.0
