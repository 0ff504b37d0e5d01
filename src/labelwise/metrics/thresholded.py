"""F1 and coverage, where predictions are a set: the first k of a list, or those that reach a threshold.

Micro counts all (document, label) pairs alike, example-based averages over documents, macro over labels.
Macro-F1 and coverage need counts a label, which are vectors of the length of the label space and no sums over
documents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from labelwise.errors import ConfigError
from labelwise.metrics.ranking import Terms, ratio

if TYPE_CHECKING:
    from labelwise.metrics.block import Block


def micro_f1(block: Block, k: int | None) -> Terms:
    """Twice the hits by predictions plus labels, over all documents."""
    lengths = block.lengths(k)
    return 2 * block.hits_within(lengths), lengths + block.n_true


def example_f1(block: Block, k: int | None) -> Terms:
    """The F1 of each document, 0 where it has neither labels nor predictions."""
    above, below = micro_f1(block, k)
    return ratio(above, below), 1


FORMULAS: dict[str, Callable[[Block, int | None], Terms]] = {"micro-F1": micro_f1, "example-F1": example_f1}


def check_threshold(threshold: float | None, needing: list[str]) -> float | None:
    """A threshold that makes sense, and is there when one of the metrics `needing` it is asked for."""
    if threshold is None:
        if needing:
            raise ConfigError(f"{needing[0]} needs the score from which on a label is predicted; pass threshold=")
        return None
    number = isinstance(threshold, int | float | np.number) and not isinstance(threshold, bool)
    if not number or np.isnan(threshold):
        raise ConfigError(f"threshold is a score, a number; got {threshold!r}")
    return float(threshold)


class LabelCounter:
    """How often each label is predicted, and how often rightly, among the predictions that count."""

    def __init__(self, n_labels: int, k: int | None) -> None:
        self.k = k
        self.predicted = np.zeros(n_labels, np.int64)
        self.correct = np.zeros(n_labels, np.int64)

    def add(self, block: Block) -> None:
        """Count the predictions of a block."""
        from labelwise.kernels.metrics.hits import count_labels

        count_labels(block.ids, block.hits, block.lengths(self.k), self.predicted, self.correct)

    def f1(self, occurrences: np.ndarray) -> np.ndarray:
        """The F1 of each label, given how often it is in the truth; 0 where it is in neither."""
        return ratio(2 * self.correct, self.predicted + occurrences)

    def macro_f1(self, occurrences: np.ndarray) -> float:
        """The mean F1 of the labels that are in the truth or predicted."""
        used = (self.predicted + occurrences) > 0
        return float(self.f1(occurrences)[used].mean()) if used.any() else 0.0


class CoverageCounter:
    """The best place at which each label was ever a hit; one vector serves all k."""

    def __init__(self, n_labels: int, depth: int) -> None:
        self.depth = depth
        self.best = np.full(n_labels, np.iinfo(np.int32).max, np.int32)

    def add(self, block: Block) -> None:
        """Look at the hits of a block."""
        from labelwise.kernels.metrics.hits import first_ranks

        first_ranks(block.ids, block.hits, self.depth, self.best)

    def coverage(self, k: int, occurrences: np.ndarray) -> float:
        """Of the labels in the truth, the share that is a hit within the first k places of some document."""
        present = int(np.count_nonzero(occurrences))
        return int(np.count_nonzero(self.best < k)) / present if present else 0.0
