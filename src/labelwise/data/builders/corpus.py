"""Shared by the builders: writes a corpus of labelled texts as line files, split by hash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.data.hashing import hash_fraction
from labelwise.errors import DataError
from labelwise.io.atomic import data_folder

TEST_FRACTION = 0.2


@dataclass(frozen=True)
class Document:
    """A text without line ends, and its labels without blanks."""

    text: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class BuiltCorpus:
    """Folder and statistics of a corpus that was built."""

    folder: Path
    train: int
    test: int
    labels: int
    occurrences: int
    source: dict[str, Any]
    """Contents of source.json: the origin of the documents and what was left out."""

    @property
    def documents(self) -> int:
        return self.train + self.test

    @property
    def mean_labels(self) -> float:
        return self.occurrences / max(self.documents, 1)


def write_corpus(
    folder: str | Path,
    documents: Iterable[Document],
    source: Mapping[str, Any],
    seed: int = 0,
    limit: int | None = None,
    min_label_count: int = 1,
    force: bool = False,
) -> BuiltCorpus:
    """Drop duplicate texts, rare labels and documents without labels; split; write `train_texts.txt` etc.

    A text goes to train or test by its hash, so the split does not change when other documents come or go.
    `limit` is the number of documents to keep, also chosen by hash.
    """
    from labelwise.data.csr import labels_from_lists
    from labelwise.data.dataset import Dataset
    from labelwise.data.write import write_splits
    from labelwise.strings import Strings

    unique: dict[str, Document] = {}
    for document in documents:
        unique.setdefault(document.text, document)
    kept = list(unique.values())
    if limit is not None and len(kept) > limit:
        bound = sorted(hash_fraction(document.text, seed + 1) for document in kept)[limit]
        kept = [document for document in kept if hash_fraction(document.text, seed + 1) < bound]
    counts = Counter(label for document in kept for label in set(document.labels))
    rows = [(d.text, sorted(n for n in set(d.labels) if counts[n] >= min_label_count)) for d in kept]
    rows = [row for row in rows if row[1]]
    parts: dict[str, Sequence[tuple[str, list[str]]]] = {
        "train": [row for row in rows if hash_fraction(row[0], seed) >= TEST_FRACTION],
        "test": [row for row in rows if hash_fraction(row[0], seed) < TEST_FRACTION],
    }
    for name, part in parts.items():
        if not part:
            raise DataError(f"{len(rows):,} documents with labels are too few: none of them is in {name}")
    figures = {"train": len(parts["train"]), "test": len(parts["test"])}
    metadata = {**source, "seed": seed, "limit": limit, "min_label_count": min_label_count, **figures}
    with data_folder(folder, metadata, force) as hidden:
        datasets = {}
        for name, part in parts.items():
            labels, label_names = labels_from_lists([labels for _, labels in part])
            datasets[name] = Dataset(labels, label_names, texts=Strings.of(text for text, _ in part), name=name)
        write_splits(datasets, hidden, "lines")
    used = {label for _, labels in rows for label in labels}
    return BuiltCorpus(
        Path(folder), **figures, labels=len(used), occurrences=sum(len(r[1]) for r in rows), source=metadata
    )
