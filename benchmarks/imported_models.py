"""Models that PECOS and omikuji have trained: predictions by these toolkits and by labelwise, which imported them.

    python benchmarks/imported_models.py --data FOLDER --peers PYTHON [PYTHON ...] [--repeats 3] [--models FOLDER]

FOLDER holds a train and a test split with texts. Each toolkit trains a model on our TF-IDF of single words, computed
once; `labelwise import` converts it; then both predict the test documents alternately, each time in a new process,
`--repeats` times: all at once on all threads, and one at a time on one thread. `--models` names a folder for features
and models, which are reused if they are there. Results go to benchmarks/results/imported_models.md and .json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from peers import driving
from peers.driving import Side

RESULTS = Path(__file__).parent / "results" / "imported_models"
SCRIPTS = Path(__file__).parent / "peers"
SIDES = (
    Side("PECOS XR-Linear", "saved_pecos.py", "pecos.xmc.xlinear.model"),
    Side("omikuji, 3 trees", "saved_omikuji.py", "omikuji", trees=3),
)
OURS = "saved_labelwise.py"
SCORES = ("P@1", "P@3", "P@5", "nDCG@5")
DEPTHS = (1, 3, 5)
TIED = 1e-5
ABOUT = """\
Both sides predict the top 10 labels with a beam of 10 from the same TF-IDF features, {threads} threads, each time in a
new process, alternately. PECOS predicts with its predict-only C++ model; omikuji's Python package takes one document
per call, so it is called from as many Python threads, with the lists of pairs it needs built before. Single documents
are predicted on one thread. Loading is not counted. In brackets: the peer's value divided by labelwise's. Agreement is
the fraction of test documents with the same labels in the same order, where labels with equal scores may differ."""
ROWS = (
    ("all test documents (s)", "predict", 1, ".3f"),
    ("all test documents (CPU s)", "predict cpu", 1, ".3f"),
    ("one document, median (ms)", "single", 1e3, ".3f"),
    ("one document, 95th percentile (ms)", "single p95", 1e3, ".3f"),
    ("model on disk (MB)", "bytes", 1e-6, ",.1f"),
)


def run_script(python: str, script: str, given, folder: Path, model: Path, *options: str) -> tuple[dict, Path | None]:
    """Run a side's script; its figures and its predictions, if it has made any."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [python, str(SCRIPTS / script), str(folder), scratch, "--model", str(model), *options]
        ended = driving.run([*command, "--threads", str(given.threads)], given.minutes * 60, given.threads)
        if ended.fault:
            sys.exit(f"{script}: {ended.fault}")
        made, kept = Path(scratch) / "predictions.npz", model.with_name(f"{model.name}-predictions.npz")
        if made.exists():
            made.replace(kept)
    return json.loads(ended.output.splitlines()[-1]), kept if kept.exists() else None


def compare(side: Side, python: str, given, folder: Path) -> dict[str, Any]:
    """Train where needed, import, predict alternately; medians, scores and agreement."""
    ours = folder / side.package.partition(".")[0]
    theirs = ours.with_name(f"{ours.name}-theirs")
    if not theirs.exists():
        run_script(python, side.script, given, folder, theirs, "--train", "--trees", str(side.trees))
    imported: dict[str, Any] = {}
    if not ours.exists():
        imported, _ = run_script(sys.executable, OURS, given, folder, ours, "--train")
    runs: dict[str, list[dict]] = {"theirs": [], "ours": []}
    files: dict[str, Path] = {}
    for _ in range(given.repeats):
        for name, interpreter, script, model in (
            ("theirs", python, side.script, theirs),
            ("ours", sys.executable, OURS, ours),
        ):
            found, file = run_script(interpreter, script, given, folder, model)
            assert file is not None
            runs[name].append(found)
            files[name] = file
            print(side.name, name, found, flush=True)
    result: dict[str, Any] = {"import seconds": imported.get("import"), "agreement": agreement(**files)}
    for name, found in runs.items():
        median = {key: statistics.median(run[key] for run in found) for _, key, _, _ in ROWS}
        scores = driving.evaluate(folder, files[name])
        result[name] = median | {key: scores[key] for key in SCORES} | {"versions": found[0]["versions"]}
    return result


