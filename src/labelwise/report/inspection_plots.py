"""Charts of a text model's internals: documents as points in a plane, attention between tokens by layer.

Several runs are shown side by side on the same scale, so that a collapsed one is recognisable: one point, flat maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labelwise.formatting import cut, percent
from labelwise.report.drawing import GRID, MARKERS, MUTED, SERIES, Chart, thinned
from labelwise.report.inspection import DocumentAttention, Inspection, PlanePoints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
