"""Charts, and their rendering as SVG inside a page or as files.

A chart is a name, a title, a description for screen readers, and a function that draws it; matplotlib is imported only
when one is drawn. The same data always give the same bytes: no date, no random ids. In a page the colours become CSS
variables, so that the charts adapt to dark mode and print.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from labelwise.errors import MissingDependencyError
from labelwise.formatting import cut, number, percent
from labelwise.report.inspection import DocumentAttention, Inspection, PlanePoints
from labelwise.report.label_lines import FrequencyBin, LabelTable
from labelwise.report.schema import Calibration, Results
from labelwise.report.study_files import shown_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
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


# --- inspection plots ---
# Charts of a text model's internals: documents as points in a plane, attention between tokens by layer.
#
# Several runs are shown side by side on the same scale, so that a collapsed one is recognisable: one point, flat maps.

MAX_RUNS = 4
MIN_REACH = 0.3
"""Smallest range of the axes: vectors that are nearly one point should look like one."""
MAX_LAYERS = 6
MAX_COLUMNS = 3
GAP, TITLE_HEIGHT = 0.1, 0.3
"""Inches between maps side by side, and above each map for its title."""
_VERTICAL_TEXT: dict[str, Any] = {"rotation": 90, "fontsize": 9, "ha": "center", "va": "center", "linespacing": 1.3}

NamedInspections = Sequence[tuple[str, Inspection]]
MapCell = tuple[int, int, DocumentAttention, int]
"""Row, column, document, layer."""


def run_inspection_charts(inspection: Inspection | None) -> list[Chart]:
    """The charts of one run: its documents as points, and the attention of each inspected document by layer."""
    if inspection is None:
        return []
    charts = [points_chart([("", inspection)])]
    charts += [layers_chart(f"attention-{n}", "", one) for n, one in enumerate(inspection.attention, start=1)]
    return [chart for chart in charts if chart is not None]


def study_inspection_charts(runs: NamedInspections) -> list[Chart]:
    """The charts of several runs of a study: points, attention per document in all runs, attention per run by layer."""
    runs = list(runs)[:MAX_RUNS]
    charts = [points_chart(runs)]
    documents = dict.fromkeys(one.document for _, inspection in runs for one in inspection.attention)
    for index, document in enumerate(documents, start=1):
        maps = [(name, one) for name, inspection in runs for one in inspection.attention if one.document == document]
        if len(maps) > 1:
            charts.append(side_by_side_chart(f"attention-{index}", maps))
    for index, (name, inspection) in enumerate(runs, start=1):
        if inspection.attention:
            charts.append(layers_chart(f"layers-{index}", name, inspection.attention[0]))
    return [chart for chart in charts if chart is not None]


# --- documents as points ------------------------------------------------------------------------------


def points_chart(runs: NamedInspections) -> Chart | None:
    """Documents in the plane of their first two principal components, coloured by frequent labels, on one scale."""
    shown = [(name, one.points) for name, one in runs if one.points is not None and len(one.points.x) > 1]
    if not shown:
        return None
    labels = list(dict.fromkeys(label for _, points in shown for label in points.labels))[: len(SERIES) - 1]
    columns = len(shown) if len(shown) < MAX_RUNS else 2
    rows = -(-len(shown) // columns)
    reach = max(MIN_REACH, 1.08 * max(max(map(abs, (*points.x, *points.y))) for _, points in shown))

    def draw(figure: Figure) -> None:
        grid = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        for axes in grid[len(shown) :]:
            axes.remove()
        for axes, (name, points) in zip(grid, shown, strict=False):
            _scatter(axes, points, labels)
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
            axes.set_title(cut(name, 44) + ("\n" if name else "") + _spread(points), fontsize=9)
            axes.tick_params(labelsize=8)
        handles, names = grid[0].get_legend_handles_labels()
        legend_columns = 2 if max(map(len, names), default=0) > 26 else 3
        figure.legend(
            handles, names, loc="outside lower left", ncols=legend_columns, columnspacing=1.2, handletextpad=0.3
        )

    summary = "; ".join((f"{name}: " if name else "") + f"{len(p.x)} documents, {_spread(p)}" for name, p in shown)
    size = {1: 4.2, 3: 3.2}.get(columns, 3.5)
    title = "Documents as points"
    meaning = "Vectors of norm 1 along their first two principal components; mean cosine, and explained variance"
    legend = 0.2 * -(-(len(labels) + 1) // 2) + 0.3
    return Chart(
        "points", title, f"{meaning}: {summary}.", draw, max(5.2, columns * size), rows * (size + 0.2) + legend
    )


def _scatter(axes: Axes, points: PlanePoints, labels: Sequence[str]) -> None:
    indices = [labels.index(name) if name in labels else -1 for name in points.labels]
    colours = [indices[colour] if colour >= 0 else -1 for colour in points.colours]
    for index in range(-1, len(labels)):
        x = [value for value, colour in zip(points.x, colours, strict=True) if colour == index]
        y = [value for value, colour in zip(points.y, colours, strict=True) if colour == index]
        if index < 0:
            axes.plot(x, y, ".", color=MUTED, alpha=0.5, markersize=4, label="other labels")
        else:
            style: dict[str, Any] = {"marker": MARKERS[index], "color": SERIES[index], "markersize": 5}
            axes.plot(x, y, linestyle="", alpha=0.85, label=cut(labels[index], 40), **style)


def _spread(points: PlanePoints) -> str:
    cosine = "" if points.cosine is None else f"mean cosine {points.cosine:.4f}, "
    return f"{cosine}{percent(sum(points.shares), 0)} % of variance"


# --- attention ----------------------------------------------------------------------------------------


def layers_chart(name: str, run: str, one: DocumentAttention) -> Chart:
    """Attention of one document in one run, one map per layer."""
    layers = thinned(range(len(one.weights)), MAX_LAYERS)
    columns = min(MAX_COLUMNS, len(layers))
    cells = [(index // columns, index % columns, one, layer) for index, layer in enumerate(layers)]
    title = f"Attention by layer: {cut(one.document, 40)}" + (f", {cut(run, 60)}" if run else "")
    return _maps_chart(name, title, _describe([(run, one)]), cells, [])


def side_by_side_chart(name: str, maps: Sequence[tuple[str, DocumentAttention]]) -> Chart:
    """Attention of one document in several runs: one row per run, layers from first to last."""
    cells = [
        (row, column, one, layer)
        for row, (_, one) in enumerate(maps)
        for column, layer in enumerate(thinned(range(len(one.weights)), MAX_COLUMNS))
    ]
    title = f"Attention: {cut(maps[0][1].document, 60)}"
    return _maps_chart(name, title, _describe(maps), cells, [run for run, _ in maps])


def _maps_chart(name: str, title: str, description: str, cells: Sequence[MapCell], runs: Sequence[str]) -> Chart:
    """Maps in rows and columns on one scale, with tokens on the left and below."""
    rows, columns = 1 + max(cell[0] for cell in cells), 1 + max(cell[1] for cell in cells)
    size = min(3.6, max(2.0, 0.095 * max(len(cell[2].tokens) for cell in cells)))
    highest = max(value for cell in cells for layer in cell[2].weights for row in layer for value in row)
    left, right, above, below = (1.4 if runs else 0.95), 0.8, 0.62, 0.65
    width, height = left + columns * (size + GAP) + right, above + rows * (size + TITLE_HEIGHT) + below

    def draw(figure: Figure) -> None:
        # Positions are computed here: matplotlib's layout takes seconds with so many tokens.
        figure.set_layout_engine("none")
        for row, column, one, layer in cells:
            x, y = left + column * (size + GAP), height - above - row * (size + TITLE_HEIGHT) - size
            axes = figure.add_axes((x / width, y / height, size / width, size / height))
            is_last = not any(other[:2] == (row + 1, column) for other in cells)
            _draw_map(axes, one, layer, highest, left=column == 0, below=is_last)
            if column == 0 and runs:
                axes.text(-(left - 0.28) / size, 0.5, _two_lines(runs[row]), transform=axes.transAxes, **_VERTICAL_TEXT)
        _add_colour_bar(figure, (1 - (right - 0.12) / width, below / height, 0.13 / width, min(0.5, 2.6 / height)))

    return Chart(name, title, description, draw, width, height)


def _two_lines(run: str) -> str:
    """A run's name with its verdict on a second line."""
    name, bracket, verdict = cut(run, 60).rpartition(" (")
    return f"{name}\n({verdict}" if bracket else run


