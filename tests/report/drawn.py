"""Charts drawn on a figure of matplotlib, to look at what is on it rather than at pixels."""

from __future__ import annotations

import math

from labelwise.report.charts import Chart, _matplotlib

EMPTY = {
    "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9pt" height="9pt"/>',
    "png": b"\x89PNG\r\n",
    "pdf": b"%PDF-",
}


def leave_out_drawing(monkeypatch) -> None:
    """Charts are empty pictures with their descriptions, where a test is about something else: drawing takes seconds."""
    monkeypatch.setattr(Chart, "_render", lambda chart, kind, *how, **more: EMPTY[kind])


def draw_once(monkeypatch) -> None:
    """Let a chart that is written several times be drawn once, where the test is about its files."""
    drawn, render = {}, Chart._render

    def remembered(chart, *how, **more):
        key = (chart.name, chart.title, chart.description, chart.width, chart.height, how, *sorted(more.items()))
        if key not in drawn:
            drawn[key] = render(chart, *how, **more)
        return drawn[key]

    monkeypatch.setattr(Chart, "_render", remembered)


def draw_files_of(monkeypatch, name) -> None:
    """Let only the files of one chart be drawn, where the test is about which files there are."""
    file = Chart.file
    monkeypatch.setattr(Chart, "file", lambda chart, kind: file(chart, kind) if chart.name == name else EMPTY[kind])


def figure_of(chart: Chart):
    """The figure as it is drawn."""
    with _matplotlib() as new_figure:
        figure = new_figure(chart.width, chart.height)
        chart.draw(figure)
        figure.canvas.draw()
    return figure


def line_points(axes) -> dict[str, list[tuple[float, float]]]:
    """Points of each line that has a name, those that are numbers."""
    named = {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}
    return {
        label: [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True) if not math.isnan(y)]
        for label, line in named.items()
    }


def marked_points(axes) -> set[tuple[str, float, float]]:
    """Markers that stand alone, as shape and place: the points with a verdict."""
    return {
        (str(line.get_marker()), float(line.get_xdata()[0]), round(float(line.get_ydata()[0]), 6))
        for line in axes.get_lines()
        if len(line.get_xdata()) == 1 and line.get_marker() not in ("", "None", None) and line.get_label()[0] == "_"
    }
