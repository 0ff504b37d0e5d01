"""Options that several commands share."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from labelwise.errors import ConfigError

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
LauncherOption = Annotated[
    str,
    typer.Option(
        help="Where independent parts of the work run: local (this process), processes (of this machine) or ray."
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="With ray: a running cluster, host:port or auto. Not given: RAY_ADDRESS, or a new one here."),
]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="With processes or ray: tasks at a time. Not given: as many as fit.")
]
TaskCpusOption = Annotated[
    int | None, typer.Option(min=1, help="With processes or ray: CPUs and threads of a task.", show_default="1")
]
TaskGpusOption = Annotated[float | None, typer.Option(min=0, help="With ray: GPUs of a task.", show_default="0")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace existing results.")]
ForceRunOption = Annotated[
    bool, typer.Option("--force", help="Replace the run in the folder, when the new one is finished, or start over.")
]
VectorsOption = Annotated[
    str | None,
    typer.Option(metavar="FILE.npy", help="Vectors of the documents, if the model was trained on some next to texts."),
]


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of a time span as it is typed: 90, 90s, 10m, 1.5h."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(s|m|min|h)?", text.strip().lower())
    seconds = float(match[1]) * _UNITS[match[2] or ""] if match else 0.0
    if seconds <= 0:
        raise ConfigError(f"'{text}' is not a time span; accepted: 90, 90s, 10m, 2h")
    return seconds
