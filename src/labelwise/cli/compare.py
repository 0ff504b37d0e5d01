"""labelwise compare RUN..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.options import ForceOption
from labelwise.cli.terminal import echo, echo_json

if TYPE_CHECKING:
    from labelwise.report.comparison_table import Comparison


def compare_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders.")],
    output: Annotated[str | None, typer.Option("--output", "-o", help="Also write one HTML page with charts.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Run that differences refer to. Not given: the best of each column.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    force: ForceOption = False,
) -> None:
    """Compare runs: scores with intervals, differences on the same test documents, time, memory, size.

    Differences have 95 % intervals from a paired bootstrap over the documents. Marked scores are the best and those
    that cannot be distinguished from it. Tables on a terminal, Markdown when the output goes to a file or a pipe.
    """
    import sys
    from pathlib import Path

    from labelwise.cli.sources import refuse_existing
    from labelwise.report.compare import compare_runs, write_comparison

    target = refuse_existing(output, force) if output else None
    folders = [Path(run) for run in runs]
    comparison = compare_runs(folders, against)
    if json_output:
        echo_json(comparison.to_dict())
    elif sys.stdout.isatty():
        _show(comparison)
    else:
        echo(comparison.to_markdown())
    if target is not None:
        write_comparison(folders, target, against)
        echo(f"written: {target}")


def _show(comparison: Comparison) -> None:
    """Print the tables, then the notes on them."""
    from labelwise.cli.tables import print_table
    from labelwise.formatting import MISSING
    from labelwise.report.comparison_table import TABLES

    for kind in TABLES:
        lines = comparison.rows_of(kind)
        names = ["run", *(row.name for row in lines)]
        columns = [["method", *(row.method or MISSING for row in lines)]] if kind == "score" else []
        for column in comparison.columns_of(kind):
            cells = [row.cells[column.name] for row in lines]
            columns.append([column.title, *(f"* {cell.text}" if cell.best else cell.text for cell in cells)])
        if not comparison.columns_of(kind) and kind != "score":
            continue
        for part in _split_columns(names, columns):
            heads, *rows = zip(names, *part, strict=True)
            print_table(comparison.title(kind), heads, rows)
        if meaning := comparison.mark_meaning(kind):
            echo(f"* {meaning}")
    for note in comparison.notes:
        echo(f"- {note}")


def _split_columns(names: Sequence[str], columns: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    """Split columns into as many tables as the terminal width requires, at least one column in each."""
    from rich.console import Console

    # The frame takes three characters per column; long run names are folded.
    available = Console().width
    available -= min(max(map(len, names)), available // 3) + 4
    parts: list[list[Sequence[str]]] = []
    left = 0
    for column in columns:
        width = max(map(len, column)) + 3
        if not parts or width > left:
            parts.append([])
            left = available
        parts[-1].append(column)
        left -= width
    return parts
