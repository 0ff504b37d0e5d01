"""Evaluate a model on labelled documents: metrics, a table of labels, example documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labelwise import run_schema as files
from labelwise.data.dataset import Dataset
from labelwise.data.document_hash import sample_order
from labelwise.formatting import counted
from labelwise.methods.base import Method
from labelwise.methods.inputs import predict_in_blocks, predict_in_time
from labelwise.methods.predictions import MOST_LABELS, best_and_reaching
from labelwise.methods.training_documents import Overlap
from labelwise.metrics.confusion import ConfusionCounter
from labelwise.metrics.evaluate import Evaluation, check_known, check_labelled
from labelwise.metrics.names import default_metrics
from labelwise.metrics.per_label import LabelTable, count_predictions
from labelwise.metrics.streaming import Evaluator
from labelwise.metrics.thresholded import LabelCounter
from labelwise.runs.config import EvaluateSection
from labelwise.runs.examples import TimedMaps, write_confusions, write_examples
from labelwise.runs.stopwatch import stopwatch
from labelwise.time_budget import NO_LIMIT, TimeBudget
from labelwise.topk import TopK

LABEL_TABLE_K = 5
"""Best labels per document that labels.tsv counts if there is no threshold."""


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
    """An evaluation with its timings, and a function that scores another model on the same documents."""

    test: Dataset
    """The documents that were evaluated, in the label space of the model."""
    top: TopK
    """The best k labels of the documents."""
    available: int
    """Number of documents that they were sampled from."""
    evaluation: Evaluation
    seconds: dict[str, float]
    threshold: float | None
    """Threshold used for F1 without @k."""
    unknown: UnknownLabels
    """True labels that the model has not seen in training."""
    overlap: Overlap | None
    """Documents that the model was trained on; None if it does not know its training documents."""
    score: Callable[[Method], Evaluation]
    ended_by_budget: bool = False
    """Whether a time budget has ended the prediction before all documents were done."""

    @property
    def label_counts(self) -> files.LabelCounts:
        """Which predictions labels.tsv counts."""
        return _label_counts(self.threshold, self.top.k)

    @property
    def evaluated(self) -> str:
        """How many documents were evaluated, and of how many."""
        return counted(len(self.test), self.available)


def evaluate_model(
    model: Method,
    test: Dataset,
    section: EvaluateSection,
    folder: Path | None = None,
    budget: TimeBudget = NO_LIMIT,
) -> ModelEvaluation:
    """Predict and score; with a folder, labels.tsv, examples.jsonl and (with a tree) confusion.json are written there.

    With a time budget the scores are those of the documents that there was time for: a random sample, as with
    `evaluate.limit`.

    F1 without @k uses the section's threshold, or the calibrated threshold of the model if none is given; it counts
    all labels that reach it, unless the section has a k. So does labels.tsv; without a threshold it counts the best 5.
    """
    threshold = model.threshold_ if section.threshold is None else section.threshold
    section.check_threshold(calibrated=threshold is not None)
    k, n_known = section.ranks(model.trained_on_), len(model.label_names_)
    reaching, limited = threshold if section.k is None else None, False
    available, test = len(test), sample(test, section.limit)
    check_labelled(test.labels, test.name)
    test = _aligned(model, test)
    check_known(test, n_known)
    known: TopK | None = None
    with stopwatch() as waiting:
        if budget.is_limited:
            rows, known = predict_in_time(
                lambda part: _predicted(model, part, k, None if budget.expired() else reaching),
                test,
                "predicting",
                budget,
            )
            limited, test = len(rows) < len(test), test.take(rows)
    counts = np.zeros(test.n_labels, np.int64)
    counts[: len(model.label_counts_)] = model.label_counts_
    counted_labels = model.n_documents_ > 0  # not of a model that was imported
    per_label = None if folder is None else LabelCounter(test.n_labels, _label_counts(threshold, k).k)
    groups = None if folder is None else model.sibling_groups()
    confusion = None if groups is None else ConfusionCounter(groups, _label_counts(threshold, k).k, threshold)

    def judge(judged: Method) -> tuple[TopK, Evaluation, dict[str, float]]:
        evaluator = Evaluator(
            section.metrics or default_metrics(k, propensity=counted_labels, threshold=threshold is not None),
            test.n_labels,
            train=counts if counted_labels else None,
            train_documents=model.n_documents_,
            propensity=section.propensity,
            threshold=threshold,
            groups=section.groups,
            bootstrap=section.bootstrap,
            n_known=n_known,
        )
        spent = 0.0

        def judge_block(part: Dataset) -> TopK:
            nonlocal spent
            top = known if judged is model and known is not None else _predicted(judged, part, k, reaching)
            with stopwatch() as evaluating:
                evaluator.update(top, part.labels)
                if judged is model and per_label is not None:
                    count_predictions(per_label, top, part.labels, n_known, threshold)
                if judged is model and confusion is not None:
                    confusion.add(top, part.labels)
            spent += evaluating.seconds
            return top.head(k)

        with stopwatch() as predicting:
            if judged is model and known is not None:
                top = judge_block(test)
            else:
                top = predict_in_blocks(judge_block, test, "predicting")
        with stopwatch() as evaluating:
            evaluation = evaluator.result(warn=False)
        seconds = {"predict": max(predicting.seconds - spent, 0.0), "evaluate": spent + evaluating.seconds}
        return top, evaluation, seconds

    top, evaluation, seconds = judge(model)
    seconds["predict"] += waiting.seconds
    if folder is not None and per_label is not None:
        occurrences = np.bincount(test.labels.indices, minlength=test.n_labels)
        LabelTable(
            test.label_names, test.label_texts, counts, occurrences, per_label.predicted, per_label.correct, per_label.k
        ).write(folder / files.LABELS)
        maps = TimedMaps(model, test, budget) if model.shows_pixels else None
        write_examples(folder / files.EXAMPLES, top, test, counts, section.examples, maps)
        if confusion is not None:
            write_confusions(folder / files.CONFUSION, confusion, test, occurrences)
    unknown = UnknownLabels.count(n_known, test)
    overlap = None if model.trained_on_ is None else model.trained_on_.overlap(test, model.input_)
    return ModelEvaluation(
        test, top, available, evaluation, seconds, threshold, unknown, overlap, lambda other: judge(other)[1], limited
    )


def _label_counts(threshold: float | None, k: int) -> files.LabelCounts:
    return files.LabelCounts(threshold=threshold, k=min(LABEL_TABLE_K, k) if threshold is None else None)


def sample(test: Dataset, limit: int | None) -> Dataset:
    """A random sample of the documents, which depends on their content alone; all of them without a limit."""
    if limit is None or limit >= len(test):
        return test
    return test.take(np.sort(sample_order(test)[:limit]))


def _predicted(model: Method, part: Dataset, k: int, threshold: float | None) -> TopK:
    """The best k labels and, with a threshold, all further ones that reach it."""
    if threshold is None:
        return model.predict(part, k)

    def ranked(rows: np.ndarray | None, count: int) -> TopK:
        return model.predict(part if rows is None else part.take(rows), count)

    n_labels = len(model.label_names_)
    top = best_and_reaching(ranked, k, threshold, len(part), n_labels, MOST_LABELS)
    return top.padded(n_labels + 1) if top.k == n_labels else top  # a list of all labels is not cut


def _aligned(model: Method, test: Dataset) -> Dataset:
    """The test documents in the model's label space, with label texts from the model first, then from the data."""
    aligned = test.align(model.label_names_)
    if model.label_texts_ is None:
        return aligned
    known = len(model.label_names_)
    others = aligned.label_names if aligned.label_texts is None else aligned.label_texts
    return replace(aligned, label_texts=model.label_texts_ + others[known:])
