"""labelwise report RUN|STUDY"""

from __future__ import annotations

from typing import Annotated

import typer


def report_command(
    run: Annotated[str, typer.Argument(help="Folder of a run, or of a study (labelwise sweep).")],
    plots: Annotated[
        str | None, typer.Option(help="Also write the charts as SVG and PNG files into this folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace charts that are in that folder already.")] = False,
) -> None:
    """Write the report of a run or of a study anew: one self-contained HTML page.

    The page is report.html in the folder. It comes from the other files there alone, so an older one is always
    replaced; charts are only replaced with --force. A study's charts always go into files too, into its plots/ if no
    other folder is named.
    """
    from pathlib import Path

    from labelwise.errors import DataError
    from labelwise.report.html import write_report
    from labelwise.report.plots import save_plots
    from labelwise.report.study_files import is_study
    from labelwise.report.study_page import write_study_report
    from labelwise.runs.folder import RunFolder

    folder = RunFolder(run)
    if not folder.path.is_dir():
        raise DataError("there is no such run folder", folder.path)
    if is_study(folder.path):
        for path in write_study_report(folder.path, plots, force):
            typer.echo(f"written: {path}")
        return
    _ = folder.state
    # The charts come first: where they may not be written, the report is left as it is.
    charts = [] if plots is None else save_plots(folder.path, Path(plots), force=force)
    for path in [write_report(folder.path), *charts]:
        typer.echo(f"written: {path}")
