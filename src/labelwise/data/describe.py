"""Statistics of data sets: numbers of documents and labels, text lengths, label skew, overlap of the parts.

Everything is counted from sparse labels and from the buffer of texts; no document is converted to a Python string, so
that half a million documents take seconds.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.catalogue import PublishedFigures, dataset, entry
from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset
from labelwise.formatting import cut, percent
from labelwise.strings import Strings

# --- highlights ---
# What one looks at first in a data set: frequent and rare labels, suspect labels and documents, some records.

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


WORD_BLOCK_BYTES = 32 << 20
_BLANK = np.zeros(256, bool)
_BLANK[[9, 10, 11, 12, 13, 32]] = True


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of one data set. Fractions of labels are of those that occur; None: does not apply."""

    name: str
    documents: int
    labels: int
    """Size of the label space."""
    labels_used: int
    """Labels with at least one document."""
    occurrences: int
    mean_labels: float
    """Labels per document."""
    median_labels: float
    max_labels: int
    documents_without_labels: int
    mean_documents: float
    """Documents per label, over the labels that occur."""
    median_documents: float
    max_documents: int
    share_labels_1: float
    """Fraction of labels with one document."""
    share_labels_5: float
    """Fraction of labels with at most five documents."""
    share_labels_10: float
    """Fraction of labels with at most ten documents."""
    top_1_percent: float
    """Fraction of all occurrences that belong to the most frequent 1 % of labels."""
    top_10_percent: float
    """Fraction of all occurrences that belong to the most frequent 10 % of labels."""
    mean_words: float | None
    """Words per text, split at blanks."""
    median_words: float | None
    max_words: int | None
    texts_without_words: int | None
    repeated_texts: int | None
    """Documents whose text is a duplicate of an earlier one in the same data set."""
    features: int | None
    """Columns of the feature matrix."""
    nonzeros: int | None
    """Stored entries of the feature matrix."""
    mean_nonzeros: float | None
    """Stored entries per document."""
    label_counts: np.ndarray = field(repr=False)
    """Documents per label, in the order of the label space."""

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values, without the counts per label."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "label_counts"}

    def frequency_curve(self, points: int = 200) -> dict[str, list[int]]:
        """Points of the curve of label frequencies over ranks, for plots with log axes."""
        rank, count = frequency_curve(self.label_counts, points)
        return {"rank": rank.tolist(), "count": count.tolist()}


