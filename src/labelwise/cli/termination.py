"""SIGTERM ends a command as an exception does, so that its temporary files are removed, with exit code 143.

Where a signal has an effect of its own, training and serving set their own handlers inside.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from labelwise.runtime.ranks import n_ranks

CODE = 128 + signal.SIGTERM
ONE_REQUEST = 1.0
"""Seconds within which signals are one request; a later one ends the process at once."""


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Inside the block SIGTERM raises SystemExit.

    Not in one of several ranks of torchrun: the main thread of a rank that waits for others is not in Python, where
    the exception could be raised, and torchrun would have to kill it half a minute later.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or n_ranks() > 1 or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    owner, since = os.getpid(), None

    def end(number: int, frame: Any) -> None:
        nonlocal since
        if os.getpid() != owner or (since is not None and time.monotonic() - since >= ONE_REQUEST):
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif since is None:
            since = time.monotonic()
            raise SystemExit(CODE)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
