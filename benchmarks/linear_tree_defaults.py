"""Cost and benefit of each parameter of linear_tree: the reasons for its defaults.

    python benchmarks/linear_tree_defaults.py --data FOLDER [FOLDER ...]
    python benchmarks/linear_tree_defaults.py            # draws the stored figures again

First one factor at a time is varied around `BASE`, with one tree; then whole settings are tried. They are evaluated on
held-out documents, never on the test split: the valid split of a folder that has one, otherwise 10,000 training
documents. At most `--limit` training documents are used, drawn at random. Everything runs on one thread, so that CPU
seconds are meaningful even on a loaded machine. Figures are appended to benchmarks/results/linear_tree_defaults.csv;
rows in it are not measured again (delete it to start over). Then page and plots are written.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "linear_tree_defaults"
METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "RP@5", "PSP@1", "PSP@3", "PSP@5")
HELD_OUT = 10_000

BASE: dict[str, Any] = {
    "tfidf.ngrams": (1, 1),
    "tfidf.max_features": None,
    "tfidf.min_df": 1,
    "tfidf.sublinear": False,
    "trees": 1,
    "branching": 16,
    "leaf_size": 100,
    "label_features": 500,
    "negatives": "teacher",
    "solver.loss": "squared_hinge",
    "solver.cost_positive": 1.0,
    "solver.cost_negative": 1.0,
    "solver.threshold": 0.1,
    "solver.tolerance": 0.1,
    "post_processor": "l3_hinge",
    "beam": 10,
    "seed": 0,
}
"""The base of the one-factor variations: the common settings of XR-Linear."""

FACTORS: dict[str, list[dict[str, Any]]] = {
    "seed": [{"seed": n} for n in (1, 2)],  # the variance between seeds
    "trees": [{"trees": n} for n in (2, 3, 5)],
    "branching": [{"branching": n} for n in (4, 8, 32, 64, 256)],
    "leaf_size": [{"leaf_size": n} for n in (10, 20, 50, 200, 400, 1000)],
    "negatives": [{"negatives": "matcher"}],
    "n-grams": [
        {"tfidf.ngrams": (1, 2), "tfidf.max_features": 100_000},
        {"tfidf.ngrams": (1, 2), "tfidf.max_features": 300_000},
        {"tfidf.ngrams": (1, 2), "tfidf.max_features": 1_000_000},
        {"tfidf.ngrams": (1, 2), "tfidf.min_df": 2},
        {"tfidf.ngrams": (1, 3), "tfidf.max_features": 500_000},
        {"tfidf.min_df": 2},
    ],
    "sublinear": [{"tfidf.sublinear": True}],
    "cost": [{"solver.cost_positive": c, "solver.cost_negative": c} for c in (0.25, 0.5, 2.0, 4.0, 8.0)],
    "cost of positives": [{"solver.cost_positive": c} for c in (2.0, 4.0)],
    "threshold": [{"solver.threshold": t} for t in (0.01, 0.05, 0.2)],
    "tolerance": [{"solver.tolerance": t} for t in (0.03, 0.3, 1.0)],
    "loss": [
        {"solver.loss": "hinge"},
        {"solver.loss": "logistic"},
        {"solver.loss": "logistic", "post_processor": "sigmoid"},
        {
            "solver.loss": "logistic",
            "post_processor": "sigmoid",
            "solver.cost_positive": 10.0,
            "solver.cost_negative": 10.0,
        },
    ],
    "label features": [{"label_features": n} for n in (100, 2000, None)],
    "post-processor": [
        {"post_processor": name} for name in ("l1_hinge", "l2_hinge", "l4_hinge", "sigmoid", "log_sigmoid", "none")
    ],
    "beam": [{"beam": n} for n in (5, 20, 50, 100)],
}

THREE = {"trees": 3}
SUBLINEAR = {"tfidf.sublinear": True}
PAIRS = {"tfidf.ngrams": (1, 2), "tfidf.max_features": 300_000, "tfidf.sublinear": True}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "3 trees, sublinear": THREE | SUBLINEAR,
    "3 trees, pairs": THREE | PAIRS,
    "3 trees, all pairs": THREE | PAIRS | {"tfidf.max_features": None},
    "3 trees, pairs, all label features": THREE | PAIRS | {"label_features": None},
    "3 trees, small leaves": THREE | SUBLINEAR | {"leaf_size": 50},
    "3 trees, large leaves": THREE | SUBLINEAR | {"leaf_size": 200},
    "3 trees, wide nodes": THREE | SUBLINEAR | {"branching": 32},
    "3 trees, low threshold": THREE | SUBLINEAR | {"solver.threshold": 0.05},
    "3 trees, high threshold": THREE | SUBLINEAR | {"solver.threshold": 0.2},
    "3 trees, low cost": THREE | SUBLINEAR | {"solver.cost_positive": 0.5, "solver.cost_negative": 0.5},
    "3 trees, loose tolerance": THREE | SUBLINEAR | {"solver.tolerance": 0.3},
    "3 trees, looser": THREE | SUBLINEAR | {"solver.tolerance": 0.5},
    "3 trees, loose tolerance, large leaves": THREE | SUBLINEAR | {"solver.tolerance": 0.3, "leaf_size": 200},
    "3 trees, loose tolerance, all label features": THREE
    | SUBLINEAR
    | {"solver.tolerance": 0.3, "label_features": None},
    "2 trees, loose tolerance, large leaves": SUBLINEAR | {"trees": 2, "solver.tolerance": 0.3, "leaf_size": 200},
    "5 trees, loose tolerance": SUBLINEAR | {"trees": 5, "solver.tolerance": 0.3},
    "1 tree, sublinear, large leaves": SUBLINEAR | {"leaf_size": 400},
    "1 tree, pairs": PAIRS,
    "1 tree, pairs, large leaves": PAIRS | {"leaf_size": 400},
}
"""Whole settings, by name."""

AFTERWARDS = ("post_processor", "beam")
"""Parameters of prediction alone: they can be changed on a trained model when negatives are the teacher's."""


