"""Process texts in blocks of similar size on all threads, with rows written to few large arrays.

Each thread's worker appends the rows of block after block to its arrays and records where each document's rows are.
Texts with letters that a kernel cannot lower-case (see `kernels.text.words`) are lower-cased by Python first. A worker
with a `rewriter` rewrites each block before its kernel reads it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from labelwise.kernels.terms import DONE, NO_PAIRS
from labelwise.runtime.progress import progress
from labelwise.runtime.threads import run_all, run_stream
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.features.words import Rewriter

BLOCK_BYTES = 1 << 21
CAPACITY = 1 << 21
"""Entries in a worker's arrays: large enough for large memory pages."""
PYTHON_BATCH = 64
"""Texts that Python lower-cases at a time."""


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

    characters = False
    """Whether terms are n-grams of characters."""

    def __init__(
        self, texts: Strings, lowercase: bool, levels: int, row_ends: np.ndarray, rewriter: Rewriter | None = None
    ) -> None:
        self.texts, self.lowercase, self.levels, self.row_ends = texts, lowercase, levels, row_ends
        self.rewriter = rewriter
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
            self._advance(self.texts, self.lowercase, first, last, 0)
        else:
            rewritten = self.rewriter.rewrite(self.texts[first:last], self.lowercase)
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
        return (2 * size + 3 * texts if self.characters else size // 2 + texts) * self.levels


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

    row_ranges: list[RowRange] = []
    if len(bounds) == 1:
        row_ranges = work(bounds[0])
        return workers, row_ranges
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
