"""labelwise predict MODEL [TEXTS]"""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.options import ForceOption, ReadSetOption


def predict_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    documents: Annotated[str, typer.Argument(help="Texts, one per line, or a data file or folder; - is stdin.")] = "-",
    output: Annotated[
        str, typer.Option("--output", "-o", help="Output file: .jsonl, .tsv or .npz; - is stdout.")
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
    labels: Annotated[str | None, typer.Option(help="File of allowed labels, one per line.")] = None,
    label_weights: Annotated[
        str | None, typer.Option(help="File of label<TAB>factor lines; scores are multiplied by the factors.")
    ] = None,
    format: Annotated[
        str, typer.Option(help="Format of DOCUMENTS: text (one per line) or a data format. auto: by the name.")
    ] = "auto",
    split: Annotated[str, typer.Option(help="Part to use when DOCUMENTS is a folder.")] = "test",
    to: Annotated[str | None, typer.Option(help="Output format: jsonl, tsv or npz. Not given: by the name.")] = None,
    overrides: ReadSetOption = None,
    force: ForceOption = False,
) -> None:
    """Predict labels for texts or any data file.

    Without --threshold the 10 best labels are written, with it all labels that reach it; -k sets a maximum for both.

    --set takes options for reading a data file, e.g. --set text_column=title; the default is how the run read its data.
    """
    from labelwise.config import ConfigSource
    from labelwise.methods.base import load
    from labelwise.runs.documents import Request
    from labelwise.runs.open_model import chosen_threshold, read_options
    from labelwise.runs.predict import predict_file

    source = ConfigSource({}, "predict").override(overrides or [])
    options = read_options(model, documents, source.values, source)
    fitted = load(model)
    limit = chosen_threshold(threshold, fitted)
    request = Request(documents, format, split, options, k, limit, labels, label_weights)
    predict_file(fitted, request, output, to, force)
