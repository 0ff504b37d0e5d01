"""Which labels are predicted where a sibling is true: pairs of a missed label and a wrong one, in documents of a group.

Siblings are labels that a tree separates last. Pairs are counted sparsely, per document among labels of one group only;
neither documents x labels nor labels x labels exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from labelwise.topk import NO_LABEL, TopK

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
