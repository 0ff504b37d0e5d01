"""Run folders as a run would leave them, with plausible made-up figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from labelwise.io import folder as store
from labelwise.model.card import Card, write_card
from labelwise.model.fitted import ModelLabels
from labelwise.strings import Strings

CONFIG = """\
data:
  path: eurlex57k
  format: auto
model:
  method: linear_tree
  beam: 10
  max_leaf: 100
evaluate:
  k: 10
  bootstrap: 200
run:
  threads: 2
"""

SUBJECTS = [
    ("2356", "import refund", 412), ("1644", "fruit vegetable", 1733), ("2985", "market support", 59),
    ("191", "export licence", 986), ("4381", "protected area", 7), ("5231", "beekeeping", 3),
    ("3003", "award of contract", 118), ("1085", "rural tourism", 24), ("889", "wine of superior quality", 203),
]  # fmt: skip


def make_run(
    folder: Path,
    name: str = "linear-tree",
    method: str = "linear_tree",
    gain: float = 0.0,
    fit: float = 13.4,
    n_documents: int = 6000,
    data_name: str = "eurlex57k",
    curves: bool = False,
    ties: float = 0.0004,
) -> Path:
    """Write a finished run; `gain` is added to every score."""
    folder.mkdir(parents=True)
    (folder / "config.yml").write_text(
        CONFIG.replace("linear_tree", method).replace("eurlex57k", data_name), encoding="utf-8"
    )
    write_json(
        folder / "state.json",
        {
            "status": "finished",
            "started": "2026-03-02T09:15:00+00:00",
            "finished": "2026-03-02T09:15:31+00:00",
            "method": method,
            "name": name,
        },
    )
    write_json(folder / "results.json", results(gain, fit, n_documents, data_name, ties))
    write_json(
        folder / "machine.json",
        {
            "cpu": "Some Processor 8000 @ 2.40GHz",
            "cores": 4,
            "threads": 2,
            "memory_bytes": 16_700_000_000,
            "python": "3.11.9",
            "platform": "Linux-6.1-x86_64",
            "packages": {"numpy": "2.2.0", "scipy": "1.15.0", "labelwise": "0.1.0"},
        },
    )
    write_lines(folder / "metrics.jsonl", metrics(curves, fit))
    write_lines(folder / "examples.jsonl", [example(i) for i in range(15)])
    rows = [["label", "text", "train", "test", "predicted", "correct", "precision", "recall", "f1"]]
    for i in range(4271):
        counts = [20000 // (i + 1), 3000 // (i + 1), 2700 // (i + 1), 2400 // (i + 1)]
        rows.append(
            [
                str(5000 + i),
                f"subject {i}",
                *map(str, counts),
                f"{0.9 / (1 + i / 900):.4f}",
                "0.5000",
                "0.6429",
            ]
        )
    (folder / "labels.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def results(gain: float, fit: float, n_documents: int, data_name: str, ties: float) -> dict:
    values = {
        "P@1": 0.9165, "P@3": 0.8179, "P@5": 0.6868, "nDCG@3": 0.8432, "nDCG@5": 0.7811, "R@5": 0.7104,
        "PSP@1": 0.4312, "PSP@3": 0.4877, "PSP@5": 0.5263,
    }  # fmt: skip
    values = {metric: value + gain for metric, value in values.items()}
    popular = {
        "P@1": 0.1391, "P@3": 0.1104, "P@5": 0.0986, "nDCG@3": 0.1172, "nDCG@5": 0.1203, "R@5": 0.0974,
        "PSP@1": 0.0211, "PSP@3": 0.0224, "PSP@5": 0.0258,
    }  # fmt: skip
    ranks = sorted({round(1.05**power) for power in range(172)})
    return {
        "split": "test",
        "n_documents": n_documents,
        "evaluation": {
            "values": values,
            "intervals": {metric: [value - 0.006, value + 0.0055] for metric, value in values.items()},
            "groups": [
                group(
                    "head",
                    612,
                    24300,
                    0.8,
                    {"1": 0.871, "3": 0.742, "5": 0.604},
                    {"1": 0.19, "3": 0.52, "5": 0.76},
                ),
                group(
                    "torso",
                    1530,
                    4700,
                    0.16,
                    {"1": 0.041, "3": 0.065, "5": 0.071},
                    {"1": 0.09, "3": 0.33, "5": 0.55},
                ),
                group(
                    "tail",
                    2129,
                    1100,
                    0.037,
                    {"1": 0.0045, "3": 0.011, "5": 0.0118},
                    {"1": 0.03, "3": 0.14, "5": 0.21},
                ),
                group("unseen", 163, 90, 0.003, {"1": 0.0, "3": 0.0, "5": 0.0}, {"1": 0.0, "3": 0.0, "5": 0.0}),
            ],
            "ties_cut_off": {"P@1": 3, "P@3": 0},
            "ties": {
                "P@1": [values["P@1"] - ties, values["P@1"] + ties],
                "P@3": [values["P@3"], values["P@3"]],
            },
            "propensity": {"A": 0.55, "B": 1.5, "N": 45000},
            "n_documents": n_documents,
            "n_without_labels": 0,
            "n_unseen_labels": 163,
        },
        "timings": {
            "read": 2.31,
            "fit": fit,
            "predict": 1.42,
            "evaluate": 0.61,
            "predict_documents_per_second": n_documents / 1.42,
        },
        "memory": {"peak_bytes": 1_310_000_000},
        "model": {"bytes": 88_412_000, "n_labels": 4271},
        "data": {
            "train": part(f"data/{data_name}/train.tsv", 45000, 4108),
            "test": part(f"data/{data_name}/test.tsv", n_documents, 2876),
        },
        "frequency_curve": {"rank": ranks, "count": [max(1, round(4300 / rank**0.9)) for rank in ranks]},
        "baseline": {"method": "popularity", "values": popular},
    }


def part(name: str, documents: int, labels_used: int) -> dict:
    return {
        "name": name,
        "documents": documents,
        "labels": 4271,
        "labels_used": labels_used,
        "occurrences": documents * 5 + 77,
        "mean_labels": 5.0662,
        "median_labels": 5.0,
        "max_labels": 26,
        "documents_without_labels": 0,
        "mean_documents": 54.2,
        "median_documents": 8.0,
        "share_labels_5": 0.4127,
        "top_1_percent": 0.2254,
        "mean_words": 727.3,
        "repeated_texts": 11,
        "features": None,
    }


def group(name: str, labels: int, occurrences: int, share: float, contribution: dict, recall: dict) -> dict:
    return {
        "name": name,
        "low": 10,
        "high": None,
        "n_labels": labels,
        "n_test_labels": labels // 2,
        "occurrences": occurrences,
        "share": share,
        "contribution": contribution,
        "recall": recall,
    }


def metrics(curves: bool, fit: float) -> list[dict]:
    entries: list[dict] = [{"time": 2.3, "stage": "read", "seconds": 2.31}]
    if curves:
        for step in range(0, 2001, 20):
            entries.append({"time": step / 10, "stage": "fit", "step": step, "loss": 0.02 + 0.6 / (1 + step / 120)})
            if step % 400 == 200:
                share = 0.9 - 0.5 / (1 + step / 200)
                entries.append({"time": step / 10, "stage": "fit", "step": step, "split": "valid", "P@1": share})
                entries.append(
                    {
                        "time": step / 10,
                        "stage": "fit",
                        "step": step,
                        "split": "valid",
                        "loss": 0.7 - share / 2,
                    }
                )
    entries.append({"time": fit, "stage": "fit", "seconds": fit})
    entries.append({"time": fit + 2, "stage": "evaluate", "step": None, "split": "test", "P@1": 0.9165})
    return entries


def example(place: int) -> dict:
    true = [SUBJECTS[(place + step) % len(SUBJECTS)] for step in (0, 2, 5)]
    guessed = [SUBJECTS[(place + step) % len(SUBJECTS)] for step in (0, 5, 1, 3, 7)]
    return {
        "id": f"3200{place}R0{place * 37 % 999:03d}",
        "text": "Commission Regulation fixing the export refunds on fruit and vegetables, having regard to the Treaty "
        f"establishing the European Community, and in particular Article {place + 3} thereof. " * (1 + place % 3),
        "truth": [{"label": label, "text": text, "count": count} for label, text, count in true],
        "predicted": [
            {
                "label": label,
                "text": text,
                "score": 0.97 / (1 + step),
                "correct": label in {item[0] for item in true},
            }
            for step, (label, text, _) in enumerate(guessed)
        ],
    }


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def write_lines(path: Path, entries: list[dict]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")


def write_card_of_model(run: Path, card: Card) -> None:
    """Write a model folder that holds nothing but a card."""
    with store.new_folder(run / "model", "model", {}, force=True) as folder:
        write_card(card, folder, ModelLabels(Strings.of(["a"]), None, np.ones(1, np.int64)))


def changed_json(path: Path, **changes) -> None:
    """Change some values of a JSON file."""
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes)
