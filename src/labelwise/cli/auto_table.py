"""The table of `labelwise auto`: live on a terminal while models are tried, and on standard output at the end."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.cli.tables import print_table
from labelwise.cli.terminal import LogFormatter, echo
from labelwise.formatting import duration, percent, printable

if TYPE_CHECKING:
    from labelwise.auto.search import Show
    from labelwise.auto_schema import AutoRecord, Option

REFRESH_PER_SECOND = 2
CHOSEN = "*"


def show_table(run: Path) -> None:
    """Print what was tried, and why the model was chosen."""
    from labelwise.auto_schema import AutoRecord
    from labelwise.run_schema import AUTO, read_json

    record = read_json(run / AUTO, AutoRecord)
    title = f"tried in {duration(record.seconds)}, compared on {record.n_valid:,} validation documents"
    print_table(title, _columns(record), [_row(option, record) for option in record.options], words=["what"])
    echo(record.why)


def _columns(record: AutoRecord) -> list[str]:
    return ["model", f"{record.metric}, %", "95 % interval", "behind the best", "training", "what"]


def _row(option: Option, record: AutoRecord) -> list[str]:
    behind = option.behind_best
    mark = f"{CHOSEN} " if option.name == record.chosen else "  "
    what = option.about if not option.reason else f"{option.status}: {option.reason}"
    return [
        mark + option.name,
        "" if option.value is None else percent(option.value),
        "" if option.interval is None else f"{percent(option.interval[0])} - {percent(option.interval[1])}",
        "" if behind is None else percent(behind[0]) + (" (noise)" if option.within_noise and behind[0] else ""),
        "" if option.seconds is None else duration(option.seconds),
        what,
    ]


@contextmanager
def live_table() -> Iterator[Show]:
    """A function that shows the table on standard error while models are tried; nothing if that is not a terminal.

    On a terminal the lines of the log stay in the log file, because they would tear the table apart.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda record, left: None
        return
    screens = [handler for handler in logging.getLogger().handlers if isinstance(handler.formatter, LogFormatter)]
    if any(handler.level > logging.INFO for handler in screens):  # --quiet
        yield lambda record, left: None
        return
    live = _Live(screens)
    try:
        yield live.show
    finally:
        live.close()


class _Live:
    """A table that rich draws again twice per second, with the time that the running model has taken."""

    def __init__(self, screens: list[logging.Handler]) -> None:
        self.screens = screens
        self.record: AutoRecord | None = None
        self.deadline = self.began = 0.0
        self.running: str | None = None
        self.display: Any = None

    def show(self, record: AutoRecord, left: float | None) -> None:
        """Show the table; None seconds left: all is decided, and the run itself follows with its own progress."""
        from rich.console import Console
        from rich.live import Live

        from labelwise.auto_schema import RUNNING
        from labelwise.progress import hidden

        self.record = record
        if left is None:
            self.close()
            return
        running = next((option.name for option in record.options if option.status == RUNNING), None)
        if running != self.running:
            self.running, self.began = running, time.monotonic()
        self.deadline = time.monotonic() + left
        if self.display is None:
            for screen in self.screens:
                screen.setLevel(logging.WARNING)
            self.hidden = hidden()
            self.hidden.__enter__()
            self.display = Live(
                get_renderable=self._table, console=Console(stderr=True), transient=True,
                refresh_per_second=REFRESH_PER_SECOND, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self.display.start()

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from labelwise.auto_schema import LEFT_OUT

        assert self.record is not None
        table = Table(caption=f"about {duration(max(self.deadline - time.monotonic(), 0.0))} left")
        for number, column in enumerate(("model", "status", f"{self.record.metric}, %", "time", "what")):
            table.add_column(column, justify="right" if number in (2, 3) else "left", no_wrap=number != 4)
        for option in self.record.options:
            if option.status == LEFT_OUT:
                continue
            spent = option.seconds
            if option.name == self.running:
                spent = time.monotonic() - self.began
            shown = "" if spent is None else duration(spent)
            if spent is None and option.estimate is not None:
                shown = f"about {duration(option.estimate)}"
            value = "" if option.value is None else percent(option.value)
            row = (option.name, option.status, value, shown, option.reason or option.about)
            table.add_row(*(Text(printable(cell)) for cell in row))
        return table

    def close(self) -> None:
        """Remove the table."""
        if self.display is not None:
            self.display.stop()
            self.display = None
            self.hidden.__exit__(None, None, None)
            for screen in self.screens:
                screen.setLevel(logging.INFO)
