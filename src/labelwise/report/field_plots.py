"""Charts of a numeric setting (a rate, a decay, a size) against the final loss and the best metric.

Settings on one line differ only in that number. Points are marked by their verdict.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labelwise.formatting import cut, number, percent
from labelwise.report.charts import (
    Chart,
    file_name,
    grid,
    legend,
    legend_height,
    log_if_wide,
    mark,
    series_style,
    sorted_verdicts,
)
from labelwise.report.study_files import (
    SettingFacts,
    StudyFacts,
    is_number,
    setting_label,
    shown_value,
)
from labelwise.report.wording import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINES = 12
MAX_SINGLE = 6
"""Most settings that are not on a line and are still shown."""
LOG_AXIS_RATIO = 20.0
"""Ratio of the largest to the smallest value from which on an axis is logarithmic."""


@dataclass(frozen=True)
class Line:
    """Settings that differ in one number only, sorted by that number."""

    label: str
    settings: list[SettingFacts]
    scattered: bool = False
    """Other fields differ too, as in a random search: points without a connecting line."""


def field_charts(study: StudyFacts) -> list[Chart]:
    """One chart per numeric field that varies while others are fixed."""
    charts = []
    for path in study.fields:
        lines = lines_over(study, path)
        if lines:
            charts.append(_chart(study, path, lines))
    return charts


def lines_over(study: StudyFacts, path: str) -> list[Line]:
    """The lines of a field's chart; all settings as scattered points if the other fields vary too (random search)."""
    known = [s for s in study.distinct if is_number(s.values.get(path)) and _has_result(s)]
    if len({s.values[path] for s in known}) < 2:
        return []
    others = [other for other in study.fields if other != path]
    grouped: dict[str, list[SettingFacts]] = {}
    for setting in known:
        key = json.dumps([setting.values.get(other) for other in others], sort_keys=True)
        grouped.setdefault(key, []).append(setting)
    lines = [Line(_label(own[0], others, study), sorted(own, key=lambda s: s.values[path])) for own in grouped.values()]
    full = [line for line in lines if len({s.values[path] for s in line.settings}) > 1]
    single = [line for line in lines if line not in full]
    if not full:
        spread = len({s.values[path] for s in known}) >= 4
        return [Line("", sorted(known, key=lambda s: s.values[path]), scattered=True)] if spread else []
    return full[:MAX_LINES] + (single if len(single) <= MAX_SINGLE else [])


def _has_result(setting: SettingFacts) -> bool:
    return bool(setting.each("best") or any(trial.curves.loss for trial in setting.trials))


def _label(setting: SettingFacts, others: Sequence[str], study: StudyFacts) -> str:
    return setting_label({path: setting.values.get(path) for path in others}, study.fields)


def _chart(study: StudyFacts, path: str, lines: list[Line]) -> Chart:
    name = words(study.fields[path])
    panels = [("final training loss", "loss", 1.0), (f"best {study.metric}, %", "best", 100.0)]
    shown = [s for line in lines for s in line.settings]
    panels = [panel for panel in panels if any(s.each(panel[1]) for s in shown)]
    labels = [cut(line.label, 50) for line in lines if line.label]
    verdicts = sorted_verdicts(s.verdict for s in shown)
    width = 4.9 * len(panels)

    def draw(figure: Figure) -> None:
        axis = _Axis([s.values[path] for s in shown])
        for axes, (title, what, scale) in zip(grid(figure, len(panels), 2), panels, strict=True):
            for index, line in enumerate(lines):
                _draw_line(axes, line, axis, path, what, scale, index)
            if what == "loss":
                log_if_wide(axes)
            _mark_diverged(axes, shown, axis, path, what)
            axis.finish(axes, name)
            axes.set_ylabel(title)
        legend(figure, figure.axes, verdicts, width)

    summary = "; ".join(
        (f"{line.label}: " if line.label else "")
        + ", ".join(f"{name} {shown_value(s.values[path])}: {_result(s, study.metric)}" for s in line.settings)
        for line in lines
    )
    height = 3.2 + legend_height([*labels, *(v or "" for v in verdicts if v)], width)
    title = f"{' and '.join(cut(panel[0].removesuffix(', %'), 30) for panel in panels)} by {name}"
    return Chart(f"by-{file_name(name)}", title[0].upper() + title[1:], f"{summary}.", draw, width, height)


def _result(setting: SettingFacts, metric: str) -> str:
    loss, best = setting.mean("loss"), setting.mean("best")
    parts = [] if loss is None else [f"loss {number(float(f'{loss:.4g}'))}"]
    parts += [] if best is None else [f"{metric} {percent(best)} %"]
    parts += [setting.verdict] if setting.verdict else []
    return " ".join(parts) or "no result"


def _draw_line(axes: Axes, line: Line, axis: _Axis, path: str, what: str, scale: float, index: int) -> None:
    points = [(axis.position(s.values[path]), s) for s in line.settings if s.each(what)]
    heights = [scale * (s.mean(what) or 0.0) for _, s in points]
    colour, label = series_style(index)["color"], cut(line.label, 50) or None
    single = len(line.settings) == 1
    style: dict[str, Any] = {
        "color": colour,
        "linestyle": "" if line.scattered or single else series_style(index)["linestyle"],
    }
    if single:  # a ring in the legend, as around the point
        style |= {"marker": "o", "markerfacecolor": "none", "markeredgewidth": 1.6, "markersize": 8.5}
    axes.plot([at for at, _ in points], heights, label=label, **style)
    for (at, setting), height in zip(points, heights, strict=True):
        each = [scale * value for value in setting.each(what)]
        if len(each) > 1:
            axes.plot([at, at], [min(each), max(each)], color=colour, linewidth=1.2)
        edge = {"edge": colour} if single and line.label else {}
        axes.plot([at], [height], linestyle="", markersize=8.5, **mark(setting.verdict, **edge))


def _mark_diverged(axes: Axes, shown: Sequence[SettingFacts], axis: _Axis, path: str, what: str) -> None:
    """Mark losses that were not finite at the upper edge."""
    if what != "loss":
        return
    for setting in shown:
        if not setting.each("loss") and any(trial.curves.loss for trial in setting.trials):
            at = axis.position(setting.values[path])
            style = mark(setting.verdict or "diverged")
            axes.plot(
                [at], [1.0], linestyle="", markersize=9, transform=axes.get_xaxis_transform(), clip_on=False, **style
            )


class _Axis:
    """Positions of values on the axis: linear, logarithmic, or evenly spaced for 0 and values of different scale."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = sorted(set(values))
        positive = [value for value in self.values if value > 0]
        wide = bool(positive) and positive[-1] / positive[0] >= LOG_AXIS_RATIO
        self.log = wide and len(positive) == len(self.values)
        few = len(self.values) <= 8
        self.evenly_spaced = few and not self.log and len(positive) > 1 and positive[-1] / positive[0] >= 5

    def position(self, value: float) -> float:
        """The position of a value on the axis."""
        return float(self.values.index(value)) if self.evenly_spaced else value

    def finish(self, axes: Axes, name: str) -> None:
        """Set scale, ticks and label."""
        if self.log:
            axes.set_xscale("log")
        if self.log and len(self.values) <= 8:
            self._ticks(axes, self.values)
        elif self.evenly_spaced:
            self._ticks(axes, list(range(len(self.values))))
        axes.margins(x=0.08, y=0.12)
        axes.set_xlabel(name)

    def _ticks(self, axes: Axes, positions: Sequence[Any]) -> None:
        axes.set_xticks(positions, [shown_value(value) for value in self.values])
        axes.minorticks_off()
