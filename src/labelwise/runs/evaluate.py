"""Evaluate a model on labelled documents: metrics, a table of labels, example documents."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np

from labelwise.data.dataset import Dataset, check_known, check_labelled
from labelwise.data.hashing import sample_order
from labelwise.data.images import data_uri
from labelwise.formatting import counted
from labelwise.io import folder as files
from labelwise.io.atomic import replacing
from labelwise.metrics.evaluate import Evaluation, Evaluator, LabelCounter
from labelwise.metrics.names import default_metrics
from labelwise.metrics.per_label import ConfusionCounter, LabelTable, count_predictions
from labelwise.model.inputs import Overlap, predict_in_blocks, predict_in_time
from labelwise.model.method import Method
from labelwise.model.predictions import MOST_LABELS, best_and_reaching
from labelwise.registry import can
from labelwise.report.schema import LabelCounts
from labelwise.runs.config import EvaluateSection
from labelwise.runs.stopwatch import stopwatch
from labelwise.runtime.budget import NO_LIMIT, Budget
from labelwise.topk import NO_LABEL, TopK

# --- examples ---
# What the evaluation of a run keeps for its report: example documents with images, and pairs of confused labels.

MAX_EXAMPLE_CHARACTERS = 600
MAX_MAPS = 20
MAX_PAIRS = 200
"""Pairs of confused labels that are kept."""


class TimedMaps:
    """Draws which parts of an image its best label depends on, as long as there is time."""

    def __init__(self, model: Method, test: Dataset, budget: Budget) -> None:
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
    def label_counts(self) -> LabelCounts:
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
    budget: Budget = NO_LIMIT,
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
        maps = TimedMaps(model, test, budget) if can(model, "pixels") else None
        write_examples(folder / files.EXAMPLES, top, test, counts, section.examples, maps)
        if confusion is not None:
            write_confusions(folder / files.CONFUSION, confusion, test, occurrences)
    unknown = UnknownLabels.count(n_known, test)
    overlap = None if model.trained_on_ is None else model.trained_on_.overlap(test, model.input_)
    return ModelEvaluation(
        test, top, available, evaluation, seconds, threshold, unknown, overlap, lambda other: judge(other)[1], limited
    )


def _label_counts(threshold: float | None, k: int) -> LabelCounts:
    return LabelCounts(threshold=threshold, k=min(LABEL_TABLE_K, k) if threshold is None else None)


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


# --- loss curve ---
# Whether the training loss was still falling when training ended, by the lines that networks log to metrics.jsonl.

WINDOW = 0.2
"""Fraction of the steps at the end that is compared with as many before."""
OF_WHOLE_FALL, OF_LOSS = 0.05, 0.01
"""The loss is falling if it fell by this fraction of all that it fell since the beginning, and of itself, and by more
than the noise of its means."""
STANDARD_ERRORS = 2
MIN_LINES = 5
VALIDATED = ("nDCG@5", "P@1")

Points = list[tuple[float, float]]
"""Steps and values, ascending."""


def still_falling(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A remark if the loss of a training was still falling at its end; empty for methods without training steps.

    A training whose metric on held-out documents was best before the end is not remarked on: it would gain nothing.
    """
    falls = {part: fall for part, lines in _trainings(records).items() if (fall := _fall(lines)) is not None}
    if not falls:
        return []
    part = max(falls, key=lambda one: falls[one])
    where = f" of {part}" if len(_trainings(records)) > 1 else ""
    return [
        f"the training loss{where} was still falling when training ended ({100 * falls[part]:.0f} % lower over the "
        f"last {100 * WINDOW:.0f} % of steps): more epochs or time would help"
    ]


def _trainings(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The lines of each training. Steps beyond the last one were logged before an interruption."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record.get("stage") == "fit" and _is_number(record.get("step")):
            lines.setdefault(str(record.get("part")), []).append(record)
    return {part: [line for line in of if line["step"] <= of[-1]["step"]] for part, of in lines.items()}


def _fall(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """By which fraction the loss fell in the last steps; None if it had settled, or cannot be known."""
    losses = _points([line for line in lines if line.get("split") != "valid"], "loss")
    if len(losses) < MIN_LINES or not _gains_at_the_end([line for line in lines if line.get("split") == "valid"]):
        return None
    steps = losses[-1][0]
    first = _mean(losses, 0, WINDOW / 2 * steps)
    before = _mean(losses, (1 - 2 * WINDOW) * steps, (1 - WINDOW) * steps)
    last = _mean(losses, (1 - WINDOW) * steps, steps)
    fell = before - last
    enough = max(OF_WHOLE_FALL * (first - last), OF_LOSS * before, STANDARD_ERRORS * _error(losses))
    return fell / before if fell > enough else None


def _error(losses: Points) -> float:
    """Standard error of the difference of the two means, by the differences of neighbouring lines."""
    late = [loss for step, loss in losses if step > (1 - 2 * WINDOW) * losses[-1][0]]
    changes = [after - before for before, after in pairwise(late)]
    noise = stdev(changes) / math.sqrt(2) if len(changes) > 1 else math.inf
    return noise * math.sqrt(4 / len(late))


def _gains_at_the_end(validations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the metric on held-out documents was best in the last steps; also without any."""
    for metric in VALIDATED:
        points = _points(validations, metric)
        if points:
            best = max(points, key=lambda point: (point[1], point[0]))
            return best[0] > (1 - WINDOW) * points[-1][0]
    return True


def _points(lines: Iterable[Mapping[str, Any]], name: str) -> Points:
    """The values of one name by step; of steps repeated after an interruption the later line counts."""
    found = {line["step"]: line[name] for line in lines if _is_number(line.get(name))}
    return sorted(found.items())


def _mean(losses: Points, begin: float, end: float) -> float:
    """The mean loss of the steps in (begin, end]; each line is the mean since the one before."""
    total = steps = 0.0
    previous = 0.0
    for step, loss in losses:
        covered = min(step, end) - max(previous, begin)
        if covered > 0:
            total, steps = total + covered * loss, steps + covered
        previous = step
    return total / steps


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
