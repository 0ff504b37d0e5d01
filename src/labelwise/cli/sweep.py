"""labelwise sweep STUDY.yml"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.cli.options import (
    AddressOption,
    ForceOption,
    LauncherOption,
    StudySetOption,
    TaskCpusOption,
    TaskGpusOption,
    WorkersOption,
)
from labelwise.cli.terminal import echo
from labelwise.run_schema import METRICS

if TYPE_CHECKING:
    from labelwise.sweep.runner import SettingResult
    from labelwise.sweep.study import Study

NOT_LEARNED = ("collapsed", "diverged")
"""Verdicts of failed trainings."""


def sweep_command(
    study: Annotated[str, typer.Argument(metavar="STUDY.yml", help="Study file; - reads it from stdin.")],
    overrides: StudySetOption = None,
    force: ForceOption = False,
    launcher: LauncherOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    task_cpus: TaskCpusOption = None,
    task_gpus: TaskGpusOption = None,
) -> None:
    """Train many settings of a study file, and print one table of results.

    Run the same command again to resume a sweep; finished trials are not run again. The folder of another study is
    replaced only with --force. Fields of the run that all trials share are set with run., as in
    --set run.data.limit=1000.

    Trials are processes of this machine, `parallel` at a time, with --launcher local and processes alike; with
    --launcher ray they run on the nodes of a cluster.
    """
    from labelwise.cli.sources import config_source, refuse_run_config
    from labelwise.executors.launcher import Launcher
    from labelwise.sweep.inspect import inspect_chosen
    from labelwise.sweep.outcome import FAILED
    from labelwise.sweep.results import result_rows, write_best, write_results
    from labelwise.sweep.runner import run_sweep
    from labelwise.sweep.study import read_study

    where = Launcher(launcher, address, workers, task_cpus, task_gpus)
    source = config_source(study).override(overrides or [])
    refuse_run_config(source)
    checked = read_study(source)
    try:
        results = run_sweep(checked, force, where)
    except KeyboardInterrupt:
        echo(f"stopped; run the same command again to resume {checked.folder}", err=True)
        raise typer.Exit(130) from None
    rows = result_rows(checked, results)
    write_results(checked, results, rows)
    best = write_best(checked, results, rows)
    inspect_chosen(checked, results)
    _show(checked, results, rows)
    if best is not None:
        echo(f"to train the best setting: labelwise train {best}")
    if checked.config.report:
        _report(checked)
    statuses = [outcome.status for result in results for outcome in result.outcomes.values()]
    if statuses and all(status == FAILED for status in statuses):
        raise typer.Exit(2)


def _report(study: Study) -> None:
    from labelwise.errors import MissingDependencyError
    from labelwise.report.study_page import write_study_report

    try:
        page, *plots = write_study_report(study.folder)
    except MissingDependencyError as error:
        echo(f"the report was not written: {error}", err=True)
        return
    echo(f"written: {page}, {len(plots)} charts in {plots[0].parent}" if plots else f"written: {page}")


def _show(study: Study, results: list[SettingResult], rows: list[dict[str, Any]]) -> None:
    from labelwise.cli.tables import print_table
    from labelwise.formatting import percent
    from labelwise.report.wording import short_names
    from labelwise.sweep.results import CSV, JSON, varying

    metric, paths = study.config.metric, varying(results)
    group = ["group"] if study.config.groups else []
    verdict = ["verdict"] if any(row["verdict"] for row in rows) else []
    test = [f"test {metric}"] if any(row[f"test {metric}"] is not None for row in rows) else []
    several = study.config.seeds is not None
    spread = ["deviation"] if several else []
    heads = [*group, *short_names(paths), f"{metric}, %", *(["+-", "seeds"] if several else []), *test]
    fractions = {metric, "deviation", *test}
    fields = [*group, *paths, metric, *spread, *(["seeds"] if several else []), *test, "seconds", *verdict, "status"]
    cells = [
        ["" if row[f] is None else percent(row[f]) if f in fractions else str(row[f]) for f in fields] for row in rows
    ]
    title = f"{study.folder}: {len(rows)} settings, chosen by {metric} on the valid part"
    print_table(title, [*heads, "mean seconds" if several else "seconds", *verdict, "status"], cells)
    if rows and rows[0][metric] is not None and any(word in (rows[0]["verdict"] or "") for word in NOT_LEARNED):
        echo(
            f"- even the best setting failed to learn: {rows[0]['verdict']}. Its score may be that of a model that has "
            f"learned nothing; the advice is in {study.folder / 'trials' / rows[0]['trials'][0] / METRICS}"
        )
    for message in dict.fromkeys(row["message"] for row in rows if row["message"]):
        echo(f"- {message}")
    echo(f"written: {study.folder / CSV}, {study.folder / JSON}")
