"""How a worker runs a task: it checks that it fits its driver, sets threads and device, and returns errors."""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from labelwise import __version__
from labelwise.errors import ConfigError, LabelwiseError
from labelwise.executors.base import LOCAL, Handle, using_executor
from labelwise.runtime.device_setting import requested_device, using_device
from labelwise.runtime.threads import using_threads

TOKEN = "token"
"""File of the driver in the shared folder."""


@dataclass(frozen=True)
class Terms:
    """What a driver expects of its workers."""

    labelwise: str
    """Version and a hash of the source code."""
    threads: int
    """Threads of a task."""
    device: str
    folder: Path | None = None
    """The shared folder, in which the driver has written a token."""
    token: str = ""
    directory: Path | None = None
    """The driver's working directory, from which relative paths in configs are read."""

    @classmethod
    def of_driver(cls, threads: int, folder: Path | None, token: str) -> Terms:
        """Of this process."""
        return cls(own_version(), threads, requested_device(), folder, token, Path.cwd())

    def check(self) -> None:
        """Raise in a worker that does not fit."""
        where = f"the worker on {socket.gethostname()} (process {os.getpid()})"
        if own_version() != self.labelwise:
            raise ConfigError(
                f"{where} runs {own_version()}, this process {self.labelwise}: results could differ; install the same "
                "version of labelwise and Python on all nodes"
            )
        if self.folder is None:
            return
        try:
            found = (self.folder / TOKEN).read_text(encoding="ascii")
        except OSError:
            found = None
        if found != self.token:
            raise ConfigError(
                f"{where} does not see {self.folder}: the run folder must be on a file system that all nodes share, "
                "under the same path"
            )


@cache
def own_version() -> str:
    """The version of labelwise and of Python, with a hash of our source code: development versions share a number."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"labelwise {__version__} (code {digest.hexdigest()[:8]}, Python {platform.python_version()})"


class Outcome(NamedTuple):
    """What a task has returned or raised."""

    value: Any
    error: BaseException | None = None
    details: str = ""

    def result(self) -> Any:
        """The value; raises the task's error."""
        if self.error is None:
            return self.value
        if not isinstance(self.error, LabelwiseError):
            self.error.add_note(f"In a worker:\n{self.details}")
        raise self.error


@cache
def _checked(terms: Terms) -> None:
    terms.check()
    if terms.directory is not None:
        # workers of Ray begin in the directory of their node; a node may lack this one if all paths are absolute
        with suppress(OSError):
            os.chdir(terms.directory)


def run_task(terms: Terms, function: Callable[[Any, Any], Any], shared: Handle | None, item: Any) -> Outcome:
    """Run a task in this process."""
    try:
        _checked(terms)
        with using_threads(terms.threads), using_device(terms.device), using_executor(LOCAL):
            return Outcome(function(None if shared is None else shared.open(), item))
    except Exception as error:
        return Outcome(None, _portable(error), traceback.format_exc())


def _portable(error: Exception) -> Exception:
    """The error, or one with its message if it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return LabelwiseError(str(error)) if isinstance(error, LabelwiseError) else RuntimeError(repr(error))
