"""Build a vocabulary: count terms on all threads, drop those that are too rare or too frequent, sort the rest.

Terms are sorted by their bytes, which is the order of code points. A blank sorts before every letter, so n-grams are
sorted by their first word, then by their second, and so on, with "a" before "a b": only words are compared as text,
longer n-grams by the ranks of their words.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from labelwise.data.csr import ArrayOnDisk, positions_in
from labelwise.data.out_of_core import text_groups
from labelwise.errors import DataError
from labelwise.features.words import PYTHON_BATCH, RewriterPool
from labelwise.io import tensors as pages
from labelwise.io.tensors import release_pages
from labelwise.kernels.character_terms import CharacterTable
from labelwise.kernels.term_rows import UNKNOWN, tally
from labelwise.kernels.term_table import TermTable
from labelwise.kernels.terms import ARENA, DONE, NO_PAIRS
from labelwise.runtime.progress import progress
from labelwise.runtime.threads import run_all, run_stream
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.features.settings import TfidfConfig
    from labelwise.features.words import Rewriter


# --- text blocks ---
# Process texts in blocks of similar size on all threads, with rows written to few large arrays.
#
# Each thread's worker appends the rows of block after block to its arrays and records where each document's rows are.
# Texts with letters that a kernel cannot lower-case (see `kernels.words`) are lower-cased by Python first. A
# worker with a `rewriter` rewrites each block before its kernel reads it.

BLOCK_BYTES = 1 << 21
CAPACITY = 1 << 21
"""Entries in a worker's arrays: large enough for large memory pages."""


@dataclass(frozen=True)
class RowRange:
    """Rows of the documents first to last - 1, in arrays[...][begin:end] of a worker."""

    worker: int
    first: int
    last: int
    begin: int
    end: int
    arrays: tuple[np.ndarray, ...]


