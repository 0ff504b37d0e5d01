"""Tables on the terminal; plain text without wrapping if the output is a file or a pipe."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.cli.terminal import LogFormatter, echo
from labelwise.formatting import (
    counted,
    cut,
    duration,
    percent,
    printable,
)
from labelwise.io.folder import MODEL, REPORT, RESULTS
from labelwise.io.json import read_json
from labelwise.model.explanation_text import causes, shortened, title
from labelwise.report.schema import Results

if TYPE_CHECKING:
    from rich.table import Table

    from labelwise.commands.writers import Predicted, Suggestion
    from labelwise.data.dataset import Dataset
    from labelwise.model.explanation import Explanation
    from labelwise.model.method import Method
    from labelwise.report.schema import AutoRecord, Option
    from labelwise.runs.data import Request
    from labelwise.tuning.auto import Show


log = logging.getLogger("labelwise")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], words: Sequence[str] = ()) -> None:
    """Print a table; the first column and those in `words` are text, the others are aligned to the right."""
    left = [position for position, column in enumerate(columns) if position == 0 or column in words]
    title, columns = printable(title), [printable(column) for column in columns]
    cells = [[" ".join(printable(str(cell)).splitlines()) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _print_plain(title, columns, cells, left)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position in left else "right", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))  # Text: brackets in names are not markup
    Console().print(table)


def _print_plain(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], left: Sequence[int]) -> None:
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    echo(title)
    for row in [columns, *cells]:
        padded = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        echo("  ".join(padded).rstrip())


def show_evaluation(title: str, evaluation: dict[str, Any], baseline: Mapping[str, float | None] | None = None) -> None:
    """Print scores with their intervals, and those of a baseline."""
    from labelwise.metrics.result import tie_remarks  # it needs SciPy

    intervals = evaluation.get("intervals", {})
    columns = [
        "metric",
        "%",
        *(["95 % interval"] if intervals else []),
        *(["popularity"] if baseline else []),
    ]
    rows = []
    for name, value in evaluation["values"].items():
        row = [name, percent(value)]
        if intervals:
            low, high = intervals.get(name) or (None, None)
            row.append("" if low is None else f"{percent(low)} - {percent(high)}")
        if baseline:
            row.append(percent(baseline.get(name)))
        rows.append(row)
    print_table(title, columns, rows)
    without = evaluation.get("n_without_labels")
    if without:
        echo(f"{without:,} {'document' if without == 1 else 'documents'} without any true label counted as zero")
    used = evaluation.get("propensity")
    if used:
        echo("PSP counts a correct label more the rarer it is in training (propensity scores)")
        echo(f"PSP with A {used['A']:g}, B {used['B']:g}, N {used['N']:,.0f} training documents")
    for remark in tie_remarks(evaluation.get("ties", {}), evaluation.get("ties_cut_off", {})):
        echo(remark)


def show_calibration(title: str, report: dict[str, Any]) -> None:
    """Print a calibration: the fraction of correct labels per range of scores, and the threshold."""
    before = report["before"] or [None] * len(report["after"])
    rows = [
        [
            f"{after['low']:.1f} - {after['high']:.1f}",
            *(["", ""] if first is None else [f"{first['pairs']:,}", percent(first["share"])]),
            f"{after['pairs']:,}",
            percent(after["share"]),
        ]
        for first, after in zip(before, report["after"], strict=True)
    ]
    columns = ["score", "labels before", "correct, %", "labels after", "correct, %"]
    print_table(f"{title}: {report['n_documents']:,} documents", columns, rows)
    was = "" if report["error_before"] is None else f" (before: {percent(report['error_before'])})"
    echo(f"calibration error {percent(report['error_after'])} %{was}")
    echo(_threshold_line(report))


def _threshold_line(report: dict[str, Any]) -> str:
    target = report["wanted_precision"]
    chosen = "for the best micro-F1" if target is None else f"for precision {percent(target)} %"
    missed = "" if report["reached"] else ", which was not reached"
    return (
        f"scores are probabilities; threshold {report['threshold']:.4g} {chosen}{missed}: expect precision "
        f"{percent(report['precision'])}, recall {percent(report['recall'])}, micro-F1 {percent(report['f1'])}"
    )


def show_results(run: Path) -> None:
    """Print the results of a run."""
    results = read_json(run / RESULTS, Results) if (run / RESULTS).exists() else None
    if results is not None:
        baseline = None if results.baseline is None else results.baseline.values
        title = f"{run}: {counted(results.n_documents, results.n_available)} test documents"
        show_evaluation(title, results.evaluation.model_dump(), baseline)
        if results.calibration is not None:
            echo(_threshold_line(results.calibration.model_dump()))
        if results.refit is not None:
            echo(str(results.refit))
    echo(f"model: {run / MODEL}")
    if (run / REPORT).exists():
        echo(f"report: {run / REPORT}")
    if results is not None:
        show_remarks(results.remarks)


def show_remarks(remarks: Sequence[str]) -> None:
    """Log what to know about the figures, after they were printed."""
    for remark in remarks:
        log.warning("%s", remark)


# --- predictions ---
# Predictions on a terminal: a table per document.

MIN_WIDTH = 10
INDENT = 2


def on_terminal(output: str, to: str | None) -> bool:
    """Whether predictions are shown as tables: on a terminal, unless another output or format is named."""
    return output == "-" and to is None and sys.stdout is not None and sys.stdout.isatty()


class PredictionTable:
    """Prints batches of predictions; cells that do not fit the terminal are cut."""

    def __init__(self, model: Method, request: Request) -> None:
        from rich.console import Console

        self.model, self.request = model, request
        self.titles = not request.is_the_text and not (request.documents == "-" and sys.stdin.isatty())
        self.console = Console(highlight=False)

    def __call__(self, batch: Predicted) -> None:
        """Print the documents of a batch."""
        for row, found in enumerate(batch.suggestions(self.model.label_texts_)):
            if self.titles:
                text = "" if batch.texts is None else batch.texts[row]
                self._print_title(batch.ids[row], text)
            if found:
                self.console.print(self._table(found))
            else:
                echo(f"{' ' * INDENT}no label{'' if self.request.threshold is None else ' reaches the threshold'}")
            echo("")

    def _print_title(self, name: str, text: str) -> None:
        from rich.text import Text

        title = cut(printable(f"{name}  {text[:1000]}"), self.console.width - 1)
        self.console.print(Text(title, style="bold"), no_wrap=True, crop=True)

    def _table(self, found: list[Suggestion]) -> Table:
        from rich.table import Table
        from rich.text import Text

        from labelwise.commands.writers import score_name, score_text

        table = Table(box=None, pad_edge=False, padding=(0, INDENT, 0, 0), header_style="dim")
        table.add_column("")
        table.add_column(score_name(self.model), justify="right", no_wrap=True)
        with_texts = self.model.label_texts_ is not None
        names = ["label", *(["text"] if with_texts else []), *(["words"] if self.request.explain else [])]
        rows = []
        for one in found:
            cells = [one.label, *([one.text or ""] if with_texts else [])]
            if self.request.explain:
                cells.append(", ".join(one.words or ()))
            rows.append([cut(printable(cell), self.console.width) for cell in cells])
        for name, column in zip(names, zip(*rows, strict=True), strict=True):
            widest = min(MIN_WIDTH, max(map(len, column)))
            table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=widest)
        for one, cells in zip(found, rows, strict=True):
            table.add_row("", score_text(self.model, one.score), *map(Text, cells))
        return table


# --- explanations ---
# Explanations on the terminal.


def show_explanation(one: Explanation) -> None:
    """Print one label: score, words, and its path in each tree."""
    echo(str(one))


def show_documents(model: Method, test: Dataset, rows: Sequence[int], k: int = 5) -> None:
    """Print documents with true and predicted labels, ticked if correct, and the words that caused each."""
    for row in rows:
        one = test.take(slice(row, row + 1))
        text = one.texts[0] if one.texts is not None else ""
        echo(f"\n{shortened(_first_line(text), 100) or f'document {row}'}")
        true = test.labels_of(row)
        echo(f"  true: {', '.join(true) or 'none'}")
        for predicted in model.explain(one, k=k, terms=None):
            tick = "✓" if predicted.label in true else " "
            name = shortened(title(predicted), 30)
            echo(f"  {tick} {name:<30} {predicted.score:.2f}  {causes(predicted)}".rstrip())


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


# --- curve ---
# The curve of label frequencies, drawn with characters on log axes.

_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""The bits of a Braille character at the positions of its dots."""


