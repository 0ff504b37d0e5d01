"""Compares runs: scores and costs with the best marked, as Markdown, plain data, or one page with charts.

The best value is only marked where values are comparable: not the scores of runs evaluated on different test
documents, and not the times of runs on different machines. The notes explain which and why. Where runs have kept their
test predictions, all runs that cannot be distinguished from the best are marked with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labelwise.errors import ConfigError
from labelwise.formatting import (
    MISSING,
    cut,
    duration,
    number,
    percent,
    size,
)
from labelwise.io.folder import RESULTS
from labelwise.metrics.result import Difference, PairedScores, same_documents, saved_predictions
from labelwise.report.comparison_plots import MAX_BARS, MAX_RUNS, comparison_charts
from labelwise.report.run import for_page, write_page
from labelwise.report.run_files import Run, read_run
from labelwise.report.schema import Results
from labelwise.report.wording import sorted_metrics

# --- comparison table ---
# The table of a comparison: columns, rows with marked cells, and its output as Markdown or plain data.

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


# --- comparability ---
# Which figures of several runs are comparable, and notes on those that are not.


def differences_of_runs(runs: Sequence[Run]) -> tuple[list[str], set[str]]:
    """Notes on what differs, and the kinds or names of columns in which no value may be marked as best."""
    names = run_names(runs)
    notes: list[str] = []
    not_ranked: set[str] = set()
    without = [name for run, name in zip(runs, names, strict=True) if run.results is None]
    if without:
        notes.append(f"Without {RESULTS}, so not evaluated: {', '.join(without)}.")
    evaluated = [(name, run, run.results) for run, name in zip(runs, names, strict=True) if run.results is not None]
    notes += [f"{name}: {cut(run.model_changes, 400)}." for name, run, _ in evaluated if run.model_changes]
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


def run_names(runs: Sequence[Run]) -> list[str]:
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


POPULARITY = "popularity"


def compare_runs(run_folders: Sequence[str | Path], against: str | Path | None = None) -> Comparison:
    """Compare two or more runs.

    Parameters
    ----------
    run_folders
        Folders of runs; the table keeps their order.
    against
        Folder of the run that differences refer to. None: the best run of each column.

    Returns
    -------
    Comparison
        Rows with the best values marked where they are comparable, and notes where they are not.
    """
    return _compare(*_read(run_folders, against))


def write_comparison(run_folders: Sequence[str | Path], path: str | Path, against: str | Path | None = None) -> Path:
    """Write one HTML page with the tables and charts of two or more runs; returns its path."""
    runs, reference = _read(run_folders, against)
    comparison = _compare(runs, reference)
    evaluated = [(row.name, run.results) for row, run in zip(comparison.rows, runs, strict=True) if run.results]
    notes = list(comparison.notes)
    if len(evaluated) > MAX_BARS:
        notes.append(f"Charts show the first {MAX_RUNS} runs, bars the first {MAX_BARS}; the tables show all.")
    kinds: tuple[Kind, ...] = ("score", "interval", "difference", "cost", "group")
    values = {
        "title": f"{len(runs)} runs compared",
        "notes_list": notes,
        "tables": [
            {
                "title": comparison.title(kind),
                "columns": comparison.columns_of(kind),
                "mark": comparison.mark_meaning(kind),
                "rows": comparison.rows_of(kind),
            }
            for kind in kinds
            if comparison.columns_of(kind)
        ],
        "rows": comparison.rows,
        "charts": [for_page(chart) for chart in comparison_charts(evaluated)],
        "same_method": len({row.method for row in comparison.rows}) == 1,
    }
    write_page(Path(path), "comparison.html", values)
    return Path(path)


# --- from runs to a table -----------------------------------------------------------------------------


def _read(run_folders: Sequence[str | Path], against: str | Path | None) -> tuple[list[Run], int | None]:
    """The runs, and the index of the one that differences refer to, which is added if it is not among them."""
    folders = [] if isinstance(run_folders, str | Path) else list(run_folders)
    reference = None
    if against is not None:
        resolved = [Path(folder).resolve() for folder in folders]
        if Path(against).resolve() not in resolved:
            folders, resolved = [against, *folders], [Path(against).resolve(), *resolved]
        reference = resolved.index(Path(against).resolve())
    if len(folders) < 2:
        raise ConfigError("a comparison needs at least two run folders")
    return [read_run(folder) for folder in folders], reference


@dataclass(frozen=True)
class _Scored:
    """A line of the table: a run, or the baseline on the same documents."""

    name: str
    run: Run | None
    results: Results | None
    values: Mapping[str, float | None]
    pair: int | None
    """Index in the paired scores."""


def _compare(runs: Sequence[Run], reference: int | None) -> Comparison:
    notes, not_ranked = differences_of_runs(runs)
    lines, paired = _lines(runs, notes, not_ranked)
    if reference is not None and (paired is None or lines[reference].pair is None):
        notes.append("There are no differences: not all runs have kept test predictions of the same documents.")
    columns = _columns(lines, paired, not_ranked)
    cells = {column.name: _cells(column, lines, paired, reference, not_ranked) for column in columns}
    rows = [
        RunRow(
            name=line.name,
            folder=str(line.run.folder) if line.run else "",
            method=cut(line.run.state.method, 80) or None if line.run else "popularity",
            data=line.run.data_name if line.run else None,
            split=line.results.split if line.results else None,
            n_documents=line.results.n_documents if line.results else None,
            cells={column.name: cells[column.name][index] for column in columns},
        )
        for index, line in enumerate(lines)
    ]
    baseline = rows.pop() if lines[-1].run is None else None
    name = None if reference is None else rows[reference].name
    return Comparison(tuple(columns), tuple(rows), tuple(notes), baseline, paired is not None, name)


def _lines(runs: Sequence[Run], notes: list[str], not_ranked: set[str]) -> tuple[list[_Scored], PairedScores | None]:
    """Runs in order, then the popularity baseline if all runs share their documents; and what can be paired."""
    evaluated = [run for run in runs if run.results is not None]
    saved = [saved_predictions(run.folder) for run in evaluated]
    kept = [one for one in saved if one is not None]
    sums = [one.sums for one in kept]
    if len(kept) > 1 and not same_documents(kept):
        if "score" not in not_ranked:
            notes.append("The runs were evaluated on different documents, so their figures are not comparable.")
        not_ranked |= {"score", "group", "cost"}
    lacking = [run.name for run, one in zip(evaluated, saved, strict=True) if one is None]
    if kept and lacking and "score" not in not_ranked:
        notes.append(
            f"Without test predictions: {', '.join(cut(name, 80) for name in lacking)}. Therefore there are neither "
            "intervals nor differences, and the largest value is marked even if it cannot be distinguished."
        )
    pairable = "score" not in not_ranked and len(kept) == len(evaluated) > 1
    pairs = iter(range(len(kept)))
    lines = [
        _Scored(
            name, run, run.results, run.results.evaluation.values if run.results else {},
            next(pairs) if run.results and pairable else None,
        )
        for name, run in zip(run_names(runs), runs, strict=True)
    ]  # fmt: skip
    first = next((i for i, run in enumerate(evaluated) if run.results and run.results.baseline), None)
    own = {run.state.method for run in runs}
    if first is not None and "score" not in not_ranked:
        baseline = evaluated[first].results.baseline  # type: ignore[union-attr]
        if baseline is not None and baseline.method not in own:
            pair = None
            if pairable and (one := kept[first].baseline) is not None:
                sums.append(one)
                pair = len(sums) - 1
            lines.append(_Scored(POPULARITY, None, None, baseline.values, pair))
    return lines, PairedScores(sums) if pairable else None


def _columns(lines: Sequence[_Scored], paired: PairedScores | None, not_ranked: set[str]) -> list[Column]:
    results = [line.results for line in lines if line.results is not None]
    metrics = sorted_metrics(metric for result in results for metric in result.evaluation.values)
    columns = [Column(metric, "score", True, percent) for metric in metrics]
    if paired is not None:
        resampled = [metric for metric in metrics if all(metric in one.metrics for one in paired.sums)]
        columns += [Column(metric, "interval", True, percent) for metric in resampled]
        columns += [Column(metric, "difference", True, percent) for metric in resampled if metric not in not_ranked]
    for name in dict.fromkeys(name for result in results for name in _group_values(result)):
        columns.append(Column(name, "group", True, percent))
    costs = [
        Column(TIMES[0], "cost", False, duration),
        Column(TIMES[1], "cost", True, lambda rate: number(None if rate is None else round(rate))),
        Column("model size", "cost", False, size),
        Column("peak memory", "cost", False, size),
    ]
    return columns + [column for column in costs if any(_value(line, column) is not None for line in lines)]


def _value(line: _Scored, column: Column) -> float | None:
    if column.kind == "score":
        return line.values.get(column.quantity)
    results = line.results
    if results is None:
        return None
    costs = {
        TIMES[0]: results.timings.get("fit"),
        TIMES[1]: results.timings.get("predict_documents_per_second"),
        "model size": results.model_bytes,
        "peak memory": results.memory.get("peak_bytes"),
    }
    return costs[column.quantity] if column.kind == "cost" else _group_values(results).get(column.quantity)


def _group_values(results: Results) -> dict[str, float | None]:
    """Recall per group at the largest k."""
    return {
        f"{cut(group.name, 30)}, top {max(group.recall)}": group.recall[max(group.recall)]
        for group in results.evaluation.groups
        if group.occurrences != 0 and group.recall
    }


# --- cells and marks ----------------------------------------------------------------------------------


def _cells(
    column: Column, lines: Sequence[_Scored], paired: PairedScores | None, reference: int | None, not_ranked: set[str]
) -> list[Cell]:
    if column.kind == "interval":
        return [_interval_cell(line, column.quantity, paired) for line in lines]
    if column.kind == "difference" and paired is not None:
        return _difference_cells(column.quantity, lines, paired, reference)
    values = [_value(line, column) for line in lines]
    marks = [False] * len(lines)
    if column.kind not in not_ranked and column.quantity not in not_ranked:
        if paired is None or column.kind == "cost":
            marks = _mark_best(column, [None if line.run is None else v for line, v in zip(lines, values, strict=True)])
        elif column.kind == "score":
            marks = _mark_indistinguishable(column.quantity, lines, paired)
    return [Cell(value, column.to_text(value), mark) for value, mark in zip(values, marks, strict=True)]


def _interval_cell(line: _Scored, metric: str, paired: PairedScores | None) -> Cell:
    """The interval of the run's own evaluation, else one from the sums it has kept."""
    bounds = line.results.evaluation.intervals.get(metric) if line.results else None
    if bounds is None and paired is not None and line.pair is not None and metric in line.values:
        bounds = paired.interval(line.pair, metric)
    text = percent(None) if bounds is None else f"[{percent(bounds[0])}, {percent(bounds[1])}]"
    return Cell(None, text, False, bounds)