@dataclass(frozen=True)
class SplitStatistics:
    """Statistics of the parts of a data set, of all of them together, and their overlap."""

    parts: dict[str, Statistics]
    overall: Statistics
    labels_not_in_train: dict[str, int]
    """For each other part: labels that occur in it, but not in train."""
    texts_in_train: dict[str, int | None]
    """For each other part: documents whose text also occurs in train."""
    highlights: Highlights
    """Labels and documents that are worth a look."""

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values."""
        return {
            "parts": {name: part.to_dict() for name, part in self.parts.items()},
            "overall": self.overall.to_dict(),
            "labels_not_in_train": self.labels_not_in_train,
            "texts_in_train": self.texts_in_train,
            "highlights": self.highlights.to_dict(),
        }


def statistics(data: Dataset) -> Statistics:
    """The statistics of one data set."""
    return _statistics(
        data.name,
        data.label_counts(),
        _label_list_lengths(data),
        _apply_to_texts(word_counts, data),
        _apply_to_texts(text_digests, data),
        _matrix_size(data),
    )


def split_statistics(parts: Mapping[str, Dataset]) -> SplitStatistics:
    """The statistics of the parts of one data set, as returned by `read_splits`.

    Labels are identified by their names. Parts in one label space, with additional columns for labels that only one
    part has, are counted fastest.
    """
    if not parts:
        raise ValueError("there are no parts to count")
    base = min((part.label_names for part in parts.values()), key=len)
    aligned = {name: part.align(base) for name, part in parts.items()}
    words = {name: _apply_to_texts(word_counts, part) for name, part in parts.items()}
    digests = {name: _apply_to_texts(text_digests, part) for name, part in parts.items()}
    matrices = {name: _matrix_size(part) for name, part in parts.items()}
    lengths = {name: _label_list_lengths(part) for name, part in parts.items()}
    singles = {
        name: _statistics(part.name, part.label_counts(), lengths[name], words[name], digests[name], matrices[name])
        for name, part in parts.items()
    }
    common = {name: part.label_counts()[: len(base)] for name, part in aligned.items()}
    extra = {name: _extra_labels(part, len(base)) for name, part in aligned.items()}
    together: Counter[str] = sum(extra.values(), Counter())
    known = [matrix for matrix in matrices.values() if matrix is not None]
    counts = np.concatenate([sum(common.values()), np.fromiter(together.values(), np.int64, len(together))])
    all_digests = _concatenated(list(digests.values()))
    overall = _statistics(
        "all parts",
        counts,
        np.concatenate(list(lengths.values())),
        _concatenated(list(words.values())),
        all_digests,
        (max(width for width, _ in known), sum(stored for _, stored in known)) if known else None,
    )
    train = "train" if "train" in parts else next(iter(parts))
    others = [name for name in parts if name != train]
    new = {
        name: int(np.count_nonzero((common[name] > 0) & (common[train] == 0)))
        + len(extra[name].keys() - extra[train].keys())
        for name in others
    }
    shared = {name: _n_shared(digests[name], digests[train]) for name in others}
    notes = highlights(parts, base + together.keys(), counts, words, all_digests)
    return SplitStatistics(singles, overall, new, shared, notes)


def _apply_to_texts(count: Callable[[Strings], np.ndarray], part: Dataset) -> np.ndarray | None:
    return None if part.texts is None else count(part.texts)


def _extra_labels(part: Dataset, n_common: int) -> Counter[str]:
    """Documents per label, for the labels beyond the common columns."""
    counts = part.label_counts()
    return Counter({part.label_names[c]: int(counts[c]) for c in range(n_common, len(counts)) if counts[c]})


def _label_list_lengths(part: Dataset) -> np.ndarray:
    return np.diff(part.labels.indptr)


def _matrix_size(part: Dataset) -> tuple[int, int] | None:
    """Columns and stored entries of the features."""
    if part.features is None:
        return None
    features: Any = part.features
    if isinstance(features, Blocks):
        features = features.to_csr()
    stored = np.count_nonzero(features) if isinstance(features, np.ndarray) else features.nnz
    return features.shape[1], int(stored)


def _statistics(
    name: str,
    counts: np.ndarray,
    lengths: np.ndarray,
    words: np.ndarray | None,
    digests: np.ndarray | None,
    matrix: tuple[int, int] | None,
) -> Statistics:
    used = np.sort(counts[counts > 0])[::-1]
    total = int(used.sum())
    documents = len(lengths)

    def fraction_at_most(most: int) -> float:
        return float(np.mean(used <= most)) if len(used) else 0.0

    def covered_by_top(fraction: float) -> float:
        return float(used[: max(1, round(fraction * len(used)))].sum() / total) if total else 0.0

    return Statistics(
        name=name,
        documents=documents,
        labels=len(counts),
        labels_used=len(used),
        occurrences=total,
        mean_labels=total / documents if documents else 0.0,
        median_labels=float(np.median(lengths)) if documents else 0.0,
        max_labels=int(lengths.max(initial=0)),
        documents_without_labels=int(np.count_nonzero(lengths == 0)),
        mean_documents=total / len(used) if len(used) else 0.0,
        median_documents=float(np.median(used)) if len(used) else 0.0,
        max_documents=int(used.max(initial=0)),
        share_labels_1=fraction_at_most(1),
        share_labels_5=fraction_at_most(5),
        share_labels_10=fraction_at_most(10),
        top_1_percent=covered_by_top(0.01),
        top_10_percent=covered_by_top(0.1),
        mean_words=None if words is None else float(words.mean()) if len(words) else 0.0,
        median_words=None if words is None else float(np.median(words)) if len(words) else 0.0,
        max_words=None if words is None else int(words.max(initial=0)),
        texts_without_words=None if words is None else int(np.count_nonzero(words == 0)),
        repeated_texts=None if digests is None else len(digests) - len(np.unique(digests)),
        features=None if matrix is None else matrix[0],
        nonzeros=None if matrix is None else matrix[1],
        mean_nonzeros=None if matrix is None else matrix[1] / documents if documents else 0.0,
        label_counts=counts,
    )


def _concatenated(pieces: list[np.ndarray | None]) -> np.ndarray | None:
    """The concatenated pieces; None unless every part has one."""
    present = [piece for piece in pieces if piece is not None]
    return np.concatenate(present) if len(present) == len(pieces) else None


def _n_shared(digests: np.ndarray | None, of_train: np.ndarray | None) -> int | None:
    if digests is None or of_train is None:
        return None
    return int(np.count_nonzero(np.isin(digests, of_train)))


def word_counts(texts: Strings) -> np.ndarray:
    """Words per text, split at ASCII blanks."""
    counts = np.zeros(len(texts), np.int64)
    order = np.argsort(texts.starts, kind="stable")  # texts may have been picked in any order
    starts, ends = texts.starts[order], texts.ends[order]
    begin = 0
    while begin < len(texts):
        base = int(starts[begin])
        end = int(np.searchsorted(starts, base + WORD_BLOCK_BYTES))
        first, last = starts[begin:end] - base, ends[begin:end] - base
        blank = _BLANK[texts.buffer[base : base + int(last.max())]]
        if len(blank):
            word_begins = np.flatnonzero(~blank & np.concatenate([[True], blank[:-1]]))
            inner = np.searchsorted(word_begins, last) - np.searchsorted(word_begins, first)
            # a text directly after another's last letter begins with a word that has no blank before it
            hidden = (last > first) & (first > 0)
            hidden[hidden] = ~blank[first[hidden]] & ~blank[first[hidden] - 1]
            counts[order[begin:end]] = inner + hidden
        begin = end
    return counts


def text_digests(texts: Strings) -> np.ndarray:
    """A 64-bit digest of each text; equal texts have equal digests, others in practice never."""
    view = np.ascontiguousarray(texts.buffer).data
    digests = bytearray()
    for start, end in zip(texts.starts.tolist(), texts.ends.tolist(), strict=True):
        digests += hashlib.blake2b(view[start:end], digest_size=8).digest()
    return np.frombuffer(bytes(digests), np.uint64)


def frequency_curve(counts: np.ndarray, points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Ranks (from 1) and frequencies of labels, most frequent first.

    Thinned to about `points` evenly spaced on a log axis; the first and the last rank are always included.
    Labels that never occur are omitted.
    """
    used = np.sort(np.asarray(counts)[np.asarray(counts) > 0])[::-1]
    if len(used) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ranks = np.unique(np.geomspace(1, len(used), max(points, 2)).round().astype(np.int64))
    return ranks, used[ranks - 1].astype(np.int64)


