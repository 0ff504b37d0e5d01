"""The hash table of n-grams of characters: a `TermTable` whose words are n-grams."""

from __future__ import annotations

import numpy as np

from labelwise.kernels import characters
from labelwise.kernels.characters import character_codes
from labelwise.kernels.term_table import TermTable, as_bytes, as_positions
from labelwise.kernels.terms import DONE, NO_PAIRS
from labelwise.kernels.words import NEEDS_PYTHON
from labelwise.strings import Strings


class CharacterTable(TermTable):
    """The n-grams of up to `max_size` characters seen so far. Not thread-safe.

    Parameters
    ----------
    max_size
        Maximum number of characters in an n-gram.
    in_words
        Whether n-grams are inside words, with a blank before and after, or across the whole text.
    """

    def __init__(self, max_size: int, in_words: bool) -> None:
        super().__init__()
        self.max_size, self.in_words = max_size, in_words

    def learn(
        self, texts: Strings, lowercase: bool, min_words: int, pairs: np.ndarray, used: int, row_ends: np.ndarray
    ) -> tuple[int, int, int]:
        """As `TermTable.learn`; `min_words` is the minimum number of characters."""
        buffer, starts, ends = as_bytes(texts.buffer), as_positions(texts.starts), as_positions(texts.ends)
        row = 0
        while True:
            status, done, used = characters.learn_characters(
                buffer, starts[row:], ends[row:], character_codes(lowercase), min_words, self.max_size, self.in_words,
                self.seed, self.words, self.nodes, self.arena, self.counts, pairs, used, row_ends[row:],
            )  # fmt: skip
            row += done
            if status in (DONE, NO_PAIRS, NEEDS_PYTHON):
                return status, row, used
            self._grow(status, int(ends[row] - starts[row]))

    def numbers_of(self, texts: Strings) -> np.ndarray:
        """Add each text as one term; returns its number, or -1 if it is empty or holds the character 0."""
        buffer, starts, ends = as_bytes(texts.buffer), as_positions(texts.starts), as_positions(texts.ends)
        numbers = np.empty(len(texts), np.int64)
        done = 0
        while True:
            status, done = characters.add_terms(
                buffer, starts, ends, done, numbers, self.seed, self.words, self.nodes, self.arena, self.counts
            )
            if status == DONE:
                return numbers
            self._grow(status, int((ends - starts).max()))
