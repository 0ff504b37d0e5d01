"""The linear tree from 10,000 to 1,000,000 labels, PECOS XR-Linear beside it: time, memory, size, latency and P@k.

    python benchmarks/linear_scale.py --peers PYTHON [--labels 10000 100000 1000000] [--repeats 1] [--folder KEPT]

Data is drawn in the shape of Amazon-670K (`hybrid_scale_data.py`, with categories), documents in proportion to labels.
Both packages get the same features and train one tree with 16 splits, leaves of 100 labels, weights from 0.1 on, and 2
threads, each in a separate process, alternating. A package that does not finish within --minutes is stopped, and the
page says so. With --folder finished runs are kept, so that an interrupted benchmark resumes; --page only writes
the page again. Writes benchmarks/results/linear_scale.md, .json and .svg.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hybrid_scale_data import draw
from linear_scale_page import chart, estimates, page
from peers import driving

RESULTS = Path(__file__).parent / "results" / "linear_scale"
SIZES = (10_000, 100_000, 1_000_000)
SIDES = (driving.Side("labelwise", "run_labelwise.py", "labelwise"), driving.Side("PECOS", "run_pecos.py", "pecos"))
FILES = {"train.npz": "X.npz", "train_labels.npz": "Y.npz", "test.npz": "Xt.npz", "test_labels.npz": "Yt.npz"}


def drawn(n_labels: int, folder: Path) -> dict[str, float]:
    """Draw data into the folder, unless it is there already; returns its counts."""
    kept = folder / "data.json"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, "--draw", str(folder), "--labels", str(n_labels)]
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for name, new in FILES.items():
            (folder / name).rename(folder / new)
        kept.write_text(ended.stdout.splitlines()[-1])
    return json.loads(kept.read_text())


def measured(side: driving.Side, python: str, folder: Path, given, number: int) -> dict:
    """One run of a package: its figures and scores, or why there are none."""
    kept = folder / f"{side.name}{number}.json"
    if not kept.exists():
        load = f"{driving.busy_cores():.2f} cores busy"
        predictions = folder / f"{side.name}.predictions.npz"
        found = driving.measure(side, python, folder, given.threads, given.minutes, predictions)
        if isinstance(found, str):
            found = {"fault": found}
        else:
            found |= driving.evaluate(folder, predictions)
        kept.write_text(json.dumps(found | {"busy": load}))
    return json.loads(kept.read_text())


def combined(runs: list[dict]) -> dict:
    """Medians over the repeats; figures that are no numbers are of the last."""
    if "fault" in runs[-1]:
        return runs[-1]
    shared = {key: value for key, value in runs[-1].items() if not isinstance(value, float | int)}
    return shared | {
        key: statistics.median(run[key] for run in runs) for key, value in runs[-1].items() if key not in shared
    }


def main() -> None:
    """Measure all sizes and write page, figures and plot."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--labels", type=int, nargs="+", default=SIZES)
    options.add_argument("--peers", nargs="*", default=[], help="Pythons, one of which has libpecos")
    options.add_argument("--sides", nargs="+", default=[side.name for side in SIDES], help="only these packages")
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--minutes", type=float, default=60, help="limit per run")
    options.add_argument("--folder", type=Path, help="keep data and finished runs here")
    options.add_argument("--results", type=Path, default=RESULTS, help="path of the results, without extension")
    options.add_argument("--page", action="store_true", help="only write page and plot from the kept figures")
    options.add_argument("--draw", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.draw:
        print(json.dumps(draw(given.labels[0], given.draw, None, 1.0, every=("train",), categories=True)))
        return
    rows = json.loads(given.results.with_suffix(".json").read_text()) if given.page else []
    pythons = {"labelwise": sys.executable, "PECOS": driving.python_with("pecos", given.peers)}
    for n_labels in () if given.page else given.labels:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(given.folder or scratch) / str(n_labels)
            row = {"labels": n_labels} | drawn(n_labels, folder)
            found: dict[str, list[dict]] = {}
            for number in range(given.repeats):
                for side in SIDES:
                    if side.name in given.sides and pythons[side.name]:
                        one = measured(side, pythons[side.name], folder, given, number)
                        found.setdefault(side.name, []).append(one)
                        print(n_labels, side.name, one, flush=True)
        rows.append(row | {name: combined(runs) for name, runs in found.items()})
    for row in rows:
        row["plan"] = estimates(row)
    given.results.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    given.results.with_suffix(".md").write_text(page(rows, given), encoding="utf-8")
    given.results.with_suffix(".svg").write_bytes(chart(rows).file("svg"))
    print(given.results.with_suffix(".md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
