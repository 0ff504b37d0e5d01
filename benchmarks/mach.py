"""`mach` over buckets and repetitions, compared with one output per label and the linear tree: scores, time, size,
memory.

    python benchmarks/mach.py --data FOLDER [--name eurlex57k] [--documents 45000]

The folder has a train and a test split with texts. All methods get the same TF-IDF features. For each number of buckets
the repetitions are trained once; fewer repetitions are a subset of the same model, with the corresponding fraction of
the time. The network with one output per label is the same network with one bucket per label: the difference in scores
is the cost of hashing. Every measurement runs in a separate process. Writes benchmarks/results/mach_NAME.md and .svg.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

RESULTS = Path(__file__).parent / "results"
METRICS = ["P@1", "P@3", "P@5"]


def features(folder: str, documents: int, tests: int, seed: int) -> tuple[Any, ...]:
    """Features and labels of a random slice."""
    import labelwise as lw
    from labelwise.features.tfidf import Tfidf, TfidfConfig

    train, test = lw.read(folder, split="train"), lw.read(folder, split="test")
    test = test.align(train.label_names)
    random = np.random.default_rng(seed)
    if documents < len(train):
        train = train.take(np.sort(random.permutation(len(train))[:documents]))
    if tests < len(test):
        test = test.take(np.sort(random.permutation(len(test))[:tests]))
    words = Tfidf(TfidfConfig(sublinear=True, min_df=2))
    return words.fit_transform(train.texts), train.labels, words.transform(test.texts), test.labels


def side(kind: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Train and evaluate one method in this process."""
    import labelwise as lw
    from labelwise.labelspace.buckets import BucketTables

    x, y, xt, yt = (sparse.csr_array(sparse.load_npz(folder / f"{name}.npz")) for name in ("x", "y", "xt", "yt"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    settings = dict(kind)
    name = settings.pop("side")
    if name == "linear_tree":
        model: Any = lw.LinearTree()
    elif name == "one output per label":
        tables = BucketTables(y.shape[1], y.shape[1], (0,), given={0: np.arange(y.shape[1])})
        tables.write_lookups(folder / "identity")
        model = lw.Mach(repetitions=1, buckets=y.shape[1], lookups=str(folder / "identity"), **settings)
    else:
        model = lw.Mach(**settings)
    wall, cpu = time.perf_counter(), time.process_time()
    model.fit(x, y)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = []
    counts = [1] if name != "mach" else [c for c in (1, 2, 4, 8, 16, 32) if c <= kind["repetitions"]]
    for count in counts:
        used = model.subset(range(count)) if name == "mach" else model
        used.predict(xt[:64], k=5)
        begin = time.perf_counter()
        top = used.predict(xt, k=5)
        predict = time.perf_counter() - begin
        with tempfile.TemporaryDirectory() as kept:
            used.save(Path(kept) / "model")
            size = sum(path.stat().st_size for path in Path(kept).rglob("*") if path.is_file())
        share = count / kind.get("repetitions", 1)
        # test labels that training lacks are additional columns, so indices are compared and not names
        values = lw.evaluate(lw.TopK(top.ids, top.scores), yt, metrics=METRICS).values
        rows.append(
            {
                "side": name,
                "buckets": kind.get("buckets"),
                "repetitions": count if name == "mach" else None,
                **values,
                "seconds": wall * share,
                "cpu": cpu * share,
                "predict": predict,
                "bytes": size,
                "peak": peak * 1024,
                "above": (peak - before) * 1024,
            }
        )
    return rows


def page(rows: list[dict[str, Any]], given: argparse.Namespace, sizes: str) -> str:
    """The table in Markdown."""
    lines = [
        "| | buckets | repetitions | P@1 | P@3 | P@5 | training, s | CPU s | prediction, s | model, MB | peak, MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        scores = " | ".join(f"{100 * row[metric]:.2f}" for metric in METRICS)
        lines.append(
            f"| {row['side']} | {row['buckets'] or ''} | {row['repetitions'] or ''} | {scores} | {row['seconds']:.0f} "
            f"| {row['cpu']:.0f} | {row['predict']:.1f} | {row['bytes'] / 1e6:.1f} | {row['peak'] / 1e6:,.0f} |"
        )
    return (
        f"""# mach on {given.name}

{sizes}. Hidden layer of {given.hidden}, {given.epochs} epochs, batches of {given.batch_size}, rate {given.rate:g}. One
run each; `benchmarks/mach.py`, {datetime.date.today()}, Python {platform.python_version()}, {given.threads} threads,
system load at the end {os.getloadavg()[0]:.1f}. The repetitions of a row are a subset of those of the last row with the
same buckets; seconds are in proportion. Peak memory is that of training, one repetition at a time, including features.

![Scores, time and size over the repetitions](mach_{given.name}.svg)

"""
        + "\n".join(lines)
        + "\n"
    )


PANELS = {
    "P@1, %": lambda row: 100 * row["P@1"],
    "P@5, %": lambda row: 100 * row["P@5"],
    "training, CPU seconds": lambda row: row["cpu"],
    "size of the model, MB": lambda row: row["bytes"] / 1e6,
}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Scores, time and size over two repetitions and more: one line per number of buckets, and the other methods."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        name = f"{row['side']}, {row['buckets']:,} buckets" if row["repetitions"] else row["side"]
        if row["repetitions"] != 1:
            lines.setdefault(name, []).append(row)
    figure, panels = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained", sharex=True)
    for axes, (title, value) in zip(panels.flat, PANELS.items(), strict=True):
        for number, (name, found) in enumerate(lines.items()):
            if found[0]["repetitions"]:
                axes.plot([row["repetitions"] for row in found], [value(row) for row in found], "o-", label=name)
            else:
                axes.axhline(value(found[0]), color=f"C{number}", linestyle="--", label=name)
        counts = sorted({row["repetitions"] for found in lines.values() for row in found if row["repetitions"]})
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
    for axes in panels[1]:
        axes.set_xlabel("repetitions")
        axes.set_ylim(bottom=0)
    panels[0, 0].legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Run all methods and write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True)
    options.add_argument("--name", help="name of the data set in file names; default: the folder's name")
    options.add_argument("--documents", type=int, default=10**9)
    options.add_argument("--tests", type=int, default=10**9)
    options.add_argument("--buckets", type=int, nargs="+", default=[250, 500, 1000])
    for name, value in (
        ("repetitions", 8),
        ("hidden", 256),
        ("epochs", 10),
        ("batch-size", 256),
        ("threads", 2),
        ("seed", 0),
    ):
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--rate", type=float, default=3e-3)
    options.add_argument("--repartition", action="store_true", help="also with learned buckets, at the middle size")
    options.add_argument("--side", type=json.loads, help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    given.name = given.name or Path(given.data).name
    if given.side:
        print(json.dumps(side(given.side, given.folder)))
        return
    training = {"epochs": given.epochs, "batch_size": given.batch_size, "optimiser": {"rate": given.rate}}
    common = {"hidden": [given.hidden], "training": training}
    sides = [{"side": "mach", "repetitions": given.repetitions, "buckets": b, **common} for b in given.buckets]
    if given.repartition:
        middle = given.buckets[len(given.buckets) // 2]
        for moving in ({}, {"offers": middle, "choices": 10}):
            sides.append(
                {"side": "mach", "repetitions": given.repetitions, "buckets": middle, "repartition": moving, **common}
            )
    sides += [{"side": "one output per label", **common}, {"side": "linear_tree"}]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        made = features(given.data, given.documents, given.tests, given.seed)
        for name, matrix in zip(("x", "y", "xt", "yt"), made, strict=True):
            sparse.save_npz(folder / f"{name}.npz", matrix)
        x, y, xt, _ = made
        sizes = f"{x.shape[0]:,} / {xt.shape[0]:,} documents, {x.shape[1]:,} features, {y.shape[1]:,} labels"
        environment = {**os.environ, "LABELWISE_THREADS": str(given.threads), "OMP_NUM_THREADS": str(given.threads),
                       "OMP_WAIT_POLICY": "PASSIVE"}  # fmt: skip
        for one in sides:
            command = [
                sys.executable,
                __file__,
                "--data",
                given.data,
                "--side",
                json.dumps(one),
                "--folder",
                str(folder),
            ]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            for row in found:
                if "repartition" in one:
                    row["side"] = "mach, learned buckets" + (", any" if one["repartition"] else "")
                print(row, flush=True)
            rows += found
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"mach_{given.name}.md").write_text(page(rows, given, sizes), encoding="utf-8")
    plot(rows, RESULTS / f"mach_{given.name}.svg")


if __name__ == "__main__":
    main()
