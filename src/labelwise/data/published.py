"""Compares published statistics of a named data set with those of the data on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.data.catalogue import PublishedFigures, dataset, entry

if TYPE_CHECKING:
    from labelwise.data.stats import SplitStatistics

MEAN_TOLERANCE = 0.01
"""Published means are rounded, and some are of train and others of all documents."""


@dataclass(frozen=True)
class FigureComparison:
    """A published figure and the actual one; `ok` is None if one of them is missing."""

    what: str
    expected: float | None
    actual: float | None

    @property
    def ok(self) -> bool | None:
        if self.expected is None or self.actual is None:
            return None
        if isinstance(self.expected, int):
            return self.expected == self.actual
        return abs(self.actual - self.expected) <= MEAN_TOLERANCE * self.expected


def check(name: str, home: str | Path | None = None) -> list[FigureComparison]:
    """Read a whole downloaded data set and compare its figures with the published ones."""
    from labelwise.data.stats import split_statistics

    return compare(entry(name).published, split_statistics(dataset(name, folder=home)))


def compare(published: PublishedFigures, actual: SplitStatistics) -> list[FigureComparison]:
    """Pairs of published figures and those of the data."""
    rows = []
    for split in ("train", "valid", "test"):
        part = actual.parts.get(split)
        documents = part.documents if part is not None else None
        rows.append(FigureComparison(f"{split} documents", getattr(published, split), documents))
    rows.append(FigureComparison("features", published.features, actual.overall.features))
    # a count of labels may mean the label space or the labels that occur
    spaces = (actual.overall.labels, actual.overall.labels_used)
    labels = published.labels if published.labels in spaces else actual.overall.labels
    rows.append(FigureComparison("labels", published.labels, labels))
    means = [actual.overall.mean_labels, *(p.mean_labels for s, p in actual.parts.items() if s == "train")]
    expected = published.mean_labels
    nearest = means[0] if expected is None else min(means, key=lambda mean: abs(mean - expected))
    rows.append(FigureComparison("labels per document", None if expected is None else float(expected), nearest))
    return [row for row in rows if row.expected is not None or row.actual is not None]
