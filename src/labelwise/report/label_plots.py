"""How well labels are found, by their number of training documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelwise.formatting import number, percent
from labelwise.report.drawing import Chart, legend_below, series_style
from labelwise.report.label_lines import FrequencyBin, LabelTable
from labelwise.run_schema import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
