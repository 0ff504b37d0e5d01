"""labelwise compare RUN..."""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.train import ForceOption


def compare_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders.")],
    output: Annotated[str | None, typer.Option("--output", "-o", help="Also write one HTML page with charts.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    force: ForceOption = False,
) -> None:
    """Put runs side by side: scores, time, memory, size."""
    import json
    from pathlib import Path

    from labelwise.cli.sources import refuse_existing
    from labelwise.report.compare import compare_runs, write_comparison

    target = refuse_existing(output, force) if output else None
    folders = [Path(run) for run in runs]
    comparison = compare_runs(folders)
    if json_output:
        typer.echo(json.dumps(comparison.to_dict(), indent=1))
    else:
        typer.echo(comparison.to_markdown())
    if target is not None:
        write_comparison(folders, target)
        typer.echo(f"written: {target}")
