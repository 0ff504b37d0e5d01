"""Charts that compare runs: scores by k, score against training time, recall from head to tail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labelwise.formatting import cut, duration, percent
from labelwise.report.charts import SERIES, Chart, legend_below, series_style
from labelwise.report.plots import families, group_title, k_axis
from labelwise.report.schema import Results
from labelwise.report.wording import sorted_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_RUNS = 24
MAX_BARS = 8
MAX_FAMILIES = 6

NamedRuns = Sequence[tuple[str, Results]]


def comparison_charts(runs: NamedRuns) -> list[Chart]:
    """All charts for which there are data; `runs` are names and results, at most the first 24 are drawn."""
    runs = [(cut(name, 36) or "run", results) for name, results in runs[:MAX_RUNS]]
    charts = [time_chart(runs), groups_chart(runs[:MAX_BARS])]
    return [*family_charts(runs), *(chart for chart in charts if chart is not None)]


def _height(names: Sequence[str]) -> float:
    """Height of a chart with room for the legend, which has about one name per line when names are long."""
    columns = max(1, min(4, len(names), int(4.8 * 72 / (34 + 5.6 * max(map(len, names))))))
    return 2.9 + 0.19 * -(-len(names) // columns)


def family_charts(runs: NamedRuns) -> list[Chart]:
    """One chart per family of metrics, with one line per run."""
    by_family: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, results in runs:
        for family, points in families(results.evaluation.values).items():
            by_family.setdefault(family, {})[name] = points
    indices = {name: index for index, (name, _) in enumerate(runs)}
    order = [metric.removesuffix("@1") for metric in sorted_metrics(f"{family}@1" for family in by_family)]
    return [
        _family_chart(index, family, by_family[family], indices)
        for index, family in enumerate(order[:MAX_FAMILIES], start=1)
    ]


def _family_chart(index: int, family: str, lines: dict[str, list[tuple[int, float]]], indices: dict[str, int]) -> Chart:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, points in lines.items():
            axes.plot([k for k, _ in points], [100 * v for _, v in points], label=name, **series_style(indices[name]))
        k_axis(axes, sorted({k for points in lines.values() for k, _ in points}))
        axes.set_ylabel(f"{cut(family, 20)}@k, %")
        legend_below(figure, axes, 4.8)

    summary = "; ".join(
        f"{name}: " + ", ".join(f"{percent(value, 1)} at {k}" for k, value in points) for name, points in lines.items()
    )
    height = _height(list(lines))
    return Chart(f"family-{index}", f"{cut(family, 20)}@k", f"In per cent, {summary}.", draw, height=height)


def time_chart(runs: NamedRuns) -> Chart | None:
    """The first metric against training time."""
    metric = next(iter(sorted_metrics(metric for _, results in runs for metric in results.evaluation.values)), None)
    points = [
        (index, name, fit, value)
        for index, (name, results) in enumerate(runs)
        if metric is not None
        and (fit := results.timings.get("fit"))
        and (value := results.evaluation.values.get(metric)) is not None
    ]
    if len(points) < 2 or metric is None:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for index, name, fit, value in points:
            style = series_style(index) | {"linestyle": ""}
            axes.plot([fit], [100 * value], label=name, markersize=8, **style)
        if max(point[2] for point in points) > 5 * min(point[2] for point in points):
            axes.set_xscale("log")
        axes.margins(0.12)
        ticks = _time_ticks(*axes.get_xlim(), axes.get_xscale() == "log")
        axes.set_xticks(ticks, [_tick(seconds) for seconds in ticks])
        axes.minorticks_off()
        axes.set_xlabel("time to train")
        axes.set_ylabel(f"{cut(metric, 20)}, %")
        legend_below(figure, axes, 4.8)

    summary = "; ".join(f"{name}: {percent(value, 1)} after {duration(fit)}" for _, name, fit, value in points)
    height = _height([name for _, name, _, _ in points])
    return Chart("time", f"{cut(metric, 20)} against training time", f"In per cent, {summary}.", draw, height=height)


def _time_ticks(low: float, high: float, log: bool) -> list[float]:
    """Ticks at round times: seconds, minutes, hours and days, not powers of ten."""
    if log:
        marks = [10.0**power for power in range(-6, 2)] + [60, 600, 3600, 36_000]
        marks += [86_400 * 10.0**power for power in range(8)]
        return [mark for mark in marks if low <= mark <= high]
    steps = [10.0**power * times for power in range(-6, 1) for times in (1, 2, 5)] + [10, 20, 30]
    steps += [60 * minutes for minutes in (1, 2, 5, 10, 20, 30, 60, 120, 360, 720)]
    steps += [86_400 * 10.0**power * times for power in range(8) for times in (1, 2, 5)]
    step = next((step for step in steps if (high - low) / step <= 6), steps[-1])
    first = math.ceil(max(low, 0) / step)
    return [step * index for index in range(first, first + 8) if step * index <= high]


def _tick(seconds: float) -> str:
    """A round time in one unit."""
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= length and seconds % (length / 2) < 1e-9 * length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s" if seconds >= 0.1 or seconds == 0 else f"{1000 * seconds:g} ms"


def groups_chart(runs: NamedRuns) -> Chart | None:
    """Recall per frequency group at the largest k that all runs have, one bar per run."""
    with_groups = [(index, name, results.evaluation.groups) for index, (name, results) in enumerate(runs)]
    with_groups = [entry for entry in with_groups if any(group.recall for group in entry[2])]
    common = [set.union(*(set(group.recall) for group in groups)) for _, _, groups in with_groups]
    ks = set.intersection(*common) if common else set()
    if len(with_groups) < 2 or not ks:
        return None
    k = max(ks)
    every = [group for _, _, groups in with_groups for group in groups]
    names = list(dict.fromkeys(group.name for group in every if group.occurrences))
    if not names:
        return None
    # A group's size is only shown below its bars if it is the same in all runs.
    sizes = {group.name: group.labels for group in every}
    same_sizes = all(sizes[group.name] == group.labels for group in every)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        step = 0.82 / len(with_groups)
        for bar, (index, name, groups) in enumerate(with_groups):
            heights = {group.name: 100 * (group.recall.get(k) or 0) for group in groups}
            x = [position + (bar - (len(with_groups) - 1) / 2) * step for position in range(len(names))]
            values = [heights.get(title, 0) for title in names]
            axes.bar(x, values, step * 0.92, color=SERIES[index % len(SERIES)], label=name)
        axes.set_xticks(
            range(len(names)), [group_title(title, sizes[title] if same_sizes else None) for title in names]
        )
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel(f"recall@{k}, %")
        legend_below(figure, axes, 4.8)

    summary = "; ".join(
        f"{name}: " + ", ".join(f"{group.name} {percent(group.recall.get(k))}" for group in groups)
        for _, name, groups in with_groups
    )
    height = _height([name for _, name, _ in with_groups])
    return Chart("groups", f"Recall@{k} from head to tail", f"In per cent, {summary}.", draw, height=height)
