"""Progress of long work: a bar on a terminal, lines of the log elsewhere.

The bar is shown once the work has taken two seconds. Where standard error is not a terminal, a line is logged every 30
seconds ("predicting: 2,100 of 6,875, 4 min left"), and none for work that is shorter.

    with progress("reading", total) as step:
        ...
        step(n)

Work inside a block may have a progress of its own. `with step.part(n):` lets it count as n of the outer one, which is
then the only one shown, unless it is only preparation (`alone`). Inside `with stage("tree 2 of 3"):` it is shown with
that in front.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from labelwise.formatting import duration, printable, size

log = logging.getLogger("labelwise")

DELAY_SECONDS = 2.0
LINE_SECONDS = 30.0

_local = threading.local()


@contextmanager
def progress(
    what: str,
    total: float | None = None,
    unit: str = "",
    detail: Callable[[], str] | None = None,
    seconds_left: Callable[[], float] | None = None,
    alone: bool = False,
) -> Iterator[Progress]:
    """Yield a function to call with the amount just done.

    Parameters
    ----------
    what
        What is being done.
    total
        All that is to be done; None shows a count without a total.
    unit
        `bytes`, or `work` for amounts that only count as a fraction of the total.
    detail
        More for a line of the log, such as the loss; called when a line is due.
    seconds_left
        A limit of the time left: work that a time budget ends is done earlier than its pace says.
    alone
        It does not count for a progress that it is a part of, such as reading words before predicting.
    """
    outer = getattr(_local, "current", None)
    counts = outer is not None and outer.in_part is not None and not alone
    step = Progress(stage_name(what), total, unit, detail, seconds_left, outer if counts else None)
    _local.current = step
    try:
        yield step
    finally:
        _local.current = outer
        step.close()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Inside the block, progress is shown with this name in front: "tree 2 of 3"."""
    before = getattr(_local, "stages", [])
    _local.stages = [*before, name] if name else before
    try:
        yield
    finally:
        _local.stages = before


@contextmanager
def hidden() -> Iterator[None]:
    """Inside the block no progress is shown: something else shows what is being done."""
    before = getattr(_local, "hidden", False)
    _local.hidden = True
    try:
        yield
    finally:
        _local.hidden = before


def stage_name(what: str) -> str:
    """The name of work, with the stages that it is part of in front."""
    return ", ".join([*getattr(_local, "stages", []), what])


class Progress:
    """Work that is being done: call it with the amount just done."""

    def __init__(
        self,
        what: str,
        total: float | None,
        unit: str,
        detail: Callable[[], str] | None,
        seconds_left: Callable[[], float] | None,
        outer: Progress | None,
    ) -> None:
        self.what, self.total, self.unit = printable(what), total, unit
        self.detail, self.seconds_left, self.outer = detail, seconds_left, outer
        self.begin = self.said = time.monotonic()
        self.done = self.begin_done = 0.0
        self.inner = 0.0
        """Amount of this progress that the work inside has done so far."""
        self.in_part: float | None = None
        self.on_terminal = sys.stderr is not None and sys.stderr.isatty()
        self.bar: Any = None

    def __call__(self, amount: float) -> None:
        self.done += amount
        self._changed()

    def start_at(self, amount: float) -> None:
        """So much was done before, by an interrupted attempt: it does not count for the pace."""
        self.done = self.begin_done = amount

    @contextmanager
    def part(self, amount: float) -> Iterator[None]:
        """Inside the block, the progress of work counts as this amount, which is done at the end of the block."""
        self.in_part, self.inner = amount, 0.0
        try:
            yield
        finally:
            self.in_part, self.inner = None, 0.0
        self(amount)

    def _changed(self) -> None:
        if self.outer is not None:
            if self.total:
                self.outer.inner = (self.outer.in_part or 0.0) * min((self.done + self.inner) / self.total, 1.0)
                self.outer._changed()
            return
        if getattr(_local, "hidden", False):
            return
        now = time.monotonic()
        if self.on_terminal:
            if self.bar is None and now - self.begin >= DELAY_SECONDS:
                self.bar = _bar(self.what, self.total, self.unit)
            if self.bar is not None:
                self.bar.update(self.bar.task_ids[0], completed=self.done + self.inner)
        elif now - self.said >= LINE_SECONDS:
            self.said = now
            log.info("%s", self._line(now))

    def _line(self, now: float) -> str:
        done = self.done + self.inner
        parts = [self._amount(done)]
        if self.detail is not None:
            parts.append(self.detail())
        left = [] if self.seconds_left is None else [self.seconds_left()]
        if self.total and done > self.begin_done:
            left.append((now - self.begin) * max(self.total - done, 0.0) / (done - self.begin_done))
        if left and min(left) < float("inf"):
            parts.append(f"{_about(min(left))} left")
        return f"{self.what}: {', '.join(part for part in parts if part)}"

    def _amount(self, done: float) -> str:
        if self.unit == "work":
            return f"{100 * done / self.total:.0f} %" if self.total else ""
        shown = size if self.unit == "bytes" else _count
        return shown(done) if self.total is None else f"{shown(done)} of {shown(self.total)}"

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()


def _count(amount: float) -> str:
    return f"{int(amount):,}"


def _about(seconds: float) -> str:
    """A time span in words, rounded: '40 s', '4 min', '2 h 05 min'."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3570 else duration(60 * round(seconds / 60))


def _bar(what: str, total: float | None, unit: str) -> Any:
    """A bar of rich on standard error, for one task."""
    from rich import progress as rich
    from rich.console import Console

    counts: list[rich.ProgressColumn] = [rich.MofNCompleteColumn()]
    if unit == "bytes":
        counts = [rich.DownloadColumn(), rich.TransferSpeedColumn()]
    elif unit == "work":
        counts = [rich.TextColumn("{task.percentage:>3.0f} %")]
    before = rich.TextColumn("{task.description}"), rich.BarColumn(), *counts
    after = rich.TimeElapsedColumn(), rich.TextColumn("elapsed,"), rich.TimeRemainingColumn(), rich.TextColumn("left")
    bar = rich.Progress(*before, *after, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=total)
    bar.start()
    return bar
