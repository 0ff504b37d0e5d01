"""What commands print goes through here: control characters of names and texts are shown, not obeyed."""

from __future__ import annotations

import logging
from typing import Any

import typer

from labelwise.formatting import json_text, printable


def echo(text: str, err: bool = False, nl: bool = True) -> None:
    """Print text for people."""
    typer.echo(printable(text), err=err, nl=nl)


def echo_json(value: Any) -> None:
    """Print JSON for programs."""
    typer.echo(json_text(value, indent=1))


class LogFormatter(logging.Formatter):
    """Messages alone."""

    def format(self, record: logging.LogRecord) -> str:
        """One message."""
        return printable(super().format(record))
