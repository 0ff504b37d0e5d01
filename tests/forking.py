"""Processes of their own without the seconds of their imports: forks of the test's process with a child's surroundings.

Where the start of a process is the point of a test, it starts one with `subprocess`.
"""

import atexit
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its exit code (below 0, a signal) and what it has printed."""

    code: int
    out: str
    err: str


class Forked:
    """A child process that calls `function()`: what the tests and the toolkit use of `subprocess.Popen`."""

    def __init__(
        self,
        function: Callable[[], object],
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        self.returncode: int | None = None
        self.stdin = None
        given = writing = None
        if stdin == subprocess.PIPE:
            given, writing = os.pipe()
            self.stdin = os.fdopen(writing, "wb")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: the parent has threads
            self.pid = os.fork()
        if self.pid == 0:
            _be_a_process(function, (given, stdout, stderr), env, pass_fds)
        if given is not None:
            os.close(given)

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = 240) -> int:
        """The exit code, as soon as it has ended."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.005)
        return code

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


def run_forked(function: Callable[[], object], env: Mapping[str, str] | None = None, timeout: float = 240) -> Ended:
    """Call a function in a child process, and wait for its end."""
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
        code = Forked(function, stdout=out.fileno(), stderr=err.fileno(), env=env).wait(timeout)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ended(code, *texts)


def kill_soon_after(
    function: Callable[[Callable[[], None]], object],
    delay: float = 0.0,
    number: int = signal.SIGKILL,
    code: int = -signal.SIGKILL,
) -> None:
    """`function(reached)` in a child process; a signal `delay` seconds after it calls `reached()`, whatever it does.

    It must end with the exit code.
    """
    reading, writing = os.pipe()
    with tempfile.TemporaryFile("w+b") as printed:
        stream = printed.fileno()
        child = Forked(
            lambda: function(lambda: os.write(writing, b"r")), stdout=stream, stderr=stream, pass_fds=(writing,)
        )
        os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as reached:
            word = reached.read(1)
        time.sleep(delay)
        os.kill(child.pid, number)
        status = child.wait()
        printed.seek(0)
        assert (word, status) == (b"r", code), printed.read().decode(errors="replace")


def _be_a_process(
    function: Callable[[], object],
    streams: tuple[int | None, int | None, int | None],
    env: Mapping[str, str] | None,
    pass_fds: tuple[int, ...],
) -> None:
    """The child: streams, environment, log and end of a new process; never returns."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            if stream is not None:
                os.dup2(stream, number)
        for number in (int(name) for name in os.listdir("/dev/fd")):
            if number > 2 and number not in pass_fds:
                _close(number)
        atexit._clear()
        os.setsid()
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        logging.getLogger().handlers[:] = []
        tempfile.tempdir = None
        if env is not None:
            for name in set(os.environ) - set(env):
                del os.environ[name]
            os.environ.update(env)
        function()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _close(number: int) -> None:
    try:
        os.close(number)
    except OSError:
        return
