"""labelwise train CONFIG.yml --set model.beam=20, or labelwise train DATA.csv --text title --labels subjects"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.cli.options import (
    AddressOption,
    ForceOption,
    ForceRunOption,
    LauncherOption,
    SetOption,
    StudySetOption,
    TaskCpusOption,
    TaskGpusOption,
    WorkersOption,
)
from labelwise.cli.terminal import command_began, echo, how_to_resume
from labelwise.config import ConfigSource
from labelwise.errors import ConfigError, DataError
from labelwise.io.folder import METRICS

if TYPE_CHECKING:
    from labelwise.config import ConfigSource
    from labelwise.runs.config import RunConfig
    from labelwise.runtime.tasks import Launcher
    from labelwise.tuning.runner import SettingResult
    from labelwise.tuning.study import Study


# --- from data ---
# What the commands that train from data share: names of columns, and what to do next.

COLUMN_OPTIONS = {"text": "text_column", "labels": "label_column", "id": "id_column"}
"""Options of the commands, and the reading options that they set."""


def next_step(run: Path) -> str:
    """How to use the model of a run."""
    from labelwise.io.folder import CALIBRATION, MODEL

    suffix = ".csv" if _is_table(run / MODEL) else ".jsonl"
    threshold = " --threshold auto" if (run / CALIBRATION).exists() else ""
    return f"next: labelwise predict {shlex.quote(str(run))} NEW{suffix} -o suggestions{suffix}{threshold}"


def _is_table(model: Path) -> bool:
    """Whether a model was trained on tables."""
    from labelwise.io.folder import Folder
    from labelwise.model.card import TABLES, read_card

    reading = read_card(Folder(model, "model")).reading
    return reading is not None and reading.extension in TABLES


@contextmanager
def proposing_columns() -> Iterator[None]:
    """Columns that are missing are reported with a command that names those that seem right."""
    from labelwise.data.tables import MissingColumnsError
    from labelwise.errors import DataError

    try:
        yield
    except MissingColumnsError as error:
        raise DataError(f"{error.problem}.\n{_with_columns(error.proposed)}", error.path, error.line) from None


def _with_columns(proposed: dict[str, str | None]) -> str:
    """The command that was typed, with the columns that seem right; COLUMN stands for what has to be filled in."""
    names = {key: f"--{option}" for option, key in COLUMN_OPTIONS.items()}
    words = sys.argv[1:]
    for key, column in proposed.items():
        option = names.get(key)
        if option is None:
            words += ["--set", f"data.options.{key}={column or 'COLUMN'}"]
            continue
        at = next((index for index, word in enumerate(words) if word.split("=")[0] == option), None)
        if at is not None:
            del words[at : at + (1 if "=" in words[at] else 2)]
        words += [option, column or "COLUMN"]
    return f"The command with the names of the columns:\n  labelwise {shlex.join(words)}"


# --- auto ---
# labelwise auto DATA.csv --text title --labels subjects --budget 10m

DEFAULT_BUDGET, DEFAULT_METRIC = "10m", "P@5"
ENCODER_VARIABLE = "LABELWISE_ENCODER"


def auto_command(
    data: Annotated[
        list[str], typer.Argument(metavar="DATA...", help="Files, a folder, or the name of a known data set.")
    ],
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Wall-clock time for everything: 90, 90s, 10m, 2h.")
    ] = DEFAULT_BUDGET,
    metric: Annotated[str, typer.Option(help="What models are compared by: P@5, nDCG@5, PSP@5, micro-F1.")] = (
        DEFAULT_METRIC
    ),
    encoder: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="A pretrained text encoder, for models that use one.",
                     envvar=ENCODER_VARIABLE),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column with the text; title+abstract joins several.")] = None,
    labels: Annotated[str | None, typer.Option(help="Column with the labels.")] = None,
    id: Annotated[str | None, typer.Option(help="Column with the document's identifier.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the run. Not given: runs/NAME.")
    ] = None,
    overrides: SetOption = None,
    force: ForceRunOption = False,
) -> None:  # fmt: skip
    """Choose a model for data within a time budget: methods are tried from cheap to expensive and compared.

    A tenth of the training documents is held out to compare models on, unless the data has a valid part; test documents
    are not used to choose. The best single model or ensemble is kept, or a cheaper one within noise of it, and trained
    on all documents if there is time. The result is an ordinary run, and its report shows what was tried.

    Run the same command again to resume. With --force a finished run is replaced, and stays complete until the new
    one is finished. `labelwise train DATA --method auto` is the same.
    """
    columns = {option: value for option, value in {"text": text, "labels": labels, "id": id}.items() if value}
    choose_and_train(data, columns, budget, metric, encoder, output, overrides or [], force)


def choose_and_train(
    data: Sequence[str],
    columns: dict[str, str],
    budget: str,
    metric: str,
    encoder: str | None,
    output: str | None,
    overrides: Sequence[str],
    force: bool,
) -> None:
    """Run `auto` and print its table and results; `columns` are options of the command line."""
    from labelwise.cli.options import parse_duration
    from labelwise.cli.output import live_table, show_results, show_table
    from labelwise.runs.config import run_config
    from labelwise.runs.data import AUTO_METHOD, config_from_data
    from labelwise.tuning.auto import AutoRequest, run_auto

    seconds = parse_duration(budget)
    options = {COLUMN_OPTIONS[option]: value for option, value in columns.items()}
    checked = run_config(config_from_data(data, options, AUTO_METHOD, output, overrides, seconds))
    request = AutoRequest(checked, seconds, metric, encoder)
    try:
        with proposing_columns(), live_table() as show:
            run = run_auto(request, force, command_began(), show)
    except KeyboardInterrupt:
        echo(how_to_resume(str(checked.run.folder), force), err=True)
        raise typer.Exit(130) from None
    show_table(run.path)
    show_results(run.path)
    echo(next_step(run.path))


def train_command(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG.yml|DATA...",
            help="Config of a run (- is stdin), or data: files, a folder, or the name of a known data set.",
        ),
    ],
    text: Annotated[
        str | None, typer.Option(help="With DATA: column with the text; title+abstract joins several.")
    ] = None,
    labels: Annotated[str | None, typer.Option(help="With DATA: column with the labels.")] = None,
    id: Annotated[str | None, typer.Option(help="With DATA: column with the document's identifier.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="With DATA: the method, see labelwise models; auto chooses one. Not given: linear_tree."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="With --method auto: wall-clock time such as 90s or 2h. Not given: 10m."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="With --method auto: what models are compared by. Not given: P@5.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="With --method auto: a pretrained text encoder.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the run. Not given: runs/NAME.")
    ] = None,
    overrides: SetOption = None,
    force: ForceRunOption = False,
    repetition: Annotated[
        list[int] | None,
        typer.Option(
            help="Train only this repetition of a model that consists of repetitions (mach). May be repeated."
        ),
    ] = None,
    launcher: LauncherOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    task_cpus: TaskCpusOption = None,
    task_gpus: TaskGpusOption = None,
) -> None:
    """Train a model, evaluate it and write a report, as configured, or straight from data.

    With DATA a tenth of the documents is held out as test part and a tenth of the rest for calibration, chosen by a
    hash of each document; the model is trained, calibrated and judged, and then trained on all documents. The config
    that this amounts to is written to the run folder; --set changes any field of it.

    Run the same command again to resume a run. A finished run is replaced only with --force: the new run is made in its
    hidden folder `.replacement`, and the old one stays complete until the new one is finished.

    With --repetition no run is created: one repetition of a model is trained and saved. Any number of processes can do
    this at the same time; the command without it then combines all repetitions into a model.

    With --launcher processes or ray, the chunks of linear trees, the repetitions of mach and the members of an ensemble
    are trained by tasks of other processes or of a cluster, which run again if their process or node dies. The model is
    the same.
    """
    from labelwise.cli.output import show_results
    from labelwise.errors import ConfigError
    from labelwise.runs.config import run_config
    from labelwise.runs.data import AUTO_METHOD, is_config
    from labelwise.runs.train import train
    from labelwise.runtime.ranks import n_ranks, rank
    from labelwise.runtime.tasks import Launcher

    columns = {option: value for option, value in {"text": text, "labels": labels, "id": id}.items() if value}
    from_data = not any(map(is_config, source))
    of_auto = {"budget": budget, "metric": metric, "encoder": encoder}
    where = Launcher(launcher, address, workers, task_cpus, task_gpus)
    if method == AUTO_METHOD:
        _check_auto(from_data, repetition, where)
        choose_and_train(
            source, columns, budget or DEFAULT_BUDGET, metric or DEFAULT_METRIC,
            encoder or os.environ.get(ENCODER_VARIABLE), output, overrides or [], force,
        )  # fmt: skip
        return
    for option, value in of_auto.items():
        if value is not None:
            raise ConfigError(f"--{option} is for --method auto")
    given = (
        _from_data(source, columns, method, output, overrides or [])
        if from_data
        else _from_config(source, {**columns, **({"method": method} if method else {})}, output, overrides or [])
    )
    checked = run_config(given)
    if repetition:
        if n_ranks() > 1:
            raise ConfigError("--repetition is for one process per repetition; under torchrun, train all of them")
        if not where.is_local:
            raise ConfigError("--repetition trains in this process; without it, --launcher distributes all repetitions")
        if force:
            raise ConfigError("--force is for runs; to train a repetition again, delete its folder")
        _train_repetitions(checked, repetition)
        return
    try:
        with proposing_columns() if from_data else nullcontext():
            run = train(checked, force, command_began(), where)
    except KeyboardInterrupt:
        echo(how_to_resume(str(checked.run.folder), force), err=True)
        raise typer.Exit(130) from None
    if rank() > 0:
        return
    show_results(run.path)
    if from_data:
        echo(next_step(run.path))


def _check_auto(from_data: bool, repetition: list[int] | None, launcher: Launcher) -> None:
    from labelwise.errors import ConfigError

    if not from_data:
        raise ConfigError("--method auto is for training from data, not from a config: labelwise auto DATA")
    if repetition:
        raise ConfigError("--repetition is for one method, not for --method auto")
    if not launcher.is_local:
        raise ConfigError(
            f"--launcher {launcher.name}: --method auto measures its trials in this process; leave it out"
        )


def _from_data(
    data: list[str], columns: dict[str, str], method: str | None, output: str | None, overrides: list[str]
) -> ConfigSource:
    from labelwise.runs.data import config_from_data

    options = {COLUMN_OPTIONS[option]: value for option, value in columns.items()}
    return config_from_data(data, options, method, output, overrides)


def _from_config(
    sources: list[str], data_options: dict[str, str], output: str | None, overrides: list[str]
) -> ConfigSource:
    from labelwise.errors import ConfigError

    if len(sources) > 1:
        raise ConfigError(f"one config, or data, is needed; got {', '.join(sources)}")
    if data_options:
        keys = {**{option: f"data.options.{key}" for option, key in COLUMN_OPTIONS.items()}, "method": "model.method"}
        option = next(iter(data_options))
        raise ConfigError(
            f"--{option} is for training from data; with a config use --set {keys[option]}={data_options[option]}"
        )
    given = config_source(sources[0]).override(overrides)
    refuse_study(given)
    if output is None:
        return given
    if ("run", "folder") in given.overridden and given.values["run"]["folder"] != output:
        raise ConfigError(f"-o {output} and {given.overridden['run', 'folder']} contradict each other; leave out one")
    return given.override([f"run.folder={json.dumps(output, ensure_ascii=False)}"])  # any name, also null or a: b


def _train_repetitions(config: RunConfig, repetitions: list[int]) -> None:
    from labelwise.runs.train import train_repetitions

    try:
        echo(f"finished repetitions are in {train_repetitions(config, repetitions, command_began())}")
    except KeyboardInterrupt:
        echo("stopped; run the same command again to resume", err=True)
        raise typer.Exit(130) from None


# --- sources ---
# Inputs of commands: configs and texts, from files or standard input.


def config_source(path: str) -> ConfigSource:
    """The config in a file, or on standard input for `-`."""
    if path == "-":
        return ConfigSource.from_yaml(stdin_text("the config"), "stdin")
    return ConfigSource.from_file(path)


def refuse_study(source: ConfigSource) -> None:
    """Refuse a study file where a run config is needed, and name the right command."""
    if source.values.keys() & {"vary", "groups", "search", "seeds"} and not source.values.keys() & {"data", "model"}:
        raise ConfigError(f"{source.name}: this is a study, not the config of a run; use labelwise sweep")


def refuse_run_config(source: ConfigSource) -> None:
    """Refuse a run config where a study file is needed, and name the right command."""
    if source.values.keys() & {"data", "model"} and not source.values.keys() & {"vary", "groups"}:
        raise ConfigError(
            f"{source.name}: this is the config of a run, not a study; use labelwise train. A study has the "
            "run config under `run` (or names it as `base`), and `vary`"
        )


def stdin_text(what: str) -> str:
    """All of standard input."""
    try:
        return sys.stdin.read()
    except (AttributeError, ValueError, OSError) as error:
        raise ConfigError(f"stdin: {what} cannot be read: {error}") from None


def refuse_existing(path: str | Path, force: bool) -> Path:
    """The path as a Path; an error if it exists and `force` is not given."""
    target = Path(path)
    if target.exists() and not force:
        raise DataError(f"{target} exists already; --force replaces it")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent}: there is no such folder")
    return target


# --- sweep ---
# labelwise sweep STUDY.yml

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
    from labelwise.runtime.tasks import Launcher
    from labelwise.tuning.outcome import FAILED
    from labelwise.tuning.results import inspect_chosen, result_rows, write_best, write_results
    from labelwise.tuning.runner import run_sweep
    from labelwise.tuning.study import read_study

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
    from labelwise.report.study import write_study_report

    try:
        page, *plots = write_study_report(study.folder)
    except MissingDependencyError as error:
        echo(f"the report was not written: {error}", err=True)
        return
    echo(f"written: {page}, {len(plots)} charts in {plots[0].parent}" if plots else f"written: {page}")


def _show(study: Study, results: list[SettingResult], rows: list[dict[str, Any]]) -> None:
    from labelwise.cli.output import print_table
    from labelwise.formatting import percent
    from labelwise.report.wording import short_names
    from labelwise.tuning.results import CSV, JSON, varying

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
