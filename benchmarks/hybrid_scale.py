"""TF-IDF next to 384-wide vectors with 670,091 labels: training and prediction of the ranker, time and peak memory.

    python benchmarks/hybrid_scale.py [--labels 70000 670091] [--precision float16] [--threshold 0.1] [--trees 1]

Data is drawn in the shape of Amazon-670K: per label 0.73 training and 0.23 test documents, 135,909 words, about 76
different words and 5.45 labels per document, every label at least once, a heavy tail. Structure is planted, so that P@1
shows whether something was learned: labels belong to topics of 100, a document has labels of one topic, words of
its labels, of its topic and of no meaning, and a vector that is the noisy sum of a direction per topic and per label.
Data, training and prediction run in separate processes. The estimates of memory that training makes before each stage
are compared with the peak of the stage. Writes benchmarks/results/hybrid_scale.md and .json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy import sparse

from hybrid_scale_data import FULL, draw
from peers import driving
from peers.measuring import memory

RESULTS = Path(__file__).parent / "results" / "hybrid_scale"
METRICS = ("P@1", "P@3", "P@5")
LIMIT = 16e9
STEPS = ("draw", "cluster", "solve", "predict")


def blocks(folder: Path, part: str):
    """The features of a part: TF-IDF, and vectors in memory."""
    from labelwise.data.csr import Blocks

    return Blocks(sparse.csr_array(sparse.load_npz(folder / f"{part}.npz")), np.load(folder / f"{part}.npy"))


class StageEnded(Exception):
    """Clustering is done, and its tree is kept."""


def train(folder: Path, given, stage: str) -> dict[str, float]:
    """One of the stages `cluster` and `solve` of training, the other one is skipped; the latter saves the model.

    Finished work is kept in the folder, so that `solve` begins with the tree, and an interrupted one resumes.
    """
    import labelwise as lw
    from labelwise.labelspace import clustering
    from labelwise.linear import train as linear
    from labelwise.runtime.job import Job

    features, labels = blocks(folder, "train"), sparse.csr_array(sparse.load_npz(folder / "train_labels.npz"))
    solver = {"threshold": given.threshold, "max_passes": given.passes}
    model = lw.LinearTree(trees=given.trees, precision=given.precision, solver=solver)
    few = np.arange(2000)
    model.fit(features[few], labels[few])  # compiles
    figures: dict[str, float] = {}
    check, began = linear.check_memory, []

    def begin(need, *named, **options) -> None:
        """In place of the check of memory that begins a stage."""
        check(need, *named, **options)
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        figures.update({f"{stage} estimate": need(hold=0).total, f"{stage} before": memory("VmRSS")})
        began[:] = time.perf_counter(), time.process_time()

    def end(*_, **__) -> None:
        figures[f"{stage} seconds"], figures[f"{stage} cpu"] = (
            time.perf_counter() - began[0], time.process_time() - began[1],
        )  # fmt: skip
        figures[f"{stage} peak"] = memory("VmHWM")
        if stage == "cluster":
            raise StageEnded

    def watched(*given, report: bool = True) -> None:
        """The check before clustering has no report, that before solving has one."""
        (end if report and stage == "cluster" else begin)(*given, report=report)

    linear.check_memory = watched
    if stage == "cluster":
        clustering.MAX_ITERATIONS = given.iterations
    try:
        model.fit(features, labels, job=Job(folder=folder / "unfinished"))
    except StageEnded:
        return figures
    end()
    figures["depth"] = model.trees_[0][0].depth
    figures["weights"] = sum(level.n_weights for _, levels in model.trees_ for level in levels)
    model.save(folder / "model", force=True)
    figures["bytes"] = sum(file.stat().st_size for file in (folder / "model").rglob("*") if file.is_file())
    return figures


def predict(folder: Path) -> dict[str, float]:
    """Load the model and predict the test documents."""
    import labelwise as lw

    features, labels = blocks(folder, "test"), sparse.csr_array(sparse.load_npz(folder / "test_labels.npz"))
    begin = time.perf_counter()
    model = lw.load(folder / "model")
    figures = {"load": time.perf_counter() - begin}
    model.predict(features[np.arange(100)], k=10)  # compiles, and builds the directory of features
    begin, cpu = time.perf_counter(), time.process_time()
    top = model.predict(features, k=10)
    figures |= {"predict": time.perf_counter() - begin, "predict cpu": time.process_time() - cpu}
    figures["predict peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    one = [features[np.arange(row, row + 1)] for row in range(300)]
    cpu = time.process_time()
    for row in one:
        model.predict(row, k=10)
    figures["single cpu"] = (time.process_time() - cpu) / len(one)
    scores = lw.evaluate(top, labels, metrics=list(METRICS), groups=None)
    return figures | {metric: float(scores[metric]) for metric in METRICS}


def page(runs: list[dict[str, float]], given) -> str:
    """The results as a Markdown page."""
    rows = [
        ("training documents", lambda r: f"{r['documents']:,}"),
        ("words per document", lambda r: f"{r['non-zeros'] / r['documents']:.1f}"),
        ("labels per document", lambda r: f"{r['ones'] / r['documents']:.2f}"),
        ("features and labels (GB)", lambda r: f"{r['data bytes'] / 1e9:.2f}"),
        ("training (s)", lambda r: f"{r['train']:,.0f}"),
        ("- label features, clustering", lambda r: f"{r['cluster seconds']:,.0f}"),
        ("- classifiers", lambda r: f"{r['solve seconds']:,.0f}"),
        ("training (CPU s)", lambda r: f"{r['train cpu']:,.0f}"),
        ("training, CPU ms per label", lambda r: f"{1e3 * r['train cpu'] / r['labels']:.2f}"),
        ("peak memory of training (GB)", lambda r: f"{r['train peak'] / 1e9:.2f}"),
        ("clustering: peak above the data (GB), estimate", lambda r: _stage(r, "cluster")),
        ("classifiers: peak above the data (GB), estimate", lambda r: _stage(r, "solve")),
        ("weights (millions)", lambda r: f"{r['weights'] / 1e6:,.0f}"),
        ("model (GB)", lambda r: f"{r['bytes'] / 1e9:.2f}"),
        ("test documents", lambda r: f"{r['test documents']:,}"),
        ("prediction (s)", lambda r: f"{r['predict']:,.0f}"),
        ("prediction (CPU ms per document)", lambda r: f"{1e3 * r['predict cpu'] / r['test documents']:.2f}"),
        ("one document (CPU ms)", lambda r: f"{1e3 * r['single cpu']:.2f}"),
        ("peak memory of prediction (GB)", lambda r: f"{r['predict peak'] / 1e9:.2f}"),
        *((metric, lambda r, metric=metric: f"{100 * r[metric]:.1f}") for metric in METRICS),
    ]
    lines = [
        f"# TF-IDF next to 384-wide vectors, {runs[-1]['labels']:,} labels",
        "",
        f"{driving.machine()}. Data drawn in the shape of Amazon-670K with a planted structure, vectors in "
        f"{given.vectors}; `linear_tree` with {given.trees} tree{'s' * (given.trees > 1)}, weights in "
        f"{given.precision}, threshold {given.threshold:g}, at most {given.passes} passes of the solver and "
        f"{given.iterations} iterations per split of labels, otherwise the defaults. Created by `python "
        "benchmarks/hybrid_scale.py`.",
        "",
        f"| labels | {' | '.join(format(run['labels'], ',') for run in runs)} |",
        f"|---|{'---|' * len(runs)}",
    ]
    lines += [f"| {title} | {' | '.join(cell(run) for run in runs)} |" for title, cell in rows]
    if len(runs) > 1:
        first, last = runs[0], runs[-1]
        factor = last["labels"] / first["labels"]
        shown = [f"{what} {last[key] / first[key]:.1f}" for what, key in GROWTH]
        lines += ["", f"From the first to the last, with {factor:.1f} times as many labels: {', '.join(shown)} times."]
    lines += ["", "Other load on the machine, before each run: " + "; ".join(run["load of machine"] for run in runs)]
    return "\n".join(lines) + ".\n"


GROWTH = (("training CPU time", "train cpu"), ("peak memory of training", "train peak"), ("model", "bytes"))


def _stage(run: dict[str, float], name: str) -> str:
    peak, estimate = run[f"{name} peak"] - run[f"{name} before"], run[f"{name} estimate"]
    return f"{peak / 1e9:.2f}, {estimate / 1e9:.2f} ({estimate / peak - 1:+.0%})"


def measure(given, labels: int, folder: Path) -> dict[str, float]:
    """Draw data, train and predict, each in a separate process; steps that are done already are not repeated."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict = {"labels": labels, "load of machine": f"{driving.busy_cores():.2f} cores busy"}
    for step in STEPS:
        done = folder / f"{step}.json"
        if not done.exists():
            command = [sys.executable, __file__, "--step", step, "--folder", str(folder), "--labels", str(labels)]
            command += ["--precision", given.precision, "--trees", str(given.trees), "--vectors", given.vectors]
            command += ["--documents", str(given.documents), "--threshold", str(given.threshold)]
            command += ["--passes", str(given.passes), "--iterations", str(given.iterations)]
            ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            done.write_text(ended.stdout.splitlines()[-1])
        found |= json.loads(done.read_text())
        print(step, found, flush=True)
    totals = {"train": "seconds", "train cpu": "cpu"}
    found |= {name: found[f"cluster {key}"] + found[f"solve {key}"] for name, key in totals.items()}
    return found | {"train peak": max(found["cluster peak"], found["solve peak"])}


