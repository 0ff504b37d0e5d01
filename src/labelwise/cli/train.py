"""labelwise train CONFIG.yml --set model.beam=20"""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.options import ForceOption, SetOption
from labelwise.cli.terminal import command_began, echo


def train_command(
    config: Annotated[str, typer.Argument(metavar="CONFIG.yml", help="Config of the run; - reads it from stdin.")],
    overrides: SetOption = None,
    force: ForceOption = False,
    repetition: Annotated[
        list[int] | None,
        typer.Option(
            help="Train only this repetition of a model that consists of repetitions (mach). May be repeated."
        ),
    ] = None,
) -> None:
    """Train a model, evaluate it and write a report, as configured.

    Run the same command again to resume a run. A finished run is replaced only with --force.

    With --repetition no run is created: one repetition of a model is trained and saved. Any number of processes can do
    this at the same time; the command without it then combines all repetitions into a model.
    """
    from labelwise.cli.sources import config_source, refuse_study
    from labelwise.cli.tables import show_results
    from labelwise.errors import ConfigError
    from labelwise.runs.config import run_config
    from labelwise.runs.train import train

    source = config_source(config).override(overrides or [])
    refuse_study(source)
    checked = run_config(source)
    if repetition:
        if force:
            raise ConfigError("--force is for runs; to train a repetition again, delete its folder")
        from labelwise.runs.repetitions import train_repetitions

        try:
            echo(f"finished repetitions are in {train_repetitions(checked, repetition)}")
        except KeyboardInterrupt:
            echo("stopped; run the same command again to resume", err=True)
            raise typer.Exit(130) from None
        return
    try:
        run = train(checked, force, command_began())
    except KeyboardInterrupt:
        echo(f"stopped; run the same command again to resume {checked.run.folder}", err=True)
        raise typer.Exit(130) from None
    show_results(run.path)
