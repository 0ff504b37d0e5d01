"""The schema of the JSON in a run folder. Runs write by it, reports and all others read by it.

A damaged file is an error that names it, because a report that silently leaves out figures would be worse than none.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field

from labelwise.errors import DataError
from labelwise.io.folder import METRICS
from labelwise.io.json import Record, parse_json


class State(Record):
    """state.json"""

    format: str | None = None
    status: str = "unknown"
    error: str | None = None
    started: str | None = None
    finished: str | None = None
    method: str | None = None
    name: str | None = None
    launch: str | None = None
    """The start of torchrun that began the run, or has resumed it last."""


class LabelGroup(Record):
    """The figures of one frequency group of labels (head, torso, tail)."""

    name: str
    low: int | None = None
    high: int | None = None
    labels: int | None = Field(None, validation_alias=AliasChoices("n_labels", "labels"))
    n_test_labels: int | None = None
    occurrences: int | None = None
    share: float | None = None
    contribution: dict[int, float | None] = {}
    recall: dict[int, float | None] = {}


class Evaluation(Record):
    """The output of `metrics.evaluate.Evaluation.to_dict`."""

    values: dict[str, float | None]
    intervals: dict[str, tuple[float, float] | None] = {}
    groups: tuple[LabelGroup, ...] = ()
    ties: dict[str, tuple[float, float] | None] = {}
    ties_cut_off: dict[str, int] = {}
    propensity: dict[str, float | None] | None = None
    n_documents: int | None = None
    n_without_labels: int | None = None
    n_unseen_labels: int | None = None
    n_cut: int | None = None


class Curve(Record):
    """Label frequencies by rank, the most frequent label first."""

    rank: tuple[float, ...]
    count: tuple[float, ...]


class Baseline(Record):
    """The figures of a baseline on the same documents."""

    method: str
    values: dict[str, float | None]


class Reliability(Record):
    """Predicted labels with scores in one range: count, mean score, and the fraction that is correct."""

    low: float
    high: float
    pairs: int = 0
    mean: float | None = None
    share: float | None = None


class ThresholdPoint(Record):
    """Precision, recall and micro-F1 of the labels whose probability reaches a threshold."""

    threshold: float
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None


class Calibration(Record):
    """Results of the calibration on held-out documents."""

    n_documents: int | None = None
    n_pairs: int | None = None
    n_true: int | None = None
    k: int | None = None
    wanted_precision: float | None = None
    reached: bool = True
    threshold: float
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    error_before: float | None = None
    error_after: float | None = None
    before: tuple[Reliability, ...] = ()
    after: tuple[Reliability, ...] = ()
    curve: tuple[ThresholdPoint, ...] = ()
    """Runs from before there was a curve have none."""
    n_cut: int | None = None
    n_seen: int | None = None
    """Documents that the model was trained on."""
    n_available: int | None = None
    """Documents that were given, if a time budget ended the prediction before all were used."""
    remarks: tuple[str, ...] = ()


class Refit(Record):
    """The saved model of a run with `run.refit`; the scores are those of the judged model before it."""

    n_documents: int
    """Documents that the saved model was trained on."""
    n_judged: int
    """Documents that the judged model was trained on."""
    n_labels: int | None = None
    bytes: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        fraction = f"{100 * self.n_judged / max(self.n_documents, 1):.0f} %"
        return (
            f"scores: of a model trained on {self.n_judged:,} of {self.n_documents:,} documents ({fraction}); the "
            f"saved model was then trained on all {self.n_documents:,}"
        )


class LabelCounts(Record):
    """Which predictions labels.tsv counts."""

    threshold: float | None = None
    k: int | None = None
    """Best labels per document; None: all that reach the threshold."""

    def __str__(self) -> str:
        if self.threshold is not None:
            return f"labels that reach the threshold of {self.threshold:.4g}, as F1 without @k does"
        return f"the best {self.k} labels of each document" if self.k != 1 else "the best label of each document"


class Results(Record):
    """results.json"""

    split: str = "test"
    n_documents: int | None = None
    """Documents evaluated."""
    n_available: int | None = None
    """Documents of the split, of which `n_documents` were sampled."""
    k: int | None = None
    """Labels predicted per document."""
    n_seen: int | None = None
    """Evaluated documents that the model was trained on."""
    threshold: float | None = None
    """For F1 without @k."""
    label_counts: LabelCounts = LabelCounts(k=5)
    """Runs without this field have counted the best 5."""
    remarks: tuple[str, ...] = ()
    """What to know about the figures before relying on them."""
    evaluation: Evaluation
    timings: dict[str, float | None] = {}
    memory: dict[str, float | None] = {}
    model: dict[str, int | float | str | None] = {}
    data: dict[str, Any] = {}
    frequency_curve: Curve | None = None
    baseline: Baseline | None = None
    calibration: Calibration | None = None
    refit: Refit | None = None

    @property
    def saved_model(self) -> dict[str, int | float | str | None]:
        """Size and labels of the saved model, which is the refitted one if there is one."""
        refitted = {} if self.refit is None else {"bytes": self.refit.bytes, "n_labels": self.refit.n_labels}
        return self.model | {key: value for key, value in refitted.items() if value is not None}

    @property
    def model_bytes(self) -> float | None:
        """Bytes of the saved model."""
        amount = self.saved_model.get("bytes")
        return None if isinstance(amount, str) else amount


class Machine(Record):
    """machine.json"""

    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    threads_before: tuple[int, ...] = ()
    """Thread counts of earlier attempts, if the run was resumed with another number."""
    device: str | None = None
    memory_bytes: int | None = None
    python: str | None = None
    platform: str | None = None
    packages: dict[str, str | None] = {}


def read_metrics(path: Path, notes: list[str] | None = None, damaged: str = "refuse") -> tuple[dict[str, Any], ...]:
    """The lines of metrics.jsonl; none where there is no such file.

    Lines are appended during a run, so the last one may be cut off: that is added to `notes`, not an error. Other
    damaged lines are an error, or skipped with `damaged="skip"`.
    """
    if not path.is_file():
        return ()
    try:
        content = path.read_bytes()  # once: lines may be added meanwhile
    except OSError as error:
        if damaged == "skip":
            return ()
        raise DataError(f"cannot be read: {error.strerror}", path) from None
    *lines, last = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    entries = [_entry(line, path, number, damaged) for number, line in enumerate(lines, start=1) if line.strip()]
    if last.strip():
        try:
            entries.append(_entry(last, path, len(lines) + 1, "refuse"))
        except DataError:
            if notes is not None:
                notes.append(f"The last line of {METRICS} is cut and was left out; the run stopped while writing it.")
    return tuple(entry for entry in entries if entry is not None)


def _entry(line: bytes, path: Path, number: int, damaged: str) -> dict[str, Any] | None:
    """A line of metrics.jsonl; None if it is damaged and to be skipped."""
    try:
        entry = parse_json(line.decode(), path, number)
        if not isinstance(entry, dict):
            raise DataError(f"damaged: a mapping is needed, not a {type(entry).__name__}", path, number)
    except UnicodeDecodeError as error:
        if damaged == "skip":
            return None
        raise DataError(f"damaged: not UTF-8: {error.reason}", path, number) from None
    except DataError:
        if damaged == "skip":
            return None
        raise
    return entry


class TrueLabel(Record):
    """A true label of a document."""

    label: str
    text: str | None = None
    count: int | None = None


class PredictedLabel(Record):
    """A label that the model predicted for a document."""

    label: str
    text: str | None = None
    score: float | None = None
    correct: bool = False


class Example(Record):
    """One line of examples.jsonl."""

    id: str | None = None
    text: str | None = None
    image: str | None = None
    """A small PNG as a data URI."""
    map: str | None = None
    """The same with the parts in red that the best label depends on."""
    truth: tuple[TrueLabel, ...] = ()
    predicted: tuple[PredictedLabel, ...] = ()


class ConfusedLabels(Record):
    """Two siblings in the tree of a model, and the test documents that have the first, which was missed, and got the
    second, wrongly."""

    true: str
    true_text: str | None = None
    true_documents: int | None = None
    """Test documents with the first label."""
    predicted: str
    predicted_text: str | None = None
    predicted_documents: int | None = None
    documents: int


class Confusions(Record):
    """confusion.json: the most frequent pairs first."""

    pairs: tuple[ConfusedLabels, ...] = ()


# --- auto schema ---
# auto.json: what `labelwise auto` has tried, how it compared, and what was chosen. Reports read it.

FORMAT = "labelwise-auto"
TRIED, SKIPPED, LEFT_OUT, FAILED, WAITING, RUNNING = "tried", "skipped", "left out", "failed", "waiting", "running"
"""Values of `status`: skipped for lack of time; left out because it cannot be used with this data or installation."""


class Option(Record):
    """A model that was tried or could have been, or an ensemble of tried ones."""

    name: str
    about: str = ""
    method: str = ""
    parameters: dict[str, Any] = {}
    """The section `model` of a config."""
    members: tuple[str, ...] = ()
    """Of an ensemble: names of the models."""
    status: str = WAITING
    reason: str = ""
    """Why it was skipped, left out or failed; what to know about it."""
    value: float | None = None
    """The metric on the validation documents; of an ensemble cross-fitted."""
    interval: tuple[float, float] | None = None
    behind_best: tuple[float, float, float] | None = None
    """The best value minus this one on the same documents, with its 95 % interval."""
    within_noise: bool = False
    """Whether it is less than one standard error behind the best."""
    seconds: float | None = None
    """Of training, without compiling kernels; of an ensemble those of its members."""
    predict_seconds: float | None = None
    """Of predicting for the validation documents."""
    estimate: float | None = None
    """Seconds that training and predicting were expected to take."""
    bytes: int | None = None


class AutoRecord(Record):
    """auto.json"""

    format: str = FORMAT
    data: str = ""
    """Fingerprint of training and validation documents."""
    budget: float
    metric: str
    n_train: int
    n_valid: int
    decided: bool = False
    chosen: str | None = None
    best: str | None = None
    why: str = ""
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    """Seconds from the start until the decision, those of interrupted attempts included."""
    options: tuple[Option, ...] = ()
    """Models from cheap to expensive, then ensembles."""

    def option(self, name: str) -> Option:
        """The option of this name."""
        return next(one for one in self.options if one.name == name)
