"""labelwise predict MODEL [TEXTS]"""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.train import ForceOption


def predict_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    documents: Annotated[str, typer.Argument(help="Texts, one a line; - is stdin. With --format any data file.")] = "-",
    output: Annotated[
        str, typer.Option("--output", "-o", help="Where to write: .jsonl, .tsv or .npz; - is stdout.")
    ] = "-",
    k: Annotated[int, typer.Option(help="Labels a document at most.")] = 10,
    threshold: Annotated[float | None, typer.Option(help="Leave out labels whose score is below this.")] = None,
    format: Annotated[str, typer.Option(help="Format of DOCUMENTS: text (one a line), or any data format.")] = "text",
    to: Annotated[str | None, typer.Option(help="Output format: jsonl, tsv or npz. Not given: by the name.")] = None,
    force: ForceOption = False,
) -> None:
    """Predict labels for texts or any data file."""
    from labelwise.cli.sources import open_model
    from labelwise.runs.predict import predict_file

    predict_file(open_model(model), documents, output, k, threshold, format, to, force)