def _draw_map(axes: Axes, one: DocumentAttention, layer: int, highest: float, left: bool, below: bool) -> None:
    from matplotlib.colors import PowerNorm

    # The square root spreads the small weights, which most of a map consists of.
    axes.imshow(one.weights[layer], cmap="Blues", norm=PowerNorm(0.5, 0.0, highest or 1.0), interpolation="none")
    entropy = f", entropy {one.entropy[layer]:.3f}" if layer < len(one.entropy) else ""
    axes.set_title(f"layer {layer + 1}{entropy}", fontsize=9)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(GRID)
    tokens = [cut(token, 14) for token in one.tokens]
    axes.set_xticks(range(len(tokens)), tokens if below else [], rotation=90, fontsize=6.2)
    axes.set_yticks(range(len(tokens)), tokens if left else [], fontsize=6.2)
    axes.tick_params(length=0, pad=1.5)


def _add_colour_bar(figure: Figure, bounds: tuple[float, float, float, float]) -> None:
    image = figure.axes[0].images[0]
    bar = figure.colorbar(image, cax=figure.add_axes(bounds))
    bar.set_label("attention, mean over heads", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)  # type: ignore[attr-defined]


def _describe(maps: Sequence[tuple[str, DocumentAttention]]) -> str:
    one = maps[0][1]
    shown = f"{len(one.tokens)} of {one.n_tokens}" if len(one.tokens) < one.n_tokens else f"all {one.n_tokens}"
    runs = "; ".join(
        (f"{run}: " if run else "") + "entropy by layer " + ", ".join(f"{value:.3f}" for value in attention.entropy)
        for run, attention in maps
    )
    return (
        f"From each token (row) to each token (column), {shown} tokens: {' '.join(one.tokens)}. {runs}; 1 is uniform."
    )


