"""labelwise predict MODEL [TEXTS]"""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.options import (
    AddressOption,
    ForceOption,
    LauncherOption,
    ReadSetOption,
    TaskCpusOption,
    TaskGpusOption,
    VectorsOption,
    WorkersOption,
)


def predict_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    documents: Annotated[
        str,
        typer.Argument(help="A text, a file of texts (one per line), a data file or folder; - is stdin."),
    ] = "-",
    output: Annotated[
        str, typer.Option("--output", "-o", help="Output file: .csv, .jsonl, .tsv or .npz; - is stdout.")
    ] = "-",
    k: Annotated[
        int | None,
        typer.Option(
            "-k", "--k", help="Maximum number of labels per document. Not given: 10; with --threshold no maximum."
        ),
    ] = None,
    threshold: Annotated[
        str | None, typer.Option(help="Leave out labels whose score is below this. auto: the calibrated threshold.")
    ] = None,
    explain: Annotated[
        int | None, typer.Option(metavar="N", help="Add the N words that contributed most to each label.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(help="CSV: wide (default), the input's columns plus labels; long, one row per label."),
    ] = None,
    labels: Annotated[str | None, typer.Option(help="File of allowed labels, one per line.")] = None,
    label_weights: Annotated[
        str | None, typer.Option(help="File of label<TAB>factor lines; scores are multiplied by the factors.")
    ] = None,
    format: Annotated[
        str, typer.Option(help="Format of DOCUMENTS: text (one per line) or a data format. auto: by the name.")
    ] = "auto",
    split: Annotated[str, typer.Option(help="Part to use when DOCUMENTS is a folder.")] = "test",
    to: Annotated[
        str | None, typer.Option(help="Output format: csv, jsonl, tsv or npz. Not given: by the name.")
    ] = None,
    features: VectorsOption = None,
    overrides: ReadSetOption = None,
    force: ForceOption = False,
    launcher: LauncherOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    task_cpus: TaskCpusOption = None,
    task_gpus: TaskGpusOption = None,
) -> None:
    """Predict labels for a text, texts or any data file.

    On a terminal the result is a table, in a pipe one JSON object per document.

    Without --threshold the 10 best labels are written, with it all labels that reach it; -k sets a maximum for both.

    --set takes options for reading a data file, e.g. --set text_column=title; the default is how the run read its data.

    With --launcher processes or ray, batches of a file are predicted by other processes or on a cluster.
    """
    from labelwise.cli.predictions import PredictionTable, on_terminal
    from labelwise.config import ConfigSource
    from labelwise.errors import ConfigError
    from labelwise.executors.launcher import Launcher
    from labelwise.methods.base import load
    from labelwise.run_schema import model_folder
    from labelwise.runs.documents import Request, is_text_argument
    from labelwise.runs.open_model import chosen_threshold, read_options
    from labelwise.runs.predict import predict_file

    where = Launcher(launcher, address, workers, task_cpus, task_gpus)
    typed = is_text_argument(documents, format, model)
    if not where.is_local and (typed or documents == "-"):
        raise ConfigError(f"--launcher {launcher}: for files of documents; lines and single texts are answered here")
    source = ConfigSource({}, "predict").override(overrides or [])
    options = read_options(model, "-" if typed else documents, source.values, source)
    fitted = load(model)
    limit = chosen_threshold(threshold, fitted, model)
    request = Request(documents, format, split, options, k, limit, labels, label_weights, explain, typed, features)
    table = PredictionTable(fitted, request) if on_terminal(output, to) else None
    with where.opened(None):
        predict_file(fitted, request, output, to, force, layout, table, model_folder(model))
