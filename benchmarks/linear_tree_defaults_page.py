"""The page and the plots of what linear_tree_defaults.py measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labelwise.report.charts import (
    INK,
    MARKERS,
    MUTED,
    SERIES,
    Chart,
)

SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
FACTOR_COLOURS = 6
Row = dict[str, str]


def chosen_setting(keys: list[str]) -> dict[str, str]:
    """The current defaults of the method, as written in the table."""
    import labelwise as lw

    found = {}
    for key in keys:
        value: Any = lw.LinearTree().config
        for part in key.split("."):
            value = getattr(value, part)
        found[key] = str(value)
    return found


def seconds(row: Row) -> float:
    """CPU seconds from texts to model."""
    return float(row["tfidf_seconds"]) + float(row["train_seconds"])


def changes(row: Row, base: dict[str, Any]) -> str:
    """The differences from the base, in short."""
    short = {"tfidf": "", "solver": ""}
    words = []
    for key, value in base.items():
        if row[key] != str(value):
            room, _, name = key.rpartition(".")
            words.append(f"{short.get(room, room)}{name} {row[key]}".replace("_", " "))
    return ", ".join(words) or "base"


def pareto(rows: list[Row], metric: str) -> list[Row]:
    """The Pareto front of time and score, fastest first."""
    front: list[Row] = []
    for row in sorted(rows, key=lambda one: (seconds(one), -float(one[metric]))):
        if not front or float(row[metric]) > float(front[-1][metric]):
            front.append(row)
    return front


def points(rows: list[Row], metric: str) -> tuple[list[float], list[float]]:
    """Times and scores."""
    return [seconds(row) for row in rows], [float(row[metric]) for row in rows]


def trade_off(data: str, rows: list[Row], base: dict[str, Any], chosen: dict[str, str]) -> Chart:
    """Score against time for three metrics: settings as points, the Pareto front as a line, the default as a star."""

    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def panels(figure) -> None:
        trials = list(dict.fromkeys(row["trial"] for row in rows if row["kind"] == "factor"))
        for place, metric in enumerate(("P@5", "nDCG@5", "PSP@5")):
            axes = figure.add_subplot(1, 3, place + 1)
            for number, trial in enumerate(trials):
                mine = [row for row in rows if row["trial"] == trial and row["kind"] == "factor"]
                axes.plot(
                    *points(mine, metric), MARKERS[number % len(MARKERS)], color=SERIES[number % FACTOR_COLOURS],
                    alpha=0.65, markersize=4, label=trial if place == 0 else None,
                )  # fmt: skip
            whole = [row for row in rows if row["kind"] == "setting"]
            axes.plot(
                *points(whole, metric), "o", color=INK, markersize=4, markerfacecolor="none",
                label="whole settings" if place == 0 else None,
            )  # fmt: skip
            axes.step(
                *points(pareto(rows, metric), metric), where="post", color=MUTED, linewidth=1, zorder=1,
                label="best for the time" if place == 0 else None,
            )  # fmt: skip
            default = [row for row in rows if all(row[key] == value for key, value in chosen.items())]
            axes.plot(
                *points(default, metric), "*", color=SERIES[1], markersize=15, zorder=5, markeredgecolor=INK,
                label="default" if place == 0 and default else None,
            )  # fmt: skip
            best = max(float(row[metric]) for row in rows)
            axes.set(xscale="log", xlabel="CPU seconds, texts to model", title=metric)
            axes.set_ylim(best - 2.5, best + 0.2)
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        figure.legend(loc="outside right center", fontsize=8)

    described = "Scores against training time for all settings tried; the line is the Pareto front."
    title = f"linear_tree on {data}: cost and benefit of each setting (held-out documents)"
    return Chart("linear_tree_defaults", title, described, panels, width=13.0, height=4.2)


def table(rows: list[Row], base: dict[str, Any], chosen: dict[str, str]) -> list[str]:
    """All settings, with the Pareto front in bold."""
    marks = {metric: {id(row) for row in pareto(rows, metric)} for metric in ("nDCG@5", "PSP@5")}
    lines = [
        "| changed | " + " | ".join(SHOWN) + " | TF-IDF (s) | training (s) | prediction (s) | model (MB) |",
        "|---|" + "---|" * (len(SHOWN) + 4),
    ]
    for row in rows:
        name = changes(row, base)
        if all(row[key] == value for key, value in chosen.items()):
            name = f"**{name} (the default)**"
        cells = [f"**{float(row[m]):.2f}**" if id(row) in marks.get(m, ()) else f"{float(row[m]):.2f}" for m in SHOWN]
        times = [row[key] for key in ("tfidf_seconds", "train_seconds", "predict_seconds", "model_mb")]
        lines.append(f"| {name} | " + " | ".join(cells + times) + " |")
    return lines


def write(rows: list[Row], base: dict[str, Any], factors: set[str], results: Path) -> None:
    """The page and, for each data set, the plot as SVG and PNG."""
    chosen = chosen_setting(list(base))
    fixed = ", ".join(f"{key} {value}" for key, value in base.items())
    lines = [
        "# Cost and benefit of each parameter of linear_tree",
        "",
        "Created by `python benchmarks/linear_tree_defaults.py`, which describes the method. CPU seconds on one "
        "thread; scores in per cent on held-out documents, never the test split. In bold: no faster setting has a "
        "better score. Parameters of prediction alone (post-processor, beam) share their trained model. "
        f"Each row names what differs from the base: {fixed}.",
        "",
    ]
    for data in dict.fromkeys(row["data"] for row in rows):
        kinds = {True: "factor", False: "setting"}
        mine = [row | {"kind": kinds[row["trial"] in factors]} for row in rows if row["data"] == data]
        chart = trade_off(data, mine, base, chosen)
        for kind in ("svg", "png"):
            (results.parent / f"{results.name}_{data}.{kind}").write_bytes(chart.file(kind))
        lines += [f"## {data}, {int(mine[0]['documents']):,} training documents", ""]
        lines += [f"![Scores against training time]({results.name}_{data}.svg)", "", *table(mine, base, chosen), ""]
    results.with_suffix(".md").write_text("\n".join(lines), encoding="utf-8")
