"""Searches the labels of a model by a part of their names or texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labelwise.strings import Strings

MOST = 2000
"""Matches that are ranked; a search for one letter may match millions."""


@dataclass(frozen=True)
class FoundLabel:
    """A label that matches a search."""

    label: str
    text: str | None
    documents: int
    """Training documents that have it."""


class LabelSearch:
    """Names and texts of all labels in lower case, one per line, so that a search is one scan of a str."""

    def __init__(self, names: Strings, texts: Strings | None, counts: np.ndarray) -> None:
        self.names, self.texts, self.counts = names, texts, counts
        shown = names if texts is None else (f"{name}\t{text}" for name, text in zip(names, texts, strict=True))
        lines = [line.lower().replace("\n", " ") for line in shown]
        self._lines = "\n".join(["", *lines, ""])
        self._ends = np.cumsum(np.fromiter((len(line) + 1 for line in lines), np.int64, len(lines)))

    def find(self, query: str, limit: int, offset: int = 0) -> tuple[list[FoundLabel], bool]:
        """The labels that contain the query: equal ones, those that begin with it, then the most frequent ones.

        Also returns whether there are more. An empty query finds all labels, the most frequent first.
        """
        wanted = query.strip().lower().replace("\n", " ")
        if not wanted:
            order = self._most_frequent(offset + limit + 1)
            chosen = order[offset : offset + limit].tolist()
            return [self._label(one) for one in chosen], len(order) > offset + limit
        matches = self._matches(wanted)
        ranked = sorted(matches, key=lambda one: (self._rank(one, wanted), -int(self.counts[one]), one))
        more = len(ranked) > offset + limit
        return [self._label(one) for one in ranked[offset : offset + limit]], more

    def _most_frequent(self, count: int) -> np.ndarray:
        if count < len(self.counts):
            least = np.partition(self.counts, -count)[-count]
            some = np.flatnonzero(self.counts >= least)
        else:
            some = np.arange(len(self.counts))
        return some[np.argsort(-self.counts[some], kind="stable")][:count]

    def _matches(self, wanted: str) -> list[int]:
        """Labels that contain it, at most MOST: equal ones and those that begin with it are found first."""
        equal = [("\n", "\n"), ("\n", "\t"), ("\t", "\n")]
        found: dict[int, None] = {}
        for before, after in [*equal, ("\n", ""), ("\t", ""), ("", "")]:
            begin = self._lines.find(before + wanted + after)
            while begin >= 0 and len(found) < MOST:
                label = int(self._ends.searchsorted(begin + len(before) - 1, "right"))
                found[label] = None
                begin = self._lines.find(before + wanted + after, int(self._ends[label]))
        return list(found)

    def _rank(self, label: int, wanted: str) -> int:
        forms = [self.names[label].lower()]
        if self.texts is not None:
            forms.append(self.texts[label].lower())
        return 0 if wanted in forms else 1 if any(form.startswith(wanted) for form in forms) else 2

    def _label(self, label: int) -> FoundLabel:
        text = None if self.texts is None else self.texts[label]
        return FoundLabel(self.names[label], text, int(self.counts[label]))
