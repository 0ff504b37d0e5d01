"""The one progress bar: shown on a terminal once the work has taken two seconds, silent everywhere else.

Library code says `with progress("reading", total) as step: ... step(n)` and need not know who is looking.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labelwise.formatting import printable

PATIENCE_SECONDS = 2.0


@contextmanager
def progress(what: str, total: float | None = None, unit: str = "") -> Iterator[Callable[[float], None]]:
    """Give a function to be told how much more is done. `total=None` shows a count without an end."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _amount: None
        return
    bar = _Bar(what, total, unit)
    try:
        yield bar.advance
    finally:
        bar.close()


class _Bar:
    def __init__(self, what: str, total: float | None, unit: str) -> None:
        self.what, self.total, self.unit = printable(what), total, unit
        self.begin = time.monotonic()
        self.done = 0.0
        self.shown = None
        self.task = None

    def advance(self, amount: float) -> None:
        self.done += amount
        if self.shown is None:
            if time.monotonic() - self.begin < PATIENCE_SECONDS:
                return
            self._show()
        if self.shown is not None and self.task is not None:
            self.shown.update(self.task, completed=self.done)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        counts = [DownloadColumn(), TransferSpeedColumn()] if self.unit == "bytes" else [MofNCompleteColumn()]
        self.shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *counts,
            TimeElapsedColumn(),
            TextColumn("gone,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=Console(stderr=True),
            transient=True,
        )
        self.task = self.shown.add_task(self.what, total=self.total)
        self.shown.start()

    def close(self) -> None:
        if self.shown is not None:
            self.shown.stop()