class Worker:
    """The state of one thread. Subclasses define the arrays for rows and the kernel that writes them."""

    def __init__(
        self, texts: Strings, config: TfidfConfig, row_ends: np.ndarray, rewriter: Rewriter | None = None
    ) -> None:
        self.texts, self.config, self.row_ends, self.rewriter = texts, config, row_ends, rewriter
        self.number = 0
        self.max_entries = CAPACITY
        self.arrays: tuple[np.ndarray, ...] = ()
        self.size = self.used = 0
        self._ranges: list[RowRange] = []
        self._first = self._begin = 0  # of the range that is being written

    def new_arrays(self, size: int) -> tuple[np.ndarray, ...]:
        """Allocate arrays for `size` entries."""
        raise NotImplementedError

    def run_kernel(self, texts: Strings, lowercase: bool, row_ends: np.ndarray) -> tuple[int, int]:
        """Append rows to the arrays and advance `used`; returns the kernel's status and the number of texts done."""
        raise NotImplementedError

    def process(self, first: int, last: int) -> list[RowRange]:
        """Write the rows of the documents first to last - 1; returns where they are."""
        self._first, self._begin = first, self.used
        if self.rewriter is None:
            self._advance(self.texts, self.config.lowercase, first, last, 0)
        else:
            rewritten = self.rewriter.rewrite(self.texts[first:last], self.config.lowercase)
            self._advance(rewritten, False, 0, len(rewritten), first)
        self._close(last)
        ranges, self._ranges = self._ranges, []
        return ranges

    def _advance(self, texts: Strings, lowercase: bool, row: int, stop: int, shift: int) -> None:
        """Process texts[row:stop], which are the documents from row + shift on."""
        while row < stop:
            row_ends = self.row_ends[row + shift : stop + shift]
            status, done = self.run_kernel(texts[row:stop], lowercase, row_ends)
            row += done
            if status == NO_PAIRS:
                self._close(row + shift)
                self._allocate(texts, row)
                self._begin = 0
            elif status != DONE:
                until = min(row + PYTHON_BATCH, stop)
                lowered = Strings.of(text.lower() for text in texts[row:until])
                self._advance(lowered, False, 0, len(lowered), row + shift)
                row = until

    def _close(self, row: int) -> None:
        """End the current range before this document and begin another."""
        if row > self._first:
            self._ranges.append(RowRange(self.number, self._first, row, self._begin, self.used, self.arrays))
        self._first, self._begin = row, self.used

    def _allocate(self, texts: Strings, row: int) -> None:
        """New arrays that hold at least this text."""
        needed = self.most_terms(int(texts.ends[row] - texts.starts[row]), 1)
        self.size = max(needed, min(self.max_entries, CAPACITY))
        self.arrays, self.used = self.new_arrays(self.size), 0

    def most_terms(self, size: int, texts: int) -> int:
        """A bound on the number of terms of texts of `size` bytes together.

        A word takes two bytes and a gap, and may grow by half. A character takes a byte, and one between gaps becomes
        three characters.
        """
        words = self.config.analyzer == "word"
        return (size // 2 + texts if words else 2 * size + 3 * texts) * lengths_of(self.config)


def lengths_of(config: TfidfConfig) -> int:
    """Different lengths of n-grams."""
    return config.ngrams[1] - config.ngrams[0] + 1


AnyWorker = TypeVar("AnyWorker", bound=Worker)


def process_texts(
    texts: Strings, new_worker: Callable[[], AnyWorker], what: str
) -> tuple[list[AnyWorker], list[RowRange]]:
    """Process all blocks of the texts with at most one worker per thread; `what` names the progress bar.

    Returns the workers by number and, in document order, where their rows are.
    """
    sizes = (texts.ends - texts.starts).cumsum()
    total = int(sizes[-1]) if len(sizes) else 0
    bounds = _bounds(sizes, total)
    workers: list[AnyWorker] = []
    idle: list[AnyWorker] = []
    numbers = itertools.count()

    def work(block: tuple[int, int]) -> list[RowRange]:
        try:
            worker = idle.pop()
        except IndexError:
            worker = new_worker()
            worker.number = next(numbers)
            worker.max_entries = worker.most_terms(total, len(texts))
            workers.append(worker)
        try:
            return worker.process(*block)
        finally:
            idle.append(worker)

    if len(bounds) == 1:
        return workers, work(bounds[0])
    row_ranges: list[RowRange] = []
    with progress(what, float(total), "bytes", alone=True) as step:
        for (first, last), block_ranges in zip(bounds, run_stream(work, bounds), strict=True):
            row_ranges += block_ranges
            step(float(sizes[last - 1] - (sizes[first - 1] if first else 0)))
    return sorted(workers, key=lambda worker: worker.number), row_ranges


def _bounds(sizes: np.ndarray, total: int) -> list[tuple[int, int]]:
    """Consecutive documents of about BLOCK_BYTES together, given the cumulative sum of their sizes."""
    if total <= BLOCK_BYTES:
        return [(0, len(sizes))] if len(sizes) else []
    marks = np.arange(BLOCK_BYTES, total, BLOCK_BYTES)
    edges = np.unique([0, *(np.searchsorted(sizes, marks) + 1), len(sizes)])
    return list(itertools.pairwise(edges[edges <= len(sizes)].tolist()))


def joined(row_ranges: list[RowRange], row_ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CSR arrays of the rows of all ranges, which are freed on the way. `row_ends` begins with a 0."""
    if len(row_ranges) == 1:
        indices, values = (array[: row_ends[-1]].copy() for array in row_ranges[0].arrays)
        return row_ends, indices, values
    sizes = np.zeros(len(row_ends), np.int64)
    for rows in row_ranges:
        sizes[rows.first + 1 : rows.last + 1] = np.diff(row_ends[rows.first + 1 : rows.last + 1], prepend=rows.begin)
    indptr = np.cumsum(sizes)
    indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)

    def copy(_: int) -> None:
        rows = row_ranges.pop()
        for source, target in zip(rows.arrays, (indices, values), strict=True):
            target[indptr[rows.first] : indptr[rows.last]] = source[rows.begin : rows.end]

    run_all(copy, range(len(row_ranges)))
    return indptr, indices, values


Forms = dict[str, tuple[str, int]]
"""Words before they were rewritten, with what each became and how often it occurs."""


@dataclass(frozen=True)
class Counting:
    """Which terms to count, also with how often each occurs in all if there is a maximum of terms.

    `rewriters`: those that replace words before they are counted. `keep`: keep the term counts of each document.
    """

    config: TfidfConfig
    rewriters: RewriterPool | None = None
    keep: bool = False

    @property
    def occurrences(self) -> bool:
        """Whether to count how often each term occurs."""
        return self.config.max_features is not None


@dataclass(frozen=True)
class Terms:
    """The terms of a collection, their document frequencies, and their occurrences (empty if not requested)."""

    table: TermTable
    frequency: np.ndarray
    occurrences: np.ndarray
    forms: Forms


@dataclass(frozen=True)
class Counts:
    """The term counts of each document, in ranges of rows in the workers' arrays.

    ``numbers[row_range.worker]`` maps a worker's term numbers to those of the common table; ``row_ends[document]`` is
    the position after a document's counts.
    """

    row_ranges: list[RowRange]
    numbers: list[np.ndarray]
    row_ends: np.ndarray


class _Counter(Worker):
    """Counts terms in a table per worker."""

    def __init__(self, texts: Strings, row_ends: np.ndarray, how: Counting) -> None:
        super().__init__(texts, how.config, row_ends, None if how.rewriters is None else how.rewriters.take())
        if self.rewriter is not None:
            self.rewriter.occurrences = np.zeros(0, np.int64)
        self.how = how
        self.table = new_table(how.config)
        self.frequency = np.zeros(0, np.int32)
        self.occurrences = np.zeros(0, np.int64)

    def new_arrays(self, size: int) -> tuple[np.ndarray, ...]:
        if not self.how.keep and self.size >= size and self.arrays:
            return self.arrays
        return (pages.empty(size, np.uint64),)

    def run_kernel(self, texts: Strings, lowercase: bool, row_ends: np.ndarray) -> tuple[int, int]:
        pairs = self.arrays[0] if self.arrays else np.empty(0, np.uint64)
        before = self.used
        status, done, self.used = self.table.learn(texts, lowercase, self.config.ngrams[0], pairs, before, row_ends)
        if len(self.frequency) < len(self.table):
            self.frequency = _enlarged(self.frequency, 2 * len(self.table))
            if self.how.occurrences:
                self.occurrences = _enlarged(self.occurrences, 2 * len(self.table))
        tally(pairs[before : self.used], self.frequency, self.occurrences)
        return status, done


def _enlarged(array: np.ndarray, size: int) -> np.ndarray:
    enlarged = np.zeros(size, array.dtype)
    enlarged[: len(array)] = array
    return enlarged


def new_table(config: TfidfConfig) -> TermTable:
    """An empty table for the terms of an analyzer."""
    longest = config.ngrams[1]
    return TermTable(longest) if config.analyzer == "word" else CharacterTable(longest, config.analyzer == "char_wb")


def count(texts: Strings, how: Counting) -> tuple[Terms, Counts]:
    """Count the terms of all documents."""
    row_ends = np.empty(len(texts), np.int64)
    workers, row_ranges = process_texts(texts, lambda: _Counter(texts, row_ends, how), "counting words")
    workers = workers or [_Counter(texts, row_ends, how)]
    table = workers[0].table
    numbers = [np.arange(len(table)), *(table.merge(worker.table) for worker in workers[1:])]
    frequency = np.zeros(len(table), np.int32)
    occurrences = np.zeros(len(table) if how.occurrences else 0, np.int64)
    for worker, terms in zip(workers, numbers, strict=True):
        frequency[terms] += worker.frequency[: len(terms)]
        if how.occurrences:
            occurrences[terms] += worker.occurrences[: len(terms)]
    forms: Forms = {}
    for worker in workers:
        if worker.rewriter is not None and how.rewriters is not None:
            _add_forms(forms, worker.rewriter.counted_words())
            how.rewriters.give_back(worker.rewriter)
    counts = Counts(row_ranges if how.keep else [], numbers, row_ends)
    return Terms(table, frequency, occurrences, forms), counts


def _add_forms(forms: Forms, more: Forms) -> None:
    for form, (word, times) in more.items():
        forms[form] = word, times + forms.get(form, (word, 0))[1]


def words_of_terms(table: TermTable, kept: np.ndarray) -> Strings:
    """The distinct words of some terms."""
    keys = table.nodes[: len(table)]
    used = np.zeros(len(keys), bool)
    used[kept] = True
    for _ in range(table.max_words - 1):
        grams = keys[used & (keys >= 0)]
        used[grams >> 32] = used[grams & 0xFFFFFFFF] = True
    return table.spell(np.flatnonzero(used & (keys < 0)))


def column_order(table: TermTable, kept: np.ndarray) -> np.ndarray:
    """For each term its rank among the kept ones, sorted by their bytes, or UNKNOWN."""
    keys = table.nodes[: len(table)]
    words = np.flatnonzero(keys < 0)
    ordered = words[_word_order(table, words)]
    rank = np.zeros(len(keys), np.int64)
    rank[ordered] = np.arange(len(ordered))
    parents, last_words = keys >> 32, keys & 0xFFFFFFFF
    levels = _levels(keys, parents, table.max_words)
    sizes = kept.astype(np.int64)  # of each term and all n-grams that begin with it
    for level in reversed(levels):
        sizes += np.bincount(parents[level], sizes[level], len(keys)).astype(np.int64)
    begins = np.zeros(len(keys), np.int64)
    begins[ordered] = np.cumsum(sizes[ordered]) - sizes[ordered]
    for level in levels:
        level = level[sizes[level] > 0]
        level = level[np.argsort(begins[parents[level]] * len(words) + rank[last_words[level]])]
        before = np.cumsum(sizes[level]) - sizes[level]
        parent = parents[level]
        is_first = np.ones(len(level), bool)
        is_first[1:] = parent[1:] != parent[:-1]
        before -= before[is_first][np.cumsum(is_first) - 1]
        begins[level] = begins[parent] + kept[parent] + before
    return np.where(kept, begins, UNKNOWN).astype(np.int32)


def _levels(keys: np.ndarray, parents: np.ndarray, max_words: int) -> list[np.ndarray]:
    """The terms of two words, those of three, and so on."""
    level_of = (keys < 0).astype(np.int8)
    rest = np.flatnonzero(keys >= 0)
    levels = []
    for level in range(2, max_words + 1):
        is_level = level_of[parents[rest]] == level - 1
        levels.append(rest[is_level])
        level_of[levels[-1]] = level
        rest = rest[~is_level]
    return levels


def _word_order(table: TermTable, words: np.ndarray) -> np.ndarray:
    """Sort words by their bytes: by the first 16 as two integers; Python sorts the few that agree in those."""
    arena = np.concatenate([table.arena[: table.counts[ARENA]], np.zeros(16, np.uint8)])
    starts = -1 - table.nodes[words]
    ends = np.flatnonzero(arena[:-16] == 0)
    eights = np.ndarray(len(arena) - 7, ">u8", arena, strides=(1,))
    sizes = np.minimum(ends - starts, 16).astype(np.uint64)
    first, second = (eights[starts + skip].astype(np.uint64) for skip in (0, 8))
    cut = np.uint64(8) * (np.uint64(8) - np.minimum(sizes, np.uint64(8)))
    first = first >> cut << cut
    cut = np.uint64(8) * (np.uint64(16) - np.maximum(sizes, np.uint64(9)))
    second = np.where(sizes > 8, second >> cut << cut, np.uint64(0))
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    equal = np.zeros(len(order) + 1, bool)
    equal[1:-1] = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
    edges = np.flatnonzero(equal[1:] != equal[:-1])  # first and last indices of runs of equal prefixes
    view = arena.data
    for begin, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        run = order[begin : last + 1].tolist()
        order[begin : last + 1] = sorted(run, key=lambda word: bytes(view[starts[word] : ends[word]]))
    return order


def within_limits(frequency: np.ndarray, documents: int, config: TfidfConfig) -> np.ndarray:
    """Mask of the terms in at least min_df and at most max_df documents (int: a count, float: a fraction)."""
    least, most = _limits(documents, config)
    return (frequency > 0) & (frequency >= least) & (frequency <= most)


def refuse_no_terms(found: int, kept: int, documents: int, config: TfidfConfig) -> None:
    """Raise if there are no terms, or if none are kept."""
    least, most = _limits(documents, config)
    if not found:
        raise DataError(f"there are no words in the {documents:,} texts: {config.what_terms_are}")
    if not kept:
        raise DataError(
            f"no words are left: none of {found:,} terms is in at least {least:g} and at most {most:g} "
            f"of {documents:,} texts; lower min_df (now {config.min_df}) or raise max_df (now {config.max_df})"
        )


def _limits(documents: int, config: TfidfConfig) -> list[float]:
    return [limit if isinstance(limit, int) else limit * documents for limit in (config.min_df, config.max_df)]


def unknown_terms(terms: Terms, known: Strings, documents: int, config: TfidfConfig) -> np.ndarray:
    """The numbers of the terms within limits that are not `known`, sorted by their bytes.

    Fractions refer to this number of documents.
    """
    found = np.flatnonzero(within_limits(terms.frequency, documents, config))
    unknown = np.zeros(len(terms.table), bool)
    unknown[found] = positions_in(terms.table.spell(found), known) < 0
    return by_column(column_order(terms.table, unknown))


def by_column(columns: np.ndarray) -> np.ndarray:
    """The terms that have a column, in the order of columns."""
    terms = np.flatnonzero(columns != UNKNOWN)
    return terms[np.argsort(columns[terms])]


def most_frequent(columns: np.ndarray, occurrences: np.ndarray, limit: int) -> np.ndarray:
    """Renumbered columns of the `limit` terms that occur most often, ties in column order; UNKNOWN for the others."""
    terms = by_column(columns)
    chosen = np.sort(np.argsort(-occurrences[terms], kind="stable")[:limit])
    fewer = np.full(len(columns), UNKNOWN, np.int32)
    fewer[terms[chosen]] = np.arange(len(chosen))
    return fewer


# --- streamed terms ---
# Count the terms of texts larger than memory: exact counts, in memory that is bounded by a limit.
#
# Terms are counted group by group of documents and added up in one table. A table that has grown to its limit is
# written to files in the order of its terms, and counting starts over with an empty one. At the end the sorted lists
# are added up range by range: the terms from one to another, of all lists, in a table of their own. Only terms that
# min_df and max_df keep are in memory together; these are part of the model.

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
        wanted = limit // (BYTES_PER_TEXT_BYTE * lengths_of(how.config))
        self.group_bytes = min(max(wanted, LEAST_GROUP), MOST_GROUP)
        self.forms: Forms = {}
        self._written: list[SortedTerms] = []
        self._start_over()

    def add(self, texts: Strings) -> None:
        """Count the terms of more documents."""
        for group in text_groups(texts, self.group_bytes):
            terms, _ = count(group, self.how)
            self._add_counts(self._table.merge(terms.table), terms.frequency, terms.occurrences)
            _add_forms(self.forms, terms.forms)
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
                part = one.part(first, last)
                if len(part.terms):
                    self._add_counts(self._table.numbers_of(part.terms.compact()), part.frequency, part.occurrences)
                    release_pages(part.terms.buffer)
            yield self._counted()

    def _start_over(self) -> None:
        self._table: TermTable = new_table(self.how.config)
        self._frequency = np.zeros(0, np.int32)
        self._occurrences = np.zeros(0, np.int64)

    def _counted(self) -> Terms:
        return Terms(self._table, self._frequency, self._occurrences, self.forms)

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
    ordered = by_column(column_order(terms.table, kept))
    occurrences = terms.occurrences[ordered] if len(terms.occurrences) else terms.occurrences
    return SortedTerms(terms.table.spell(ordered), terms.frequency[ordered], occurrences)


def _mapped(array: np.ndarray, folder: Path) -> np.ndarray:
    if not len(array):
        return array
    stored = ArrayOnDisk(array.dtype, folder)
    stored.add(array)
    return stored.map()
