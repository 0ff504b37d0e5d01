"""Helpers for charts of several panels with one legend below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labelwise.report.study_files import shown_value
from labelwise.report.verdict_marks import legend_entries, sorted_verdicts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

LOG_AXIS_RATIO = 8.0
"""Ratio of the largest to the smallest value from which on a vertical axis is logarithmic."""


def log_if_wide(axes: Axes) -> None:
    """Use a logarithmic vertical axis if the values differ by orders of magnitude."""
    lines: Any = [line.get_ydata() for line in axes.get_lines()]
    values = [float(value) for ys in lines for value in ys if math.isfinite(value)]
    if values and min(values) > 0 and max(values) / min(values) > LOG_AXIS_RATIO:
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)


def plain_numbers(axis: Axis) -> None:
    """Format ticks of a log axis as plain numbers; ticks between powers of ten only on a short axis."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    is_short = low > 0 and high / low < 200
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_short else (1.0,), numticks=8))
    axis.set_major_formatter(lambda value, _: shown_value(float(f"{value:.6g}")))
    axis.set_minor_formatter(NullFormatter())


def whole_epochs(axes: Axes) -> None:
    """Label the horizontal axis with whole epochs."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_xlabel("epoch")


def grid(figure: Figure, count: int, columns: int) -> list[Axes]:
    """Create `count` panels in rows of at most `columns`."""
    columns = min(count, columns)
    panels = figure.subplots(-(-count // columns), columns, squeeze=False).ravel().tolist()
    for axes in panels[count:]:
        axes.remove()
    return panels[:count]


def _columns(labels: Sequence[str], width: float) -> int:
    longest = max((len(label) for label in labels), default=1)
    return max(1, min(4, len(labels), int(width * 72 / (40 + 5.4 * longest))))


def legend_height(labels: Sequence[str], width: float) -> float:
    """Height in inches of a legend with these names."""
    return 0.18 * -(-len(labels) // _columns(labels, width)) + 0.2


def legend(figure: Figure, axes: Sequence[Axes], verdicts: Sequence[str | None], width: float) -> None:
    """Add one legend below all panels: the named lines, then the verdicts."""
    named: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    entries = legend_entries(sorted_verdicts(verdicts))
    labels = [*named, *(entry.get_label() for entry in entries)]
    if labels:
        handles = [*named.values(), *entries]
        columns = _columns(labels, width)
        figure.legend(handles, labels, loc="outside lower left", ncols=columns, handlelength=1.8, columnspacing=1.2)


def file_name(words: str) -> str:
    """Text converted to a part of a file name."""
    kept = "".join(letter if letter.isalnum() else "-" for letter in words.lower()[:40])
    return kept.strip("-") or "other"
