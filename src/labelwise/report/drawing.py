"""Charts, and their rendering as SVG inside a page or as files.

A chart is a name, a title, a description for screen readers, and a function that draws it; matplotlib is imported only
when one is drawn. The same data always give the same bytes: no date, no random ids. In a page the colours become CSS
variables, so that the charts adapt to dark mode and print.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from labelwise.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#24292f", "#656d76", "#d9dee3", "#fffffe"
# Distinct for the colour-blind as well, and dark enough for thin lines on white.
SERIES = ("#0b6fb8", "#d1600a", "#11845b", "#8e4fb5", "#b8860b", "#c2356f", "#4a6572", "#2b9fb3")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
DASHES = ("-", "--", ":", "-.")

KINDS = ("svg", "png", "pdf")

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "labelwise",
    "text.parse_math": False,  # a dollar sign in the name of a run or metric is not math
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "axes.facecolor": "none",
    "axes.formatter.useoffset": False,  # or ticks of nearly constant values would be shown relative to an offset
}


@dataclass(frozen=True)
class Chart:
    """One chart. `draw` receives an empty figure of `width` x `height` inches."""

    name: str
    title: str
    description: str
    draw: Callable[[Figure], None]
    width: float = 4.8
    height: float = 3.2

    def inline_svg(self) -> str:
        """The chart as an SVG element for an HTML page, without title and background."""
        svg = self._render("svg", "none", titled=False).decode()
        return _inline(svg, self.name, f"{self.title}. {self.description}")

    def file(self, kind: str) -> bytes:
        """The chart with its title, on white, as the bytes of an SVG, PNG or PDF file."""
        return self._render(kind, "white", titled=True)

    def _render(self, kind: str, background: str, titled: bool) -> bytes:
        dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        buffer = io.BytesIO()
        with _matplotlib() as new_figure:
            figure = new_figure(self.width, self.height)
            self.draw(figure)
            if titled:
                figure.suptitle(self.title, x=0.01, horizontalalignment="left", fontsize=11)
            figure.savefig(buffer, format=kind, dpi=160, metadata=dates.get(kind), facecolor=background)
        return buffer.getvalue()


@contextmanager
def _matplotlib() -> Iterator[Callable[[float, float], Figure]]:
    """Matplotlib with our style, independent of the user's settings, without pyplot and its global state."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError("matplotlib", "report", "Writing a report") from None
    # A glyph missing from the font is still correct in the SVG, which contains the text.
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*missing")
        yield lambda width, height: Figure(figsize=(width, height), layout="constrained")


# --- helpers shared by the charts ---------------------------------------------------------------------


def series_style(index: int) -> dict[str, Any]:
    """Colour, marker and dash of a series by its index; from the ninth on the dashes distinguish them."""
    return {
        "color": SERIES[index % len(SERIES)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(SERIES) % len(DASHES)],
    }


def legend_below(figure: Figure, axes: Axes, width: float) -> None:
    """Add a legend below the axes, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    longest = max(len(label) for label in labels)
    columns = max(1, min(4, len(labels), int(width * 72 / (34 + 5.6 * longest))))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, handlelength=1.8, columnspacing=1.2)


def thinned(values: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the values, evenly spaced, including the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]


# --- SVG inside a page -------------------------------------------------------------------------------

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--page)",
    **{colour: f"var(--series-{index})" for index, colour in enumerate(SERIES, start=1)},
}
_COLOUR = re.compile("|".join(_VARIABLES))


def _inline(svg: str, name: str, description: str) -> str:
    """Convert Matplotlib's SVG file for use inside a page: no namespaces, no style sheet, unique ids."""
    root = ElementTree.fromstring(svg)
    for element in list(root.iter()):
        # A style sheet would apply to the whole page, and the metadata are redundant.
        for child in [child for child in element if _local(child.tag) in ("metadata", "style")]:
            element.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        attributes = {_local(key): _in_page(value, name) for key, value in element.attrib.items()}
        if element.tag == "image":
            attributes.pop("id", None)  # equal images have equal ids, which nothing refers to
        if "id" in attributes:
            attributes["id"] = f"{name}-{attributes['id']}"
        # A heat map is an image inside the SVG; all other references are to parts of the SVG.
        if "href" in attributes and not attributes["href"].startswith("data:image/png"):
            attributes["href"] = f"#{name}-{attributes['href'].removeprefix('#')}"
        element.attrib.clear()
        element.attrib.update(attributes)
        element.tail = None
        if element.tag != "text":
            element.text = None
    width = root.attrib.pop("width").removesuffix("pt")
    root.attrib.pop("height")
    root.attrib.pop("version", None)
    root.set("class", "chart")
    root.set("role", "img")
    root.set("aria-label", description)
    root.set("style", f"max-width: {round(float(width) * 1.5)}px")
    return ElementTree.tostring(root, encoding="unicode")


def _in_page(value: str, name: str) -> str:
    """An attribute with references prefixed by the chart's name and colours replaced by CSS variables."""
    return _COLOUR.sub(lambda match: _VARIABLES[match[0]], value.replace("url(#", f"url(#{name}-"))


def _local(tag: str) -> str:
    """'{http://www.w3.org/2000/svg}path' -> 'path'"""
    return tag.rpartition("}")[2]
