"""The charts of one run: scores by k, head to tail, label frequencies, learning curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.data.stream import write_stream
from labelwise.errors import ConfigError, DataError, did_you_mean
from labelwise.formatting import cut, number, percent
from labelwise.report.charts import (
    INK,
    KINDS,
    MUTED,
    PAPER,
    SERIES,
    Chart,
    label_scores_chart,
    legend_below,
    reliability_chart,
    run_inspection_charts,
    series_style,
    thinned,
    threshold_chart,
)
from labelwise.report.curves import READINGS, read_training_curves
from labelwise.report.inspection import read_inspection
from labelwise.report.run_files import Run, read_run
from labelwise.report.schema import Curve, Evaluation, LabelGroup, Results
from labelwise.report.study_plots import run_collapse_chart
from labelwise.report.wording import bar_percent, family_and_k, sorted_metrics, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CURVES = 12
NOT_CURVES = ("time", "step", "stage", "split", "part", "epoch")
MAX_LINES = 8
MAX_POINTS = 400

Points = list[tuple[float, float]]


def save_plots(
    run_folder: str | Path, out_folder: str | Path, kinds: Sequence[str] = ("svg", "png"), force: bool = False
) -> list[Path]:
    """Write every chart of a run as files.

    Parameters
    ----------
    run_folder
        The run.
    out_folder
        Folder for the files; created if necessary.
    kinds
        Any of svg, png, pdf.
    force
        Replace existing files; otherwise an existing file is an error and nothing is written.

    Returns
    -------
    list of Path
        The files written, by chart and type.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"kinds: there is no file type '{kind}' for plots; {did_you_mean(kind, KINDS)}")
    charts = run_charts(read_run(run_folder))
    files = {Path(out_folder) / f"{chart.name}.{kind}": (chart, kind) for chart in charts for kind in kinds}
    for path in files:
        if path.exists() and not force:
            raise DataError(f"{path} exists already; --force replaces it")
    for path, (chart, kind) in files.items():
        content = chart.file(kind)
        with write_stream(path) as file:
            file.write(content)
    return list(files)


def run_charts(run: Run) -> list[Chart]:
    """All charts for which there are data, in the order of the report."""
    charts: list[Chart | None] = []
    if run.results is not None:
        evaluation = run.results.evaluation
        charts += [scores_chart(run.results), recall_chart(evaluation.groups), contribution_chart(evaluation)]
        charts += [label_scores_chart(run.labels, run.results)] if run.labels else []
        charts += [reliability_chart(run.results.calibration), threshold_chart(run.results.calibration)]
        charts += [frequency_chart(run.results.frequency_curve)]
    collapse = run_collapse_chart(read_training_curves(run.metrics, ""))
    charts += [*learning_charts(run.metrics, without=READINGS if collapse else ()), collapse]
    charts += run_inspection_charts(read_inspection(run.folder))
    return [chart for chart in charts if chart is not None]


# --- scores by k --------------------------------------------------------------------------------------


def families(values: dict[str, float | None]) -> dict[str, list[tuple[int, float]]]:
    """Group {'P@1': 0.9, ...} to {'P': [(1, 0.9), ...]}, for families with at least two k."""
    by_family: dict[str, list[tuple[int, float]]] = {}
    for metric in sorted_metrics(values):
        family, k = family_and_k(metric)
        value = values[metric]
        if k is not None and value is not None:
            by_family.setdefault(family, []).append((k, value))
    return {family: points for family, points in by_family.items() if len(points) > 1}


