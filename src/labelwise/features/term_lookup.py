"""Look up the terms of texts in a vocabulary, and write their rows of TF-IDF."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labelwise import pages
from labelwise.data.csr import read_only
from labelwise.features.rewriting import Rewriter
from labelwise.features.text_blocks import Worker
from labelwise.features.tfidf_config import TfidfConfig
from labelwise.features.vocabulary import new_table
from labelwise.kernels.text.characters import character_codes, look_up_characters
from labelwise.kernels.text.term_rows import UNKNOWN, look_up, write_columns
from labelwise.kernels.text.term_table import as_bytes, as_positions
from labelwise.kernels.text.words import folding_table
from labelwise.strings import Strings


@dataclass(frozen=True)
class TermLookup:
    """The arrays of a `TermTable` with which a kernel looks up the columns of terms."""

    n_terms: int
    seed: np.uint64
    words: np.ndarray
    grams: np.ndarray
    arena: np.ndarray


NO_TERMS = TermLookup(0, np.uint64(0), *(np.zeros(4, dtype) for dtype in (np.uint64, np.uint64, np.uint8)))
"""For hashed terms, which need no vocabulary."""


class TermReader(Worker):
    """Looks up terms and writes finished rows."""

    def __init__(
        self, texts: Strings, config: TfidfConfig, lookup: TermLookup, weights: np.ndarray | None, row_ends: np.ndarray,
        rewriter: Rewriter | None,
    ) -> None:  # fmt: skip
        super().__init__(texts, config.lowercase, config.ngrams[1] - config.ngrams[0] + 1, row_ends, rewriter)
        self.characters = config.analyzer != "word"
        self.config, self.lookup = config, lookup
        self.weights = read_only(np.empty(0) if weights is None else weights)
        self.bits = config.hash_bits or max(1, (lookup.n_terms - 1).bit_length())

    def new_arrays(self, size: int) -> tuple[np.ndarray, ...]:
        return pages.empty(size, np.int32), pages.empty(size, np.float32)

    def run_kernel(self, texts: Strings, lowercase: bool, row_ends: np.ndarray) -> tuple[int, int]:
        if not self.arrays:
            self._allocate(texts, 0)
        config, known = self.config, self.lookup
        where = as_bytes(texts.buffer), as_positions(texts.starts), as_positions(texts.ends)
        how = (
            config.hash_bits or 0, self.bits, self.weights, config.sublinear, config.norm is not None,
            *self.arrays, self.used, row_ends,
        )  # fmt: skip
        if self.characters:
            status, done, self.used = look_up_characters(
                *where, character_codes(lowercase), *config.ngrams, config.analyzer == "char_wb", known.seed,
                known.words, known.arena, *how,
            )  # fmt: skip
        else:
            status, done, self.used = look_up(
                *where, folding_table(lowercase), int(lowercase), *config.ngrams, known.seed, known.words, known.grams,
                known.arena, *how,
            )  # fmt: skip
        return status, done


def build_lookup(vocabulary: Strings, config: TfidfConfig) -> TermLookup | None:
    """The lookup table of the vocabulary; None if a term is a duplicate or not words joined by blanks."""
    table = new_table(config.analyzer, config.ngrams[1])
    numbers = table.numbers_of(vocabulary)
    if (numbers < 0).any() or table.spell(numbers) != vocabulary:
        return None
    columns = np.full(len(table), UNKNOWN, np.int32)
    columns[numbers] = np.arange(len(numbers))
    if (columns[numbers] != np.arange(len(numbers))).any():
        return None
    write_columns(table, columns)
    return TermLookup(len(vocabulary), table.seed, table.words, table.grams, table.arena)
