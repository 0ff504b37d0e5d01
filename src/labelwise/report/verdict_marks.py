"""Markers of the collapse monitor's verdicts in charts: a shape and a colour each, distinct also without colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labelwise.report.drawing import INK, MUTED, PAPER, SERIES

if TYPE_CHECKING:
    from collections.abc import Iterable

MARKS: dict[str | None, tuple[str, str]] = {
    "healthy": ("o", SERIES[2]),
    "on the plateau": ("s", SERIES[4]),
    "under-trained": ("v", SERIES[0]),
    "collapsed": ("X", SERIES[5]),
    "diverged": ("^", INK),
    None: ("D", MUTED),
}
ORDER = list(MARKS)


def mark(verdict: str | None, edge: str = PAPER) -> dict[str, Any]:
    """Marker style of a point with this verdict; the edge colour can identify its line."""
    shape, colour = MARKS.get(verdict, MARKS[None])
    width = 0.8 if edge == PAPER else 1.6
    return {"marker": shape, "markerfacecolor": colour, "markeredgecolor": edge, "markeredgewidth": width}


def sorted_verdicts(verdicts: Iterable[str | None]) -> list[str | None]:
    """Distinct verdicts, the good ones first, then no verdict, then unknown ones."""
    distinct = set(verdicts)
    return [*(v for v in ORDER if v in distinct), *sorted(v for v in distinct if v is not None and v not in MARKS)]


def legend_entries(verdicts: Iterable[str | None]) -> list[Any]:
    """Legend handles of the verdicts; empty if there are no verdicts."""
    from matplotlib.lines import Line2D

    distinct = sorted_verdicts(verdicts)
    if distinct == [None] or not distinct:
        return []
    return [Line2D([], [], linestyle="", markersize=8, label=v or "no verdict", **mark(v)) for v in distinct]
