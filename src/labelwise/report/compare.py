"""Compares runs: scores and costs with the best marked, as Markdown, plain data, or one page with charts.

The best value is only marked where values are comparable: not the scores of runs evaluated on different test
documents, and not the times of runs on different machines. The notes explain which and why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labelwise.errors import ConfigError
from labelwise.formatting import MISSING, cut, duration, number, percent, size
from labelwise.report.comparison_plots import MAX_BARS, MAX_RUNS, comparison_charts
from labelwise.report.html import for_page, write_page
from labelwise.report.run_files import Run, read_run
from labelwise.report.wording import sorted_metrics
from labelwise.run_schema import RESULTS, Results

Kind = Literal["score", "group", "cost"]

TIMES = ("training", "documents a second")
TITLES = {TIMES[1]: "documents per second"}
"""Headings of columns whose name, a key of the JSON output, is another."""
EQUAL_COST_RATIO = 1.1
"""Costs that differ by less than this factor count as equal: repeated runs differ as much."""


@dataclass(frozen=True)
class Column:
    """One quantity of the table."""

    name: str
    kind: Kind
    higher_is_better: bool
    to_text: Callable[[float | None], str]

    @property
    def title(self) -> str:
        """The heading."""
        return TITLES.get(self.name, self.name)


@dataclass(frozen=True)
class Cell:
    """A run's value, its text, and whether it is the best of its column."""

    value: float | None
    text: str
    best: bool


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

    def columns_of(self, kind: Kind) -> list[Column]:
        """The columns of one kind: scores, groups or costs."""
        return [column for column in self.columns if column.kind == kind]

    def mark_meaning(self, kind: Kind) -> str | None:
        """Explanation of the mark in the table of one kind; None if nothing is marked."""
        if not any(row.cells[column.name].best for row in self.rows for column in self.columns_of(kind)):
            return None
        meaning = "marks the best of each column"
        return (
            f"{meaning}; within {100 * (EQUAL_COST_RATIO - 1):.0f} % of the best counts as equal"
            if kind == "cost"
            else meaning
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "columns": [
                {"name": column.name, "kind": column.kind, "higher_is_better": column.higher_is_better}
                for column in self.columns
            ],
            "runs": [
                {
                    "name": row.name,
                    "folder": row.folder,
                    "method": row.method,
                    "data": row.data,
                    "split": row.split,
                    "n_documents": row.n_documents,
                    "values": {name: cell.value for name, cell in row.cells.items()},
                    "best": [name for name, cell in row.cells.items() if cell.best],
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
        }

    def to_markdown(self) -> str:
        """Tables of scores (per cent) and costs, the best figures bold, then the notes."""
        tables = []
        for kind in ("score", "cost"):
            columns = self.columns_of(kind)
            if columns:
                head = ["run", "method", *(column.title for column in columns)]
                lines = [_markdown_line(head), "|---|---|" + "---:|" * len(columns)]
                for row in self.rows:
                    cells = [row.cells[column.name] for column in columns]
                    texts = [f"**{cell.text}**" if cell.best else cell.text for cell in cells]
                    named = [_markdown(row.name), _markdown(row.method or MISSING)]
                    lines.append(_markdown_line([*named, *texts]))
                tables.append("\n".join(lines))
        if self.notes:
            tables.append("\n".join(f"- {_markdown(note)}" for note in self.notes))
        return "\n\n".join(tables) + "\n"


def compare_runs(run_folders: Sequence[str | Path]) -> Comparison:
    """Compare two or more runs.

    Parameters
    ----------
    run_folders
        Folders of runs; the table keeps their order.

    Returns
    -------
    Comparison
        Rows with the best values marked where they are comparable, and notes where they are not.
    """
    return _compare(_read(run_folders))


def write_comparison(run_folders: Sequence[str | Path], path: str | Path) -> Path:
    """Write one HTML page with the tables and charts of two or more runs; returns its path."""
    runs = _read(run_folders)
    comparison = _compare(runs)
    evaluated = [(row.name, run.results) for row, run in zip(comparison.rows, runs, strict=True) if run.results]
    notes = list(comparison.notes)
    if len(evaluated) > MAX_BARS:
        notes.append(f"Charts show the first {MAX_RUNS} runs, bars the first {MAX_BARS}; the tables show all.")
    tables: list[tuple[str, Kind]] = [
        ("Scores, %", "score"),
        ("Time, memory, size", "cost"),
        ("Recall from head to tail, %", "group"),
    ]
    values = {
        "title": f"{len(runs)} runs compared",
        "notes_list": notes,
        "tables": [
            {"title": title, "columns": comparison.columns_of(kind), "mark": comparison.mark_meaning(kind)}
            for title, kind in tables
            if comparison.columns_of(kind)
        ],
        "rows": comparison.rows,
        "charts": [for_page(chart) for chart in comparison_charts(evaluated)],
        "same_method": len({row.method for row in comparison.rows}) == 1,
    }
    write_page(Path(path), "comparison.html", values)
    return Path(path)


# --- from runs to a table -----------------------------------------------------------------------------


def _read(run_folders: Sequence[str | Path]) -> list[Run]:
    if isinstance(run_folders, str | Path) or len(run_folders) < 2:
        raise ConfigError("a comparison needs at least two run folders")
    return [read_run(folder) for folder in run_folders]


def _compare(runs: Sequence[Run]) -> Comparison:
    notes, not_ranked = _differences(runs)
    columns = _columns(runs)
    texts: dict[str, list[tuple[float | None, str, bool]]] = {}
    for column in columns:
        values = [_value(run.results, column.name) for run in runs]
        ranked = column.kind not in not_ranked and column.name not in not_ranked
        texts[column.name] = _mark_best(column, values, ranked)
    rows = [
        RunRow(
            name=name,
            folder=str(run.folder),
            method=cut(run.state.method, 80) or None,
            data=run.data_name,
            split=run.results.split if run.results else None,
            n_documents=run.results.n_documents if run.results else None,
            cells={column.name: Cell(*texts[column.name][index]) for column in columns},
        )
        for index, (run, name) in enumerate(zip(runs, _names(runs), strict=True))
    ]
    return Comparison(tuple(columns), tuple(rows), tuple(notes))


def _names(runs: Sequence[Run]) -> list[str]:
    """Distinct names of the runs: equal names get their folders or, as a last resort, numbers appended."""
    names = [cut(run.name, 80) or "run" for run in runs]
    names = [
        name if names.count(name) == 1 else cut(f"{name} ({run.folder})", 120)
        for name, run in zip(names, runs, strict=True)
    ]
    return [
        name if names.count(name) == 1 else f"{name} #{names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]


def _columns(runs: Sequence[Run]) -> list[Column]:
    results = [run.results for run in runs if run.results is not None]
    metrics = sorted_metrics(metric for result in results for metric in result.evaluation.values)
    columns = [Column(metric, "score", True, percent) for metric in metrics]
    for name in dict.fromkeys(name for result in results for name in _group_values(result)):
        columns.append(Column(name, "group", True, percent))
    costs = [
        Column(TIMES[0], "cost", False, duration),
        Column(TIMES[1], "cost", True, lambda rate: number(None if rate is None else round(rate))),
        Column("model size", "cost", False, size),
        Column("peak memory", "cost", False, size),
    ]
    return columns + [column for column in costs if any(_value(result, column.name) is not None for result in results)]


def _value(results: Results | None, name: str) -> float | None:
    if results is None:
        return None
    bytes_ = results.model.get("bytes")
    costs = {
        TIMES[0]: results.timings.get("fit"),
        TIMES[1]: results.timings.get("predict_documents_per_second"),
        "model size": None if isinstance(bytes_, str) else bytes_,
        "peak memory": results.memory.get("peak_bytes"),
    }
    if name in costs:
        return costs[name]
    return results.evaluation.values.get(name, _group_values(results).get(name))


def _group_values(results: Results) -> dict[str, float | None]:
    """Recall per group at the largest k."""
    return {
        f"{cut(group.name, 30)}, top {max(group.recall)}": group.recall[max(group.recall)]
        for group in results.evaluation.groups
        if group.occurrences != 0 and group.recall
    }


def _mark_best(column: Column, values: Sequence[float | None], ranked: bool) -> list[tuple[float | None, str, bool]]:
    """Values with their texts and marks; values with the text of the best are marked too, unless all are equal."""
    known = [value for value in values if value is not None]
    best = (max(known) if column.higher_is_better else min(known)) if known and ranked else None
    marks = [best is not None and value is not None and _is_equal(column, value, best) for value in values]
    if sum(marks) == len(known):
        marks = [False] * len(values)
    return [(value, column.to_text(value), mark) for value, mark in zip(values, marks, strict=True)]


def _is_equal(column: Column, value: float, best: float) -> bool:
    if column.to_text(value) == column.to_text(best):
        return True
    return column.kind == "cost" and max(value, best) < EQUAL_COST_RATIO * min(value, best)


# --- comparability -----------------------------------------------------------------------------------


def _differences(runs: Sequence[Run]) -> tuple[list[str], set[str]]:
    """Notes on what differs, and the kinds or names of columns in which no value may be marked as best."""
    names = _names(runs)
    notes: list[str] = []
    not_ranked: set[str] = set()
    without = [name for run, name in zip(runs, names, strict=True) if run.results is None]
    if without:
        notes.append(f"Without {RESULTS}, so not evaluated: {', '.join(without)}.")
    evaluated = [(name, run, run.results) for run, name in zip(runs, names, strict=True) if run.results is not None]
    if _differ([run.test_set for _, run, _ in evaluated]):
        test_sets = "; ".join(
            f"{name}: {number(r.n_documents)} documents of {cut(run.test_set[1], 60) or 'unnamed data'}"
            for name, run, r in evaluated
        )
        notes.append(
            f"The runs were evaluated on different documents, so their figures are not comparable ({test_sets})."
        )
        not_ranked |= {"score", "group", "cost"}
    parts = [r.data.get("train") for _, _, r in evaluated]
    if _differ([str(part.get("documents")) for part in parts if isinstance(part, dict)]):
        notes.append("The runs were trained on different numbers of documents.")
    different = _different_propensities([r.evaluation.propensity for _, _, r in evaluated if r.evaluation.propensity])
    if different:
        notes.append(f"The propensities differ in {different}, so the PSP figures are not comparable.")
        metrics = {metric for _, _, r in evaluated for metric in r.evaluation.values}
        not_ranked |= {metric for metric in metrics if metric.startswith("PS")}
    if _differ([(run.machine.cpu, run.machine.threads) for _, run, _ in evaluated if run.machine is not None]):
        notes.append("The runs used different processors or numbers of threads, so their times are not comparable.")
        not_ranked |= set(TIMES)
    return notes, not_ranked


def _different_propensities(given: Sequence[dict[str, float | None]]) -> str:
    """The constants that differ, with their values: 'N, the number of training documents (100; 45,000)'."""
    titles = {"A": "the constant A", "B": "the constant B", "N": "N, the number of training documents"}
    differences = []
    for key in dict.fromkeys(key for constants in given for key in constants):
        values = [constants.get(key) for constants in given]
        if _differ(values):
            known = sorted({value for value in values if value is not None})
            shown = [number(value) for value in known[:4]] + (["…"] if len(known) > 4 else [])
            differences.append(f"{titles.get(key, cut(key, 20))} ({'; '.join(shown)})")
    return " and ".join(differences)


def _differ(values: Sequence[Any]) -> bool:
    return len({value for value in values if value is not None}) > 1


# --- Markdown -----------------------------------------------------------------------------------------


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(text: str) -> str:
    """Text escaped for Markdown, on one line."""
    plain = " ".join(text.split())
    # An underscore inside a word needs no escape.
    return re.sub(r"[\\`*\[\]<>|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", plain)
