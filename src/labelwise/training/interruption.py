"""A training that is asked to end (Ctrl-C, SIGTERM) finishes its step and writes a checkpoint before it does."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOTE = b"labelwise: a checkpoint is written after this step, then training ends; once more ends it at once\n"
ONE_REQUEST = 1.0
"""Seconds within which signals are one request: `timeout` and job managers signal a process, and then its group."""


class Interruption:
    """Inside the block the first signal to end is kept until `act`; another one later has its usual effect at once.

    Without a folder for checkpoints (`active=False`), and outside the main thread, signals have their usual effect.
    """

    def __init__(self, active: bool) -> None:
        self.active = active and threading.current_thread() is threading.main_thread()
        self.signal: int | None = None
        self._since = 0.0
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
        if self.signal is None:
            self.signal, self._since = number, time.monotonic()
            with suppress(OSError):
                os.write(2, NOTE)  # a log may be in the middle of a line of its own
        elif time.monotonic() - self._since >= ONE_REQUEST:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)

    def act(self, otherwise: int | None = None) -> None:
        """Let the signal have its usual effect; if there was none, that of `otherwise`."""
        number, self.signal = self.signal or otherwise, None
        if number is not None:
            self._restore()
            signal.raise_signal(number)