# --- probability plots ---
# The charts of a calibration: probabilities against the truth, and precision and recall over thresholds.

Points = list[tuple[float, float]]


def reliability_chart(calibration: Calibration | None) -> Chart | None:
    """Reliability diagram: the fraction of correct labels over their mean score, before and after calibration."""
    if calibration is None:
        return None
    lines: dict[str, Points] = {
        name: [(100 * one.mean, 100 * one.share) for one in bins if one.mean is not None and one.share is not None]
        for name, bins in (("before", calibration.before), ("after", calibration.after))
    }
    if not lines["after"]:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="perfect")
        for index, (name, points) in zip((1, 0), lines.items(), strict=True):
            if points:
                axes.plot(*zip(*points, strict=True), label=f"{name} calibration", **series_style(index))
        axes.axvline(100 * calibration.threshold, color=INK, linewidth=1, linestyle=":", label="threshold")
        axes.set_xlabel("mean score, %")
        axes.set_ylabel("correct labels, %")
        legend_below(figure, axes, 4.8)

    summary = "; ".join(
        f"{name}: " + ", ".join(f"{correct:.0f} correct at {score:.0f}" for score, correct in points)
        for name, points in lines.items()
        if points
    )
    return Chart("reliability", "Probabilities against the truth", f"In per cent, {summary}.", draw)


def threshold_chart(calibration: Calibration | None) -> Chart | None:
    """Precision, recall and micro-F1 of the labels that reach a threshold, and the chosen threshold."""
    if calibration is None or len(calibration.curve) < 2:
        return None
    lines: dict[str, Points] = {
        name: [
            (100 * one.threshold, 100 * value) for one in calibration.curve if (value := getattr(one, key)) is not None
        ]
        for name, key in (("precision", "precision"), ("recall", "recall"), ("micro-F1", "f1"))
    }

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for index, (name, points) in enumerate(lines.items()):
            if points:
                style = series_style(index) | {"marker": ""}
                axes.plot(*zip(*points, strict=True), label=name, **style)
        axes.axvline(100 * calibration.threshold, color=INK, linewidth=1, linestyle=":", label="threshold")
        axes.set_xlabel("threshold, %")
        axes.set_ylabel("%")
        axes.set_ylim(0, 102)
        legend_below(figure, axes, 4.8)

    shown = [calibration.curve[round(part * (len(calibration.curve) - 1) / 4)] for part in range(5)]
    summary = "; ".join(
        f"at {percent(one.threshold, 0)}: precision {percent(one.precision, 1)}, recall {percent(one.recall, 1)}, "
        f"micro-F1 {percent(one.f1, 1)}"
        for one in shown
    )
    return Chart("thresholds", "Precision and recall by threshold", f"In per cent, {summary}.", draw)


# --- label plots ---
# How well labels are found, by their number of training documents.


def label_scores_chart(table: LabelTable, results: Results) -> Chart | None:
    """Precision and recall over labels that are about equally frequent, from rare to frequent ones."""
    bins = [one for one in table.bins if one.test or one.predicted]
    if len(bins) < 2:
        return None
    k = results.label_counts.k
    suffix = "" if k is None else f"@{k}"
    lines = {
        f"precision{suffix}": [(index, one.correct / one.predicted) for index, one in enumerate(bins) if one.predicted],
        f"recall{suffix}": [(index, one.correct / one.test) for index, one in enumerate(bins) if one.test],
    }

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for index, (name, points) in enumerate(lines.items()):
            if points:
                axes.plot([x for x, _ in points], [100 * y for _, y in points], label=name, **series_style(index))
        kept = range(0, len(bins), -(-len(bins) // 12))
        axes.set_xticks(kept, [number(bins[index].high) for index in kept])
        axes.minorticks_off()
        axes.set_xlabel("training documents of the label, at most")
        axes.set_ylabel("%")
        axes.set_ylim(0, 102)
        legend_below(figure, axes, 4.8)

    summary = "; ".join(
        f"{_range(one)} training documents ({number(one.labels)} labels): "
        f"precision {percent(one.correct / one.predicted if one.predicted else None, 1)}, "
        f"recall {percent(one.correct / one.test if one.test else None, 1)}"
        for one in bins
    )
    return Chart("label-scores", "Precision and recall by label frequency", f"In per cent, {summary}.", draw)


def _range(one: FrequencyBin) -> str:
    return number(one.low) if one.low == one.high else f"{number(one.low)}-{number(one.high)}"


# --- verdict marks ---
# Markers of the collapse monitor's verdicts in charts: a shape and a colour each, distinct also without colour.

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


# --- panels ---
# Helpers for charts of several panels with one legend below.

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