def trials() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and full settings, those that share features and a trained model next to each other."""
    yield "base", BASE
    for factor in ("post-processor", "beam", *(name for name in FACTORS if name not in ("post-processor", "beam"))):
        for change in FACTORS[factor]:
            yield factor, BASE | change
    for name, change in COMBINATIONS.items():
        yield name, BASE | change


class Data:
    """Training and held-out documents of one folder, and the last computed features."""

    def __init__(self, folder: Path, limit: int) -> None:
        import labelwise as lw
        from labelwise.data.read import find_parts

        train = lw.read(folder, split="train")
        if "valid" in find_parts(folder)[1]:
            self.held_out = lw.read(folder, split="valid").align(train.label_names)
            order = np.random.default_rng(0).permutation(len(train))
        else:
            order = np.random.default_rng(0).permutation(len(train))
            self.held_out = train.take(np.sort(order[:HELD_OUT]))
            order = order[HELD_OUT:]
        self.train = train.take(np.sort(order[:limit]))
        self.name = folder.name
        self._made: tuple[str, Any, Any, float] | None = None

    def features(self, setting: dict[str, Any]) -> tuple[Any, Any, float]:
        """TF-IDF of both splits, and the CPU seconds of the training split."""
        from labelwise.features.tfidf import Tfidf, TfidfConfig

        wanted = nested(setting).get("tfidf", {})
        if self._made is None or self._made[0] != repr(wanted):
            self._made = None
            tfidf = Tfidf(TfidfConfig(**wanted))
            begin = time.process_time()
            train = tfidf.fit_transform(self.train.texts)
            spent = time.process_time() - begin
            self._made = (repr(wanted), train, tfidf.transform(self.held_out.texts), spent)
        return self._made[1:]


def nested(setting: dict[str, Any]) -> dict[str, Any]:
    """Convert dotted names to nested mappings."""
    found: dict[str, Any] = {}
    for key, value in setting.items():
        room, _, name = key.rpartition(".")
        (found.setdefault(room, {}) if room else found)[name] = value
    return found


class Grid:
    """Measures settings on one data set; keeps the last trained model for the parameters of prediction."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self._trained: tuple[str, Any, float, float] | None = None

    def measure(self, setting: dict[str, Any]) -> dict[str, Any]:
        """CPU seconds, bytes and scores of one setting."""
        import labelwise as lw

        features, held_out, words = self.data.features(setting)
        params = {key: value for key, value in nested(setting).items() if key != "tfidf"}
        same = {k: v for k, v in setting.items() if k not in AFTERWARDS or setting["negatives"] != "teacher"}
        if self._trained is None or self._trained[0] != repr(same):
            self._trained = None
            begin = time.process_time()
            model = lw.LinearTree(**params).fit(features, self.data.train.labels)
            spent = time.process_time() - begin
            with tempfile.TemporaryDirectory() as folder:
                model.save(Path(folder) / "model")
                size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
            self._trained = (repr(same), model, spent, size)
        _, model, spent, size = self._trained
        model.set_params(**{key: setting[key] for key in AFTERWARDS})
        begin = time.process_time()
        top = model.predict(held_out, k=10)
        predicting = time.process_time() - begin
        top = lw.TopK(top.ids, top.scores, self.data.train.label_names)
        scores = lw.evaluate(top, self.data.held_out, METRICS, train=self.data.train).values
        return {
            "tfidf_seconds": round(words, 2),
            "train_seconds": round(spent, 2),
            "predict_seconds": round(predicting, 2),
            "model_mb": round(size / 1e6, 2),
            **{metric: round(100 * scores[metric], 3) for metric in METRICS},
        }