def _difference_cells(metric: str, lines: Sequence[_Scored], paired: PairedScores, reference: int | None) -> list[Cell]:
    of = reference if reference is not None else _best_line(metric, lines)
    base = None if of is None else lines[of].pair
    cells = []
    for index, line in enumerate(lines):
        if index == of:
            cells.append(Cell(0.0, "reference" if reference is not None else "best", False))
            continue
        known = base is not None and line.pair is not None and metric in line.values
        found = paired.difference(line.pair, base, metric) if known else None  # type: ignore[bad-argument-type]
        if found is None:
            cells.append(Cell(None, percent(None), False))
        else:
            cells.append(Cell(found.value, _difference_text(found), found.low > 0, (found.low, found.high)))
    return cells


def _difference_text(found: Difference) -> str:
    return f"{100 * found.value:+.2f} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"


def _best_line(metric: str, lines: Sequence[_Scored]) -> int | None:
    """The run with the largest value, the first of equal ones; the baseline is none."""
    known = [(value, -i) for i, line in enumerate(lines) if line.run and (value := line.values.get(metric)) is not None]
    return -max(known)[1] if known else None


def _mark_indistinguishable(metric: str, lines: Sequence[_Scored], paired: PairedScores) -> list[bool]:
    """Mark the best run and those that cannot be distinguished from it, unless that is all of them."""
    best, marks = _best_line(metric, lines), [False] * len(lines)
    if best is None or metric not in paired.sums[0].metrics:
        return marks
    for index, line in enumerate(lines):
        if line.run is not None and line.pair is not None:
            found = paired.difference(line.pair, lines[best].pair or 0, metric)
            marks[index] = found is not None and not found.distinguishable
    runs = [mark for mark, line in zip(marks, lines, strict=True) if line.run is not None and line.pair is not None]
    return [False] * len(lines) if all(runs) else marks


def _mark_best(column: Column, values: Sequence[float | None]) -> list[bool]:
    """Mark the best value and values with its text, unless all are equal."""
    known = [value for value in values if value is not None]
    best = (max(known) if column.higher_is_better else min(known)) if known else None
    marks = [best is not None and value is not None and _is_equal(column, value, best) for value in values]
    return [False] * len(values) if sum(marks) == len(known) else marks


def _is_equal(column: Column, value: float, best: float) -> bool:
    if column.to_text(value) == column.to_text(best):
        return True
    return column.kind == "cost" and max(value, best) < EQUAL_COST_RATIO * min(value, best)
