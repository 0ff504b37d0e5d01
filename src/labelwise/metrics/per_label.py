"""Table of counts per label: training documents, test documents, predictions, and correct predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from labelwise.errors import ConfigError
from labelwise.io.atomic import replacing
from labelwise.metrics.evaluate import LabelCounter, TrainingCounts, common_labels
from labelwise.metrics.formulas import ratio
from labelwise.runtime.threads import run_stream
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK

_ROWS_PER_CHUNK = 100_000


class LabelRow(NamedTuple):
    """One label; `text` and `train` are None where they are not known."""

    label: str
    text: str | None
    train: int | None
    test: int
    predicted: int
    correct: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, eq=False)
class LabelTable:
    """All labels in the order of their ids, one vector per column; iterating yields rows."""

    labels: Strings
    texts: Strings | None
    train: np.ndarray | None
    test: np.ndarray
    predicted: np.ndarray
    correct: np.ndarray
    k: int | None
    """Predictions per document that count; None: those that reach a threshold."""

    def __len__(self) -> int:
        return len(self.test)

    @property
    def precision(self) -> np.ndarray:
        """Correct divided by predicted; 0 if the label is never predicted."""
        return ratio(self.correct, self.predicted)

    @property
    def recall(self) -> np.ndarray:
        """Correct divided by the documents that have the label; 0 if none has it."""
        return ratio(self.correct, self.test)

    @property
    def f1(self) -> np.ndarray:
        """The harmonic mean of precision and recall; 0 if the label is neither predicted nor in the truth."""
        return ratio(2 * self.correct, self.predicted + self.test)

    def __iter__(self) -> Iterator[LabelRow]:
        for start in range(0, len(self), _ROWS_PER_CHUNK):
            part = self._part(slice(start, start + _ROWS_PER_CHUNK))
            counts = (part.test, part.predicted, part.correct, part.precision, part.recall, part.f1)
            columns = [
                part.labels,
                repeat(None, len(part)) if part.texts is None else part.texts,
                repeat(None, len(part)) if part.train is None else part.train.tolist(),
                *(column.tolist() for column in counts),
            ]
            yield from map(LabelRow._make, zip(*columns, strict=True))

    def lines(self) -> Iterator[str]:
        """The lines of the file, formatted column by column: a million labels take seconds, not minutes."""
        for start in range(0, len(self), _ROWS_PER_CHUNK):
            part = self._part(slice(start, start + _ROWS_PER_CHUNK))
            columns = [
                map(_cell, part.labels),
                repeat("", len(part)) if part.texts is None else map(_cell, part.texts),
                repeat("", len(part)) if part.train is None else map(str, part.train.tolist()),
                *(map(str, counts.tolist()) for counts in (part.test, part.predicted, part.correct)),
                *(_four_digits(fractions) for fractions in (part.precision, part.recall, part.f1)),
            ]
            yield from map("{}\n".format, map("\t".join, zip(*columns, strict=True)))

    def write(self, path: str | Path) -> None:
        """Write the table as tab-separated text in UTF-8 with a header; the file is written atomically.

        Columns: label, text, train (training documents), test, predicted, correct, precision, recall, f1.
        """
        with replacing(path) as file:
            file.write("label\ttext\ttrain\ttest\tpredicted\tcorrect\tprecision\trecall\tf1\n")
            file.writelines(self.lines())

    def _part(self, rows: slice) -> LabelTable:
        return LabelTable(
            labels=self.labels[rows],
            texts=None if self.texts is None else self.texts[rows],
            train=None if self.train is None else self.train[rows],
            test=self.test[rows],
            predicted=self.predicted[rows],
            correct=self.correct[rows],
            k=self.k,
        )


def label_table(top: TopK, truth: Any, train: Any = None, k: int = 5) -> LabelTable:
    """Counts per label over the first k predictions of each document.

    Parameters are those of `evaluate`. Rows are all labels of the label space, then those that only the truth has.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ConfigError(f"k is a whole number from 1 up, got {k!r}")
    if k > top.k:
        raise ConfigError(
            f"the table needs {k} predictions per document, but there are {top.k}; lower k, or predict more labels"
        )
    counts = None if train is None else TrainingCounts.of(train)
    common = common_labels(top, truth, 0 if counts is None else len(counts.counts))
    counter = LabelCounter(common.n_labels, int(k))
    count_predictions(counter, top, common.labels, common.n_known)
    names = common.label_names
    return LabelTable(
        labels=Strings.numbers(common.n_labels) if names is None else names,
        texts=common.label_texts,
        train=None if counts is None else counts.within(common).counts,
        test=np.bincount(common.labels.indices, minlength=common.n_labels),
        predicted=counter.predicted,
        correct=counter.correct,
        k=int(k),
    )


