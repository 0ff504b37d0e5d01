"""What an evaluation keeps of single documents and labels for the report of a run: examples and confused labels."""

from __future__ import annotations

from typing import Any

from labelwise.io.run_schema import Record


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
