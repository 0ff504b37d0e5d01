"""Output of commands: control characters in names and texts are escaped."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import typer

from labelwise.formatting import json_text, printable

_began: list[float] = []


def note_begin(whole_process: bool) -> None:
    """The command begins: time budgets count from here, or from the start of the process, which has imported it."""
    _began[:] = [time.monotonic() - (_seconds_since_start() if whole_process else 0.0)]


def _seconds_since_start() -> float:
    """Seconds since this process was started; 0 on systems that do not say."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0)
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0


def how_to_resume(folder: str, force: bool) -> str:
    """What to do after a run was stopped."""
    again = "again, without --force," if force else "again"
    return f"stopped; run the same command {again} to resume {folder}"


def command_began() -> float | None:
    """When the command began, on the monotonic clock; None outside of one."""
    return _began[0] if _began else None


def echo(text: str, err: bool = False, nl: bool = True) -> None:
    """Print text for people."""
    typer.echo(printable(text), err=err, nl=nl)


def echo_paragraph(text: str, indent: int = 2) -> None:
    """Print indented text, wrapped at words on a terminal."""
    if not sys.stdout.isatty():
        echo(" " * indent + text)
        return
    begin, rest = " " * indent, " " * (indent + 2)
    width = max(terminal_width() - 1, 20)
    echo(textwrap.fill(printable(text), width, initial_indent=begin, subsequent_indent=rest))


def terminal_width(otherwise: int = 100) -> int:
    """Columns of the terminal."""
    return shutil.get_terminal_size((otherwise, 24)).columns


def echo_json(value: Any) -> None:
    """Print JSON for programs."""
    typer.echo(json_text(value, indent=1))


class LogFormatter(logging.Formatter):
    """Formats log records as their message only: tracebacks are for log files."""

    def format(self, record: logging.LogRecord) -> str:
        """The escaped message."""
        return printable(record.getMessage())