def main() -> None:
    """Run all sizes and write page and figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--labels", type=int, nargs="+", default=[70_000, FULL.labels])
    options.add_argument("--documents", type=float, default=1.0, help="fraction of the documents of Amazon-670K")
    options.add_argument("--precision", default="float16")
    options.add_argument("--trees", type=int, default=1)
    options.add_argument("--threshold", type=float, default=0.1, help="weights below this are dropped")
    options.add_argument("--vectors", default="float32", choices=("float32", "float16"))
    options.add_argument("--results", type=Path, default=RESULTS, help="path of the results, without extension")
    options.add_argument("--passes", type=int, default=100, help="maximum passes of the solver")
    options.add_argument("--iterations", type=int, default=20, help="maximum iterations per split of labels")
    options.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help="keep data and models here, to resume after an interruption")
    given = options.parse_args()
    if given.step is not None:
        steps = {
            "draw": lambda: draw(given.labels[0], given.folder, given.vectors, given.documents),
            "cluster": lambda: train(given.folder, given, "cluster"),
            "solve": lambda: train(given.folder, given, "solve"),
            "predict": lambda: predict(given.folder),
        }
        print(json.dumps(steps[given.step]()))
        return
    runs = []
    for labels in given.labels:
        with tempfile.TemporaryDirectory() as scratch:
            runs.append(measure(given, labels, Path(given.folder or scratch) / str(labels)))
        given.results.with_suffix(".json").write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
        given.results.with_suffix(".md").write_text(page(runs, given), encoding="utf-8")
    print(given.results.with_suffix(".md").read_text(encoding="utf-8"))
    over = [f"{run['labels']:,} labels" for run in runs if max(run["train peak"], run["predict peak"]) > LIMIT]
    if over:
        sys.exit(f"more than {LIMIT / 1e9:.0f} GB: {', '.join(over)}")


if __name__ == "__main__":
    main()
