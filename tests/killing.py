"""Commands and functions killed at a known moment: they hold there, so that no speed of a machine changes the test.

They run in a fork of the test's process, which has everything imported and compiled.
"""

import os
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path


def kill_where_it_holds(patch: str, *arguments: object) -> None:
    """`labelwise ARGUMENTS` after `patch`, code that makes it call `hold()` somewhere; SIGKILL when it does."""
    from labelwise.cli.main import main

    def command(reached: Callable[[], None]) -> None:
        def hold() -> None:
            reached()
            time.sleep(600)

        exec(patch, {"hold": hold})
        main([str(argument) for argument in arguments])

    kill_soon_after(command)


def kill_soon_after(function: Callable[[Callable[[], None]], object], delay: float = 0.0) -> None:
    """`function(reached)` in a child process; SIGKILL `delay` seconds after it calls `reached()`, whatever it does then."""
    reading, writing = os.pipe()
    with tempfile.NamedTemporaryFile() as output:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: the parent has threads
            child = os.fork()
        if child == 0:
            _run(function, writing, output.fileno())
        os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as reached:
            word = reached.read(1)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed = Path(output.name).read_text(encoding="utf-8", errors="replace")
    assert (word, status) == (b"r", -signal.SIGKILL), printed


def _run(function: Callable[[Callable[[], None]], object], writing: int, output: int) -> None:
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        function(lambda: os.write(writing, b"r"))
    except BaseException:
        os.write(output, traceback.format_exc().encode())
    finally:
        os._exit(1)
