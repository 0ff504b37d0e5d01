"""Reads labels.tsv in one pass: a few lines of it, and how well labels are found by their number of training documents.

The table can have millions of lines, so it is streamed and only what a page shows is kept.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field
from pathlib import Path

from labelwise.errors import DataError
from labelwise.io.json import read_lines

LABELS_SHOWN = 20
RARE = 10
"""Labels with fewer training documents are rare; a random sample of these is shown."""
WORST_TEST = 5
"""Test documents that a label needs to be among the worst: one document proves nothing."""
COUNTS = ("train", "test", "predicted", "correct")

Cells = tuple[str, ...]


@dataclass
class FrequencyBin:
    """Labels with `low` to `high` training documents: their number, occurrences, predictions and correct ones."""

    low: int
    high: int
    labels: int = 0
    test: float = 0
    predicted: float = 0
    correct: float = 0


@dataclass(frozen=True)
class LabelTable:
    """A few lines of labels.tsv, and sums over labels that are about equally frequent."""

    columns: Cells
    frequent: tuple[Cells, ...]
    rare: tuple[Cells, ...]
    """A random sample of the rare labels."""
    worst: tuple[Cells, ...]
    """The lowest F1 among the labels that are not rare and have some test documents."""
    bins: tuple[FrequencyBin, ...]
    """From rare to frequent; none if a column is missing."""
    n_rows: int


def read_labels(path: Path) -> LabelTable:
    """The table of a run; the same file gives the same random sample."""
    rows = read_lines(path)
    header = next(rows, None)
    if header is None:
        raise DataError("damaged: the file is empty, a header line with column names is needed", path)
    columns = tuple(header[1].split("\t"))
    where = {name: columns.index(name) for name in COUNTS if name in columns}
    whole = len(where) == len(COUNTS)
    frequent, worst, rare, bins = _Largest(), _Largest(), _Sample(), _Bins()
    n_rows = 0
    for line_number, line in rows:
        if not line:
            continue
        cells = tuple(line.split("\t"))
        if len(cells) != len(columns):
            raise DataError(f"damaged: {len(cells)} columns where the first line has {len(columns)}", path, line_number)
        n_rows += 1
        counts = {name: _count(cells[index], path, line_number) for name, index in where.items()}
        train, test = counts.get("train", 0.0), counts.get("test", 1.0)
        frequent.offer((train,), line_number, cells)
        if 0 < train < RARE and test > 0:
            rare.offer(line_number, cells)
        if whole:
            bins.add(counts)
            if train >= RARE and test >= WORST_TEST:
                f1 = 2 * counts["correct"] / (counts["predicted"] + test)
                if f1 < 1:
                    worst.offer((-f1, test), line_number, cells)
    return LabelTable(
        columns=columns,
        frequent=frequent.cells(),
        rare=tuple(cells for number, cells in sorted(rare.kept) if number not in frequent.lines()),
        worst=worst.cells(),
        bins=bins.found(),
        n_rows=n_rows,
    )


class _Largest:
    """Keeps the lines with the largest keys; among equal ones the first."""

    def __init__(self) -> None:
        self.kept: list[tuple[tuple[float, ...], int, Cells]] = []

    def offer(self, key: tuple[float, ...], line_number: int, cells: Cells) -> None:
        entry = (key, -line_number, cells)
        if len(self.kept) < LABELS_SHOWN:
            heapq.heappush(self.kept, entry)
        else:
            heapq.heappushpop(self.kept, entry)

    def lines(self) -> set[int]:
        return {-entry[1] for entry in self.kept}

    def cells(self) -> tuple[Cells, ...]:
        return tuple(cells for _, _, cells in sorted(self.kept, reverse=True))


class _Sample:
    """A random sample of what is offered."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, Cells]] = []
        self.n_offered = 0
        self.generator = random.Random(0)

    def offer(self, line_number: int, cells: Cells) -> None:
        self.n_offered += 1
        slot = self.n_offered - 1 if self.n_offered <= LABELS_SHOWN else self.generator.randrange(self.n_offered)
        if slot < LABELS_SHOWN:
            self.kept[slot : slot + 1] = [(line_number, cells)]


@dataclass
class _Bins:
    """Sums by number of training documents: 0, 1, 2, 3-4, 5-8, and so on."""

    by_power: dict[int, FrequencyBin] = field(default_factory=dict)

    def add(self, counts: dict[str, float]) -> None:
        train = int(counts["train"])
        power = -1 if train <= 0 else (train - 1).bit_length()
        low, high = (0, 0) if power < 0 else ((1 << power >> 1) + 1, 1 << power)
        one = self.by_power.setdefault(power, FrequencyBin(low, high))
        one.labels += 1
        one.test += counts["test"]
        one.predicted += counts["predicted"]
        one.correct += counts["correct"]

    def found(self) -> tuple[FrequencyBin, ...]:
        return tuple(one for _, one in sorted(self.by_power.items()))


def _count(cell: str, path: Path, line_number: int) -> float:
    """Parse a number of documents; 0 if the cell is empty."""
    try:
        count = float(cell or 0)
    except ValueError:
        count = math.nan
    if not math.isfinite(count):
        raise DataError(f"damaged: {cell[:40]!r} is not a number of documents", path, line_number)
    return count
