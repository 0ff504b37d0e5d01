"""linear_tree compared with PECOS's XR-Linear, omikuji and napkinXC: training, prediction, memory, size and scores.

    python benchmarks/linear_tree.py --data FOLDER --peers PYTHON [PYTHON ...] [--repeats 3] [--only SIDE ...]

FOLDER holds a train and a test split with texts. The peers' interpreters are searched for their packages; a package
that none has is listed in the table. All packages get the same features (our TF-IDF of single words, computed once) and
the same number of threads, and run alternately, each in a separate process, `--repeats` times. Medians are written to
benchmarks/results/linear_tree.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peers import driving
from peers.driving import METRICS, Side

RESULTS = Path(__file__).parent / "results" / "linear_tree.md"
SIDES = (
    Side("labelwise", "run_labelwise.py", "labelwise"),
    Side("PECOS XR-Linear", "run_pecos.py", "pecos.xmc.xlinear.model", against="labelwise"),
    Side("napkinXC", "run_napkinxc.py", "napkinxc", against="labelwise"),
    Side("labelwise, 3 trees", "run_labelwise.py", "labelwise", trees=3),
    Side("omikuji, 3 trees", "run_omikuji.py", "omikuji", trees=3, against="labelwise, 3 trees"),
)
ABOUT = """\
All packages: the same TF-IDF of single words, {threads} threads, beam 10, the top 10 labels, each run in a
separate process. Training is from features and labels in memory to a trained model, including the tree but not files.
Our kernels are compiled before the timer starts, on 500 documents (about 20 s at the first use on a machine, then
cached on disk). Trees have PECOS's defaults: 16 children per node, at most 100 labels per leaf; omikuji and napkinXC
have their own defaults. PECOS predicts with its predict-only C++ model. napkinXC uses exact search, its default.
omikuji's Python package predicts one document per call, so it is called from as many Python threads. Peak memory is
that of the process during training; `above` excludes what it held before (features, labels, libraries). In brackets:
the peer's value divided by labelwise's; omikuji is compared with our 3 trees, the others with our single tree."""


def figures(side: Side, runs: list[dict]) -> dict[str, float]:
    """Medians of a package's runs; training per tree as well."""
    median = {key: statistics.median(run[key] for run in runs) for key in runs[0] if key != "versions"}
    return median | {"tree": median["train"] / side.trees, "tree cpu": median["train cpu"] / side.trees}


ROWS = (
    ("training, per tree (s)", "tree", 1, ".2f"),
    ("training, per tree (CPU s)", "tree cpu", 1, ".2f"),
    ("batch prediction (s)", "predict", 1, ".3f"),
    ("batch prediction (CPU s)", "predict cpu", 1, ".3f"),
    ("one document, median (ms)", "single", 1e3, ".3f"),
    ("one document, 95th percentile (ms)", "single p95", 1e3, ".3f"),
    ("peak memory of training (MB)", "peak", 1e-6, ",.0f"),
    ("peak memory of training, above (MB)", "peak above", 1e-6, ",.0f"),
    ("model on disk (MB)", "bytes", 1e-6, ",.1f"),
)


def table(sides: list[Side], found: dict[str, dict[str, float]], scores: dict[str, dict[str, float]]) -> list[str]:
    """One row per measure, one column per package, ratios in brackets."""
    lines = ["| | " + " | ".join(side.name for side in sides) + " |", "|---|" + "---|" * len(sides)]
    for title, key, unit, shape in ROWS:
        cells = []
        for side in sides:
            value = found[side.name][key]
            ratio = ""
            if side.against in found:
                ratio = f" ({value / found[side.against][key]:.1f})"
            cells.append(f"{value * unit:{shape}}{ratio}")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    for metric in METRICS:
        lines.append(f"| {metric} | " + " | ".join(f"{scores[side.name][metric]:.2f}" for side in sides) + " |")
    return lines


