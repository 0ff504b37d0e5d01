"""Commands killed at a known moment: they hold there, so that neither a fast nor a busy machine changes the test."""

import signal
import time
from collections.abc import Callable

from forking import kill_soon_after
from labelwise.cli.main import main

AFTER_A_CHECKPOINT = """
from labelwise.nn.train.checkpoint import Checkpoints
plain = Checkpoints.save
def save(self, state):
    plain(self, state)
    hold()
Checkpoints.save = save
"""
"""A patch: networks hold when they have written their first checkpoint."""
BEFORE_RENAMING = """
import os
plain = os.replace
def replace(source, target):
    if str(target).endswith({ending!r}):
        hold()
    plain(source, target)
os.replace = replace
"""
"""A patch to be formatted: a command holds before a file or folder gets a name with this ending."""


def kill_where_it_holds(
    patch: str, *arguments: object, number: int = signal.SIGKILL, code: int = -signal.SIGKILL
) -> None:
    """`labelwise ARGUMENTS` after `patch`, code that makes it call `hold()` somewhere; a signal when it does.

    It must end with the exit code (below 0: by a signal).
    """

    def command(reached: Callable[[], None]) -> None:
        def hold() -> None:
            reached()
            time.sleep(600)

        exec(patch, {"hold": hold})
        main([str(argument) for argument in arguments])

    kill_soon_after(command, number=number, code=code)