def count_predictions(
    counter: LabelCounter, top: TopK, truth: sparse.csr_array, n_known: int, threshold: float | None = None
) -> None:
    """Add the predictions of some documents to the counts; a counter without k needs the threshold."""
    from labelwise.metrics.evaluate import DocumentBlock, block_rows

    def build_block(rows: tuple[int, int]) -> DocumentBlock:
        return DocumentBlock(top, truth, rows, n_known=n_known, first=rows[0], threshold=threshold)

    for block in run_stream(build_block, block_rows(0, len(top))):
        counter.add(block)


def write_label_table(path: str | Path, top: TopK, truth: Any, train: Any = None, k: int = 5) -> None:
    """Write `label_table` to a file."""
    label_table(top, truth, train, k).write(path)


def _four_digits(fractions: np.ndarray) -> Iterator[str]:
    """Numbers from 0 to 1 as text; looked up among the 10,001 possible ones, as formatting is slow."""
    texts = [f"{number / 10_000:.4f}" for number in range(10_001)]
    return map(texts.__getitem__, np.rint(fractions * 10_000).astype(int).tolist())


def _cell(text: str) -> str:
    """A text for one cell: line ends and tabs are replaced by spaces."""
    return text if text.isprintable() else " ".join(text.split())


# --- confusion ---
# Which labels are predicted where a sibling is true: pairs of a missed label and a wrong one, in documents of a group.
#
# Siblings are labels that a tree separates last. Pairs are counted sparsely, per document among labels of one group
# only; neither documents x labels nor labels x labels exists.

_ROWS = 20_000
"""Documents that are counted at once."""


@dataclass(frozen=True)
class Confusion:
    """A label that was predicted, wrongly, for documents that have a sibling which was not."""

    true: int
    predicted: int
    documents: int


class ConfusionCounter:
    """Counts pairs of siblings, among the first k predictions or (k None) those that reach a threshold."""

    def __init__(self, groups: np.ndarray, k: int | None, threshold: float | None = None) -> None:
        """`groups` has the group of each label; labels after its end are not known to the model."""
        self.groups = groups.astype(np.int64)
        self.k, self.threshold = k, threshold
        self._pairs = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def add(self, top: TopK, truth: sparse.csr_array) -> None:
        """Count some documents, given their true labels in the label space of the model."""
        for begin in range(0, len(top), _ROWS):
            rows = slice(begin, min(begin + _ROWS, len(top)))
            self._add(top.ids[rows], top.scores[rows], truth[rows])

    def _add(self, ids: np.ndarray, scores: np.ndarray, truth: sparse.csr_array) -> None:
        n_labels, n_groups = len(self.groups), int(self.groups.max(initial=0)) + 1
        counted = ids != NO_LABEL
        if self.k is not None:
            counted[:, self.k :] = False
        elif self.threshold is not None:
            counted &= scores >= np.float32(self.threshold)
        rows, columns = np.nonzero(counted)
        predicted = rows * n_labels + ids[rows, columns]
        known = truth.indices < n_labels
        true = np.repeat(np.arange(len(ids)), np.diff(truth.indptr))[known] * n_labels + truth.indices[known]
        wrong, missed = np.setdiff1d(predicted, true), np.setdiff1d(true, predicted)
        # pairs with the same document and group: the wrong labels of a key are a range once they are sorted by it
        keys = wrong // n_labels * n_groups + self.groups[wrong % n_labels]
        order = np.argsort(keys, kind="stable")
        keys, wrong = keys[order], wrong[order]
        sought = missed // n_labels * n_groups + self.groups[missed % n_labels]
        first, last = np.searchsorted(keys, sought), np.searchsorted(keys, sought, side="right")
        lengths = last - first
        ends = np.cumsum(lengths)
        inside = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
        found = wrong[np.repeat(first, lengths) + inside] % n_labels
        pairs, counts = np.unique(np.repeat(missed % n_labels, lengths) * n_labels + found, return_counts=True)
        self._merge(pairs, counts)

    def _merge(self, pairs: np.ndarray, counts: np.ndarray) -> None:
        merged, position = np.unique(np.concatenate([self._pairs, pairs]), return_inverse=True)
        self._counts = np.bincount(position, np.concatenate([self._counts, counts])).astype(np.int64)
        self._pairs = merged

    def most_frequent(self, limit: int) -> list[Confusion]:
        """The pairs with the most documents; among equal ones by label ids."""
        order = np.argsort(-self._counts, kind="stable")[:limit]
        n_labels = len(self.groups)
        return [
            Confusion(int(pair // n_labels), int(pair % n_labels), int(count))
            for pair, count in zip(self._pairs[order], self._counts[order], strict=True)
        ]
