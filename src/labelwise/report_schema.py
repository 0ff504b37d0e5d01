"""What an evaluation keeps of single documents and labels for the report of a run: examples and confused labels."""

from __future__ import annotations

from labelwise.run_schema import Record


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
