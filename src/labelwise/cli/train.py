"""labelwise train CONFIG.yml --set model.beam=20"""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.options import ForceOption, SetOption
from labelwise.cli.terminal import echo


def train_command(
    config: Annotated[str, typer.Argument(metavar="CONFIG.yml", help="Config of the run; - reads it from stdin.")],
    overrides: SetOption = None,
    force: ForceOption = False,
    repetition: Annotated[
        list[int] | None,
        typer.Option(help="Train only this part of a model that is made of repetitions (mach). May be repeated."),
    ] = None,
) -> None:
    """Train a model, evaluate it and write a report, as a config says.

    The same command goes on with a run that was stopped. A finished run is kept unless --force is given.

    With --repetition no run is made: one part of a model is trained and kept, by as many processes as you like at the
    same time; the command without it then puts all parts together.
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
            echo("stopped; the same command goes on", err=True)
            raise typer.Exit(130) from None
        return
    try:
        run = train(checked, force)
    except KeyboardInterrupt:
        echo(f"stopped; the same command goes on with {checked.run.folder}", err=True)
        raise typer.Exit(130) from None
    show_results(run.path)
