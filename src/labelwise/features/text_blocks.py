"""Texts cut into blocks of like size, each worked off by whichever thread is free, rows written to few large arrays.

A thread's worker appends the rows of block after block to its arrays and notes which documents went where. Letters
whose lower case a kernel cannot tell (see `kernels.words`) are dealt with here: Python lower-cases these texts first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from labelwise.kernels.text.terms import DONE, NO_PAIRS
from labelwise.parallel import run_stream
from labelwise.progress import progress
from labelwise.strings import Strings

BLOCK_BYTES = 1 << 21
ROOM = 1 << 21
"""Entries in a worker's arrays: large enough for large memory pages."""
PYTHON_RUN = 64
"""Texts that are lower-cased by Python together."""


@dataclass(frozen=True)
class Piece:
    """Rows of the documents first to last - 1, in arrays[...][begin:end] of a worker."""

    worker: int
    first: int
    last: int
    begin: int
    end: int
    arrays: tuple[np.ndarray, ...]


class Worker:
    """What one thread works with. Subclasses say which arrays rows go to, and which kernel writes them."""

    def __init__(self, texts: Strings, lowercase: bool, levels: int, row_ends: np.ndarray) -> None:
        self.texts, self.lowercase, self.levels, self.row_ends = texts, lowercase, levels, row_ends
        self.number = 0
        self.most = ROOM
        self.arrays: tuple[np.ndarray, ...] = ()
        self.size = self.used = 0
        self._pieces: list[Piece] = []
        self._first = self._begin = 0  # of the piece that is being written

    def new_arrays(self, size: int) -> tuple[np.ndarray, ...]:
        """Arrays for so many entries."""
        raise NotImplementedError

    def run_kernel(self, texts: Strings, lowercase: bool, row_ends: np.ndarray) -> tuple[int, int]:
        """Append rows to the arrays and move `used`; why the kernel stopped, and the texts done."""
        raise NotImplementedError

    def block(self, first: int, last: int) -> list[Piece]:
        """Work off the documents first to last - 1; where their rows are."""
        self._first, self._begin = first, self.used
        self._advance(self.texts, self.lowercase, first, last, 0)
        self._close(last)
        pieces, self._pieces = self._pieces, []
        return pieces

    def _advance(self, texts: Strings, lowercase: bool, row: int, stop: int, shift: int) -> None:
        """Work off texts[row:stop], which are the documents from row + shift on."""
        while row < stop:
            row_ends = self.row_ends[row + shift : stop + shift]
            status, done = self.run_kernel(texts[row:stop], lowercase, row_ends)
            row += done
            if status == NO_PAIRS:
                self._close(row + shift)
                self._make_room(texts, row)
                self._begin = 0
            elif status != DONE:
                until = min(row + PYTHON_RUN, stop)
                lowered = Strings.of(text.lower() for text in texts[row:until])
                self._advance(lowered, False, 0, len(lowered), row + shift)
                row = until

    def _close(self, row: int) -> None:
        """End the piece before this document and begin another."""
        if row > self._first:
            self._pieces.append(Piece(self.number, self._first, row, self._begin, self.used, self.arrays))
        self._first, self._begin = row, self.used

    def _make_room(self, texts: Strings, row: int) -> None:
        """New arrays with room for at least this text (a word takes two bytes and a gap, and may grow by half)."""
        needed = (int(texts.ends[row] - texts.starts[row]) // 2 + 1) * self.levels
        self.size = max(needed, min(self.most, ROOM))
        self.arrays, self.used = self.new_arrays(self.size), 0


AnyWorker = TypeVar("AnyWorker", bound=Worker)


def work_off(texts: Strings, new_worker: Callable[[], AnyWorker], what: str) -> tuple[list[AnyWorker], list[Piece]]:
    """All blocks of the texts through workers, at most one a thread, with a progress bar called `what`.

    Gives the workers by number and, in the documents' order, where they put which rows.
    """
    sizes = (texts.ends - texts.starts).cumsum()
    total = int(sizes[-1]) if len(sizes) else 0
    bounds = _bounds(sizes, total)
    workers: list[AnyWorker] = []
    idle: list[AnyWorker] = []
    numbers = itertools.count()

    def work(block: tuple[int, int]) -> list[Piece]:
        try:
            worker = idle.pop()
        except IndexError:
            worker = new_worker()
            worker.number = next(numbers)
            worker.most = (total // 2 + len(texts)) * worker.levels
            workers.append(worker)
        try:
            return worker.block(*block)
        finally:
            idle.append(worker)

    pieces: list[Piece] = []
    if len(bounds) == 1:
        pieces = work(bounds[0])
        return workers, pieces
    with progress(what, float(total), "bytes") as step:
        for (first, last), found in zip(bounds, run_stream(work, bounds), strict=True):
            pieces += found
            step(float(sizes[last - 1] - (sizes[first - 1] if first else 0)))
    return sorted(workers, key=lambda worker: worker.number), pieces


def _bounds(sizes: np.ndarray, total: int) -> list[tuple[int, int]]:
    """Documents in runs of about BLOCK_BYTES, by their sizes added up."""
    if total <= BLOCK_BYTES:
        return [(0, len(sizes))] if len(sizes) else []
    marks = np.arange(BLOCK_BYTES, total, BLOCK_BYTES)
    edges = np.unique([0, *(np.searchsorted(sizes, marks) + 1), len(sizes)])
    return list(itertools.pairwise(edges[edges <= len(sizes)].tolist()))
