"""What the evaluation of a run keeps for its report: example documents with images, and pairs of confused labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.atomic import replacing
from labelwise.data.dataset import Dataset
from labelwise.data.thumbnails import data_uri
from labelwise.methods.base import Method
from labelwise.metrics.confusion import ConfusionCounter
from labelwise.runs.stopwatch import stopwatch
from labelwise.time_budget import TimeBudget
from labelwise.topk import NO_LABEL, TopK

MAX_EXAMPLE_CHARACTERS = 600
MAX_MAPS = 20
MAX_PAIRS = 200
"""Pairs of confused labels that are kept."""


class TimedMaps:
    """Draws which parts of an image its best label depends on, as long as there is time."""

    def __init__(self, model: Method, test: Dataset, budget: TimeBudget) -> None:
        self.model, self.test, self.budget = model, test, budget
        self.longest = 0.0

    def __call__(self, row: int) -> str | None:
        """The map as the address of an HTML image; None if it would not be drawn in time, or shows nothing."""
        if self.budget.remaining() <= self.longest:
            return None
        with stopwatch() as drawing:
            maps: Any = self.model.explain(self.test.take(slice(row, row + 1)), k=1)
        self.longest = max(self.longest, drawing.seconds)
        return maps[0].data_uri() if maps else None


def write_examples(
    path: Path,
    top: TopK,
    test: Dataset,
    counts: np.ndarray,
    limit: int,
    maps: Callable[[int], str | None] | None = None,
) -> None:
    """Write some documents, evenly spread over the test part, with their true and predicted labels.

    `maps` draws which parts of an image its best label depends on; for some, since a map takes many predictions.
    """
    rows = np.unique(np.linspace(0, len(test) - 1, min(limit, len(test))).astype(int)) if len(test) else []
    with replacing(path) as file:
        drawn = set(np.linspace(0, max(len(rows) - 1, 0), min(MAX_MAPS, len(rows))).astype(int).tolist())
        for number, row in enumerate(rows):
            example = _example(int(row), top, test, counts)
            if maps is not None and number in drawn:
                example["map"] = maps(int(row))
            file.write(json.dumps(example, ensure_ascii=False) + "\n")


def _example(row: int, top: TopK, test: Dataset, counts: np.ndarray) -> dict[str, Any]:
    true = test.labels.indices[test.labels.indptr[row] : test.labels.indptr[row + 1]].tolist()
    predicted = [i for i in top.ids[row].tolist() if i != NO_LABEL]

    def describe(label: int) -> dict[str, Any]:
        meaning = None if test.label_texts is None else test.label_texts[label]
        return {"label": test.label_names[label], "text": meaning}

    return {
        "id": test.ids[row] if test.ids is not None else str(row),
        "text": _shown(row, test),
        **({} if (image := data_uri(test, row)) is None else {"image": image}),
        "truth": [{**describe(i), "count": int(counts[i])} for i in true],
        "predicted": [
            {**describe(i), "score": float(s), "correct": i in true}
            for i, s in zip(predicted, top.scores[row].tolist(), strict=False)
        ],
    }


def _shown(row: int, test: Dataset) -> str:
    if test.texts is not None:
        text = test.texts[row]
        return text if len(text) <= MAX_EXAMPLE_CHARACTERS else text[:MAX_EXAMPLE_CHARACTERS] + " ..."
    return test.paths[row] if test.paths is not None else f"document {row}"


def write_confusions(path: Path, counter: ConfusionCounter, test: Dataset, occurrences: np.ndarray) -> None:
    """Write the siblings that are confused most often, with the test documents of each label."""

    def describe(which: str, label: int) -> dict[str, Any]:
        text = None if test.label_texts is None else test.label_texts[label]
        return {which: test.label_names[label], f"{which}_text": text, f"{which}_documents": int(occurrences[label])}

    pairs = [
        {**describe("true", pair.true), **describe("predicted", pair.predicted), "documents": pair.documents}
        for pair in counter.most_frequent(MAX_PAIRS)
    ]
    with replacing(path) as file:
        file.write(json.dumps({"pairs": pairs}, ensure_ascii=False, indent=1) + "\n")
