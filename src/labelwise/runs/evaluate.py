"""Evaluate a model on labelled documents: metrics, a table of labels, example documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labelwise import run_schema as files
from labelwise.atomic import replacing
from labelwise.data.dataset import Dataset
from labelwise.methods.base import Method
from labelwise.methods.inputs import predict_in_blocks
from labelwise.metrics.evaluate import Evaluation, evaluate
from labelwise.metrics.per_label import write_label_table
from labelwise.runs.config import EvaluateSection
from labelwise.runs.stopwatch import stopwatch
from labelwise.topk import NO_LABEL, TopK

MAX_EXAMPLE_CHARACTERS = 600


@dataclass(frozen=True)
class UnknownLabels:
    """True labels that the model has not seen in training and therefore always misses."""

    labels: int
    """Number of distinct unknown labels."""
    occurrences: int
    """Document-label pairs with an unknown label."""
    all_occurrences: int
    """All document-label pairs."""

    @classmethod
    def count(cls, known: int, test: Dataset) -> UnknownLabels:
        """Count the labels in the columns after the known ones."""
        unknown = test.labels.indices[test.labels.indices >= known]
        return cls(len(np.unique(unknown)), len(unknown), test.labels.nnz)

    def __str__(self) -> str:
        fraction = self.occurrences / max(self.all_occurrences, 1)
        return f"{self.labels:,} labels are unknown to the model; they are {fraction:.1%} of true labels, all missed"


@dataclass(frozen=True)
class ModelEvaluation:
    """An evaluation with its timings, and a function that scores other predictions in the same way."""

    test: Dataset
    """The documents, in the label space of the model."""
    top: TopK
    evaluation: Evaluation
    seconds: dict[str, float]
    threshold: float | None
    """Threshold used for F1 without @k."""
    unknown: UnknownLabels
    """True labels that the model has not seen in training."""
    score: Callable[[TopK], Evaluation]


def evaluate_model(
    model: Method, test: Dataset, section: EvaluateSection, folder: Path | None = None
) -> ModelEvaluation:
    """Predict and score; with a folder, labels.tsv and examples.jsonl are written there.

    F1 without @k uses the section's threshold, or the calibrated threshold of the model if none is given.
    """
    threshold = model.threshold_ if section.threshold is None else section.threshold
    section.check_threshold(calibrated=threshold is not None)
    test = _aligned(model, test)
    counts = np.zeros(test.n_labels, np.int64)
    counts[: len(model.label_counts_)] = model.label_counts_

    def score(top: TopK) -> Evaluation:
        return evaluate(
            top,
            test,
            metrics=section.metrics,
            train=counts,
            train_documents=model.n_documents_,
            propensity=section.propensity,
            threshold=threshold,
            groups=section.groups,
            bootstrap=section.bootstrap,
        )

    with stopwatch() as predicting:
        top = predict_in_blocks(lambda part: model.predict(part, k=section.k), test, "predicting")
    with stopwatch() as evaluating:
        evaluation = score(top)
    seconds = {"predict": predicting.seconds, "evaluate": evaluating.seconds}
    if folder is not None:
        write_label_table(folder / files.LABELS, top, test, train=counts, k=min(5, top.k))
        write_examples(folder / files.EXAMPLES, top, test, counts, section.examples)
    unknown = UnknownLabels.count(len(model.label_names_), test)
    return ModelEvaluation(test, top, evaluation, seconds, threshold, unknown, score)


def _aligned(model: Method, test: Dataset) -> Dataset:
    """The test documents in the model's label space, with label texts from the model first, then from the data."""
    aligned = test.align(model.label_names_)
    if model.label_texts_ is None:
        return aligned
    known = len(model.label_names_)
    others = aligned.label_names if aligned.label_texts is None else aligned.label_texts
    return replace(aligned, label_texts=model.label_texts_ + others[known:])


def write_examples(path: Path, top: TopK, test: Dataset, counts: np.ndarray, limit: int) -> None:
    """Write some documents, evenly spread over the test part, with their true and predicted labels."""
    rows = np.unique(np.linspace(0, len(test) - 1, min(limit, len(test))).astype(int)) if len(test) else []
    with replacing(path) as file:
        for row in rows:
            file.write(json.dumps(_example(int(row), top, test, counts), ensure_ascii=False) + "\n")


def _example(row: int, top: TopK, test: Dataset, counts: np.ndarray) -> dict[str, Any]:
    true = test.labels.indices[test.labels.indptr[row] : test.labels.indptr[row + 1]].tolist()
    predicted = [i for i in top.ids[row].tolist() if i != NO_LABEL]

    def describe(label: int) -> dict[str, Any]:
        meaning = None if test.label_texts is None else test.label_texts[label]
        return {"label": test.label_names[label], "text": meaning}

    return {
        "id": test.ids[row] if test.ids is not None else str(row),
        "text": _shown(row, test),
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