def known_rows(path: Path) -> list[dict[str, str]]:
    """The stored figures."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Measure what is missing, then plot."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", nargs="*", default=[], type=Path, help="folders with texts")
    options.add_argument("--limit", type=int, default=100_000, help="maximum number of training documents")
    options.add_argument("--results", type=Path, default=RESULTS, help="path of table and plots, without extension")
    options.add_argument("--only", nargs="*", help="factors or names of settings to measure")
    given = options.parse_args()
    import labelwise as lw

    lw.set_threads(1)
    table = given.results.with_suffix(".csv")
    table.parent.mkdir(exist_ok=True)
    if (rows := known_rows(table)) and set(BASE) - set(rows[0]):
        sys.exit(f"{table} has other columns; delete it, or give another path with --results")
    for folder in given.data:
        data = grid = None
        done = {tuple(row[key] for key in ("data", *BASE)) for row in known_rows(table)}
        for name, setting in trials():
            key = (folder.name, *(str(setting[one]) for one in BASE))
            if key in done or (given.only and name not in given.only):
                continue
            if data is None or grid is None:
                data = Data(folder, given.limit)
                grid = Grid(data)
                Grid(data).measure(BASE | {"leaf_size": 1000, "solver.tolerance": 10.0})  # compiles the kernels
            row = {"data": folder.name, "documents": len(data.train), "trial": name}
            row |= {one: str(value) for one, value in setting.items()} | grid.measure(setting)
            fresh = not table.exists()
            with table.open("a", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                if fresh:
                    writer.writeheader()
                writer.writerow(row)
            done.add(key)
            changed = {one: setting[one] for one in BASE if setting[one] != BASE[one]}
            figures = [f"{one} {row[one]}" for one in ("train_seconds", "model_mb", "P@1", "P@5", "nDCG@5", "PSP@5")]
            print(folder.name, name, changed, *figures, flush=True)
    import linear_tree_defaults_page

    if rows := known_rows(table):
        linear_tree_defaults_page.write(rows, BASE, {"base", *FACTORS}, given.results)


if __name__ == "__main__":
    main()