def page(given, sides: list[Side], missing: list[str], runs: dict[str, list[dict]], scores, loads: list[str]) -> str:
    """The results as a Markdown page."""
    found = {side.name: figures(side, runs[side.name]) for side in sides}
    versions = {name: text for side in sides for name, text in runs[side.name][0]["versions"].items()}
    folder = Path(given.data).name
    command = f"python benchmarks/linear_tree.py --data {folder} --peers PYTHON ... --repeats {given.repeats}"
    lines = [
        "# Linear label trees",
        "",
        f"{driving.machine()}; {', '.join(f'{name} {text}' for name, text in sorted(versions.items()))}. "
        f"{folder}, medians of {given.repeats} alternating runs, created by `{command}`.",
        "",
        ABOUT.format(threads=given.threads),
        "",
        *table(sides, found, scores),
        "",
    ]
    if missing:
        lines += [f"Not measured: {', '.join(missing)}.", ""]
    sentences = []
    for side in sides:
        if side.against in found:
            ratio = {key: found[side.name][key] / found[side.against][key] for _, key, _, _ in ROWS}
            sentences.append(
                f"- {side.name}: labelwise trains a tree {ratio['tree']:.1f} times as fast "
                f"({ratio['tree cpu']:.1f} in CPU time), predicts a batch {ratio['predict']:.1f} times as fast and one "
                f"document {ratio['single']:.1f} times as fast, and its peak memory is {1 / ratio['peak']:.2f} of the "
                f"peer's."
            )
    spread = ", ".join(
        f"{side.name} {min(times):.2f} to {max(times):.2f}"
        for side in sides
        if (times := [run["train"] / side.trees for run in runs[side.name]])
    )
    lines += [*sentences, "", f"Training of a tree, fastest and slowest run (s): {spread}.", ""]
    lines += ["Other load on the machine, before each round: " + "; ".join(loads) + ".", ""]
    lines += ["TF-IDF compared with scikit-learn's is in [tfidf.md](tfidf.md).", ""]
    return "\n".join(lines)


def main() -> None:
    """Compute the features, run all packages, evaluate, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder with train and test texts")
    options.add_argument("--peers", nargs="*", default=[], help="Pythons that have the peers' packages")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--minutes", type=float, default=30, help="time limit of a side's run")
    options.add_argument("--only", nargs="*", help=f"sides to run, of: {'; '.join(side.name for side in SIDES)}")
    options.add_argument("--cache", type=Path, help="folder that keeps the features from one call to the next")
    options.add_argument("--results", type=Path, default=RESULTS)
    options.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.make:
        driving.make_features(given.data, given.make)
        return
    pythons = {
        side.name: sys.executable if side.package == "labelwise" else driving.python_with(side.package, given.peers)
        for side in SIDES
        if not given.only or side.name in given.only
    }
    sides = [side for side in SIDES if pythons.get(side.name)]
    missing = [f"{name} (no interpreter given has it)" for name, python in pythons.items() if python is None]
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.cache or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "train.txt").exists():  # in a separate process: a child starts with its parent's peak memory
            subprocess.run([sys.executable, __file__, "--data", given.data, "--make", str(folder)], check=True)
        runs: dict[str, list[dict]] = {side.name: [] for side in sides}
        loads = []
        for repeat in range(given.repeats):
            loads.append(f"{driving.busy_cores():.2f} cores busy, load {os.getloadavg()[0]:.1f}")
            print(f"repeat {repeat + 1}: {loads[-1]}", flush=True)
            for side in sides:
                keep = Path(temporary) / f"{side.name}.npz"
                found = driving.measure(side, pythons[side.name], folder, given.threads, given.minutes, keep)
                if isinstance(found, str):
                    missing.append(f"{side.name} ({found})")
                    print(missing[-1], flush=True)
                    continue
                runs[side.name].append(found)
                print(side.name, {k: round(v, 4) for k, v in found.items() if k != "versions"}, flush=True)
            sides = [side for side in sides if len(runs[side.name]) > repeat]
        scores = {side.name: driving.evaluate(folder, Path(temporary) / f"{side.name}.npz") for side in sides}
    text = page(given, sides, missing, runs, scores, loads)
    given.results.parent.mkdir(exist_ok=True)
    given.results.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
