"""Scores of several runs on the same test documents, resampled together (paired bootstrap).

Two intervals may overlap although one run is better on almost every resample of the documents, because hard documents
are hard for both. The difference on the same resamples shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from labelwise.io.run_folder import PREDICTIONS
from labelwise.metrics.bootstrap import Difference, ResamplingSums, percentiles
from labelwise.metrics.saved_predictions import SavedPredictions

REPEATS, SEED = 1000, 0


def saved_predictions(folder: Path) -> SavedPredictions | None:
    """The test predictions that a run has kept; None where it has none."""
    path = folder / PREDICTIONS
    return SavedPredictions.read(path) if path.is_file() else None


def same_documents(predictions: Sequence[SavedPredictions]) -> bool:
    """Whether all predictions are of the same documents, in the same order, with as many true labels each."""
    first = predictions[0]
    return all(
        one.sums.pairs_with(first.sums) and np.array_equal(one.documents, first.documents) for one in predictions[1:]
    )


class PairedScores:
    """Sums of the same documents by several methods, resampled alike."""

    def __init__(self, sums: Sequence[ResamplingSums]) -> None:
        self.sums = sums

    @cached_property
    def _samples(self) -> list[np.ndarray]:
        return [one.resampled(REPEATS, SEED) for one in self.sums]

    def difference(self, one: int, other: int, metric: str) -> Difference | None:
        """How much larger the metric of one is than that of the other; None if either lacks it."""
        if any(metric not in self.sums[index].metrics for index in (one, other)):
            return None
        columns = [self.sums[index].metrics.index(metric) for index in (one, other)]
        first, second = (self.sums[index].values()[column] for index, column in zip((one, other), columns, strict=True))
        low, high = percentiles(self._samples[one][:, columns[0]] - self._samples[other][:, columns[1]])
        return Difference(float(first - second), float(low), float(high))

    def interval(self, index: int, metric: str) -> tuple[float, float] | None:
        """The 95 % interval of a metric; None if the run lacks it."""
        if metric not in self.sums[index].metrics:
            return None
        low, high = percentiles(self._samples[index][:, self.sums[index].metrics.index(metric)])
        return float(low), float(high)
