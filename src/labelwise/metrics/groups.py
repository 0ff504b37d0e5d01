"""Metrics per group of labels (head, torso, tail), grouped by number of training documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.errors import ConfigError


@dataclass(frozen=True)
class GroupRow:
    """Metrics of the labels with `low` to `high` training documents (None: no limit).

    Parameters
    ----------
    n_labels
        Labels of this group in the label space; `n_test_labels` counts those that occur in the truth.
    occurrences, share
        Occurrences of labels of this group in the truth, and their fraction of all occurrences.
    contribution
        For each k, the part of P@k that is due to this group; the parts of all groups sum to P@k.
    recall
        For each k, the fraction of the occurrences that are among the first k predictions.
    """

    name: str
    low: int
    high: int | None
    n_labels: int
    n_test_labels: int
    occurrences: int
    share: float
    contribution: dict[int, float]
    recall: dict[int, float]


class LabelGroups:
    """The group of each label, and hits per group and rank.

    Parameters
    ----------
    counts
        Training documents per label.
    boundaries
        Lower bounds: (10, 100) gives tail 1-9, torso 10-99 and head 100 and more. Labels without a training
        document are always a separate group.
    depth
        Largest k.
    """

    def __init__(self, counts: np.ndarray, boundaries: Sequence[int], depth: int) -> None:
        self.lows = [0, 1, *boundaries]
        self.group_of = np.searchsorted(self.lows, counts, side="right") - 1
        self.hits = np.zeros((len(self.lows), depth), np.int64)

    def count(self, ids: np.ndarray, hits: np.ndarray) -> np.ndarray:
        """Hits per group and rank, for some documents."""
        n_groups, depth = self.hits.shape
        rows, columns = np.nonzero(hits[:, :depth])
        cells = self.group_of[ids[rows, columns]] * depth + columns
        return np.bincount(cells, minlength=n_groups * depth).reshape(n_groups, depth)

    def rows(self, occurrences: np.ndarray, cuts: Sequence[int], n_documents: int) -> list[GroupRow]:
        """The groups, most frequent labels first."""
        total = int(occurrences.sum())
        hits_within = np.cumsum(self.hits, axis=1)
        rows = []
        for group in reversed(range(len(self.lows))):
            members = self.group_of == group
            group_occurrences = int(occurrences[members].sum())
            high = None if group == len(self.lows) - 1 else self.lows[group + 1] - 1
            row = GroupRow(
                name=self._name(group, high),
                low=self.lows[group],
                high=high,
                n_labels=int(members.sum()),
                n_test_labels=int(np.count_nonzero(occurrences[members])),
                occurrences=group_occurrences,
                share=group_occurrences / total if total else 0.0,
                contribution={k: int(hits_within[group, k - 1]) / (k * n_documents) for k in cuts},
                recall={
                    k: int(hits_within[group, k - 1]) / group_occurrences if group_occurrences else 0.0 for k in cuts
                },
            )
            rows.append(row)
        return rows

    def _name(self, group: int, high: int | None) -> str:
        if group == 0:
            return "unseen"
        if len(self.lows) == 4:
            return ("tail", "torso", "head")[group - 1]
        return f"{self.lows[group]}+" if high is None else f"{self.lows[group]}-{high}"


def check_boundaries(boundaries: Sequence[int] | None) -> list[int]:
    """Validate group boundaries; None gives an empty list."""
    if boundaries is None:
        return []
    try:
        numbers = [int(number) for number in boundaries]
        whole = all(number == given for number, given in zip(numbers, boundaries, strict=True))
    except (TypeError, ValueError):
        raise ConfigError(f"groups are numbers of training documents such as (10, 100), got {boundaries!r}") from None
    increasing = all(low < high for low, high in zip([1, *numbers], numbers, strict=False))
    if not whole or not increasing:
        raise ConfigError(f"groups must be increasing whole numbers above 1, such as (10, 100); got {boundaries!r}")
    return numbers
