"""How verdicts of the collapse monitor look in charts: a shape and a colour each, so that grey paper tells them too."""

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
    """Marker settings for a point with this verdict; the edge may tell the line it is on."""
    shape, colour = MARKS.get(verdict, MARKS[None])
    width = 0.8 if edge == PAPER else 1.6
    return {"marker": shape, "markerfacecolor": colour, "markeredgecolor": edge, "markeredgewidth": width}


def in_order(verdicts: Iterable[str | None]) -> list[str | None]:
    """Different verdicts, the good ones first, none at the end."""
    found = set(verdicts)
    return [*(v for v in ORDER if v in found), *sorted(v for v in found if v is not None and v not in MARKS)]


def legend_entries(verdicts: Iterable[str | None]) -> list[Any]:
    """Handles for a legend of the verdicts there are; nothing when there are none."""
    from matplotlib.lines import Line2D

    found = in_order(verdicts)
    if found == [None] or not found:
        return []
    return [Line2D([], [], linestyle="", markersize=8, label=v or "no verdict", **mark(v)) for v in found]
