"""Rewrite texts with analysed words, block by block: stems instead of words, without stop words.

A `Rewriter` belongs to one thread at a time and remembers the words it has seen, so that Python sees each distinct word
once. Rewriters share a cache of analysed words, and are kept between calls: a server does not stem a word twice.
"""

from __future__ import annotations

import threading

import numpy as np

from labelwise.features.text_blocks import PYTHON_BATCH
from labelwise.features.word_analysis import CHECKED_WORDS, WordAnalysis
from labelwise.kernels.text.rewriting import write_replacements
from labelwise.kernels.text.term_table import TermTable
from labelwise.kernels.text.words import NEEDS_PYTHON
from labelwise.strings import Strings

MAX_WORDS = 4_000_000
"""Distinct words that a rewriter or the cache remembers before it starts over."""


class RewriterPool:
    """The rewriters of an analysis, and the cache they share."""

    def __init__(self, analysis: WordAnalysis) -> None:
        self.analysis = analysis
        self._cache: dict[str, str] = {}
        self._lock = threading.Lock()
        self._idle: list[Rewriter] = []

    def take(self) -> Rewriter:
        """A rewriter that no other thread has."""
        try:
            return self._idle.pop()
        except IndexError:
            return Rewriter(self)

    def give_back(self, rewriter: Rewriter) -> None:
        """Make a rewriter available to other calls."""
        if len(rewriter.table) <= MAX_WORDS:
            rewriter.occurrences = None
            self._idle.append(rewriter)

    def analysed(self, words: list[str]) -> list[str]:
        """What each word is counted as. Thread-safe."""
        with self._lock:
            if len(self._cache) > MAX_WORDS:
                self._cache.clear()
            cache = self._cache
            new = [word for word in words if word not in cache]
            cache.update(zip(new, self.analysis.analysed(new), strict=True))
            return [cache[word] for word in words]

    def keep_sample(self) -> None:
        """Let the analysis remember some of the words seen, by which a loaded model checks its stemmer."""
        with self._lock:
            forms = sorted((form, word) for form, word in self._cache.items() if word not in ("", form))
        step = max(1, len(forms) // CHECKED_WORDS)
        self.analysis.readable = {word: form for form, word in forms[::step]}


class Rewriter:
    """Replaces words of texts. `occurrences` counts each word of `table` once `count_words` was called."""

    def __init__(self, pool: RewriterPool) -> None:
        self.pool = pool
        self.table = TermTable()
        self.occurrences: np.ndarray | None = None
        self._replacements = np.empty(0, np.uint8)
        self._starts, self._ends = np.empty(0, np.int64), np.empty(0, np.int64)

    def count_words(self) -> None:
        """Count occurrences from now on."""
        self.occurrences = np.zeros(0, np.int64)

    def rewrite(self, texts: Strings, lowercase: bool) -> Strings:
        """The texts as analysed words, each followed by a blank."""
        numbers, row_ends = self._number(texts, lowercase)
        self._add_new_words()
        if self.occurrences is not None:
            counted = np.bincount(numbers, minlength=len(self.table))
            counted[: len(self.occurrences)] += self.occurrences
            self.occurrences = counted
        written, arrays = np.empty(len(texts), np.int64), (self._starts, self._ends, self._replacements)
        write_replacements(numbers, row_ends, *arrays, written, np.empty(0, np.uint8), False)
        buffer = np.empty(written[-1] if len(written) else 0, np.uint8)
        write_replacements(numbers, row_ends, *arrays, written, buffer, True)
        return Strings.packed(buffer, written)

    def counted_words(self) -> dict[str, tuple[str, int]]:
        """For each word seen what it is counted as, and how often it occurred since `count_words`."""
        words = list(self.table.spell(np.arange(len(self.table))))
        occurrences = np.zeros(0, np.int64) if self.occurrences is None else self.occurrences
        return {
            word: (analysed, times)
            for word, analysed, times in zip(words, self.pool.analysed(words), occurrences.tolist(), strict=False)
            if times
        }

    def _number(self, texts: Strings, lowercase: bool) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of all words, and where those of each text end."""
        lengths = texts.ends - texts.starts
        numbers = np.empty(int(lengths.sum()) + len(texts), np.int32)  # a lower-case text can be longer
        row_ends = np.empty(len(texts), np.int64)
        row, used = 0, 0
        while row < len(texts):
            status, done, used = self.table.number_words(texts[row:], lowercase, numbers, used, row_ends[row:])
            row += done
            if status == NEEDS_PYTHON:
                until = min(row + PYTHON_BATCH, len(texts))
                lowered = Strings.of([text.lower() for text in texts[row:until]])
                _, _, used = self.table.number_words(lowered, False, numbers, used, row_ends[row:until])
                row = until
        return numbers[:used], row_ends

    def _add_new_words(self) -> None:
        known = len(self._starts)
        if len(self.table) == known:
            return
        words = list(self.table.spell(np.arange(known, len(self.table))))
        new = Strings.of(self.pool.analysed(words)).compact()
        offset = len(self._replacements)
        self._replacements = np.concatenate([self._replacements, new.buffer])
        self._starts = np.concatenate([self._starts, new.starts + offset])
        self._ends = np.concatenate([self._ends, new.ends + offset])
