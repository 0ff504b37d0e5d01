"""How exactly time budgets are kept: every method on one data set, with a budget for `fit` and one for a whole run.

    python benchmarks/time_budget.py --data EURLEX57K --encoder FOLDER [--budgets 60 300] [--methods mach bigru]

All methods have their default parameters; the text encoder starts from the weights in `--encoder`. `fit` has
`training.time_budget` (linear methods: `time_budget`) and is timed alone, in Python, with the valid split as held-out
documents; its scores are on `--tests` random test documents. `run` is the command `labelwise train` with
`run.time_budget`, timed from start to end of the process; its scores are those in its results. Each measurement is a
separate process. Results are kept in benchmarks/results/time_budget.json, so that single ones can be measured again,
and written to benchmarks/results/time_budget.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "time_budget.md"
METHODS = ("popularity", "linear_tree", "linear_flat", "mach", "attention_xml", "bigru", "text_encoder")
NETWORKS = METHODS[3:]


def parameters(method: str, encoder: str | None, budget: float | None) -> dict:
    """The parameters of a method with this budget."""
    model: dict = {}
    if method == "text_encoder":
        model["encoder"] = {"model": encoder}
    if budget is not None and method in NETWORKS:
        model["training"] = {"time_budget": budget}
    elif budget is not None and method != "popularity":
        model["time_budget"] = budget
    return model


def measure_fit(given: argparse.Namespace) -> dict:
    """Time `fit` in this process, then score some test documents."""
    import logging

    import numpy as np

    import labelwise as lw
    from labelwise.registry import method_class

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    train, valid, test = (lw.read(given.data, split=split) for split in ("train", "valid", "test"))
    model = method_class(given.one)(**parameters(given.one, given.encoder, given.seconds))
    begin, cpu = time.perf_counter(), time.process_time()
    model.fit(train, valid=valid)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    rows = np.sort(np.random.default_rng(0).permutation(len(test))[: given.tests])
    some = test.take(rows)
    found = lw.evaluate(model.predict(some, k=5), some.align(model.label_names_), metrics=["P@1", "P@5"])
    return {"seconds": seconds, "cpu": cpu, "P@1": found["P@1"], "P@5": found["P@5"], "documents": len(rows)}


def measure_run(given: argparse.Namespace) -> dict:
    """Time `labelwise train` from start to end of its process."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.yml"
        values = {
            "data": {"path": given.data},
            "model": {"method": given.one, **parameters(given.one, given.encoder, None)},
            "evaluate": {"metrics": ["P@1", "P@5"]},
            "run": {"folder": str(Path(folder) / "run"), "time_budget": given.seconds},
        }
        config.write_text(json.dumps(values), encoding="utf-8")
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "labelwise.cli.main", "train", str(config)], check=True)
        seconds = time.perf_counter() - begin
        results = json.loads((Path(folder) / "run" / "results.json").read_text(encoding="utf-8"))
    found = results["evaluation"]["values"]
    fit = results["timings"]["fit"]
    documents = results["evaluation"]["n_documents"]
    return {"seconds": seconds, "fit": fit, "P@1": found["P@1"], "P@5": found["P@5"], "documents": documents}


def measure_all(given: argparse.Namespace) -> None:
    """Measure what is asked for, one process after the other, and write the table after each."""
    kept_in = RESULTS.with_suffix(".json")
    for budget in given.budgets:
        for method in given.methods:
            for mode in given.modes:
                command = [sys.executable, __file__, "--one", method, "--seconds", str(budget), "--modes", mode]
                command += ["--data", given.data, "--encoder", given.encoder, "--tests", str(given.tests)]
                print(f"{method}, {mode}, {budget:g} s", flush=True)
                found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
                if found.returncode:
                    print(f"failed with {found.returncode}", flush=True)
                    continue
                measured = json.loads(found.stdout.splitlines()[-1])
                print(measured, flush=True)
                kept = json.loads(kept_in.read_text()) if kept_in.exists() else {}
                kept[f"{method} {mode} {budget:g}"] = {**measured, "load": os.getloadavg()[0]}
                kept_in.write_text(json.dumps(kept, indent=1) + "\n")
                write_table(kept)


def write_table(kept: dict) -> None:
    """The table of all results."""
    lines = [
        "# Time budgets",
        "",
        f"`benchmarks/time_budget.py` on eurlex57k (45,000 training documents), {datetime.date.today()}, "
        f"{platform.machine()}, {os.cpu_count()} cores, shared with other work. Seconds of wall time; "
        "the ratio is that to the budget. P@1 and P@5 in per cent, on the documents in the last column. "
        "`fit`: the method's own time budget; `run`: `run.time_budget`, the whole process of `labelwise train`. "
        "A ratio far below 1 is a training that was done earlier.",
        "",
        "| method | budget of | budget, s | took, s | ratio | P@1 | P@5 | documents | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for mode in ("fit", "run"):
        for method in METHODS:
            for name, one in sorted(kept.items(), key=lambda item: float(item[0].split()[-1])):
                of, kind, budget = name.split()
                if (of, kind) == (method, mode):
                    ratio = one["seconds"] / float(budget)
                    lines.append(
                        f"| {method} | {mode} | {budget} | {one['seconds']:.1f} | {ratio:.2f} | "
                        f"{100 * one['P@1']:.1f} | {100 * one['P@5']:.1f} | {one['documents']:,} | {one['load']:.0f} |"
                    )
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Measure everything, or one thing in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--encoder", required=True, help="folder of a pretrained text encoder")
    parser.add_argument("--budgets", type=float, nargs="+", default=[60.0, 300.0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--modes", nargs="+", default=["fit", "run"], choices=["fit", "run"])
    parser.add_argument("--tests", type=int, default=500, help="test documents to score after `fit`")
    parser.add_argument("--one", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is None:
        measure_all(given)
    else:
        print(json.dumps(measure_fit(given) if given.modes == ["fit"] else measure_run(given)))


if __name__ == "__main__":
    main()
