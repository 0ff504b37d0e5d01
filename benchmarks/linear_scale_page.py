"""Page and plot of `linear_scale.py`, with the estimates of `labelwise plan` for the same data and beyond."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid_scale_data import WORDS
from peers import driving

BEYOND = (1_000_000, 10_000_000, 100_000_000)
ROWS = (
    ("training (s)", "train", 1, ",.1f"),
    ("training (CPU s)", "train cpu", 1, ",.1f"),
    ("peak memory of training (GB)", "peak", 1e-9, ".2f"),
    ("peak above the data (GB)", "peak above", 1e-9, ".2f"),
    ("model (MB)", "bytes", 1e-6, ",.1f"),
    ("save (s)", "save", 1, ".2f"),
    ("load (s)", "load", 1, ".2f"),
    ("prediction of all test documents (CPU s)", "predict cpu", 1, ",.2f"),
    ("one document, median (ms)", "single", 1e3, ".2f"),
    ("one document, 95th percentile (ms)", "single p95", 1e3, ".2f"),
    ("P@1", "P@1", 1, ".2f"),
    ("P@3", "P@3", 1, ".2f"),
    ("P@5", "P@5", 1, ".2f"),
    ("PSP@5", "PSP@5", 1, ".2f"),
)

FLAT = (
    "What the tree can find decides the growth. The same data without categories, only topics, has no structure that "
    "the upper splits could follow: with 1,000,000 labels those of a document lie in 4.7 leaves instead of about one, "
    "and training took 499 CPU s, 10.4 GB and gave a model of 1,073 MB (P@1/3/5 72.5/39.8/26.1; an earlier version, on "
    "a busy machine). PECOS had used 20 CPU minutes there, and was still training when it was stopped."
)
"""Measured once; not drawn again by the script."""
AGAIN = (
    "Models with the same settings were trained again on 2026-11-18, and 500 documents predicted one by one in 7 "
    "passes with 10,000 labels and in 14 with more, on a quiet machine. The medians of passes were 0.23-0.24 ms with "
    "10,000 labels, 0.29-0.35 ms with 100,000 and 0.33-0.44 ms with 1,000,000; estimates from constants measured in "
    "the minute before were 0.30, 0.35 and 0.42 ms."
)
"""The same."""


def shape_of(row: dict[str, Any]):
    """The shape of the data of a row, as `plan` counts it."""
    from labelwise.planning.costs import DataShape

    documents = row["documents"]
    return DataShape(documents, row["labels"], row["ones"] / documents, WORDS, row["non-zeros"] / documents)


def estimates(row: dict[str, Any]) -> dict[str, Any]:
    """What `labelwise plan` says of the same training: CPU seconds, peak memory, model, latency; and from when."""
    import labelwise as lw
    from labelwise.planning.measure import machine_constants

    constants = machine_constants()
    cost = lw.LinearTree(trees=1)._cost(shape_of(row), constants)
    found = {"train cpu": cost.cpu, "peak": cost.memory, "bytes": cost.model, "single": cost.latency}
    return found | {"measured": constants.measured}


def exponent(rows: list[dict[str, Any]], side: str, key: str) -> float:
    """The p of values ~ labels^p over the finished runs of a package; 1 is linear."""
    done = [row for row in rows if key in row.get(side, {})]
    return float(np.polyfit(np.log([row["labels"] for row in done]), np.log([row[side][key] for row in done]), 1)[0])


def page(rows: list[dict[str, Any]], given: Any) -> str:
    """The results as a Markdown page."""
    sides = [side for side in ("labelwise", "PECOS") if any(side in row for row in rows)]
    columns = [(row, side) for row in rows for side in sides]
    lines = [
        f"# The linear tree with up to {rows[-1]['labels']:,} labels",
        "",
        f"{driving.machine()}, {given.threads} threads, on a machine that other work was sharing: compare CPU seconds, "
        "wall time says more about the others. Data drawn in the shape of Amazon-670K (0.73 documents per label, "
        f"{WORDS:,} words, 75 of them per document; labels of a topic share words, so do topics of a category); one "
        "tree with 16 splits, leaves of at most 100 labels, weights from 0.1 on, in 8 bits here and in 32 by PECOS. "
        "Created by `python benchmarks/linear_scale.py --peers PYTHON`.",
        "",
        f"| | {' | '.join(format(row['labels'], ',') + ' ' + side for row, side in columns)} |",
        f"|---|{'---|' * len(columns)}",
        f"| training documents | {' | '.join(format(row['documents'], ',') for row, _ in columns)} |",
    ]
    for title, key, unit, form in ROWS:
        cells = [format(row[side][key] * unit, form) if key in row.get(side, {}) else "-" for row, side in columns]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines.append("")
    for row in rows:
        if all("train cpu" in row.get(side, {}) for side in ("labelwise", "PECOS")):
            ours, theirs = row["labelwise"], row["PECOS"]
            ratios = [
                f"training {theirs['train cpu'] / ours['train cpu']:.1f} times as fast in CPU time",
                f"prediction of a batch {theirs['predict cpu'] / ours['predict cpu']:.1f} times",
                f"model {ours['bytes'] / theirs['bytes']:.2f} times the size",
            ]
            lines.append(f"- {row['labels']:,} labels, labelwise against PECOS: {', '.join(ratios)}.")
        for side in sides:
            if row.get(side, {}).get("fault"):
                lines.append(f"- {row['labels']:,} labels: {side} {row[side]['fault']}.")
    if len(rows) > 1:
        powers = {key: exponent(rows, "labelwise", key) for key in ("train cpu", "peak above", "bytes")}
        lines += [
            "",
            f"Fitted in log space, labelwise: training CPU time ~ labels^{powers['train cpu']:.2f}, peak above "
            f"the data ~ labels^{powers['peak above']:.2f}, model size ~ labels^{powers['bytes']:.2f}; 1 is linear.",
        ]
        lines += ["", FLAT]
    lines += ["", "![Time, memory and size against labels](linear_scale.svg)", "", *_planned(rows), "", *_beyond(rows)]
    loads = [f"{row['labels']:,} {side} {row[side]['busy']}" for row, side in columns if side in row]
    return "\n".join([*lines, "", f"Other load before each run: {'; '.join(loads)}.", ""])


def _planned(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## What `labelwise plan` says", "",
        f"Estimates from constants that `labelwise plan --measure` found here ({rows[-1]['plan']['measured']}) "
        "with 36,500 documents and 50,000 labels of similar data; in brackets: estimate divided by measured. What was "
        "measured is in the first table, of separate runs at another time.", "",
        "| labels | training (CPU s) | peak memory (GB) | model (MB) | one document (ms) |", "|---|---|---|---|---|",
    ]  # fmt: skip
    units = {"train cpu": (1, ",.1f"), "peak": (1e-9, ".2f"), "bytes": (1e-6, ",.1f"), "single": (1e3, ".2f")}
    for row in rows:
        found = row["plan"]
        cells = [
            format(found[key] * unit, form)
            + (f" ({found[key] / row['labelwise'][key]:.2f})" if key in row.get("labelwise", {}) else "")
            for key, (unit, form) in units.items()
        ]
        lines.append(f"| {row['labels']:,} | {' | '.join(cells)} |")
    return [*lines, "", AGAIN]


def _beyond(rows: list[dict[str, Any]]) -> list[str]:
    """Estimates for more labels than were trained here."""
    from dataclasses import replace

    import labelwise as lw
    from labelwise.formatting import duration, size
    from labelwise.planning.costs import Machine, on_machine
    from labelwise.planning.measure import machine_constants
    from labelwise.planning.proposals import plan_buckets

    constants, last = machine_constants(), shape_of(rows[-1])
    lines = [
        "## Beyond: estimates only", "",
        "The same data, documents in proportion to labels. `linear_tree` with one tree, in float32 and in "
        "int8, and `mach` as `labelwise plan --labels ... --memory 64` proposes it; on a machine with 16 such cores. "
        "The table above shows how far estimates were from measurements; look-ups in more than 350 MB of weights are "
        "assumed to take as long as in those, and models to be in memory.",
        "",
        "| labels | method | training | memory | model | one document |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    machine = Machine("", None, 16)
    for labels in BEYOND:
        shape = replace(last, labels=labels, documents=int(labels * last.documents / last.labels))
        buckets = plan_buckets(labels, shape.documents, shape.features, int(64e9)).config()
        buckets.pop("method")
        models = {
            "linear_tree, float32": lw.LinearTree(trees=1, precision="float32"),
            "linear_tree, int8": lw.LinearTree(trees=1, precision="int8"),
            f"mach, {buckets['repetitions']} x {buckets['buckets']:,}, 10 epochs": lw.Mach(**buckets),
        }  # fmt: skip
        for name, model in models.items():
            fit = on_machine(model._cost(shape, constants), machine)
            latency = f"{1e3 * fit.cost.latency:,.2g} ms"
            cells = (duration(fit.seconds), size(fit.memory), size(fit.cost.model), latency)
            lines.append(f"| {labels:,} | {name} | {' | '.join(cells)} |")
    return lines


def chart(rows: list[dict[str, Any]]):
    """Time, memory, size and latency against labels, with estimates and straight lines."""
    from labelwise.report.charts import MUTED, SERIES, Chart

    kinds = (
        ("train cpu", "training (CPU s)", 1.0), ("peak", "peak memory (GB)", 1e-9), ("bytes", "model (MB)", 1e-6),
        ("single", "one document (ms)", 1e3),
    )  # fmt: skip

    def panels(figure) -> None:
        from matplotlib.ticker import FuncFormatter, NullFormatter

        for place, (key, name, unit) in enumerate(kinds):
            axes = figure.add_subplot(1, len(kinds), place + 1)
            for color, side in zip(SERIES, ("labelwise", "PECOS"), strict=False):
                done = [row for row in rows if key in row.get(side, {})]
                axes.plot(
                    [r["labels"] for r in done], [r[side][key] * unit for r in done], "o-", color=color, label=side
                )
            estimated = [row["plan"][key] * unit for row in rows]
            axes.plot([row["labels"] for row in rows], estimated, "x--", color=MUTED, label="plan")
            axes.set(xscale="log", yscale="log", xlabel="labels", title=name)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
                axis.set_minor_formatter(NullFormatter())
            axes.tick_params(axis="x", labelrotation=30)
        figure.axes[0].legend(frameon=False)

    described = "Training time, peak memory, model size and latency against the number of labels, with estimates."
    return Chart("linear_scale", "linear_tree and PECOS XR-Linear", described, panels, width=13, height=3.8)
