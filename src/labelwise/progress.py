"""The progress bar: shown on a terminal once the work has taken two seconds, silent everywhere else.

Usage in library code: `with progress("reading", total) as step: ... step(n)`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labelwise.formatting import printable

DELAY_SECONDS = 2.0


@contextmanager
def progress(what: str, total: float | None = None, unit: str = "") -> Iterator[Callable[[float], None]]:
    """Yield a function to call with the amount just done. `total=None` shows a count without a total."""
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
        self.display = None
        self.task = None

    def advance(self, amount: float) -> None:
        self.done += amount
        if self.display is None:
            if time.monotonic() - self.begin < DELAY_SECONDS:
                return
            self._show()
        if self.display is not None and self.task is not None:
            self.display.update(self.task, completed=self.done)

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
        self.display = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *counts,
            TimeElapsedColumn(),
            TextColumn("elapsed,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=Console(stderr=True),
            transient=True,
        )
        self.task = self.display.add_task(self.what, total=self.total)
        self.display.start()

    def close(self) -> None:
        if self.display is not None:
            self.display.stop()
