"""Count the terms of texts larger than memory: exact counts, in memory that is bounded by a limit.

Terms are counted group by group of documents and added up in one table. A table that has grown to its limit is written
to files in the order of its terms, and counting starts over with an empty one. At the end the sorted lists are added up
range by range: the terms from one to another, of all lists, in a table of their own. Only terms that min_df and max_df
keep are in memory together; these are part of the model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labelwise.data.csr import ArrayOnDisk
from labelwise.data.out_of_core import text_groups
from labelwise.features.vocabulary import Counting, Terms, column_order, count, new_table
from labelwise.kernels.text.term_rows import UNKNOWN
from labelwise.kernels.text.term_table import TermTable
from labelwise.mapped import release_pages
from labelwise.strings import Strings

TERM_BYTES = 200
"""Memory per term, at most on average, while its list is sorted or added to others."""
BYTES_PER_TEXT_BYTE = 16
"""Memory for the terms of a text, per byte of it and length of n-grams, at worst."""
LEAST_GROUP, MOST_GROUP = 1 << 21, 1 << 26
SAMPLES = 1000
"""Terms per list from which the bounds of ranges are chosen."""


class SortedTerms(NamedTuple):
    """Terms in the order of their bytes, in how many documents each is, and how often it occurs (or nothing)."""

    terms: Strings
    frequency: np.ndarray
    occurrences: np.ndarray

    def part(self, first: int, last: int) -> SortedTerms:
        """Some consecutive terms."""
        return SortedTerms(self.terms[first:last], self.frequency[first:last], self.occurrences[first:last])


class StreamedTerms:
    """Counts terms of groups of documents; `lists` then yields all of them in order.

    Parameters
    ----------
    how
        Which terms to count; the counts of single documents are not kept.
    folder
        For the files.
    limit
        Bytes of memory.
    """

    def __init__(self, how: Counting, folder: Path, limit: int) -> None:
        self.how, self.folder = how, folder
        self.max_terms = max(1, limit // TERM_BYTES)
        levels = how.max_words - how.min_words + 1
        self.group_bytes = min(max(limit // (BYTES_PER_TEXT_BYTE * levels), LEAST_GROUP), MOST_GROUP)
        self.forms: dict[str, tuple[str, int]] = {}
        self._written: list[SortedTerms] = []
        self._start_over()

    def add(self, texts: Strings) -> None:
        """Count the terms of more documents."""
        for group in text_groups(texts, self.group_bytes):
            self._add_up(count(group, self.how)[0])
            if len(self._table) > self.max_terms:
                self._written.append(self._on_disk(sorted_terms(self._counted(), self._frequency > 0)))
                self._start_over()

    def lists(self) -> Iterator[Terms]:
        """All terms with their counts: one table or, if lists were written, one for each range of terms, in order."""
        if not self._written:
            yield self._counted()
            return
        lists = [*self._written, sorted_terms(self._counted(), self._frequency > 0)]
        self._start_over()
        for bounds in zip(*(pairwise(edges) for edges in self._edges(lists)), strict=True):
            self._start_over()
            for one, (first, last) in zip(lists, bounds, strict=True):
                self._add_list(one.part(first, last))
            yield self._counted()

    def _start_over(self) -> None:
        self._table: TermTable = new_table(self.how.analyzer, self.how.max_words)
        self._frequency = np.zeros(0, np.int32)
        self._occurrences = np.zeros(0, np.int64)

    def _counted(self) -> Terms:
        return Terms(self._table, self._frequency, self._occurrences, self.forms)

    def _add_up(self, terms: Terms) -> None:
        self._add_counts(self._table.merge(terms.table), terms.frequency, terms.occurrences)
        for form, (word, times) in terms.forms.items():
            self.forms[form] = word, times + self.forms.get(form, (word, 0))[1]

    def _add_list(self, listed: SortedTerms) -> None:
        if len(listed.terms):
            numbers = self._table.numbers_of(listed.terms.compact())
            self._add_counts(numbers, listed.frequency, listed.occurrences)
            release_pages(listed.terms.buffer)

    def _add_counts(self, numbers: np.ndarray, frequency: np.ndarray, occurrences: np.ndarray) -> None:
        """Add counts of terms, each of which has another number."""
        more = len(self._table) - len(self._frequency)
        self._frequency = np.append(self._frequency, np.zeros(more, np.int32))
        self._frequency[numbers] += frequency
        if self.how.occurrences:
            self._occurrences = np.append(self._occurrences, np.zeros(more, np.int64))
            self._occurrences[numbers] += occurrences

    def _on_disk(self, listed: SortedTerms) -> SortedTerms:
        buffer, ends, frequency, occurrences = (
            _mapped(array, self.folder)
            for array in (listed.terms.buffer, listed.terms.ends, listed.frequency, listed.occurrences)
        )
        starts = np.zeros(len(ends), np.int64)
        starts[1:] = ends[:-1]
        return SortedTerms(Strings(buffer, _mapped(starts, self.folder), ends), frequency, occurrences)

    def _edges(self, lists: list[SortedTerms]) -> list[list[int]]:
        """For each list the positions at which ranges begin and end: few enough terms in each, the same in all."""
        samples = sorted(
            one.terms[int(index)]
            for one in lists
            for index in np.linspace(0, len(one.terms) - 1, min(len(one.terms), SAMPLES)).astype(np.int64)
        )
        n_ranges = max(1, min(len(samples), -(-sum(len(one.terms) for one in lists) // self.max_terms)))
        keys = sorted({samples[len(samples) * number // n_ranges] for number in range(1, n_ranges)})
        return [[0, *(bisect_left(one.terms, key) for key in keys), len(one.terms)] for one in lists]


def sorted_terms(terms: Terms, kept: np.ndarray) -> SortedTerms:
    """Some of the terms in order."""
    columns = column_order(terms.table, kept)
    chosen = np.flatnonzero(columns != UNKNOWN)
    ordered = np.empty(len(chosen), np.int64)
    ordered[columns[chosen]] = chosen
    occurrences = terms.occurrences[ordered] if len(terms.occurrences) else terms.occurrences
    return SortedTerms(terms.table.spell(ordered), terms.frequency[ordered], occurrences)


def _mapped(array: np.ndarray, folder: Path) -> np.ndarray:
    if not len(array):
        return array
    stored = ArrayOnDisk(array.dtype, folder)
    stored.add(array)
    return stored.map()
