"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a config field, e.g. model.beam=20. May be repeated."),
]
StudySetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a field of the study, e.g. parallel=2. May be repeated."),
]
EncodeSetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set an option, e.g. encoder.max_length=512. May be repeated."),
]
ReadSetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="How the data is read, e.g. text_column=title. May be repeated."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace existing results.")]
VectorsOption = Annotated[
    str | None,
    typer.Option(metavar="FILE.npy", help="Vectors of the documents, if the model was trained on some next to texts."),
]
