"""Learning more documents and labels, compared with the old model and with a full training.

    python benchmarks/learn.py --data FOLDER [FOLDER ...] [--trees 3]
    python benchmarks/learn.py                          # writes the page again from the stored figures

Scenarios on the training documents of each data set, evaluated on its test part:

- 1 % and 10 % of the documents, drawn at random, are learned by a model of the others;
- 10 x 1 %: the same 10 % in ten calls, one after another;
- 2 % of the labels, drawn at random: the model is trained on the documents that have none of them, and learns all
  documents that have one, without and with the old documents at hand.

Seconds are those of `fit` or `learn` from texts to weights, without reading and saving, after a first run that compiles
the kernels; CPU seconds count, because they hardly depend on what else the machine does. PSP uses the propensities of
the full training data for all models. Figures are kept in benchmarks/results/learn.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "learn"
METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
NEW_LABELS = 0.02


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, wall-clock seconds and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


class Bench:
    """One data set with its full training."""

    def __init__(self, folder: str, trees: int) -> None:
        import labelwise as lw

        self.name, self.trees = Path(folder).name, trees
        self.train = lw.read(folder, split="train")
        self.test = lw.read(folder, split="test")
        self.counts = dict(zip(self.train.label_names, self.train.label_counts().tolist(), strict=True))
        self.order = np.random.default_rng(0).permutation(len(self.train))
        self.rows: list[dict[str, Any]] = []
        warm = self.train.take(slice(0, 2000))
        self.model().fit(warm).learn(self.train.take(slice(2000, 2100)))
        self.full, self.full_wall, self.full_cpu = timed(lambda: self.model().fit(self.train))

    def model(self) -> Any:
        import labelwise as lw

        return lw.LinearTree(trees=self.trees)

    def add(self, scenario: str, what: str, model: Any, seconds: tuple[float, float] | None, has: Any = None) -> None:
        """Evaluate a model and keep the figures; `has` are the test documents of new labels."""
        import labelwise as lw

        test = self.test.align(model.label_names_)
        counts = np.array([self.counts.get(name, 0) for name in test.label_names])
        top = model.predict(test, k=5)
        found = lw.evaluate(top, test, metrics=METRICS, train=counts, train_documents=len(self.train), bootstrap=0)
        row = {"data": self.name, "trees": self.trees, "scenario": scenario, "model": what}
        row |= {name: found[name] for name in METRICS}
        if has is not None:
            part = lw.evaluate(top[has], test.take(has), metrics=["P@5"], bootstrap=0)
            row["P@5 new"] = part["P@5"]
        if seconds is not None:
            row |= {"wall": seconds[0], "cpu": seconds[1]}
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def documents(self, fraction: float, calls: int = 1) -> None:
        """Learn a fraction of the documents."""
        size = round(fraction * len(self.train))
        new, old = self.train.take(np.sort(self.order[:size])), self.train.take(np.sort(self.order[size:]))
        before = self.model().fit(old)
        for times in sorted({1, calls}):
            scenario = (
                f"{fraction:.0%} of documents" if times == 1 else f"{times} x {fraction / times:.0%} of documents"
            )
            model = copy.copy(before)
            parts = np.array_split(np.random.default_rng(1).permutation(size), times)

            def learn(model: Any = model, parts: Any = parts) -> None:
                for part in parts:
                    model.learn(new.take(np.sort(part)))

            _, wall, cpu = timed(learn)
            self.add(scenario, "old", before, None)
            self.add(scenario, "learn", model, (wall, cpu))
            self.add(scenario, "full", self.full, (self.full_wall, self.full_cpu))

    def labels(self, fraction: float) -> None:
        """Learn all documents of some labels, none of which the old model knows."""
        train = self.train
        chosen = np.sort(np.random.default_rng(2).permutation(train.n_labels)[: round(fraction * train.n_labels)])
        has = np.asarray(train.labels[:, chosen].sum(axis=1)).ravel() > 0
        keep = np.setdiff1d(np.arange(train.n_labels), chosen)
        old = train.take(~has)
        texts = None if train.label_texts is None else train.label_texts[keep]
        old = replace(old, labels=old.labels[:, keep], label_names=train.label_names[keep], label_texts=texts)
        new, before = train.take(has), self.model().fit(old)
        names = set(train.label_names[chosen])
        in_test = np.array([name in names for name in self.test.label_names])
        of_new = np.asarray(self.test.labels[:, np.flatnonzero(in_test)].sum(axis=1)).ravel() > 0
        scenario = f"{fraction:.0%} of labels ({len(new):,} documents)"
        self.add(scenario, "old", before, None, of_new)
        for what, given in (("learn", None), ("learn with old documents", old)):
            model = copy.copy(before)
            _, wall, cpu = timed(lambda model=model, given=given: model.learn(new, old=given))
            self.add(scenario, what, model, (wall, cpu), of_new)
        self.add(scenario, "full", self.full, (self.full_wall, self.full_cpu), of_new)


def page(rows: list[dict[str, Any]]) -> str:
    """The figures as tables."""
    lines = ["# Learning more documents", "", "Measured by `benchmarks/learn.py`, whose header explains the columns."]
    lines += ["`ratio` is the CPU time compared with the full training; `P@5 new` is that of test documents with a new",
              "label. `old` is the model before learning."]  # fmt: skip
    for data in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == data]
        lines += ["", f"## {data}, linear_tree, trees: {own[0]['trees']}", ""]
        heads = ["scenario", "model", "CPU s", "wall s", "ratio", *METRICS, "P@5 new"]
        lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for row in own:
            full = next(o for o in own if o["scenario"] == row["scenario"] and o["model"] == "full")
            times = ["", "", ""]
            if "cpu" in row:
                times = [f"{row['cpu']:.1f}", f"{row['wall']:.1f}", f"{row['cpu'] / full['cpu']:.3f}"]
            scores = [f"{100 * row[name]:.2f}" for name in METRICS]
            new = f"{100 * row['P@5 new']:.2f}" if "P@5 new" in row else ""
            lines.append(f"| {' | '.join([row['scenario'], row['model'], *times, *scores, new])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is asked for, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], help="folders with train and test parts")
    parser.add_argument("--trees", type=int, default=3)
    given = parser.parse_args()
    stored = RESULTS.with_suffix(".json")
    rows = json.loads(stored.read_text()) if stored.exists() else []
    for folder in given.data:
        bench = Bench(folder, given.trees)
        for measure, arguments in (("documents", (0.01,)), ("labels", (NEW_LABELS,)), ("documents", (0.1, 10))):
            getattr(bench, measure)(*arguments)
            kept = [row for row in rows if row["data"] != bench.name] + bench.rows
            stored.write_text(json.dumps(kept, indent=1) + "\n")
            RESULTS.with_suffix(".md").write_text(page(kept))
        rows = kept
    RESULTS.with_suffix(".md").write_text(page(rows))


if __name__ == "__main__":
    main()
