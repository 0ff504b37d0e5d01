"""How training time and model size grow with the number of labels.

    python benchmarks/linear_tree_growth.py --data FOLDER [--labels 1000 2000 5000 10000] [--repeats 3]

Labels are drawn at random, each larger set containing the smaller ones; a slice has the documents with at least one of
its labels. With random labels instead of the most frequent ones, the documents per label stay the same and only the
number of labels grows. One tree per slice, from features (TF-IDF of single words, computed once from all documents),
each in a separate process. Medians and a plot are written to benchmarks/results/linear_tree_growth.md and .svg.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from peers import driving
from peers.measuring import Meter

RESULTS = Path(__file__).parent / "results" / "linear_tree_growth"
SLICES = (1000, 2000, 5000, 10_000)


def measure(folder: Path, n_labels: int) -> None:
    """Train one tree on a slice and print time and memory."""
    from scipy import sparse

    import labelwise as lw

    features, labels = (sparse.csr_array(sparse.load_npz(folder / f"{name}.npz")) for name in ("X", "Y"))
    order = np.random.default_rng(0).permutation(labels.shape[1])
    labels = sparse.csr_array(labels[:, np.sort(order[:n_labels])])
    rows = np.flatnonzero(np.diff(labels.indptr))
    features, labels = features[rows], labels[rows]
    lw.LinearTree(trees=1).fit(features[:500], labels[:500])  # compile before the timer starts
    meter = Meter("labelwise")
    model = meter.clock("train", lambda: lw.LinearTree(trees=1).fit(features, labels), memory_too=True)
    meter.found |= {"labels": labels.shape[1], "documents": labels.shape[0], "ones": int(labels.nnz)}
    with tempfile.TemporaryDirectory() as scratch:
        model.save(Path(scratch) / "model")
        meter.size(Path(scratch) / "model")
    meter.report()


def exponent(labels: list[float], values: list[float]) -> float:
    """The p of values ~ labels^p, by least squares on logarithms: 1 is linear."""
    return float(np.polyfit(np.log(labels), np.log(values), 1)[0])


def draw(rows: list[dict[str, float]], title: str, path: Path) -> None:
    """Time and size against labels, with straight lines through the largest slice for comparison."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from labelwise.report.charts import MUTED, SERIES, Chart

    def panels(figure) -> None:
        labels = [row["labels"] for row in rows]
        kinds = (("train", "training (s)", 1.0), ("train cpu", "training (CPU s)", 1.0), ("bytes", "model (MB)", 1e-6))
        for place, (key, name, unit) in enumerate(kinds):
            axes = figure.add_subplot(1, len(kinds), place + 1)
            values = [row[key] * unit for row in rows]
            axes.plot(labels, values, "o-", color=SERIES[place])
            axes.plot(labels, [values[-1] * n / labels[-1] for n in labels], ":", color=MUTED)
            power = exponent(labels, values)
            axes.set(xscale="log", yscale="log", xlabel="labels", title=f"{name}, ~ labels^{power:.2f}")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
                axis.set_minor_formatter(NullFormatter())

    described = "Training time and model size against the number of labels; dotted: linear."
    chart = Chart("linear_tree_growth", title, described, panels, width=10.5, height=3.4)
    path.write_bytes(chart.file("svg"))


def page(given, rows: list[dict[str, float]], loads: list[str]) -> str:
    """The results as a Markdown page."""
    name = Path(given.data).name
    lines = [
        "# Cost by number of labels",
        "",
        f"{driving.machine()}, {given.threads} threads. Random labels of {name}, one tree with the default parameters, "
        f"medians of {given.repeats}. Created by `python benchmarks/linear_tree_growth.py --data {name}`.",
        "",
        "| labels | documents | training (s) | training (CPU s) | ms per label | peak above features (MB) | model (MB) "
        "| bytes per label |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['labels']:,.0f} | {row['documents']:,.0f} | {row['train']:.2f} | {row['train cpu']:.2f} "
        f"| {1e3 * row['train'] / row['labels']:.2f} | {row['peak above'] / 1e6:,.0f} | {row['bytes'] / 1e6:,.2f} "
        f"| {row['bytes'] / row['labels']:,.0f} |"
        for row in rows
    ]
    labels = [row["labels"] for row in rows]
    powers = {key: exponent(labels, [row[key] for row in rows]) for key in ("train", "train cpu", "bytes")}
    lines += [
        "",
        f"Fitted in log space: training time ~ labels^{powers['train']:.2f} (CPU time {powers['train cpu']:.2f}), "
        f"model size ~ labels^{powers['bytes']:.2f}; 1 is linear.",
        "",
        f"![Training time and model size against the number of labels]({RESULTS.name}.svg)",
        "",
        "Other load on the machine, before each round: " + "; ".join(loads) + ".",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Compute the features, measure the slices, write table and plot."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder with train and test texts")
    options.add_argument(
        "--labels", type=int, nargs="*", default=SLICES, help="sizes of slices; the last has all labels"
    )
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--results", type=Path, default=RESULTS, help="path of page and plot, without extension")
    options.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.make:
        driving.make_features(given.data, given.make)
        return
    if given.measure:
        measure(given.measure, given.labels[0])
        return
    found: dict[int, list[dict[str, float]]] = {}
    loads = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, "--data", given.data, "--make", folder], check=True)
        for _ in range(given.repeats):
            loads.append(f"{driving.busy_cores():.2f} cores busy, load {os.getloadavg()[0]:.1f}")
            for size in (*given.labels, sys.maxsize):
                command = [sys.executable, __file__, "--data", given.data, "--measure", folder, "--labels", str(size)]
                ended = driving.run(command, threads=given.threads)
                if ended.fault:
                    sys.exit(f"{size} labels: {ended.fault}")
                row = json.loads(ended.output.splitlines()[-1])
                found.setdefault(size, []).append(row)
                print(row, flush=True)
    rows = [
        {key: statistics.median(run[key] for run in runs) for key in runs[0] if key != "versions"}
        for runs in found.values()
    ]
    text = page(given, rows, loads)
    given.results.parent.mkdir(exist_ok=True)
    given.results.with_suffix(".md").write_text(text, encoding="utf-8")
    draw(rows, f"linear_tree on random labels of {Path(given.data).name}", given.results.with_suffix(".svg"))
    print(text)


if __name__ == "__main__":
    main()