def draw_curve(counts: np.ndarray, width: int = 60, height: int = 12, braille: bool = True) -> list[str]:
    """Lines of a drawing of label frequencies over ranks, both axes logarithmic; none if no label occurs.

    Parameters
    ----------
    counts
        Number of documents per label.
    width, height
        Size of the drawing inside its axes, in characters.
    braille
        Eight dots per character; False draws with `*` for ASCII-only outputs.
    """
    from labelwise.data.describe import frequency_curve

    across, down = (2, 4) if braille else (1, 1)
    ranks, frequencies = frequency_curve(counts, 2 * across * width)
    if len(ranks) == 0:
        return []
    columns, rows = across * width, down * height
    most, last = int(frequencies[0]), int(ranks[-1])
    # one point per column, so that the curve has no gaps where ranks are far apart
    positions = np.geomspace(1, last, columns) if last > 1 else np.ones(1)
    heights = np.interp(np.log(positions), np.log(ranks), np.log(frequencies))
    scale = (rows - 1) / math.log(most) if most > 1 else 0.0
    levels = np.rint(heights * scale).astype(int)
    canvas = np.zeros((rows, columns), bool)
    before = levels[0]
    for column, level in enumerate(levels.tolist()):
        low, high = sorted((level, before if abs(before - level) <= 1 else before - 1))
        canvas[rows - 1 - high : rows - low, column] = True
        before = level
    return _add_axes(canvas, across, down, most, last, braille)


