"""Published figures of a named data set beside those of the data on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.data.catalogue import Published, dataset, entry

if TYPE_CHECKING:
    from labelwise.data.stats import SplitStatistics

MEAN_TOLERANCE = 0.01
"""Published means are rounded, and some are of train and others of all documents."""


@dataclass(frozen=True)
class Comparison:
    """A published figure beside the one found; `ok` is None where nothing can be compared."""

    what: str
    expected: float | None
    found: float | None

    @property
    def ok(self) -> bool | None:
        if self.expected is None or self.found is None:
            return None
        if isinstance(self.expected, int):
            return self.expected == self.found
        return abs(self.found - self.expected) <= MEAN_TOLERANCE * self.expected


def check(name: str, home: str | Path | None = None) -> list[Comparison]:
    """Read a downloaded data set whole and compare its figures with the published ones."""
    from labelwise.data.stats import split_statistics

    return compare(entry(name).published, split_statistics(dataset(name, folder=home)))


def compare(published: Published, found: SplitStatistics) -> list[Comparison]:
    """Published figures beside those of the data."""
    rows = []
    for split in ("train", "valid", "test"):
        part = found.parts.get(split)
        documents = part.documents if part is not None else None
        rows.append(Comparison(f"{split} documents", getattr(published, split), documents))
    rows.append(Comparison("features", published.features, found.overall.features))
    # a count of labels may mean the label space or the labels that occur
    spaces = (found.overall.labels, found.overall.labels_used)
    labels = published.labels if published.labels in spaces else found.overall.labels
    rows.append(Comparison("labels", published.labels, labels))
    means = [found.overall.mean_labels, *(p.mean_labels for s, p in found.parts.items() if s == "train")]
    wanted = published.mean_labels
    nearest = means[0] if wanted is None else min(means, key=lambda mean: abs(mean - wanted))
    rows.append(Comparison("labels a document", None if wanted is None else float(wanted), nearest))
    return [row for row in rows if row.expected is not None or row.found is not None]
