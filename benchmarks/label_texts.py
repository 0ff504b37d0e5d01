"""What names of labels bring, as training documents and in the clustering of labels: accuracy by frequency of labels.

    python benchmarks/label_texts.py --data FOLDER [FOLDER ...] [--limit 100000] [--seeds 0 1 2] [--trees 1]
    python benchmarks/label_texts.py            # writes the page from the stored figures

`linear_tree` with its other defaults, on held-out documents, never on the test split: the valid split of a folder that
has one, otherwise 10,000 training documents. FOLDER has label names (`label_names.tsv`). Figures are appended to
benchmarks/results/label_texts.json; rows in it are not measured again (delete it to start over).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from text_analysis import parts_of

RESULTS = Path(__file__).parent / "results" / "label_texts.json"
METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
BOUNDARIES = (6, 20)
"""Groups of labels with 1 to 5, 6 to 19, and 20 or more training documents."""
GROUPS = {0: "none", 1: "1-5", 6: "6-19", 20: "20+"}
DOCUMENTS = {"label_documents": "texts"}
SETTINGS: dict[str, dict[str, Any]] = {
    "no names": {},
    "in the tree, 0.5": {"label_text_weight": 0.5},
    "as documents": DOCUMENTS,
    "as documents, in the tree 0.3": DOCUMENTS | {"label_text_weight": 0.3},
    "as documents, in the tree 0.5": DOCUMENTS | {"label_text_weight": 0.5},
    "as documents, in the tree 0.7": DOCUMENTS | {"label_text_weight": 0.7},
    "as documents, in the tree 0.9": DOCUMENTS | {"label_text_weight": 0.9},
}


def measure(train: Any, held_out: Any, parameters: dict[str, Any], seed: int, trees: int) -> dict[str, float]:
    """Scores in per cent, recall@5 by group, and CPU seconds of `fit`."""
    import labelwise as lw

    cpu = time.process_time()
    model = lw.LinearTree(trees=trees, seed=seed, **parameters).fit(train)
    spent = time.process_time() - cpu
    top = model.predict(held_out, k=10)
    scores = lw.evaluate(top, held_out, list(METRICS), train=train, groups=BOUNDARIES)
    found = {metric: 100 * float(scores[metric]) for metric in METRICS}
    for group in scores.groups:
        found[f"R@5 {GROUPS[group.low]}"] = 100 * group.recall[5]
        found[f"occurrences {GROUPS[group.low]}"] = group.occurrences
    return found | {"fit cpu": spent}


def page(rows: list[dict[str, Any]]) -> str:
    """A table per data set, number of documents and number of trees: means over seeds, differences to the first row."""
    lines = [
        "# Names of labels",
        "",
        "`python benchmarks/label_texts.py`: `linear_tree` on held-out documents (the valid split of eurlex57k, 10,000",
        "training titles of yso-en). Names as training documents (`label_documents: texts`), in the clustering of",
        "labels (`label_text_weight`), or both. Means over seeds, in brackets the difference to the first row; R@5 is",
        "the recall of the labels with so many training documents; CPU seconds of `fit` on a shared machine.",
    ]
    tables: dict[tuple, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        table = tables.setdefault((row["data"], row["documents"], row["trees"]), {})
        table.setdefault(row["setting"], []).append(row)
    columns = [*METRICS, *(f"R@5 {group}" for group in GROUPS.values())]
    for (data, documents, trees), table in sorted(tables.items()):
        first = next(iter(table.values()))[0]
        shares = [first.get(f"occurrences {group}", 0) for group in GROUPS.values()]
        shown = ", ".join(
            f"{share / sum(shares):.1%} {name}" for share, name in zip(shares, GROUPS.values(), strict=True) if share
        )
        lines += ["", f"## {data}, {documents:,} training documents, {trees} tree{'s' * (trees > 1)}", ""]
        lines += [f"True labels by training documents of the label: {shown}.", ""]
        lines += [f"| names | seeds | {' | '.join(columns)} | fit, s |", f"|---|{'--:|' * (len(columns) + 2)}"]
        means = {
            name: {
                key: statistics.mean(run[key] for run in runs if key in run)
                for key in (*columns, "fit cpu")
                if key in runs[0]
            }
            for name, runs in table.items()
        }
        base = next(iter(means.values()))
        for name, mean in means.items():
            cells = [_cell(mean, base, key) for key in columns]
            lines.append(f"| {name} | {len(table[name])} | {' | '.join(cells)} | {mean['fit cpu']:.1f} |")
    return "\n".join(lines) + "\n"


def _cell(mean: dict[str, float], base: dict[str, float], key: str) -> str:
    if key not in mean:
        return ""
    change = "" if mean is base else f" ({mean[key] - base[key]:+.2f})"
    return f"{mean[key]:.2f}{change}"


def main() -> None:
    """Measure what is missing, and write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, nargs="*", default=[])
    options.add_argument("--limit", type=int, help="training documents")
    options.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    options.add_argument("--trees", type=int, default=1)
    options.add_argument("--only", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    given = options.parse_args()
    rows = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    for folder in given.data:
        train, held_out = parts_of(folder, given.limit)
        for seed in given.seeds:
            for setting in given.only:
                known = {
                    "data": folder.name, "documents": len(train), "trees": given.trees, "setting": setting, "seed": seed
                }  # fmt: skip
                if any(known.items() <= row.items() for row in rows):
                    continue
                rows.append(known | measure(train, held_out, SETTINGS[setting], seed, given.trees))
                print(rows[-1], flush=True)
                order = list(SETTINGS)
                rows.sort(key=lambda row: (row["data"], row["documents"], row["trees"], order.index(row["setting"])))
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    RESULTS.with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
