"""Charts of a study: metric of all settings, learning curves, collapse-monitor readings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from labelwise.formatting import cut, number, percent
from labelwise.report.charts import (
    MUTED,
    Chart,
    file_name,
    grid,
    legend,
    legend_height,
    log_if_wide,
    mark,
    series_style,
    thinned,
    whole_epochs,
)
from labelwise.report.curves import Points, TrainingCurves
from labelwise.report.study_files import SettingFacts, StudyFacts, TrialEntry, TrialFacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINES = 8
MAX_ROWS = 40
OPTIMISER = "optimiser.name"
PANEL = 3.1

Measure = Callable[[TrialFacts], Points]


def grouping_field(study: StudyFacts) -> str | None:
    """The field by which settings are grouped: the optimiser, or the first one that is not a number."""
    names = [path for path in study.fields if path.endswith(OPTIMISER)]
    words = [path for path in study.fields if any(isinstance(s.values.get(path), str | bool) for s in study.settings)]
    return next(iter([*names, *words]), None)


def best_first(settings: Sequence[SettingFacts]) -> list[SettingFacts]:
    """Sort settings by the metric, then by the lower loss; settings with a failed or stopped seed come last.

    The mean of the remaining seeds would be biased: the missing ones may be the bad ones.
    """

    def key(setting: SettingFacts) -> tuple[bool, float, float]:
        best, loss = setting.mean("value"), setting.mean("loss")
        complete = all(trial.entry.status == "finished" for trial in setting.trials)
        return (complete, -math.inf if best is None else best, -(math.inf if loss is None else loss))

    return sorted(settings, key=key, reverse=True)


def chosen_settings(study: StudyFacts) -> list[SettingFacts]:
    """All settings if they are few; else the best per group and per verdict."""
    ranked = best_first(study.distinct)
    if len(ranked) <= MAX_LINES:
        return ranked
    field = grouping_field(study)
    best: dict[Any, SettingFacts] = {}
    for setting in ranked:
        best.setdefault(("group", str(setting.values.get(field)) if field else ""), setting)
        best.setdefault(("verdict", setting.verdict), setting)
    chosen = {id(setting) for setting in list(best.values())[:MAX_LINES]} | {id(ranked[0])}
    return [setting for setting in ranked if id(setting) in chosen][:MAX_LINES]


# --- all settings by the metric -----------------------------------------------------------------------


def overview_chart(study: StudyFacts) -> Chart | None:
    """The metric of every setting, one row per setting, the best on top."""
    ranked = [setting for setting in best_first(study.distinct) if setting.mean("value") is not None]
    if len(ranked) < 2:
        return None
    shown = ranked[:MAX_ROWS]
    names = [cut(setting.label, 44) for setting in shown]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, setting in enumerate(shown):
            values = [100 * value for value in setting.each("value")]
            axes.plot([min(values), max(values)], [row, row], color=MUTED, linewidth=2.5, solid_capstyle="round")
            axes.plot([sum(values) / len(values)], [row], linestyle="", markersize=8, **mark(setting.verdict))
        axes.set_yticks(range(len(shown)), names)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.margins(x=0.06)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"{study.metric}, %, on held-out documents")
        legend(figure, [], [setting.verdict for setting in shown], 7.2)

    summary = "; ".join(
        f"{setting.label}: {percent(setting.mean('value'))}" + (f" ({setting.verdict})" if setting.verdict else "")
        for setting in shown
    )
    omitted = f" The {len(ranked) - MAX_ROWS} worst are omitted." if len(ranked) > MAX_ROWS else ""
    description = f"{study.metric} in per cent, {summary}.{omitted}"
    return Chart("settings", f"{study.metric} of every setting", description, draw, 7.2, 1.3 + 0.26 * len(shown))


# --- learning curves ----------------------------------------------------------------------------------


def curve_charts(study: StudyFacts) -> list[Chart]:
    """Loss and metric by epoch of the chosen settings and, if there are many, of the best settings of each group."""
    shown, field = chosen_settings(study), grouping_field(study)
    many = len(study.distinct) > len(shown)
    title = "By epoch" if not many else "By epoch, the best of each group and verdict"
    charts = [_curves_chart("curves", title, shown, study)]
    if many and field is not None:
        groups = list(dict.fromkeys(str(setting.values.get(field)) for setting in study.distinct))
        for group in groups:
            own = [setting for setting in study.distinct if str(setting.values.get(field)) == group]
            own = best_first(own)[:MAX_LINES]
            if len(own) > 1 and len(groups) > 1:
                charts.append(_curves_chart(f"curves-{file_name(group)}", f"By epoch: {cut(group, 40)}", own, study))
    return [chart for chart in charts if chart is not None]


def _curves_chart(name: str, title: str, settings: Sequence[SettingFacts], study: StudyFacts) -> Chart | None:
    panels: list[tuple[str, float, Measure]] = [
        ("training loss", 1.0, lambda trial: trial.curves.loss),
        (f"{study.metric}, %", 100.0, lambda trial: trial.curves.metric),
    ]
    panels = [panel for panel in panels if _has_points(settings, panel[2])]
    if not panels:
        return None
    labels = [_legend_label(setting) for setting in settings]
    width = 4.9 * len(panels)

    def draw(figure: Figure) -> None:
        for axes, (words, scale, measure) in zip(grid(figure, len(panels), 2), panels, strict=True):
            for index, setting in enumerate(settings):
                _draw_band(axes, setting, measure, scale, index, labels[index])
            whole_epochs(axes)
            axes.set_ylabel(words)
            if words == "training loss":
                log_if_wide(axes)
                _draw_floor(axes, settings)
        legend(figure, figure.axes, [], width)

    summary = "; ".join(
        f"{label}: "
        + ", ".join(f"{words} {_ends(_mean_points(setting, measure), scale)}" for words, scale, measure in panels)
        for label, setting in zip(labels, settings, strict=True)
    )
    return Chart(name, title, f"By epoch, {summary}.", draw, width, 3.2 + legend_height(labels, width))


def collapse_chart(study: StudyFacts) -> Chart | None:
    """Readings of the collapse monitor by epoch."""
    return readings_chart("collapse", "Collapse monitor readings", chosen_settings(study))


def run_collapse_chart(curves: TrainingCurves) -> Chart | None:
    """Readings of the collapse monitor of a single run, if there are at least two."""
    if len(curves.readings.get("probe_loss", [])) < 2:
        return None
    trial = TrialFacts("", TrialEntry(verdict=curves.verdict or None), {}, curves, None)
    setting = SettingFacts("", {}, (trial,), label="this run")
    return readings_chart("collapse", "Collapse monitor readings", [setting])


def readings_chart(name: str, title: str, settings: Sequence[SettingFacts]) -> Chart | None:
    """The monitor's readings by epoch, one panel each."""
    panels: list[tuple[str, Measure, float | None, float | None]] = [
        ("loss over floor", lambda t: t.curves.above_floor, 1.0, None),
        ("1 − mean cosine", _distance, 1e-4, None),  # noqa: RUF001
        ("effective rank", lambda t: t.curves.readings.get("effective_rank", []), 1.0, 2.0),
        ("same first label, %", _most_frequent_label, None, 100.0),
        ("different first labels", lambda t: t.curves.readings.get("distinct", []), None, 2.0),
        ("attention entropy", lambda t: t.curves.readings.get("attention_entropy", []), 1.0, 1.0),
    ]  # title, measure, a dashed line, and the smallest upper limit of an axis from 0 (None: no axis from 0)
    panels = [panel for panel in panels if _has_points(settings, panel[1])]
    if not panels:
        return None
    labels = [_legend_label(setting) for setting in settings]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)

    def draw(figure: Figure) -> None:
        for axes, (words, measure, line, reach) in zip(grid(figure, len(panels), columns), panels, strict=True):
            for index, setting in enumerate(settings):
                _draw_band(axes, setting, measure, 1.0, index, labels[index])
            whole_epochs(axes)
            axes.set_title(words, fontsize=9.5)
            if line is not None:
                axes.axhline(line, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
            if reach is None:
                log_if_wide(axes)
            else:
                axes.set_ylim(0, 1.06 * max(reach, axes.get_ylim()[1] / 1.06))
        legend(figure, figure.axes, [], PANEL * columns)

    summary = "; ".join(
        f"{label}: " + ", ".join(f"{words} {_ends(_mean_points(s, measure), 1.0)}" for words, measure, _, _ in panels)
        for label, s in zip(labels, settings, strict=True)
    )
    width = PANEL * columns
    note = "Dashed lines: the floor, the loss of constant scores; one point; uniform attention."
    return Chart(
        name, title, f"By epoch, {summary}. {note}", draw, width, 2.4 * rows + 0.2 + legend_height(labels, width)
    )


def _distance(trial: TrialFacts) -> Points:
    return [(at, None if v is None else max(1 - v, 1e-8)) for at, v in trial.curves.readings.get("cosine", [])]


def _most_frequent_label(trial: TrialFacts) -> Points:
    return [(at, None if v is None else 100 * v) for at, v in trial.curves.readings.get("commonest", [])]


# --- helpers shared by the charts of a study ----------------------------------------------------------


def _legend_label(setting: SettingFacts) -> str:
    return cut(setting.label, 44) + (f" ({setting.verdict})" if setting.verdict else "")


def _has_points(settings: Sequence[SettingFacts], measure: Measure) -> bool:
    return any(value is not None for s in settings for trial in s.trials for _, value in measure(trial))


def _mean_points(setting: SettingFacts, measure: Measure) -> Points:
    """The mean over seeds at each epoch; None where one of them was not finite."""
    by_epoch: dict[float, list[float | None]] = {}
    for trial in setting.trials:
        for at, value in measure(trial):
            by_epoch.setdefault(round(at, 4), []).append(value)
    return [
        (at, None if any(v is None for v in values) else sum(v for v in values if v is not None) / len(values))
        for at, values in sorted(by_epoch.items())
    ]


def _draw_band(axes: Axes, setting: SettingFacts, measure: Measure, scale: float, index: int, label: str) -> None:
    """Draw the mean over seeds as a line, with a band from the lowest to the highest."""
    points = thinned(_mean_points(setting, measure), 300)
    style = series_style(index)
    if len(points) > 25:
        style["marker"] = ""
    values = [math.nan if v is None else scale * v for _, v in points]
    axes.plot([at for at, _ in points], values, label=label, **style)
    if len(setting.trials) > 1 and len(points) > 1:
        each = {at: [] for at, _ in points}
        for trial in setting.trials:
            for at, value in measure(trial):
                if round(at, 4) in each and value is not None:
                    each[round(at, 4)].append(scale * value)
        epochs = [at for at in each if each[at]]
        lows, highs = [min(each[at]) for at in epochs], [max(each[at]) for at in epochs]
        axes.fill_between(epochs, lows, highs, color=style["color"], alpha=0.15, linewidth=0)


def _ends(points: Points, scale: float) -> str:
    """A curve as text: its first and its last value."""
    if not points:
        return "not known"

    def word(value: float | None) -> str:
        return "not a number" if value is None else number(float(f"{scale * value:.4g}"))

    first, last = word(points[0][1]), word(points[-1][1])
    return last if len(points) == 1 else f"from {first} to {last}"


def _draw_floor(axes: Axes, settings: Sequence[SettingFacts]) -> None:
    """Draw the floor of the loss, if it is the same in all trainings."""
    floors = [t.curves.floor for s in settings for t in s.trials if t.curves.floor]
    if floors and max(floors) < 1.02 * min(floors):
        axes.axhline(sum(floors) / len(floors), color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="floor")
