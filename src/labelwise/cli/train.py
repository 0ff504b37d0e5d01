"""labelwise train CONFIG.yml --set model.beam=20, or labelwise train DATA.csv --text title --labels subjects"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.auto import DEFAULT_BUDGET, DEFAULT_METRIC, ENCODER_VARIABLE, choose_and_train
from labelwise.cli.from_data import COLUMN_OPTIONS, next_step, proposing_columns
from labelwise.cli.options import (
    AddressOption,
    ForceRunOption,
    LauncherOption,
    SetOption,
    TaskCpusOption,
    TaskGpusOption,
    WorkersOption,
)
from labelwise.cli.terminal import command_began, echo, how_to_resume

if TYPE_CHECKING:
    from labelwise.config import ConfigSource
    from labelwise.executors.launcher import Launcher
    from labelwise.runs.config import RunConfig


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
    from labelwise.cli.tables import show_results
    from labelwise.errors import ConfigError
    from labelwise.executors.launcher import Launcher
    from labelwise.process_group import n_ranks, rank
    from labelwise.runs.config import run_config
    from labelwise.runs.from_data import AUTO_METHOD, is_config
    from labelwise.runs.train import train

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
    from labelwise.runs.from_data import config_from_data

    options = {COLUMN_OPTIONS[option]: value for option, value in columns.items()}
    return config_from_data(data, options, method, output, overrides)


def _from_config(
    sources: list[str], data_options: dict[str, str], output: str | None, overrides: list[str]
) -> ConfigSource:
    from labelwise.cli.sources import config_source, refuse_study
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
    from labelwise.runs.repetitions import train_repetitions

    try:
        echo(f"finished repetitions are in {train_repetitions(config, repetitions, command_began())}")
    except KeyboardInterrupt:
        echo("stopped; run the same command again to resume", err=True)
        raise typer.Exit(130) from None
