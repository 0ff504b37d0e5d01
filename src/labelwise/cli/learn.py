"""labelwise learn MODEL DATA"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labelwise.cli.options import ForceOption, ReadSetOption
from labelwise.cli.terminal import echo


def learn_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    data: Annotated[str, typer.Argument(help="More labelled documents; their labels may be new.")],
    old: Annotated[
        str | None, typer.Option("--with", metavar="OLD", help="Documents that the model was trained on; see below.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write a new model folder. Not given: replace the model.")
    ] = None,
    split: Annotated[str, typer.Option(help="Part to use when DATA or OLD is a folder.")] = "train",
    format: Annotated[str, typer.Option(help="Format of the data.")] = "auto",
    overrides: ReadSetOption = None,
    force: ForceOption = False,
) -> None:
    """Train a model on more documents, in a fraction of the time of training it again.

    For linear_tree and linear_flat. The model is replaced at the end: a stopped command leaves it as it was. With
    --with OLD, documents in both are skipped unless their labels have changed, and new labels are learned as well as in
    a full training. The command says when a full training is due.
    """
    from labelwise.cli.sources import refuse_existing
    from labelwise.config import ConfigSource
    from labelwise.methods.base import load
    from labelwise.methods.learning import check_learns
    from labelwise.run_schema import model_folder
    from labelwise.runs.load_data import read_part
    from labelwise.runs.open_model import read_options

    target = model_folder(model) if output is None else refuse_existing(output, force)
    fitted = load(model)
    check_learns(fitted)
    source = ConfigSource({}, "learn").override(overrides or [])
    new, known = (
        None if path is None else read_part(path, format, split, read_options(model, path, source.values, source))
        for path in (data, old)
    )
    report = fitted.learn(new, old=known)
    if report.n_documents or output is not None:
        fitted.save(target, force=True)
    echo(str(report))
    if report.n_documents and output is None and target != Path(model):
        echo("the scores of the run are those of the model before; labelwise evaluate measures it again")
    echo(f"model: {target}" if report.n_documents or output is not None else f"{target} is unchanged")
