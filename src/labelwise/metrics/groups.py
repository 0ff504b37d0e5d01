"""Head, torso and tail: which labels the hits come from, by how many training documents the labels have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.errors import ConfigError


@dataclass(frozen=True)
class GroupRow:
    """The labels with `low` to `high` training documents (None: no limit) and what was found of them.

    Parameters
    ----------
    n_labels
        Labels of this group in the label space, and `n_test_labels` those of them that the truth has.
    occurrences, share
        How often the truth has labels of this group, and which part of all occurrences that is.
    contribution
        For each k the part of P@k that comes from this group; over all groups they add up to P@k.
    recall
        For each k the part of the occurrences that is found in the first k places.
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
    """Labels sorted into groups, and the hits of each group at each place.

    Parameters
    ----------
    counts
        Training documents of each label.
    boundaries
        Where groups begin: (10, 100) makes tail 1-9, torso 10-99 and head 100 and more. Labels without a
        training document are always a group of their own.
    depth
        Places to look at.
    """

    def __init__(self, counts: np.ndarray, boundaries: Sequence[int], depth: int) -> None:
        self.lows = [0, 1, *boundaries]
        self.of = np.searchsorted(self.lows, counts, side="right") - 1
        self.hits = np.zeros((len(self.lows), depth), np.int64)

    def count(self, ids: np.ndarray, hits: np.ndarray) -> np.ndarray:
        """Hits of each group at each place, for some documents."""
        n_groups, depth = self.hits.shape
        rows, places = np.nonzero(hits[:, :depth])
        cells = self.of[ids[rows, places]] * depth + places
        return np.bincount(cells, minlength=n_groups * depth).reshape(n_groups, depth)

    def rows(self, occurrences: np.ndarray, cuts: Sequence[int], n_documents: int) -> list[GroupRow]:
        """The groups, most frequent labels first."""
        total = int(occurrences.sum())
        found = np.cumsum(self.hits, axis=1)
        rows = []
        for group in reversed(range(len(self.lows))):
            members = self.of == group
            here = int(occurrences[members].sum())
            high = None if group == len(self.lows) - 1 else self.lows[group + 1] - 1
            row = GroupRow(
                name=self._name(group, high),
                low=self.lows[group],
                high=high,
                n_labels=int(members.sum()),
                n_test_labels=int(np.count_nonzero(occurrences[members])),
                occurrences=here,
                share=here / total if total else 0.0,
                contribution={k: int(found[group, k - 1]) / (k * n_documents) for k in cuts},
                recall={k: int(found[group, k - 1]) / here if here else 0.0 for k in cuts},
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
    """Boundaries that make sense; none for None."""
    if boundaries is None:
        return []
    try:
        numbers = [int(number) for number in boundaries]
        whole = all(number == given for number, given in zip(numbers, boundaries, strict=True))
    except (TypeError, ValueError):
        raise ConfigError(f"groups are numbers of training documents such as (10, 100), got {boundaries!r}") from None
    rising = all(low < high for low, high in zip([1, *numbers], numbers, strict=False))
    if not whole or not rising:
        raise ConfigError(f"groups must be whole numbers above 1 that rise, such as (10, 100); got {boundaries!r}")
    return numbers