def _add_axes(canvas: np.ndarray, across: int, down: int, most: int, last: int, braille: bool) -> list[str]:
    height, width = canvas.shape[0] // down, canvas.shape[1] // across
    upright, corner, flat = ("┤", "└", "─") if braille else ("|", "+", "-")
    margin = len(f"{most:,}")
    lines = ["documents"]
    for row in range(height):
        cells = "".join(_cell(canvas, row * down, column * across, braille) for column in range(width))
        level = round(most ** (1 - row / max(height - 1, 1)))
        shown = f"{level:,}" if row == height - 1 or (row % 4 == 0 and level > 1) else ""
        lines.append(f"{shown:>{margin}} {upright}{cells}".rstrip())
    lines.append(" " * (margin + 1) + corner + flat * width)
    middle = f"{round(math.sqrt(last)):,}"
    axis = list(" " * (width + 1))
    axis[1:2] = "1"
    start = width // 2 - len(middle) // 2
    axis[start : start + len(middle)] = middle
    end = f"{last:,}"
    axis[width + 1 - len(end) :] = end
    lines.append(" " * (margin + 1) + "".join(axis) + "  rank of the label")
    return lines


def _cell(canvas: np.ndarray, top: int, left: int, braille: bool) -> str:
    if not braille:
        return "*" if canvas[top, left] else " "
    bits = int(_DOTS[canvas[top : top + 4, left : left + 2]].sum())
    return chr(0x2800 + bits) if bits else " "


# --- auto table ---
# The table of `labelwise auto`: live on a terminal while models are tried, and on standard output at the end.

REFRESH_PER_SECOND = 2
CHOSEN = "*"


def show_table(run: Path) -> None:
    """Print what was tried, and why the model was chosen."""
    from labelwise.io.folder import AUTO
    from labelwise.io.json import read_json
    from labelwise.report.schema import AutoRecord

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

        from labelwise.report.schema import RUNNING
        from labelwise.runtime.progress import hidden

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

        from labelwise.report.schema import LEFT_OUT

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
