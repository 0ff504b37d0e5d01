"""The charts of a calibration: probabilities against the truth, and precision and recall over thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelwise.formatting import percent
from labelwise.report.drawing import INK, MUTED, Chart, legend_below, series_style
from labelwise.run_schema import Calibration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
