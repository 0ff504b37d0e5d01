"""labelwise report RUN|STUDY"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.terminal import echo

if TYPE_CHECKING:
    from pathlib import Path


def report_command(
    run: Annotated[str, typer.Argument(help="Folder of a run, or of a study (labelwise sweep).")],
    plots: Annotated[
        str | None, typer.Option(help="Also write the charts as SVG and PNG files into this folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace charts in the folder of --plots.")] = False,
) -> None:
    """Write the report of a run or of a study again: one self-contained HTML page.

    The page is report.html in the folder. It is built only from the other files there, so an older one is always
    replaced. The charts of a study are always written to files too: to its own plots/, where older ones are replaced,
    or to the folder of --plots, where existing charts are replaced only with --force.
    """
    from pathlib import Path

    from labelwise.errors import DataError
    from labelwise.report.html import write_report
    from labelwise.report.plots import save_plots
    from labelwise.report.study_files import is_run, is_study
    from labelwise.report.study_page import write_study_report
    from labelwise.runs.folder import RunFolder

    folder = RunFolder(run)
    if not folder.path.is_dir():
        raise DataError("there is no such folder; give the folder of a run or of a study", folder.path)
    if is_study(folder.path):
        for path in write_study_report(folder.path, plots, force):
            echo(f"written: {path}")
        return
    if not is_run(folder.path):
        raise DataError(_neither_message(folder.path), folder.path)
    _ = folder.state
    # Charts first: if they may not be written, the old report is kept.
    charts = [] if plots is None else save_plots(folder.path, Path(plots), force=force)
    for path in [write_report(folder.path), *charts]:
        echo(f"written: {path}")


def _neither_message(folder: Path) -> str:
    """The message for a folder that is neither, with the runs and studies inside it."""
    from labelwise.report.study_files import is_run, is_study

    inside = sorted(path.name for path in folder.iterdir() if path.is_dir() and (is_run(path) or is_study(path)))
    hint = f"; it contains {', '.join(inside[:5])}{', ...' * (len(inside) > 5)}" if inside else ""
    return f"neither the folder of a run (with state.json) nor of a study (with trials/){hint}"