def agreement(theirs: Path, ours: Path) -> dict[str, float]:
    """Fraction of documents with the same first labels in the same order, or others with the same scores."""
    with np.load(theirs) as left, np.load(ours) as right:
        same = (left["ids"] == right["ids"]) | (np.abs(left["scores"] - right["scores"]) < TIED)
        return {f"{k}": float(same[:, :k].all(axis=1).mean()) for k in DEPTHS}


def page(given, results: dict[str, dict], missing: list[str], load: str) -> str:
    """The results as a Markdown page."""
    data = Path(given.data).name
    versions = {
        name: number
        for one in results.values()
        for s in ("theirs", "ours")
        for name, number in one[s]["versions"].items()
    }
    heads = [head for name in results for head in (name, "labelwise, imported")]
    lines = [
        "# Imported models",
        "",
        f"{driving.machine()}; {', '.join(f'{name} {number}' for name, number in sorted(versions.items()))}. {data}, "
        f"medians of {given.repeats} alternating runs, created by `python benchmarks/imported_models.py --data {data} "
        "--peers PYTHON ...`.",
        "",
        ABOUT.format(threads=given.threads),
        "",
        "| | " + " | ".join(heads) + " |",
        "|---|" + "---|" * len(heads),
    ]
    for title, key, scale, form in ROWS:
        cells = []
        for one in results.values():
            theirs, ours = one["theirs"][key], one["ours"][key]
            cells += [f"{format(theirs * scale, form)} ({theirs / ours:.1f})", format(ours * scale, form)]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    for key in SCORES:
        cells = [f"{one[side][key]:.2f}" for one in results.values() for side in ("theirs", "ours")]
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    lines.append("")
    for name, one in results.items():
        same = ", ".join(f"{100 * value:.2f} % at {k}" for k, value in one["agreement"].items())
        spent = "" if one["import seconds"] is None else f"; the import took {one['import seconds']:.1f} s"
        lines.append(f"- {name}: agreement {same}{spent}.")
    if missing:
        lines.append(f"- Not measured, as no interpreter given had it: {', '.join(missing)}.")
    return "\n".join([*lines, "", f"Other load on the machine, before the first run: {load}.", ""])


@contextlib.contextmanager
def kept_folder(given) -> Iterator[Path]:
    """The folder for features and models, with the features."""
    with contextlib.ExitStack() as stack:
        folder = given.models or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "train.txt").exists():
            subprocess.run([sys.executable, __file__, "--data", given.data, "--make", str(folder)], check=True)
        yield folder


def main() -> None:
    """Make features, compare each peer's model, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder with train and test texts")
    options.add_argument("--peers", nargs="*", default=[], help="Pythons that have the peers' packages")
    options.add_argument("--models", type=Path, help="folder to keep features and models in")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--minutes", type=float, default=15, help="time limit of a process")
    options.add_argument("--results", type=Path, default=RESULTS)
    options.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.make:
        driving.make_features(given.data, given.make)
        return
    pythons = {side.name: driving.python_with(side.package, given.peers) for side in SIDES}
    load = f"{driving.busy_cores():.2f} cores busy, load {os.getloadavg()[0]:.1f}"
    missing = [name for name, python in pythons.items() if python is None]
    results: dict[str, dict] = {}
    given.results.parent.mkdir(exist_ok=True)
    with kept_folder(given) as folder:
        for side in SIDES:
            python = pythons[side.name]
            if python is None:
                continue
            results[side.name] = compare(side, python, given, folder)
            text = page(given, results, missing, load)
            given.results.with_suffix(".md").write_text(text, encoding="utf-8")
            given.results.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(text, flush=True)


if __name__ == "__main__":
    main()
