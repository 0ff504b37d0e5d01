"""The charts of a study: settings compared, learning curves, numbers that vary against what came out, the monitor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from labelwise.formatting import cut, number, percent
from labelwise.report.curves import Course, Points
from labelwise.report.drawing import MUTED, Chart, look, thinned
from labelwise.report.panels import file_name, grid, legend, legend_height, log_if_wide, whole_epochs
from labelwise.report.study_files import SettingFacts, StudyFacts, TrialEntry, TrialFacts
from labelwise.report.verdict_marks import mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINES = 8
MAX_ROWS = 40
OPTIMISER = "optimiser.name"
PANEL = 3.1

Measure = Callable[[TrialFacts], Points]


def lines_field(study: StudyFacts) -> str | None:
    """The field that tells kinds of settings apart: the optimiser, or the first one that is not a number."""
    names = [path for path in study.fields if path.endswith(OPTIMISER)]
    words = [path for path in study.fields if any(isinstance(s.values.get(path), str | bool) for s in study.settings)]
    return next(iter([*names, *words]), None)


def best_first(settings: Sequence[SettingFacts]) -> list[SettingFacts]:
    """Whole settings by the metric, then by the lower loss; then those of which a seed failed or was stopped.

    The mean of the seeds that are left says too much: the bad ones may be those that are missing.
    """

    def key(setting: SettingFacts) -> tuple[bool, float, float]:
        best, loss = setting.mean("value"), setting.mean("loss")
        whole = all(trial.entry.status == "finished" for trial in setting.trials)
        return (whole, -math.inf if best is None else best, -(math.inf if loss is None else loss))

    return sorted(settings, key=key, reverse=True)


def chosen_settings(study: StudyFacts) -> list[SettingFacts]:
    """All settings when they are few; else the best of every kind and of every verdict."""
    ranked = best_first(study.distinct)
    if len(ranked) <= MAX_LINES:
        return ranked
    field = lines_field(study)
    kinds: dict[Any, SettingFacts] = {}
    for setting in ranked:
        kinds.setdefault(("kind", str(setting.values.get(field)) if field else ""), setting)
        kinds.setdefault(("verdict", setting.verdict), setting)
    wanted = {id(setting) for setting in list(kinds.values())[:MAX_LINES]} | {id(ranked[0])}
    return [setting for setting in ranked if id(setting) in wanted][:MAX_LINES]


# --- all settings by the metric -----------------------------------------------------------------------


def overview_chart(study: StudyFacts) -> Chart | None:
    """Every setting's metric as a point on a line of its own, the best on top."""
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

    told = "; ".join(
        f"{setting.label}: {percent(setting.mean('value'))}" + (f" ({setting.verdict})" if setting.verdict else "")
        for setting in shown
    )
    left_out = f" The {len(ranked) - MAX_ROWS} worst are left out." if len(ranked) > MAX_ROWS else ""
    description = f"{study.metric} in per cent, {told}.{left_out}"
    return Chart("settings", f"{study.metric} of every setting", description, draw, 7.2, 1.3 + 0.26 * len(shown))


# --- learning curves ----------------------------------------------------------------------------------


def curve_charts(study: StudyFacts) -> list[Chart]:
    """Loss and metric by epoch of the chosen settings, and when there are many, of all settings of each kind."""
    shown, field = chosen_settings(study), lines_field(study)
    many = len(study.distinct) > len(shown)
    title = "By epoch" if not many else "By epoch, the best of each kind and verdict"
    charts = [_curves("curves", title, shown, study)]
    if many and field is not None:
        kinds = list(dict.fromkeys(str(setting.values.get(field)) for setting in study.distinct))
        for kind in kinds:
            own = [setting for setting in study.distinct if str(setting.values.get(field)) == kind]
            own = best_first(own)[:MAX_LINES]
            if len(own) > 1 and len(kinds) > 1:
                charts.append(_curves(f"curves-{file_name(kind)}", f"By epoch: {cut(kind, 40)}", own, study))
    return [chart for chart in charts if chart is not None]


def _curves(name: str, title: str, settings: Sequence[SettingFacts], study: StudyFacts) -> Chart | None:
    panels: list[tuple[str, float, Measure]] = [
        ("training loss", 1.0, lambda trial: trial.course.loss),
        (f"{study.metric}, %", 100.0, lambda trial: trial.course.metric),
    ]
    panels = [panel for panel in panels if _has_points(settings, panel[2])]
    if not panels:
        return None
    labels = [_told(setting) for setting in settings]
    width = 4.9 * len(panels)

    def draw(figure: Figure) -> None:
        for axes, (words, scale, measure) in zip(grid(figure, len(panels), 2), panels, strict=True):
            for place, setting in enumerate(settings):
                _band(axes, setting, measure, scale, place, labels[place])
            whole_epochs(axes)
            axes.set_ylabel(words)
            if words == "training loss":
                log_if_wide(axes)
                _floor_line(axes, settings)
        legend(figure, figure.axes, [], width)

    told = "; ".join(
        f"{label}: "
        + ", ".join(f"{words} {_ends(_mean_points(setting, measure), scale)}" for words, scale, measure in panels)
        for label, setting in zip(labels, settings, strict=True)
    )
    return Chart(name, title, f"By epoch, {told}.", draw, width, 3.2 + legend_height(labels, width))


