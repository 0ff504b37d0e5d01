"""labelwise auto DATA.csv --text title --labels subjects --budget 10m"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from labelwise.cli.options import ForceRunOption, SetOption
from labelwise.cli.terminal import command_began, echo, how_to_resume

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
    from labelwise.auto.run_auto import AutoRequest, run_auto
    from labelwise.cli.auto_table import live_table, show_table
    from labelwise.cli.from_data import COLUMN_OPTIONS, next_step, proposing_columns
    from labelwise.cli.tables import show_results
    from labelwise.runs.config import run_config
    from labelwise.runs.from_data import AUTO_METHOD, config_from_data
    from labelwise.time_budget import parse_duration

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
