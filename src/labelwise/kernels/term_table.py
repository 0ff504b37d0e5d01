"""The hash table of terms that the kernels in `terms` fill: its arrays and how they grow.

Arrays are allocated here and not inside kernels so that they lie on large memory pages, which saves much of the time.
"""

from __future__ import annotations

import secrets

import numpy as np

from labelwise.errors import DataError
from labelwise.io import tensors as pages
from labelwise.kernels import rewriting, terms
from labelwise.kernels.terms import (
    ARENA,
    DONE,
    NO_ARENA,
    NO_GRAMS,
    NO_PAIRS,
    NO_WORDS,
    NODES,
    SLOT,
)
from labelwise.kernels.words import MARGIN, NEEDS_PYTHON, folding_table
from labelwise.runtime.threads import ranges, run_all, threads
from labelwise.strings import Strings

MIN_PARALLEL = 10_000  # terms above which several threads spell them


class TermTable:
    """The terms seen so far. Not thread-safe.

    Parameters
    ----------
    max_words
        Maximum number of words in an n-gram.
    """

    def __init__(self, max_words: int = 1) -> None:
        self.max_words = max_words
        self.seed = np.uint64(secrets.randbits(64))  # prevents texts crafted so that all words collide
        self.words = pages.zeros(SLOT << 12, np.uint64)
        self.grams = pages.zeros(2 << 12 if max_words > 1 else 2, np.uint64)
        self.nodes = np.empty(1 << 12, np.int64)
        self.arena = np.zeros(1 << 15, np.uint8)
        self.counts = np.zeros(3, np.int64)
        self.text, self.edges, self.latest = np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)

    def __len__(self) -> int:
        return int(self.counts[NODES])

    def learn(
        self, texts: Strings, lowercase: bool, min_words: int, pairs: np.ndarray, used: int, row_ends: np.ndarray
    ) -> tuple[int, int, int]:
        """Number the terms of `texts` and write (term << 32 | count) to `pairs` from `used` on.

        ``row_ends[i]`` becomes the position after the pairs of text i. Returns the status (DONE, NO_PAIRS or
        NEEDS_PYTHON), the number of texts done and the number of pairs used.
        """
        buffer, starts, ends = as_bytes(texts.buffer), as_positions(texts.starts), as_positions(texts.ends)
        self._make_scratch(int((ends - starts).max(initial=0)))
        row = 0
        while True:
            status, done, used = terms.learn(
                buffer, starts[row:], ends[row:], folding_table(lowercase), int(lowercase), min_words, self.max_words,
                self.seed, self.words, self.grams, self.nodes, self.arena, self.counts, pairs, used, row_ends[row:],
                self.text, self.edges, self.latest,
            )  # fmt: skip
            row += done
            if status in (DONE, NO_PAIRS, NEEDS_PYTHON):
                return status, row, used
            self._grow(status, int(ends[row] - starts[row]))

    def number_words(
        self, texts: Strings, lowercase: bool, numbers: np.ndarray, used: int, row_ends: np.ndarray
    ) -> tuple[int, int, int]:
        """Write the numbers of the words of `texts`, in order, to `numbers` (int32) from `used` on.

        ``row_ends[i]`` becomes the position after the words of text i. Returns the status (DONE or NEEDS_PYTHON), the
        number of texts done and the numbers used.
        """
        buffer, starts, ends = as_bytes(texts.buffer), as_positions(texts.starts), as_positions(texts.ends)
        self._make_scratch(int((ends - starts).max(initial=0)))
        row = 0
        while True:
            status, done, used = rewriting.number_words(
                buffer, starts[row:], ends[row:], folding_table(lowercase), int(lowercase), self.seed, self.words,
                self.nodes, self.arena, self.counts, self.text, self.edges, numbers, used, row_ends[row:],
            )  # fmt: skip
            row += done
            if status in (DONE, NEEDS_PYTHON):
                return status, row, used
            self._grow(status, int(ends[row] - starts[row]))

    def merge(self, other: TermTable) -> np.ndarray:
        """Add the terms of another table; returns the number here of each of its terms."""
        count = len(other)
        keys = other.nodes[:count]
        is_word = keys < 0
        ends = np.flatnonzero(other.arena[: other.counts[ARENA]] == 0)
        words = Strings(other.arena, -1 - keys[is_word], ends)
        numbers = np.empty(count, np.int64)
        numbers[is_word] = self.numbers_of(words)
        done = 0
        while True:
            status, done = terms.merge_grams(keys, done, numbers, self.seed, self.grams, self.nodes, self.counts)
            if status == DONE:
                return numbers
            self._grow(status, 0)

    def numbers_of(self, texts: Strings) -> np.ndarray:
        """Add each text as one term of at most `max_words` words; returns its number, or -1 if it has no words."""
        longest = int((texts.ends - texts.starts).max(initial=0))
        max_pairs = len(texts) * self.max_words * (self.max_words + 1) // 2 + self.max_words * (longest // 2 + 1)
        pairs = pages.empty(max_pairs, np.uint64)
        row_ends = np.empty(len(texts), np.int64)
        status, _, _ = self.learn(texts, False, 1, pairs, 0, row_ends)
        if status != DONE:  # texts of more words than were allowed for
            return np.full(len(texts), -1, np.int64)
        # the longest n-gram at the last word is the last that is new to a text
        numbers = (pairs[np.maximum(row_ends, 1) - 1] >> np.uint64(32)).astype(np.int64)
        return np.where(np.diff(row_ends, prepend=0) > 0, numbers, -1)

    def spell(self, numbers: np.ndarray) -> Strings:
        """The terms with these numbers, words joined by a blank."""
        parts = ranges(len(numbers), threads() if len(numbers) > MIN_PARALLEL else 1)
        ends = np.empty(len(numbers), np.int64)

        def write(buffer: np.ndarray, fill: bool) -> None:
            def part(bounds: tuple[int, int]) -> None:
                here = slice(*bounds)
                terms.spell(self.nodes, self.arena, numbers[here], ends[here], buffer, fill)

            run_all(part, parts)

        write(np.empty(0, np.uint8), False)
        np.cumsum(ends, out=ends)
        buffer = np.empty(ends[-1] if len(ends) else 0, np.uint8)
        write(buffer, True)
        return Strings.packed(buffer, ends)

    def _make_scratch(self, longest: int) -> None:
        if len(self.text) < 2 * longest + MARGIN:
            self.text = np.empty(3 * longest + MARGIN, np.uint8)
            self.edges = np.empty(len(self.text) // 2, np.int64)
            self.latest = np.empty(len(self.text) // 2, np.int64)

    def _grow(self, status: int, longest: int) -> None:
        """Double the array that was too small."""
        if status == NO_WORDS:
            larger = pages.zeros(2 * len(self.words), np.uint64)
            terms.rehash_words(self.words, larger)
            self.words = larger
        elif status == NO_GRAMS:
            larger = pages.zeros(2 * len(self.grams), np.uint64)
            terms.rehash_grams(self.grams, self.seed, larger)
            self.grams = larger
        elif status == NO_ARENA:
            self.arena = _enlarged(self.arena, 2 * (len(self.arena) + longest))
        elif len(self.nodes) < 1 << 30:
            self.nodes = _enlarged(self.nodes, 2 * len(self.nodes))
        else:
            raise DataError("there are more than 2^30 distinct terms; use shorter n-grams or hash_bits")


def _enlarged(array: np.ndarray, size: int) -> np.ndarray:
    larger = pages.empty(size, array.dtype)
    larger[: len(array)] = array
    return larger


def as_bytes(data: np.ndarray) -> np.ndarray:
    """A read-only uint8 view, so that each kernel is compiled for one array type only."""
    view = np.ascontiguousarray(data, np.uint8)[:]
    view.flags.writeable = False
    return view


def as_positions(values: np.ndarray) -> np.ndarray:
    """Positions as a read-only view of contiguous int64, for the same reason."""
    view = np.ascontiguousarray(values, np.int64)[:]
    view.flags.writeable = False
    return view
