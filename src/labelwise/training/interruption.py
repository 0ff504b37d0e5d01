"""A training that is asked to end (Ctrl-C, SIGTERM) finishes its step and writes a checkpoint before it does."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOTE = b"labelwise: a checkpoint is written after this step, then training ends; once more ends it at once\n"


class Interruption:
    """Inside the block the first signal to end is kept until `act`; a second one has its usual effect at once.

    Without a folder for checkpoints (`active=False`), and outside the main thread, signals have their usual effect.
    """

    def __init__(self, active: bool) -> None:
        self.active = active and threading.current_thread() is threading.main_thread()
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS if self.active else ():
            handler = signal.getsignal(number)
            if handler not in (None, signal.SIG_IGN):
                self._before[number] = handler
                signal.signal(number, self._keep)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()
        self.act()

    def _keep(self, number: int, frame: Any) -> None:
        self.signal = number
        self._restore()
        with suppress(OSError):
            os.write(2, NOTE)  # a log may be in the middle of a line of its own

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def act(self) -> None:
        """Let the signal have its usual effect, if there was one."""
        if self.signal is not None:
            number, self.signal = self.signal, None
            signal.raise_signal(number)
