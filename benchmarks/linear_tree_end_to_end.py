"""From texts to scores: labelwise in one command, compared with PECOS and omikuji.

    python benchmarks/linear_tree_end_to_end.py --data FOLDER --peers PYTHON [PYTHON ...] [--trees 3]

FOLDER holds a train and a test split with texts. labelwise is `labelwise train configs/yso-en/linear_tree.yml`;
everything in its process counts: reading compressed text, TF-IDF, trees, prediction, evaluation with intervals, the
report. Wall time, CPU time and peak memory are those of the whole process. A process that exceeds `--minutes` is
stopped, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from peers import driving
from peers.driving import METRICS, Ended, Side

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "linear_tree_end_to_end.md"
CONFIG = HERE.parent / "configs" / "yso-en" / "linear_tree.yml"
PEERS = (
    Side("PECOS XR-Linear", "whole_pecos.py", "pecos.xmc.xlinear.model"),
    Side("omikuji", "whole_omikuji.py", "omikuji"),
)
ABOUT = """\
{trees} trees each, averaged, {threads} threads, each package in a separate process. labelwise:
`{command}`, which reads the compressed texts, computes TF-IDF, trains, predicts, evaluates with intervals and writes a
report. PECOS reads plain texts and a prepared label matrix and computes its own TF-IDF in C++ (words separated by
whitespace; the texts are lowercased for it); {trees} models with different seeds are averaged as in its ensembles.
omikuji computes no features: it gets ours as a text file, and the {making:.0f} s it takes to write that file are not
counted, nor is the evaluation of the peers' predictions."""


def run_ours(given, scratch: Path) -> tuple[Ended, dict[str, float], dict[str, float]]:
    """Run our one command; time and memory of the process, its scores, and its own figures."""
    command = [sys.executable, "-m", "labelwise.cli.main", "train", str(given.config)]
    for override in (f"data.path={given.data}", f"run.folder={scratch / 'run'}", f"model.trees={given.trees}"):
        command += ["--set", override]
    ended = driving.run(command, given.minutes * 60, given.threads)
    if ended.fault:
        return ended, {}, {}
    results = json.loads((scratch / "run" / "results.json").read_text(encoding="utf-8"))
    seconds = {name: value for name, value in results["timings"].items() if isinstance(value, int | float)}
    scores = {metric: 100 * results["evaluation"]["values"][metric] for metric in METRICS}
    return ended, scores, {"bytes": results["model"]["bytes"], **seconds}


def run_peer(given, side: Side, python: str, folder: Path, scratch: Path) -> tuple[Ended, dict, dict]:
    """A peer's process."""
    command = [python, str(HERE / "peers" / side.script), str(folder), str(scratch)]
    command += ["--threads", str(given.threads), "--trees", str(given.trees)]
    ended = driving.run(command, given.minutes * 60, given.threads)
    if ended.fault:
        return ended, {}, {}
    found = json.loads(ended.output.splitlines()[-1])
    found.pop("versions")
    return ended, driving.evaluate(folder, scratch / "predictions.npz"), found


def make_inputs(data: str, folder: Path) -> None:
    """Write the files the peers read: features, labels, plain texts."""
    import labelwise as lw

    driving.make_features(data, folder)
    for split in ("train", "test"):
        with (folder / f"{split}_texts.txt").open("w", encoding="utf-8") as file:
            file.writelines(" ".join(text.splitlines()) + "\n" for text in lw.read(data, split=split).texts)


def page(given, runs: dict[str, list[tuple[Ended, dict, dict]]], missing: list[str], making: float, loads) -> str:
    """The results as a Markdown page."""
    command = f"labelwise train {given.config.relative_to(HERE.parent)} --set data.path={Path(given.data).name}"
    about = ABOUT.format(trees=given.trees, threads=given.threads, making=making, command=command)
    lines = [
        "# From texts to scores",
        "",
        f"{driving.machine()}. {Path(given.data).name}, median of {given.repeats}. Made by "
        f"`python benchmarks/linear_tree_end_to_end.py --data {Path(given.data).name} --peers PYTHON ...`.",
        "",
        about,
        "",
        "| | seconds | CPU seconds | peak memory (MB) | model (MB) | " + " | ".join(METRICS) + " |",
        "|---|" + "---|" * (4 + len(METRICS)),
    ]
    stages = []
    for name, measured in runs.items():
        _, scores, figures = measured[-1]
        fault = next((one.fault for one, _, _ in measured if one.fault), "")
        if fault:
            peak = max(one.peak for one, _, _ in measured)
            lines.append(f"| {name} | {fault} | | {peak / 1e6:,.0f} | |" + " |" * len(METRICS))
            continue
        middle = {
            key: statistics.median(getattr(one, key) for one, _, _ in measured) for key in ("seconds", "cpu", "peak")
        }
        lines.append(
            f"| {name} | {middle['seconds']:.1f} | {middle['cpu']:.1f} | {middle['peak'] / 1e6:,.0f} "
            f"| {figures['bytes'] / 1e6:,.0f} | " + " | ".join(f"{scores[metric]:.2f}" for metric in METRICS) + " |"
        )
        parts = [f"{key} {value:.1f}" for key, value in figures.items() if key != "bytes" and "per_second" not in key]
        stages.append(f"- {name}: {', '.join(parts)}")
    lines += ["", "Seconds of the stages in the last run, as reported by each package:", "", *stages, ""]
    if missing:
        lines += [f"Not measured, as no interpreter given had it: {', '.join(missing)}.", ""]
    lines += ["Other load on the machine, before each round: " + "; ".join(loads) + ".", ""]
    return "\n".join(lines)


def main() -> None:
    """Write the peers' inputs, run all packages, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder with train and test texts")
    options.add_argument("--peers", nargs="*", default=[], help="Pythons that have the peers' packages")
    options.add_argument("--config", type=Path, default=CONFIG, help="the config that labelwise runs")
    options.add_argument("--trees", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--minutes", type=float, default=15, help="time limit of a run")
    options.add_argument("--results", type=Path, default=RESULTS)
    options.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.make:
        make_inputs(given.data, given.make)
        return
    pythons = {side.name: driving.python_with(side.package, given.peers) for side in PEERS}
    runs: dict[str, list] = {}
    loads = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        making = driving.run([sys.executable, __file__, "--data", given.data, "--make", temporary])
        if making.fault:
            sys.exit(making.fault)
        for _ in range(given.repeats):
            loads.append(f"{driving.busy_cores():.2f} cores busy, load {os.getloadavg()[0]:.1f}")
            for name in ("labelwise", *(side.name for side in PEERS if pythons[side.name])):
                scratch = folder / "scratch"
                scratch.mkdir()
                side = next((one for one in PEERS if one.name == name), None)
                found = run_peer(given, side, pythons[name], folder, scratch) if side else run_ours(given, scratch)
                runs.setdefault(name, []).append(found)
                shutil.rmtree(scratch)
                print(name, found, flush=True)
    missing = [name for name, python in pythons.items() if python is None]
    text = page(given, runs, missing, making.seconds, loads)
    given.results.parent.mkdir(exist_ok=True)
    given.results.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
