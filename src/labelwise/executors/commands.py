"""Commands in processes of their own, which end when the process that started them does: trials of sweeps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

NOT_FROM_HERE = "-P"
"""Option of Python: `-m` and `-c` look for modules in the working directory first, before the standard library."""


class LocalCommand:
    """A child process; closing its standard input ends it."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        code = self.process.poll()
        if code is not None:
            self._close()
        return code

    def stop(self) -> None:
        """Close its standard input, which is enough unless it hangs."""
        self._close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _close(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


def start_process(
    command: Sequence[str], output: Path, environment: Mapping[str, str], keep: Sequence[int] = ()
) -> LocalCommand:
    """Start `python COMMAND` with this Python; `environment` is added to that of this process.

    Python's files in the working directory, which may be one of data, are not imported.
    """
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, NOT_FROM_HERE, *command],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            pass_fds=tuple(keep) if os.name == "posix" else (),
        )
    return LocalCommand(process)


def import_path() -> dict[str, str]:
    """The environment in which a child process imports from where this process does."""
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}


class CommandLine(NamedTuple):
    """A command for `run_command`."""

    command: tuple[str, ...]
    output: Path
    environment: dict[str, str]


def run_command(_shared: Any, line: CommandLine) -> int:
    """A task: run a command on the worker's machine; returns its exit code. It ends with the worker."""
    started = start_process(*line)
    try:
        return started.process.wait()
    finally:
        started.stop()