def collapse_chart(study: StudyFacts) -> Chart | None:
    """What the monitor saw, by epoch."""
    return readings_chart("collapse", "What the collapse monitor saw", chosen_settings(study))


def run_collapse_chart(course: Course) -> Chart | None:
    """What the monitor saw of a single run, if it looked more than once."""
    if len(course.readings.get("probe_loss", [])) < 2:
        return None
    trial = TrialFacts("", TrialEntry(verdict=course.verdict or None), {}, course, None)
    setting = SettingFacts("", {}, (trial,), label="this run")
    return readings_chart("collapse", "What the collapse monitor saw", [setting])


def readings_chart(name: str, title: str, settings: Sequence[SettingFacts]) -> Chart | None:
    """The monitor's measurements by epoch, a panel each."""
    panels: list[tuple[str, Measure, float | None, float | None]] = [
        ("loss over floor", lambda t: t.course.above_floor, 1.0, None),
        ("1 − mean cosine", _distance, 1e-4, None),  # noqa: RUF001
        ("effective rank", lambda t: t.course.readings.get("effective_rank", []), 1.0, 2.0),
        ("same first label, %", _commonest, None, 100.0),
        ("different first labels", lambda t: t.course.readings.get("distinct", []), None, 2.0),
        ("attention entropy", lambda t: t.course.readings.get("attention_entropy", []), 1.0, 1.0),
    ]  # words, measure, a dashed line, and what an axis from 0 reaches at least (None: no axis from 0)
    panels = [panel for panel in panels if _has_points(settings, panel[1])]
    if not panels:
        return None
    labels = [_told(setting) for setting in settings]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)

    def draw(figure: Figure) -> None:
        for axes, (words, measure, line, reach) in zip(grid(figure, len(panels), columns), panels, strict=True):
            for place, setting in enumerate(settings):
                _band(axes, setting, measure, 1.0, place, labels[place])
            whole_epochs(axes)
            axes.set_title(words, fontsize=9.5)
            if line is not None:
                axes.axhline(line, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
            if reach is None:
                log_if_wide(axes)
            else:
                axes.set_ylim(0, 1.06 * max(reach, axes.get_ylim()[1] / 1.06))
        legend(figure, figure.axes, [], PANEL * columns)

    told = "; ".join(
        f"{label}: " + ", ".join(f"{words} {_ends(_mean_points(s, measure), 1.0)}" for words, measure, _, _ in panels)
        for label, s in zip(labels, settings, strict=True)
    )
    width = PANEL * columns
    note = "Dashed lines: the floor, the loss of scores that are the same for all; one point; uniform attention."
    return Chart(name, title, f"By epoch, {told}. {note}", draw, width, 2.4 * rows + 0.2 + legend_height(labels, width))


def _distance(trial: TrialFacts) -> Points:
    return [(at, None if v is None else max(1 - v, 1e-8)) for at, v in trial.course.readings.get("cosine", [])]


def _commonest(trial: TrialFacts) -> Points:
    return [(at, None if v is None else 100 * v) for at, v in trial.course.readings.get("commonest", [])]


# --- manners shared by the charts of a study ----------------------------------------------------------


def _told(setting: SettingFacts) -> str:
    return cut(setting.label, 44) + (f" ({setting.verdict})" if setting.verdict else "")


def _has_points(settings: Sequence[SettingFacts], measure: Measure) -> bool:
    return any(value is not None for s in settings for trial in s.trials for _, value in measure(trial))


def _mean_points(setting: SettingFacts, measure: Measure) -> Points:
    """The mean over seeds at each epoch; None where one of them had no number."""
    found: dict[float, list[float | None]] = {}
    for trial in setting.trials:
        for at, value in measure(trial):
            found.setdefault(round(at, 4), []).append(value)
    return [
        (at, None if any(v is None for v in values) else sum(v for v in values if v is not None) / len(values))
        for at, values in sorted(found.items())
    ]


def _band(axes: Axes, setting: SettingFacts, measure: Measure, scale: float, place: int, label: str) -> None:
    """A line of the mean over seeds, with a shade from the lowest to the highest."""
    points = thinned(_mean_points(setting, measure), 300)
    style = look(place)
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
        places = [at for at in each if each[at]]
        lows, highs = [min(each[at]) for at in places], [max(each[at]) for at in places]
        axes.fill_between(places, lows, highs, color=style["color"], alpha=0.15, linewidth=0)


def _ends(points: Points, scale: float) -> str:
    """A curve in words: its first and its last value."""
    if not points:
        return "not known"

    def word(value: float | None) -> str:
        return "not a number" if value is None else number(float(f"{scale * value:.4g}"))

    first, last = word(points[0][1]), word(points[-1][1])
    return last if len(points) == 1 else f"from {first} to {last}"


def _floor_line(axes: Axes, settings: Sequence[SettingFacts]) -> None:
    """The floor of the loss, if all trainings have the same."""
    floors = [t.course.floor for s in settings for t in s.trials if t.course.floor]
    if floors and max(floors) < 1.02 * min(floors):
        axes.axhline(sum(floors) / len(floors), color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="floor")
