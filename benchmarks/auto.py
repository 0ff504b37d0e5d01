"""What `labelwise auto` finds in ten minutes, compared with the default `linear_tree` on the same documents.

    python benchmarks/auto.py --data FOLDER [FOLDER ...] [--budget 10m] [--limit 100000] [--runs runs/auto]
    python benchmarks/auto.py            # writes the page from the stored figures

For each FOLDER two commands, each in a process of its own: `labelwise train FOLDER`, the default, and `labelwise auto
FOLDER --budget 10m`. Both have the same training, validation and test documents: the valid part of the folder, or a
tenth of the training documents, chosen by hash. Scores on the validation documents are those that `auto` decides by
(ensembles cross-fitted); scores on the test documents are those of the judged models, before training on all documents.
Differences have 95 % intervals of the paired bootstrap. Rows are kept in benchmarks/results/auto.json; a row with the
same data, limit and budget is replaced. Runs stay in --runs, and an interrupted one resumes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "auto.json"
METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5")
METRIC = "P@5"


def command(*words: str) -> dict[str, float]:
    """Run `labelwise WORDS`; wall-clock and CPU seconds."""
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "labelwise", *words], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.monotonic() - begin, "cpu": cpu}


def once(run: Path, *words: str) -> dict[str, float]:
    """The command of a run and what it took, unless the run is finished."""
    from labelwise.io.folder import is_finished

    took = run.with_name(f"{run.name}-took.json")
    if not is_finished(run):
        took.write_text(json.dumps(command(*words, "-o", str(run))))
    return json.loads(took.read_text())


def measure(folder: Path, budget: str, limit: int | None, runs: Path) -> dict[str, Any]:
    """Both runs of a data set, and their figures."""
    from labelwise.config import ConfigSource
    from labelwise.data.read import find_parts
    from labelwise.io.folder import AUTO, CONFIG
    from labelwise.io.folder import RESULTS as SCORES
    from labelwise.io.json import read_json
    from labelwise.metrics.result import PairedScores, saved_predictions
    from labelwise.model.method import load
    from labelwise.report.schema import AutoRecord, Results
    from labelwise.runs.config import run_config
    from labelwise.runs.data import load_run_data
    from labelwise.runs.evaluate import sample
    from labelwise.tuning.auto import MOST_DOCUMENTS
    from labelwise.tuning.ladder import Judge, checked_metric

    named = f"{folder.name}-{limit or 'all'}"
    default, chosen = runs / f"{named}-default", runs / f"{named}-auto-{budget}"
    shared = [f"--set=evaluate.metrics=[{', '.join(METRICS)}]"]
    shared += [f"--set=data.limit={limit}"] if limit else []
    parts = find_parts(folder)[1]
    held_out = [] if "valid" in parts else ["--set=data.valid_fraction=0.1"]
    once_default = once(default, "train", str(folder), *shared, *held_out, "--set=run.refit=false")
    once_auto = once(chosen, "auto", str(folder), "--budget", budget, "--metric", METRIC, *shared)
    record = read_json(chosen / AUTO, AutoRecord)
    data = load_run_data(run_config(ConfigSource.from_file(chosen / CONFIG)).data)
    assert data.valid is not None
    valid = sample(data.valid, MOST_DOCUMENTS)
    judge = Judge(valid, data.train.label_counts(), len(data.train), checked_metric(METRIC))
    model = load(default)
    model.calibration_ = None
    sums = judge.sums(model.predict(valid, judge.k))
    saved = [saved_predictions(run) for run in (default, chosen)]
    paired = PairedScores([one.sums for one in saved if one is not None])
    results = [read_json(run / SCORES, Results) for run in (default, chosen)]
    differences = {}
    for metric in METRICS:
        found = paired.difference(1, 0, metric)
        differences[metric] = None if found is None else [found.value, found.low, found.high]
    option = record.option(str(record.chosen))
    return {
        "data": folder.name,
        "limit": limit,
        "budget": budget,
        "n_train": len(data.train),
        "n_valid": len(valid),
        "n_test": results[0].n_documents,
        "load": os.getloadavg()[2],
        "default": {"valid": float(sums.values()[0]), "test": dict(results[0].evaluation.values), **once_default},
        "auto": {"valid": option.value, "test": dict(results[1].evaluation.values), **once_auto},
        "refit": results[1].refit is not None,
        "differences": differences,
        "why": record.why,
        "options": [
            {
                "name": one.name, "status": one.status, "value": one.value, "seconds": one.seconds,
                "about": one.reason or one.about, "chosen": one.name == record.chosen,
            }
            for one in record.options
        ],
    }  # fmt: skip


def page(rows: list[dict[str, Any]]) -> str:
    """The figures as Markdown."""
    lines = ["# `labelwise auto` and the default", "", "`python benchmarks/auto.py`, whose header explains how."]
    for row in rows:
        title = f"{row['data']}, {row['n_train']:,} training documents, a budget of {row['budget']}"
        lines += ["", f"## {title}", ""]
        lines += [f"| | {METRIC} valid | {' | '.join(f'{metric} test' for metric in METRICS)} | wall s | CPU s |"]
        lines += ["|---|" + "--:|" * (len(METRICS) + 3)]
        for name in ("default", "auto"):
            one = row[name]
            test = " | ".join(f"{100 * one['test'][metric]:.2f}" for metric in METRICS)
            lines.append(f"| {name} | {100 * one['valid']:.2f} | {test} | {one['wall']:.0f} | {one['cpu']:.0f} |")
        shown = [
            f"{100 * row['differences'][metric][0]:+.2f} ({100 * row['differences'][metric][1]:+.2f} to "
            f"{100 * row['differences'][metric][2]:+.2f})"
            for metric in METRICS
        ]
        gain = 100 * (row["auto"]["valid"] - row["default"]["valid"])
        lines.append(f"| auto - default | {gain:+.2f} | {' | '.join(shown)} | | |")
        again = "then trained on all documents" if row["refit"] else "not trained on all documents, for lack of time"
        lines += [
            "",
            f"{row['n_valid']:,} validation and {row['n_test']:,} test documents; load of the machine "
            f"{row['load']:.0f}. {row['why'][:1].upper()}{row['why'][1:]}; {again}.",
            "",
            f"| tried | {METRIC} valid | training, s | |",
            "|---|--:|--:|---|",
        ]
        for one in row["options"]:
            value = "" if one["value"] is None else f"{100 * one['value']:.2f}"
            seconds = "" if one["seconds"] is None else f"{one['seconds']:.1f}"
            name = f"**{one['name']}**" if one["chosen"] else one["name"]
            about = one["about"] if one["status"] == "tried" else f"{one['status']}: {one['about']}"
            lines.append(f"| {name} | {value} | {seconds} | {about} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", type=Path, default=[])
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--runs", type=Path, default=Path("runs/auto"))
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for folder in given.data:
        row = measure(folder, given.budget, given.limit, given.runs)
        identity = ("data", "limit", "budget")
        rows = [one for one in rows if any(one[key] != row[key] for key in identity)] + [row]
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(page(rows))


if __name__ == "__main__":
    main()
