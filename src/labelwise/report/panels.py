"""Several panels in one chart with one legend below: what the charts of studies share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labelwise.report.study_files import shown_value
from labelwise.report.verdict_marks import in_order, legend_entries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDE = 8.0
"""From this ratio of the largest to the smallest value on an upright axis is a log axis."""


def log_if_wide(axes: Axes) -> None:
    """A log axis upwards when what is drawn spreads far."""
    drawn: Any = [line.get_ydata() for line in axes.get_lines()]
    values = [float(value) for ys in drawn for value in ys if math.isfinite(value)]
    if values and min(values) > 0 and max(values) / min(values) > WIDE:
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)


def plain_numbers(axis: Axis) -> None:
    """Numbers on a log axis as they are read elsewhere; between the powers of ten only where there are few of these."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    near = low > 0 and high / low < 200
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if near else (1.0,), numticks=8))
    axis.set_major_formatter(lambda value, _: shown_value(float(f"{value:.6g}")))
    axis.set_minor_formatter(NullFormatter())


def whole_epochs(axes: Axes) -> None:
    """An axis of epochs."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_xlabel("epoch")


def grid(figure: Figure, count: int, columns: int) -> list[Axes]:
    """So many panels in rows of at most so many columns."""
    columns = min(count, columns)
    found = figure.subplots(-(-count // columns), columns, squeeze=False).ravel().tolist()
    for axes in found[count:]:
        axes.remove()
    return found[:count]


def _columns(labels: Sequence[str], width: float) -> int:
    longest = max((len(label) for label in labels), default=1)
    return max(1, min(4, len(labels), int(width * 72 / (40 + 5.4 * longest))))


def legend_height(labels: Sequence[str], width: float) -> float:
    """Inches that a legend with these names needs."""
    return 0.18 * -(-len(labels) // _columns(labels, width)) + 0.2


def legend(figure: Figure, axes: Sequence[Axes], verdicts: Sequence[str | None], width: float) -> None:
    """One legend under all panels: the lines by their names, then the verdicts."""
    named: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    entries = legend_entries(in_order(verdicts))
    labels = [*named, *(entry.get_label() for entry in entries)]
    if labels:
        handles = [*named.values(), *entries]
        columns = _columns(labels, width)
        figure.legend(handles, labels, loc="outside lower left", ncols=columns, handlelength=1.8, columnspacing=1.2)


def file_name(words: str) -> str:
    """Words as a part of a file's name."""
    kept = "".join(letter if letter.isalnum() else "-" for letter in words.lower()[:40])
    return kept.strip("-") or "other"
