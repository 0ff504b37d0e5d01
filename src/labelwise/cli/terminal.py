"""Output of commands: control characters in names and texts are escaped."""

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
    """Formats log records as their message only."""

    def format(self, record: logging.LogRecord) -> str:
        """The escaped message."""
        return printable(super().format(record))
