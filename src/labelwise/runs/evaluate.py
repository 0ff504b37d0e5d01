"""Evaluate a model on labelled documents: scores, a table of labels, examples to look at."""

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
from labelwise.topk import NOTHING, TopK

MAX_EXAMPLE_LETTERS = 600


@dataclass(frozen=True)
class Unknown:
    """True labels that a model does not know: it cannot but miss them."""

    labels: int
    """How many different ones."""
    occurrences: int
    """How often a document has one."""
    all_occurrences: int
    """How often a document has a label at all."""

    @classmethod
    def beyond(cls, known: int, test: Dataset) -> Unknown:
        """The labels in the columns after the known ones."""
        beyond = test.labels.indices[test.labels.indices >= known]
        return cls(len(np.unique(beyond)), len(beyond), test.labels.nnz)

    def __str__(self) -> str:
        share = self.occurrences / max(self.all_occurrences, 1)
        return f"{self.labels:,} labels are unknown to the model; they are {share:.1%} of all true labels, all missed"


@dataclass(frozen=True)
class ModelEvaluation:
    """An evaluation with what it took, and the means to score other predictions in the same way."""

    top: TopK
    evaluation: Evaluation
    seconds: dict[str, float]
    threshold: float | None
    """What F1 without @k went by."""
    unknown: Unknown
    """True labels that the model has never seen."""
    score: Callable[[TopK], Evaluation]


def evaluate_model(
    model: Method, test: Dataset, section: EvaluateSection, folder: Path | None = None
) -> ModelEvaluation:
    """Predict and score; with a folder, labels.tsv and examples.jsonl are written there.

    F1 without @k goes by the section's threshold, or by the model's own if none is given.
    """
    threshold = model.threshold_ if section.threshold is None else section.threshold
    section.check_threshold(calibrated=threshold is not None)
    test = _in_space_of(model, test)
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
    unknown = Unknown.beyond(len(model.label_names_), test)
    return ModelEvaluation(top, evaluation, seconds, threshold, unknown, score)


def _in_space_of(model: Method, test: Dataset) -> Dataset:
    """The test documents in the model's label space. What a label means is the model's word first, then the data's."""
    aligned = test.align(model.label_names_)
    if model.label_texts_ is None:
        return aligned
    known = len(model.label_names_)
    others = aligned.label_names if aligned.label_texts is None else aligned.label_texts
    return replace(aligned, label_texts=model.label_texts_ + others[known:])


def write_examples(path: Path, top: TopK, test: Dataset, counts: np.ndarray, number: int) -> None:
    """Some documents, evenly spread over the test part, with their true and predicted labels."""
    rows = np.unique(np.linspace(0, len(test) - 1, min(number, len(test))).astype(int)) if len(test) else []
    with replacing(path) as file:
        for row in rows:
            file.write(json.dumps(_example(int(row), top, test, counts), ensure_ascii=False) + "\n")


def _example(row: int, top: TopK, test: Dataset, counts: np.ndarray) -> dict[str, Any]:
    true = test.labels.indices[test.labels.indptr[row] : test.labels.indptr[row + 1]].tolist()
    predicted = [i for i in top.ids[row].tolist() if i != NOTHING]

    def about(label: int) -> dict[str, Any]:
        meaning = None if test.label_texts is None else test.label_texts[label]
        return {"label": test.label_names[label], "text": meaning}

    return {
        "id": test.ids[row] if test.ids is not None else str(row),
        "text": _shown(row, test),
        "truth": [{**about(i), "count": int(counts[i])} for i in true],
        "predicted": [
            {**about(i), "score": float(s), "correct": i in true}
            for i, s in zip(predicted, top.scores[row].tolist(), strict=False)
        ],
    }


def _shown(row: int, test: Dataset) -> str:
    if test.texts is not None:
        text = test.texts[row]
        return text if len(text) <= MAX_EXAMPLE_LETTERS else text[:MAX_EXAMPLE_LETTERS] + " ..."
    return test.paths[row] if test.paths is not None else f"document {row}"
