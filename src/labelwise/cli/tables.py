"""Tables on the terminal; plain text without wrapping if the output is a file or a pipe."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labelwise.cli.terminal import echo
from labelwise.formatting import counted, percent, printable
from labelwise.metrics.result import tie_remarks
from labelwise.run_schema import MODEL, REPORT, RESULTS, Results, read_json

log = logging.getLogger("labelwise")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], words: Sequence[str] = ()) -> None:
    """Print a table; the first column and those in `words` are text, the others are aligned to the right."""
    left = [position for position, column in enumerate(columns) if position == 0 or column in words]
    title, columns = printable(title), [printable(column) for column in columns]
    cells = [[" ".join(printable(str(cell)).splitlines()) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _print_plain(title, columns, cells, left)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position in left else "right", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))  # Text: brackets in names are not markup
    Console().print(table)


def _print_plain(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], left: Sequence[int]) -> None:
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    echo(title)
    for row in [columns, *cells]:
        padded = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        echo("  ".join(padded).rstrip())


def show_evaluation(title: str, evaluation: dict[str, Any], baseline: Mapping[str, float | None] | None = None) -> None:
    """Print scores with their intervals, and those of a baseline."""
    intervals = evaluation.get("intervals", {})
    columns = [
        "metric",
        "%",
        *(["95 % interval"] if intervals else []),
        *(["popularity"] if baseline else []),
    ]
    rows = []
    for name, value in evaluation["values"].items():
        row = [name, percent(value)]
        if intervals:
            low, high = intervals.get(name) or (None, None)
            row.append("" if low is None else f"{percent(low)} - {percent(high)}")
        if baseline:
            row.append(percent(baseline.get(name)))
        rows.append(row)
    print_table(title, columns, rows)
    without = evaluation.get("n_without_labels")
    if without:
        echo(f"{without:,} {'document' if without == 1 else 'documents'} without any true label counted as zero")
    used = evaluation.get("propensity")
    if used:
        echo("PSP counts a correct label more the rarer it is in training (propensity scores)")
        echo(f"PSP with A {used['A']:g}, B {used['B']:g}, N {used['N']:,.0f} training documents")
    for remark in tie_remarks(evaluation.get("ties", {}), evaluation.get("ties_cut_off", {})):
        echo(remark)


def show_calibration(title: str, report: dict[str, Any]) -> None:
    """Print a calibration: the fraction of correct labels per range of scores, and the threshold."""
    before = report["before"] or [None] * len(report["after"])
    rows = [
        [
            f"{after['low']:.1f} - {after['high']:.1f}",
            *(["", ""] if first is None else [f"{first['pairs']:,}", percent(first["share"])]),
            f"{after['pairs']:,}",
            percent(after["share"]),
        ]
        for first, after in zip(before, report["after"], strict=True)
    ]
    columns = ["score", "labels before", "correct, %", "labels after", "correct, %"]
    print_table(f"{title}: {report['n_documents']:,} documents", columns, rows)
    was = "" if report["error_before"] is None else f" (before: {percent(report['error_before'])})"
    echo(f"calibration error {percent(report['error_after'])} %{was}")
    echo(_threshold_line(report))


def _threshold_line(report: dict[str, Any]) -> str:
    target = report["wanted_precision"]
    chosen = "for the best micro-F1" if target is None else f"for precision {percent(target)} %"
    missed = "" if report["reached"] else ", which was not reached"
    return (
        f"scores are probabilities; threshold {report['threshold']:.4g} {chosen}{missed}: expect precision "
        f"{percent(report['precision'])}, recall {percent(report['recall'])}, micro-F1 {percent(report['f1'])}"
    )


def show_results(run: Path) -> None:
    """Print the results of a run."""
    results = read_json(run / RESULTS, Results) if (run / RESULTS).exists() else None
    if results is not None:
        baseline = None if results.baseline is None else results.baseline.values
        title = f"{run}: {counted(results.n_documents, results.n_available)} test documents"
        show_evaluation(title, results.evaluation.model_dump(), baseline)
        if results.calibration is not None:
            echo(_threshold_line(results.calibration.model_dump()))
        if results.refit is not None:
            echo(str(results.refit))
    echo(f"model: {run / MODEL}")
    if (run / REPORT).exists():
        echo(f"report: {run / REPORT}")
    if results is not None:
        show_remarks(results.remarks)


def show_remarks(remarks: Sequence[str]) -> None:
    """Log what to know about the figures, after they were printed."""
    for remark in remarks:
        log.warning("%s", remark)
