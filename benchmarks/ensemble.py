"""Ensembles of saved models: every combination on one data set, with weights learned on its valid part.

    python benchmarks/ensemble.py --data EURLEX57K --members MODEL [MODEL ...] [--name eurlex57k]
    python benchmarks/ensemble.py                       # writes the page again from the stored figures

Members are model or run folders whose models were trained on the training part; `configs/eurlex57k` has some. Every
member predicts the valid and the test documents once, and all combinations are computed from these predictions with the
functions that `labelwise.Ensemble` uses. Scores are those of the test part; nothing is learned on it. CPU seconds of
learning are without the members' predictions. Figures are kept in benchmarks/results/ensemble.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "ensemble"
METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "RP@5", "PSP@5")
AVERAGES = ("average", "softmax_average", "sigmoid_average", "rank_average", "probability_average")
DEPTH = 50


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """The scores of members and combinations."""
    import labelwise as lw
    from labelwise.ensembles.combine import Combination
    from labelwise.ensembles.learn import Held, fitted_calibrations, learned
    from labelwise.linear.trees import MISSING, side_by_side
    from labelwise.metrics.names import parse_metric
    from labelwise.model.calibration import are_right

    valid, test = (lw.read(given.data, split=split) for split in ("valid", "test"))
    whole = lw.Ensemble(members=given.members).fit()
    names, count = whole.label_names_, len(given.members)
    valid, test = valid.align(names), test.align(names)
    cpu, tops = [], {"valid": [], "test": []}
    for number in range(count):
        begin = time.process_time()
        alone = lw.Ensemble(members=[whole.members_[number]], candidates=DEPTH).fit()
        columns = whole.fitted_.labels.columns[number]
        for part, documents in (("valid", valid), ("test", test)):
            top = alone.fitted_.tops(alone._as_documents(documents), DEPTH)[0]
            ids = top.ids if columns is None else np.where(top.ids < 0, -1, columns[np.maximum(top.ids, 0)])
            tops[part].append(lw.TopK(ids, top.scores))
        cpu.append(time.process_time() - begin)
    candidates = side_by_side(tops["valid"])
    held = Held(
        candidates, are_right(candidates.labels, valid.labels), np.diff(valid.labels.indptr), whole.label_counts_
    )
    tested, equal = side_by_side(tops["test"]), np.full(count, 1 / count)
    calibrations = fitted_calibrations(held, [None] * count)

    def scored(top: Any) -> dict[str, float]:
        found = lw.evaluate(
            lw.TopK(top.ids, top.scores, names), test, metrics=list(METRICS), train=whole.label_counts_,
            train_documents=whole.n_documents_,
        )  # fmt: skip
        return {name: found[name] for name in METRICS}

    rows = []
    for path, member, top, seconds in zip(given.members, whole.members_, tops["test"], cpu, strict=True):
        rows.append({"name": Path(path).name, "method": member.name, "cpu": seconds, **scored(top.head(5))})
    combined = []
    for rule in (*AVERAGES, "logistic"):
        start = Combination(
            rule, equal, calibrations=calibrations if rule in ("probability_average", "logistic") else ()
        )
        if rule != "logistic":
            combined.append({"rule": rule, "weights": None, **scored(start.best(tested, 5))})
        begin = time.process_time()
        found = learned(held, start, parse_metric("nDCG@5"))
        seconds = time.process_time() - begin
        weights = [round(float(weight), 3) for weight in found.weights]
        combined.append({"rule": rule, "weights": weights, "cpu": seconds, **scored(found.best(tested, 5))})
    missing = []
    for depth in (10, DEPTH):
        cut = side_by_side([top.head(depth) for top in tops["test"]])
        zero = replace(cut, scores=np.where(cut.ranks == MISSING, np.float32(0), cut.scores))
        for what, some in (("last score", cut), ("0", zero)):
            missing.append({"depth": depth, "missing": what, **scored(Combination("average", equal).best(some, 5))})
    return {"members": rows, "combined": combined, "missing": missing, "documents": [len(valid), len(test)]}


def page(results: dict[str, Any]) -> str:
    """The page of all stored figures."""
    lines = ["# Ensembles", "", "Measured by `benchmarks/ensemble.py`, whose header explains how.", ""]
    heads = " | ".join(METRICS)
    for name, found in results.items():
        learned_on, tested_on = found["documents"]
        lines += [f"## {name}", "", f"Learned on {learned_on:,} valid documents, tested on {tested_on:,}.", ""]
        lines += [f"| member | method | {heads} | CPU s, predict |", "|---|---|" + "--:|" * (len(METRICS) + 1)]
        for row in found["members"]:
            lines.append(f"| {row['name']} | {row['method']} | {_cells(row)} | {row['cpu']:.1f} |")
        lines += ["", f"| combine | weights | {heads} | CPU s, learn |", "|---|---|" + "--:|" * (len(METRICS) + 1)]
        for row in found["combined"]:
            weights = "equal" if row["weights"] is None else "learned: " + ", ".join(map(str, row["weights"]))
            seconds = "" if row.get("cpu") is None else f"{row['cpu']:.1f}"
            lines.append(f"| {row['rule']} | {weights} | {_cells(row)} | {seconds} |")
        lines += [
            "",
            "A label that a member does not rank counts as its last score, or as 0; `average`, equal weights:",
            "",
        ]
        lines += [f"| ranked labels per member | not ranked | {heads} |", "|--:|---|" + "--:|" * len(METRICS)]
        lines += [f"| {row['depth']} | {row['missing']} | {_cells(row)} |" for row in found["missing"]]
        lines.append("")
    return "\n".join(lines)


def _cells(row: dict[str, float]) -> str:
    return " | ".join(f"{100 * row[name]:.2f}" for name in METRICS)


def main() -> None:
    """Measure if members are given, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the data set")
    parser.add_argument("--members", nargs="+", default=[], help="model or run folders")
    parser.add_argument("--name", help="of this measurement, by default that of the data")
    given = parser.parse_args()
    stored = RESULTS.with_suffix(".json")
    results = json.loads(stored.read_text()) if stored.exists() else {}
    if given.data and given.members:
        results[given.name or Path(given.data).name] = measure(given)
        stored.write_text(json.dumps(results, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(page(results))


if __name__ == "__main__":
    main()
