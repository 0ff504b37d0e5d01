"""Run a command and look at what a user would see, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO
from unittest import mock

import typer.main

from labelwise.cli.main import main
from labelwise.runtime.threads import using_threads

typer.main.get_command = functools.cache(
    typer.main.get_command
)  # made again for every call, it takes longer than many tests
SILENT = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    out: str
    err: str


def labelwise(*arguments, stdin: str | bytes = b"", cwd=None, code: int = 0) -> Finished:
    """The command in this process: the same streams and surroundings as in its own, without the seconds of its imports.

    The exit code must be as expected. What a process shows with a traceback is raised here.
    """
    words = list(map(str, arguments))
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode() if isinstance(stdin, str) else stdin)
        given.seek(0)
        with _streams(given, out, err), _surroundings(words, cwd):
            found = _exit_code(words)
        done = Finished(_content(out), _content(err))
    assert "Traceback" not in done.err, done.err
    assert found == code, (found, done.out, done.err)
    return done


def on_terminal(*arguments, typed: str = "", code: int = 0) -> str:
    """The command on a terminal of 80 columns where somebody has typed something: all that the terminal shows."""
    words = list(map(str, arguments))
    outer, inner = os.openpty()
    os.write(outer, typed.encode() + b"\x04")
    with os.fdopen(inner, "rb+", buffering=0) as terminal, mock.patch.dict(os.environ, COLUMNS="80", TERM="dumb"):
        with _streams(terminal, terminal, terminal), _surroundings(words, None):
            found = _exit_code(words)
        os.set_blocking(outer, False)
        shown = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(outer, 1 << 16):
                shown += piece
    os.close(outer)
    assert found == code, shown
    return shown.decode().replace("\r\n", "\n")


def labelwise_process(*arguments, stdin: str | bytes = b"", cwd=None, code: int = 0) -> Finished:
    """The command in a process of its own, where its start, its exit code or its end are the point."""
    process = subprocess.run(
        [sys.executable, "-m", "labelwise", *map(str, arguments)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        cwd=cwd,
        timeout=120,
    )
    done = Finished(process.stdout.decode(), process.stderr.decode())
    assert "Traceback" not in done.err, done.err
    assert process.returncode == code, (process.returncode, done.out, done.err)
    return done


def _exit_code(words: list[str]) -> int:
    try:
        main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@contextlib.contextmanager
def _streams(given: IO[bytes], out: IO[bytes], err: IO[bytes]) -> Iterator[None]:
    """Standard streams of the process, whose numbers (0 to 2) commands and their child processes may use as well."""
    files = (given, out, err)
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(number) for number in range(3)]
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    # never closed: a library imported meanwhile may keep the stream for its log
    streams = {
        "stdin": open(0, encoding="utf-8", closefd=False),  # noqa: SIM115
        "stdout": open(1, "w", encoding="utf-8", closefd=False),  # noqa: SIM115
        "stderr": open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False),  # noqa: SIM115
    }
    try:
        with mock.patch.multiple(sys, **streams):
            yield
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        for number, kept in enumerate(before):
            os.dup2(kept, number)
            os.close(kept)


@contextlib.contextmanager
def _surroundings(words: list[str], cwd) -> Iterator[None]:
    """Folder, arguments, environment, threads, log and warnings as a new process has them; as before afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd or os.getcwd()))
        stack.enter_context(mock.patch.object(sys, "argv", ["labelwise", *words]))
        stack.enter_context(mock.patch.dict(os.environ))
        stack.enter_context(using_threads(None))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")
        for kind in SILENT:
            warnings.simplefilter("ignore", kind)
        warnings.showwarning = _show_warning
        root.handlers[:] = []
        root.setLevel(logging.WARNING)
        try:
            yield
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    print(warnings.formatwarning(message, category, filename, lineno, line), file=file or sys.stderr, end="")
