"""Accuracy, CPU time, memory and model size of methods on a whole data set, in one table: configs as users run them.

    python benchmarks/methods.py --data FOLDER --runs FOLDER [--encoder FOLDER] [--rows NAME ...] [--set PATH=VALUE ...]
    python benchmarks/methods.py                         # writes the page again from the stored figures

A row is a config of `configs/<name of the data>/`, trained by `labelwise train` in a process of its own. Its run folder
is `RUNS/<row>`; members of an ensemble are rows before it. Probabilities and the threshold of micro-F1 are fitted on
held-out documents, and nothing is chosen on test documents. CPU seconds and peak memory are those of the whole process:
reading, training, calibration, evaluation and report. Vectors of encoders are kept in `RUNS/vectors` for all rows: the
first one that needs them pays. Figures are kept in results/methods.json; a row that is measured again replaces its
entry. `--set` changes all rows, for example `data.limit=50000`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from peers import driving

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "methods"
METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "RP@5", "PSP@1", "PSP@3", "PSP@5", "micro-F1")
ENCODED = ("hybrid_linear", "xr_transformer")
PUBLISHED = {
    "eurlex57k": "| BERT-base, fine-tuned (Chalkidis et al. 2019) | | | 68.7 | 82.3 | 79.6 | | | | 73.2 | | | |",
}
"""Rows that other authors have published, by data set."""


def settings(given: argparse.Namespace, row: str, config: dict[str, Any]) -> list[str]:
    """The changes that make a config of the repository run here."""
    found = [f"data.path={given.data}", f"run.folder={given.runs / row}", f"evaluate.metrics={json.dumps(METRICS)}"]
    method = config["model"]["method"]

    def other_row(run: str) -> str:
        return str(given.runs / Path(run).name.removeprefix(f"{given.data.name}-"))

    if method in ENCODED:
        named = config["model"]["encoder"].get("model", "")
        encoder = other_row(named) if named.startswith("runs/") else given.encoder
        found += [f"model.encoder.model={encoder}", f"model.encoder.precision={given.precision}"]
    if method == "ensemble":
        found.append(f"model.members={json.dumps([other_row(one) for one in config['model']['members']])}")
    return [part for setting in (*found, *given.set) for part in ("--set", setting)]


def measure(given: argparse.Namespace, row: str) -> dict[str, Any]:
    """Train a row; a run that is there and finished is not trained again and keeps its figures."""
    path = ROOT / "configs" / given.data.name / f"{row}.yml"
    config = yaml.safe_load(path.read_text())
    kept = given.runs / f"{row}.json"
    earlier = json.loads(kept.read_text()) if kept.exists() else {"cpu": 0.0, "peak": 0}
    if not (given.runs / row / "results.json").exists():
        executable = shutil.which("labelwise", path=Path(sys.executable).parent)
        ended = driving.run([str(executable), "train", str(path), *settings(given, row, config)])
        earlier = {"cpu": earlier["cpu"] + ended.cpu, "peak": max(earlier["peak"], ended.peak)}
        kept.write_text(json.dumps(earlier))  # an interrupted run resumes, its time counts
        if ended.fault:
            sys.exit(f"{row}: {ended.fault}")
    results = json.loads((given.runs / row / "results.json").read_text())
    values = results["evaluation"]["values"]
    return {
        **{metric: round(100 * values[metric], 2) for metric in METRICS},
        "cpu": round(earlier["cpu"]),
        "peak": round(earlier["peak"] / 1e6),
        "megabytes": round(results["model"]["bytes"] / 1e6),
        "documents": [results["data"]["train"]["documents"], results["n_documents"]],
        "note": given.note,
    }


def page(figures: dict[str, Any]) -> str:
    """One table per data set."""
    lines = [
        "# Methods in one table", "",
        "Made by `benchmarks/methods.py`, whose header explains how: configs of the repository, trained on 2 cores of",
        "a shared machine. CPU s and peak MB are those of the whole run, MB is the model folder with the encoder.",
        "Calibrated on held-out documents, micro-F1 at the calibrated threshold. Linear weights have 32 bits,",
        "except where a note says otherwise.",
    ]  # fmt: skip
    for title, rows in figures.items():
        lines += ["", f"## {title}", "", "| | " + " | ".join(METRICS) + " | CPU s | peak MB | MB |"]
        lines.append("|---" + "|--:" * (len(METRICS) + 3) + "|")
        notes = list(dict.fromkeys(found["note"] for found in rows.values() if found["note"]))
        for row, found in rows.items():
            mark = f" ({notes.index(found['note']) + 1})" if found["note"] else ""
            amounts = [f"{found['cpu']:,}{mark}", f"{found['peak']:,}", f"{found['megabytes']:,}"]
            lines.append(f"| {row} | " + " | ".join([*(f"{found[metric]:.2f}" for metric in METRICS), *amounts]) + " |")
        lines += [row for name, row in PUBLISHED.items() if title.startswith(name)]
        for number, note in enumerate(notes, 1):
            lines += ["", f"({number}) {note}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the rows, then write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, help="a folder with texts, named like a folder of configs/")
    options.add_argument("--encoder", type=Path, help="a folder of pretrained weights, for rows that need one")
    options.add_argument("--precision", default="float32", help="of its layers when texts are encoded: float32 or int8")
    options.add_argument("--runs", type=Path, help="where runs are kept")
    options.add_argument("--rows", nargs="*", default=["linear_tree", "hybrid_linear", "xr_transformer", "ensemble"])
    options.add_argument("--set", nargs="*", default=[], help="changes of all configs, such as data.limit=50000")
    options.add_argument("--note", default="", help="a remark on the CPU seconds of these rows, for the page")
    given = options.parse_args()
    stored = RESULTS.with_suffix(".json")
    figures: dict[str, Any] = json.loads(stored.read_text()) if stored.exists() else {}
    if given.data is not None:
        given.runs.mkdir(parents=True, exist_ok=True)
        os.environ |= {"LABELWISE_VECTORS": str((given.runs / "vectors").absolute()), "HF_HUB_OFFLINE": "1"}
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        for row in given.rows:
            found = measure(given, row)
            train, test = found["documents"]
            title = f"{given.data.name}, {train:,} training and {test:,} test documents"
            figures.setdefault(title, {})[row] = found
            print(row, found, flush=True)
            stored.write_text(json.dumps(figures, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(page(figures))


if __name__ == "__main__":
    main()
