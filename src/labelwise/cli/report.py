"""labelwise report RUN"""

from __future__ import annotations

from typing import Annotated

import typer


def report_command(
    run: Annotated[str, typer.Argument(help="Run folder.")],
    plots: Annotated[
        str | None, typer.Option(help="Also write the charts as SVG and PNG files into this folder.")
    ] = None,
) -> None:
    """Write the report of a run anew: one self-contained HTML page."""
    from pathlib import Path

    from labelwise.report.html import write_report
    from labelwise.report.plots import save_plots
    from labelwise.runs.folder import RunFolder

    folder = RunFolder(run)
    _ = folder.state
    typer.echo(f"written: {write_report(folder.path)}")
    if plots is not None:
        for path in save_plots(folder.path, Path(plots)):
            typer.echo(f"written: {path}")