def scores_chart(results: Results) -> Chart | None:
    """Each family of metrics as a line over k with its intervals; the baseline thin and dashed."""
    evaluation, baseline = results.evaluation, results.baseline
    lines = dict(list(families(evaluation.values).items())[:MAX_LINES])
    if not lines:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        baselines = families(baseline.values) if baseline else {}
        for index, (family, points) in enumerate(lines.items()):
            ks, values = [k for k, _ in points], [100 * value for _, value in points]
            style = series_style(index)
            axes.plot(ks, values, label=f"{cut(family, 20)}@k", **style)
            spans = [(k, evaluation.intervals.get(f"{family}@{k}")) for k in ks]
            for k, span in spans:
                if span is not None:
                    axes.plot([k, k], [100 * span[0], 100 * span[1]], color=style["color"], linewidth=1.2)
            if family in baselines:
                low = [(k, 100 * value) for k, value in baselines[family] if k in ks]
                axes.plot(*zip(*low, strict=True), color=style["color"], linestyle=(0, (1, 2)), linewidth=1.2)
        if baseline and baselines:
            axes.plot([], [], color=MUTED, linestyle=(0, (1, 2)), linewidth=1.2, label=cut(baseline.method, 20))
        k_axis(axes, sorted({k for points in lines.values() for k, _ in points}))
        axes.set_ylabel("%")
        axes.set_ylim(bottom=0)
        legend_below(figure, axes, 4.8)

    summary = "; ".join(
        f"{family}: " + ", ".join(f"{percent(value, 1)} at {k}" for k, value in points)
        for family, points in lines.items()
    )
    return Chart("scores", "Scores by k", f"In per cent, {summary}.", draw)


def k_axis(axes: Axes, ks: Sequence[int]) -> None:
    """Put ticks at the evaluated k; logarithmic if they differ by orders of magnitude."""
    if ks[0] > 0 and ks[-1] / ks[0] > 30:
        axes.set_xscale("log")
    axes.set_xticks(thinned(ks, 10), [str(k) for k in thinned(ks, 10)])
    axes.minorticks_off()
    axes.set_xlabel("k, the number of predicted labels evaluated")
    axes.grid(axis="x", visible=False)


# --- head to tail -------------------------------------------------------------------------------------


def recall_chart(groups: Sequence[LabelGroup]) -> Chart | None:
    """Recall per frequency group, by k."""
    groups = [group for group in groups if group.recall and group.occurrences != 0]
    ks = thinned(sorted({k for group in groups for k in group.recall}), 4)
    if not ks:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        step = 0.8 / len(ks)
        size = 8 if len(ks) * len(groups) <= 12 else 6.5  # or the numbers above neighbouring bars would overlap
        for index, k in enumerate(ks):
            offset = (index - (len(ks) - 1) / 2) * step
            heights = [100 * (group.recall.get(k) or 0) for group in groups]
            x = [position + offset for position in range(len(groups))]
            axes.bar(x, heights, step * 0.92, color=PAPER)  # or the grid would show through the shades
            shade = 0.35 + 0.65 * (index + 1) / len(ks)
            bars = axes.bar(x, heights, step * 0.92, color=SERIES[0], alpha=shade, label=f"in the top {k}")
            known = [group.recall.get(k) is not None for group in groups]
            shown = [bar_percent(height) if is_known else "" for height, is_known in zip(heights, known, strict=True)]
            axes.bar_label(bars, shown, fontsize=size, color=INK, padding=1)
        axes.set_xticks(range(len(groups)), [group_title(group.name, group.labels) for group in groups])
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("recall, %")
        legend_below(figure, axes, 4.8)

    summary = "; ".join(
        f"{group.name}: " + ", ".join(f"{percent(group.recall.get(k))} in the top {k}" for k in ks) for group in groups
    )
    return Chart("groups", "Recall from head to tail", f"In per cent, {summary}.", draw)


def group_title(name: str, n_labels: int | None) -> str:
    """A group's name above its number of labels."""
    return cut(name, 16) + (f"\n{number(n_labels)} labels" if n_labels is not None else "")


def contribution_chart(evaluation: Evaluation) -> Chart | None:
    """The contribution of each group to P@k, as stacked bars."""
    groups = [group for group in evaluation.groups if any(group.contribution.values())]
    ks = sorted({k for group in groups for k, value in group.contribution.items() if value is not None})
    ks = thinned(ks, 8)
    if not ks:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        left = [0.0] * len(ks)
        for index, group in enumerate(groups):
            widths = [100 * (group.contribution.get(k) or 0) for k in ks]
            axes.barh(
                range(len(ks)),
                widths,
                0.62,
                left=left,
                color=SERIES[index % len(SERIES)],
                label=cut(group.name, 16),
            )
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(ks)), [f"k = {k}" for k in ks])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("contribution to P@k, percentage points")
        legend_below(figure, axes, 4.8)

    summary = "; ".join(
        f"{group.name}: " + ", ".join(f"{percent(group.contribution.get(k))} of P@{k}" for k in ks) for group in groups
    )
    return Chart("contribution", "Where the correct predictions come from", f"Percentage points, {summary}.", draw)