# --- published ---
# Compares published statistics of a named data set with those of the data on disk.

MEAN_TOLERANCE = 0.01
"""Published means are rounded, and some are of train and others of all documents."""


@dataclass(frozen=True)
class FigureComparison:
    """A published figure and the actual one; `ok` is None if one of them is missing."""

    what: str
    expected: float | None
    actual: float | None

    @property
    def ok(self) -> bool | None:
        if self.expected is None or self.actual is None:
            return None
        if isinstance(self.expected, int):
            return self.expected == self.actual
        return abs(self.actual - self.expected) <= MEAN_TOLERANCE * self.expected


def check(name: str, home: str | Path | None = None) -> list[FigureComparison]:
    """Read a whole downloaded data set and compare its figures with the published ones."""

    return compare(entry(name).published, split_statistics(dataset(name, folder=home)))


def compare(published: PublishedFigures, actual: SplitStatistics) -> list[FigureComparison]:
    """Pairs of published figures and those of the data."""
    rows = []
    for split in ("train", "valid", "test"):
        part = actual.parts.get(split)
        documents = part.documents if part is not None else None
        rows.append(FigureComparison(f"{split} documents", getattr(published, split), documents))
    rows.append(FigureComparison("features", published.features, actual.overall.features))
    # a count of labels may mean the label space or the labels that occur
    spaces = (actual.overall.labels, actual.overall.labels_used)
    labels = published.labels if published.labels in spaces else actual.overall.labels
    rows.append(FigureComparison("labels", published.labels, labels))
    means = [actual.overall.mean_labels, *(p.mean_labels for s, p in actual.parts.items() if s == "train")]
    expected = published.mean_labels
    nearest = means[0] if expected is None else min(means, key=lambda mean: abs(mean - expected))
    rows.append(FigureComparison("labels per document", None if expected is None else float(expected), nearest))
    return [row for row in rows if row.expected is not None or row.actual is not None]
