"""What one looks at first in a data set: frequent and rare labels, suspect labels and documents, some records."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.formatting import cut, percent
from labelwise.strings import Strings

N_LABELS = 5
"""Most frequent and least frequent labels that are listed."""
N_GROUPS = 100
"""Groups of labels with nearly the same name that are listed."""
TEXT_LENGTH = 500
MANY_UNIQUE = 0.9
"""Above this fraction of labels with one document, and of labels per document, a column of labels is doubted."""
ENOUGH_DOCUMENTS = 100
"""In a smaller data set it is normal that most labels occur once."""


@dataclass(frozen=True)
class LabelCount:
    """A label and the number of its documents."""

    label: str
    text: str | None
    documents: int


@dataclass(frozen=True)
class DocumentNote:
    """A document that is worth a look."""

    part: str
    document: str
    """Its id, or its index from 0."""
    amount: int
    """The number of its labels, or of its occurrences."""
    text: str | None = None
    """The beginning of its text."""


@dataclass(frozen=True)
class Highlights:
    """Labels and documents of all parts together."""

    most_frequent: list[LabelCount]
    least_frequent: list[LabelCount]
    """Of the labels that occur, the rarest last."""
    n_alike: int
    """Groups of labels whose names differ only by case, blanks or the encoding of accents."""
    alike: list[list[LabelCount]]
    """The first of these groups."""
    most_labels: DocumentNote | None
    """The document with the most labels."""
    without_words: DocumentNote | None
    """The first document whose text has no words."""
    most_repeated: DocumentNote | None
    """The text that occurs most often, if one occurs more than once."""
    repeated_fraction: float | None
    """Documents whose text occurs earlier, as a fraction of all."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def highlights(
    parts: Mapping[str, Dataset],
    names: Sequence[str],
    counts: np.ndarray,
    words: Mapping[str, np.ndarray | None],
    digests: np.ndarray | None,
) -> Highlights:
    """The highlights of the parts of one data set.

    `names` and `counts` are the labels of all parts with their documents, `words` the words per text of each part, and
    `digests` those of all texts, part by part.
    """
    used = np.flatnonzero(counts)
    order = used[np.argsort(-counts[used], kind="stable")]
    texts = _TextLookup(parts)

    def listed(labels: Sequence[int] | np.ndarray) -> list[LabelCount]:
        return [LabelCount(names[i], texts.of(names[i]), int(counts[i])) for i in map(int, labels)]

    groups = _alike(names)
    return Highlights(
        most_frequent=listed(order[:N_LABELS]),
        least_frequent=listed(order[N_LABELS:][-N_LABELS:]),
        n_alike=len(groups),
        alike=[listed(group) for group in groups[:N_GROUPS]],
        most_labels=_most_labels(parts),
        without_words=_without_words(parts, words),
        most_repeated=_most_repeated(parts, digests),
        repeated_fraction=None if digests is None or not len(digests) else 1 - len(np.unique(digests)) / len(digests),
    )


def doubt_about_labels(counts: np.ndarray, documents: int, column: str | None) -> str | None:
    """A question if nearly every label occurs once, as titles or identifiers do; `column` is where they were read."""
    used = int(np.count_nonzero(counts))
    unique = int(np.count_nonzero(counts == 1))
    if documents < ENOUGH_DOCUMENTS or used <= MANY_UNIQUE * documents or unique <= MANY_UNIQUE * used:
        return None
    question = "are these the labels?" if column is None else f"is '{column}' the column with the labels?"
    shown = percent(unique / used, 1)
    return f"{shown} % of the {used:,} labels of {documents:,} documents occur in one document only: {question}"


def records(parts: Mapping[str, Dataset], count: int) -> list[dict[str, Any]]:
    """Some documents of each part, at equal distances: part, document, beginning of the text, and labels."""
    found = []
    for name, part in parts.items():
        for row in np.unique(np.linspace(0, len(part) - 1, min(count, len(part)), dtype=np.int64)).tolist():
            columns = part.labels.indices[part.labels.indptr[row] : part.labels.indptr[row + 1]].tolist()
            texts = part.label_texts
            labels = [{"label": part.label_names[c], **({} if texts is None else {"text": texts[c]})} for c in columns]
            found.append({"part": name, "document": _name(part, row), "text": _text(part, row), "labels": labels})
    return found


class _TextLookup:
    """Texts of labels by name, of whichever part has one."""

    def __init__(self, parts: Mapping[str, Dataset]) -> None:
        self.sources: list[tuple[Strings, Strings]] = [
            (part.label_names, part.label_texts) for part in parts.values() if part.label_texts is not None
        ]

    def of(self, name: str) -> str | None:
        for names, texts in self.sources:
            if name in names.positions:
                return texts[names.positions[name]] or None
        return None


def _alike(names: Sequence[str]) -> list[list[int]]:
    first: dict[str, int] = {}
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        plain = name if name.isascii() else unicodedata.normalize("NFC", name)
        key = " ".join(plain.casefold().split())
        before = first.setdefault(key, index)
        if before != index:
            groups.setdefault(key, [before]).append(index)
    return list(groups.values())


def _most_labels(parts: Mapping[str, Dataset]) -> DocumentNote | None:
    best = None
    for name, part in parts.items():
        lengths = np.diff(part.labels.indptr)
        if len(lengths) and lengths.max() > (0 if best is None else best.amount):
            row = int(lengths.argmax())
            best = DocumentNote(name, _name(part, row), int(lengths[row]), _text(part, row))
    return best


def _without_words(parts: Mapping[str, Dataset], words: Mapping[str, np.ndarray | None]) -> DocumentNote | None:
    for name, part in parts.items():
        counts = words[name]
        if counts is not None and (counts == 0).any():
            return DocumentNote(name, _name(part, int((counts == 0).argmax())), int((counts == 0).sum()))
    return None


def _most_repeated(parts: Mapping[str, Dataset], digests: np.ndarray | None) -> DocumentNote | None:
    if digests is None or not len(digests):
        return None
    _, first, times = np.unique(digests, return_index=True, return_counts=True)
    most = int(times.max())
    if most == 1:
        return None
    row = int(first[times == most].min())
    for name, part in parts.items():
        if row < len(part):
            return DocumentNote(name, _name(part, row), most, _text(part, row))
        row -= len(part)
    return None


def _name(part: Dataset, row: int) -> str:
    return str(row) if part.ids is None else part.ids[row]


def _text(part: Dataset, row: int) -> str | None:
    source = part.texts if part.texts is not None else part.paths
    return None if source is None else cut(source[row], TEXT_LENGTH)