# --- label frequencies --------------------------------------------------------------------------------


def frequency_chart(curve: Curve | None) -> Chart | None:
    """Training documents per label over the label's rank, both on log axes."""
    if curve is None:
        return None
    points = [(rank, count) for rank, count in zip(curve.rank, curve.count, strict=False) if rank > 0 and count > 0]
    if len(points) < 2:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(*zip(*_thinned_in_log(points), strict=True), color=SERIES[0])
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: number(value))
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
        axes.minorticks_off()
        axes.set_xlabel("label, from the most to the least frequent")
        axes.set_ylabel("training documents")

    (first, most), (last, least) = points[0], points[-1]
    ends = f"from {number(most)} at rank {number(first)} to {number(least)} at rank {number(last)}"
    return Chart("frequencies", "How often labels occur", f"Training documents per label, {ends}.", draw)


def _thinned_in_log(points: Points) -> Points:
    """At most one point per 1/300 of the log axis, and always the last; more would not be visible."""
    if len(points) <= MAX_POINTS:
        return points
    width = math.log(points[-1][0] / points[0][0]) / 300 or 1.0
    kept = {int(math.log(point[0] / points[0][0]) / width): point for point in reversed(points)}
    return sorted({*kept.values(), points[-1]})


# --- learning curves ----------------------------------------------------------------------------------


def learning_charts(entries: Sequence[dict[str, Any]], without: Sequence[str] = ()) -> list[Chart]:
    """One chart per number recorded at two or more steps, with lines for train, valid and other parts.

    Names in `without` are left out, because another chart shows them.
    """
    charts: dict[str, dict[str, dict[float, float]]] = {}
    for entry in entries:
        step: Any = entry.get("step")
        if not _is_number(step):
            continue
        line = _line_of(entry)
        for name, value in entry.items():
            if name not in NOT_CURVES and name not in without and _is_number(value):
                # The loss on held-out documents is drawn in the chart of the training loss.
                chart_name = "loss" if name == "valid_loss" else name
                # A resumed run repeats some steps: the later value counts.
                charts.setdefault(chart_name, {}).setdefault(line, {})[step] = value
    result = []
    for name, lines in charts.items():
        long_enough = {line: sorted(points.items()) for line, points in lines.items() if len(points) > 1}
        if long_enough:
            result.append(_learning_chart(len(result) + 1, name, long_enough))
    return result[:MAX_CURVES]


def _line_of(entry: dict[str, Any]) -> str:
    """Name of the curve an entry belongs to: the part trained and the split evaluated, else the stage."""
    part, split = entry.get("part"), entry.get("split")
    if part == "train":
        return str(split or part)
    named = (part or entry.get("stage"), split)
    return " ".join(str(word) for word in named if word not in (None, ""))


def _learning_chart(index: int, name: str, lines: dict[str, Points]) -> Chart:
    shown = dict(list(lines.items())[:MAX_LINES])
    is_fraction = family_and_k(name)[1] is not None and all(0 <= v <= 1 for points in shown.values() for _, v in points)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for series, (line, points) in enumerate(shown.items()):
            steps, values = zip(*thinned(points, MAX_POINTS), strict=True)
            heights = [100 * value for value in values] if is_fraction else list(values)
            style = series_style(series)
            if len(steps) > 25:
                style["marker"] = ""
            axes.plot(steps, heights, label=cut(words(line), 30) or None, **style)
        axes.set_xlabel("step")
        axes.set_ylabel(cut(words(name), 30) + (", %" if is_fraction else ""))
        if len(shown) > 1:
            legend_below(figure, axes, 4.8)

    summary = "; ".join(
        f"{cut(words(line), 30)}: from {number(points[0][1])} at step {number(points[0][0])} "
        f"to {number(points[-1][1])} at step {number(points[-1][0])}"
        for line, points in shown.items()
    )
    return Chart(f"learning-{index}", cut(words(name), 40), f"{summary}.", draw)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
