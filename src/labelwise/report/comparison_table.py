"""The table of a comparison: columns, rows with marked cells, and its output as Markdown or plain data."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from labelwise.formatting import MISSING

Kind = Literal["score", "interval", "difference", "group", "cost"]

TIMES = ("training", "documents a second")
TITLES = {TIMES[1]: "documents per second"}
"""Headings of columns whose name, a key of the JSON output, is another."""
EQUAL_COST_RATIO = 1.1
"""Costs that differ by less than this factor count as equal: repeated runs differ as much."""
TABLES: tuple[Kind, ...] = ("score", "interval", "difference", "cost")
"""Tables on a terminal and in Markdown, in order; the page has recall per group too."""


@dataclass(frozen=True)
class Column:
    """One quantity of the table."""

    quantity: str
    kind: Kind
    higher_is_better: bool
    to_text: Callable[[float | None], str]

    @property
    def name(self) -> str:
        """A key that is unique among the columns of all kinds."""
        return f"{self.quantity} {self.kind}" if self.kind in ("interval", "difference") else self.quantity

    @property
    def title(self) -> str:
        """The heading."""
        return TITLES.get(self.quantity, self.quantity)


@dataclass(frozen=True)
class Cell:
    """A run's value, its text, whether it is marked, and the interval that the text shows."""

    value: float | None
    text: str
    best: bool
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class RunRow:
    """A run and its cells by column name."""

    name: str
    folder: str
    method: str | None
    data: str | None
    split: str | None
    n_documents: int | None
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Comparison:
    """The table of several runs."""

    columns: tuple[Column, ...]
    rows: tuple[RunRow, ...]
    notes: tuple[str, ...]
    baseline: RunRow | None = None
    """Popularity on the same documents."""
    paired: bool = False
    """Whether marks and differences are from a paired bootstrap over the test documents."""
    reference: str | None = None
    """Name of the run that differences refer to; None: the best of each column."""

    def columns_of(self, kind: Kind) -> list[Column]:
        """The columns of one kind."""
        return [column for column in self.columns if column.kind == kind]

    def rows_of(self, kind: Kind) -> tuple[RunRow, ...]:
        """The rows of the table of one kind: the baseline has scores only."""
        with_baseline = self.baseline is not None and kind in ("score", "interval", "difference")
        return (*self.rows, self.baseline) if with_baseline and self.baseline else self.rows

    def title(self, kind: Kind) -> str:
        """The heading of the table of one kind."""
        return {
            "score": "Scores, %",
            "interval": "95 % intervals of the scores, %",
            "difference": f"Difference to {self.reference or 'the best run of each column'}, percentage points, "
            "with its 95 % interval",
            "group": "Recall from head to tail, %",
            "cost": "Time, memory, size",
        }[kind]

    def mark_meaning(self, kind: Kind) -> str | None:
        """Explanation of the mark in the table of one kind; None if nothing is marked."""
        if not any(row.cells[column.name].best for row in self.rows_of(kind) for column in self.columns_of(kind)):
            return None
        meaning = "marks the best of each column"
        if kind == "cost":
            return f"{meaning}; within {100 * (EQUAL_COST_RATIO - 1):.0f} % of the best counts as equal"
        if kind == "difference":
            return "marks runs that are better by a difference whose interval excludes zero"
        if kind == "score" and self.paired:
            return f"{meaning} and all runs that cannot be distinguished from it on these documents"
        return meaning

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "columns": [
                {"name": column.name, "kind": column.kind, "higher_is_better": column.higher_is_better}
                for column in self.columns
                if column.kind not in ("interval", "difference")
            ],
            "runs": [
                {
                    "name": row.name,
                    "folder": row.folder,
                    "method": row.method,
                    "data": row.data,
                    "split": row.split,
                    "n_documents": row.n_documents,
                    **self._cells_to_dict(row),
                }
                for row in self.rows
            ],
            "baseline": None
            if self.baseline is None
            else {"method": self.baseline.method, **self._cells_to_dict(self.baseline)},
            "paired": self.paired,
            "reference": self.reference,
            "notes": list(self.notes),
        }

    def _cells_to_dict(self, row: RunRow) -> dict[str, Any]:
        kinds: dict[str, list[tuple[Column, Cell]]] = {}
        for column in self.columns:
            kinds.setdefault(column.kind, []).append((column, row.cells[column.name]))
        plain = [pair for kind in ("score", "group", "cost") for pair in kinds.get(kind, [])]
        return {
            "values": {column.name: cell.value for column, cell in plain},
            "intervals": {c.quantity: list(cell.interval) for c, cell in kinds.get("interval", []) if cell.interval},
            "differences": {
                column.quantity: {"value": cell.value, "interval": list(cell.interval)}
                for column, cell in kinds.get("difference", [])
                if cell.interval
            },
            "best": [column.name for column, cell in plain if cell.best],
        }

    def to_markdown(self) -> str:
        """Tables of scores (per cent), differences and costs, marked figures bold, then the notes."""
        tables = []
        for kind in TABLES:
            columns = self.columns_of(kind)
            if columns:
                head = ["run", "method", *(column.title for column in columns)]
                lines = [_markdown_line(head), "|---|---|" + "---:|" * len(columns)]
                for row in self.rows_of(kind):
                    cells = [row.cells[column.name] for column in columns]
                    texts = [f"**{cell.text}**" if cell.best else cell.text for cell in cells]
                    named = [_markdown(row.name), _markdown(row.method or MISSING)]
                    lines.append(_markdown_line([*named, *texts]))
                title = [f"{self.title(kind)}:\n"] if kind in ("interval", "difference") else []
                tables.append("\n".join([*title, *lines]))
        if self.notes:
            tables.append("\n".join(f"- {_markdown(note)}" for note in self.notes))
        return "\n\n".join(tables) + "\n"


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(text: str) -> str:
    """Text escaped for Markdown, on one line."""
    plain = " ".join(text.split())
    # An underscore inside a word needs no escape.
    return re.sub(r"[\\`*\[\]<>|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", plain)
