"""TF-IDF over n-grams of words or characters with scikit-learn's tokenization and formula, many times as fast.

Words are runs of two or more letters, digits or underscores after lower-casing, exactly as the default pattern of
`TfidfVectorizer` finds them; weights are ``tf * (ln((1 + n) / (1 + df)) + 1)``, rows normalized to unit L2 norm. The
vocabulary is sorted, so columns agree too. The result is bitwise independent of the number of threads.

Cost of `fit_transform`: one pass over the text, one over the counts. Memory: 8 bytes per non-zero besides the result's
8, freed while the result is written, and a table of all terms per thread. Stop words, lemmas and stems cost one more
pass over the text (`rewriting`).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy import sparse

from labelwise.data.csr import MappedCsrBuilder, read_only
from labelwise.data.out_of_core import concatenate_texts, text_groups
from labelwise.errors import ConfigError, DataError, ModelFormatError, NotFittedError
from labelwise.features.rows import FeatureRows
from labelwise.features.settings import LINEAR_TFIDF as LINEAR_TFIDF
from labelwise.features.settings import TfidfConfig
from labelwise.features.vocabulary import (
    BLOCK_BYTES,
    MOST_GROUP,
    Counting,
    Counts,
    Forms,
    RowRange,
    StreamedTerms,
    Terms,
    Worker,
    by_column,
    column_order,
    count,
    joined,
    most_frequent,
    new_table,
    process_texts,
    refuse_no_terms,
    sorted_terms,
    unknown_terms,
    within_limits,
    words_of_terms,
)
from labelwise.features.words import Rewriter, RewriterPool, WordAnalysis
from labelwise.io import tensors as pages
from labelwise.io.folder import get_tensor, strings_from_tensors, strings_to_tensors
from labelwise.kernels.characters import character_codes, look_up_characters
from labelwise.kernels.term_rows import UNKNOWN, count_kept, look_up, write_columns, write_rows
from labelwise.kernels.term_table import as_bytes, as_positions
from labelwise.kernels.words import folding_table
from labelwise.runtime.threads import run_all
from labelwise.strings import Strings

# --- term lookup ---
# Look up the terms of texts in a vocabulary, and write their rows of TF-IDF.


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
        super().__init__(texts, config, row_ends, rewriter)
        self.lookup = lookup
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
        if config.analyzer != "word":
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
    table = new_table(config)
    numbers = table.numbers_of(vocabulary)
    if (numbers < 0).any() or table.spell(numbers) != vocabulary:
        return None
    columns = np.full(len(table), UNKNOWN, np.int32)
    columns[numbers] = np.arange(len(numbers))
    if (columns[numbers] != np.arange(len(numbers))).any():
        return None
    write_columns(table, columns)
    return TermLookup(len(vocabulary), table.seed, table.words, table.grams, table.arena)


_building = threading.Lock()


class Tfidf:
    """Texts to sparse rows of TF-IDF.

    After `fit`: ``vocabulary_`` (the term of each column, sorted) and ``idf_`` (the weight of each column, None without
    idf). With `hash_bits` there is nothing to fit, and no vocabulary. ``analysis_`` is what happens to words before
    they are counted, None if nothing does.

    Parameters
    ----------
    config
        Which terms count, and how much.
    """

    vocabulary_: Strings
    idf_: np.ndarray | None
    analysis_: WordAnalysis | None

    def __init__(self, config: TfidfConfig | None = None) -> None:
        self.config = config or TfidfConfig()
        self._changes_words = bool(self.config.changes_words)
        self._lookup: TermLookup | None = None
        self._rewriters: RewriterPool | None = None

    @property
    def n_features(self) -> int:
        """Columns of the matrices."""
        if self.config.hash_bits is not None:
            return 1 << self.config.hash_bits
        self._check_fitted()
        return len(self.vocabulary_)

    def fit(self, texts: Strings | Iterable[str]) -> Self:
        """Learn the vocabulary and the terms' weights."""
        documents = _as_strings(texts)
        self._set_analysis(WordAnalysis.of(self.config))
        if self.config.hash_bits is None:
            self._learn(count(documents, Counting(self.config, self._rewriters))[0], len(documents))
        return self

    def fit_transform(self, texts: Strings | Iterable[str]) -> sparse.csr_array:
        """`fit` and `transform` in one pass over the texts: float32 [documents, terms]."""
        documents = _as_strings(texts)
        self._set_analysis(WordAnalysis.of(self.config))
        if self.config.hash_bits is not None:
            hashed = self.transform(documents)
            if self._rewriters is not None:
                self._rewriters.keep_sample()
            return hashed
        terms, counts = count(documents, Counting(self.config, self._rewriters, keep=True))
        columns = self._learn(terms, len(documents))
        pruned = len(self.vocabulary_) < int(np.count_nonzero(terms.frequency))
        del terms  # its table is large, and no longer needed
        return self._write(counts, columns, pruned)

    def fit_transform_mapped(self, texts: Strings, folder: Path, limit: int) -> sparse.csr_array:
        """`fit_transform` for texts larger than memory, which are mapped: the same matrix, in files of the folder.

        Two passes over the texts. `limit` is in bytes, for counts and rows; the vocabulary itself is held in memory.
        """
        self._set_analysis(WordAnalysis.of(self.config))
        if self.config.hash_bits is None:
            self._learn_streamed(texts, folder, limit)
        builder = MappedCsrBuilder(True, folder)
        for group in text_groups(texts, min(max(limit // 8, BLOCK_BYTES), MOST_GROUP)):
            rows = self.rows(group)
            builder.add(np.diff(rows.indptr).astype(np.int32), rows.indices, rows.data, 1.0)
        if self.config.hash_bits is not None and self._rewriters is not None:
            self._rewriters.keep_sample()
        matrix = builder.matrix(self.n_features)
        matrix.has_canonical_format = True
        return matrix

    def transform(self, texts: Strings | Iterable[str]) -> sparse.csr_array:
        """Rows of the texts: float32 [documents, terms]; terms that `fit` has not seen are ignored."""
        return _matrix(self.rows(texts))

    def rows(self, texts: Strings | Iterable[str]) -> FeatureRows:
        """`transform` as plain arrays, for prediction: building a matrix takes longer than reading a short text."""
        documents = _as_strings(texts)
        lookup, rewriters = self._known_terms(), self._known_words()
        weights = None if self.config.hash_bits is not None else self.idf_
        row_ends = np.zeros(len(documents) + 1, np.int64)

        def new_reader() -> TermReader:
            rewriter = None if rewriters is None else rewriters.take()
            return TermReader(documents, self.config, lookup, weights, row_ends[1:], rewriter)

        workers, row_ranges = process_texts(documents, new_reader, "computing TF-IDF")
        for worker in workers:
            if worker.rewriter is not None and rewriters is not None:
                rewriters.give_back(worker.rewriter)
        return FeatureRows(*joined(row_ranges, row_ends), (len(row_ends) - 1, self.n_features))

    def extended(self, texts: Strings | Iterable[str], n_documents: int) -> Tfidf:
        """With columns for the terms that only these texts have, after the others, whose weights stay the same.

        `n_documents` were counted before. With `max_features` or `hash_bits` there are no new columns.
        """
        config = self.config
        if config.hash_bits is not None or config.max_features is not None:
            return self
        documents = _as_strings(texts)
        terms, _ = count(documents, Counting(config, self._known_words()))
        total = n_documents + len(documents)
        new = unknown_terms(terms, self.vocabulary_, total, config)
        if not len(new):
            return self
        extended = Tfidf(config)
        analysis = copy.copy(self.analysis_)
        if analysis is not None and self.analysis_ is not None:
            analysis.choose_readable(terms.forms, words_of_terms(terms.table, new))
            analysis.readable |= self.analysis_.readable
        extended._set_analysis(analysis)
        extended.vocabulary_ = self.vocabulary_ + terms.table.spell(new)
        extended.idf_ = (
            None if self.idf_ is None else np.append(self.idf_, np.log((1 + total) / (1 + terms.frequency[new])) + 1)
        )
        return extended

    def terms(self, columns: Iterable[int] | np.ndarray) -> list[str]:
        """The terms of some columns."""
        if self.config.hash_bits is not None:
            raise ConfigError("with hash_bits columns have no terms: terms are hashed and not stored")
        self._check_fitted()
        ids = np.asarray(columns if isinstance(columns, np.ndarray) else list(columns), np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(self.vocabulary_)):
            raise DataError(f"columns go from 0 to {len(self.vocabulary_) - 1:,}, got {ids.min()} to {ids.max()}")
        return list(self.vocabulary_[ids])

    def readable_terms(self, columns: Iterable[int] | np.ndarray) -> list[str]:
        """`terms` for people: instead of a stem or lemma its most frequent form in the training texts."""
        terms = self.terms(columns)
        return terms if self.analysis_ is None else [self.analysis_.readable_term(term) for term in terms]

    def counted_words(self, words: Iterable[str]) -> list[str]:
        """What each word of a text is counted as: in lower case, as a lemma or stem; '' if it is not counted."""
        forms = [word.lower() if self.config.lowercase else word for word in words]
        rewriters = self._known_words()
        counted = forms if rewriters is None else rewriters.analysed(forms)
        return [word if len(form) > 1 else "" for form, word in zip(forms, counted, strict=True)]

    def state(self) -> dict[str, np.ndarray]:
        """The learned state as arrays for a model folder."""
        rewriters = self._known_words()
        tensors = {} if rewriters is None else rewriters.analysis.state()
        if self.config.hash_bits is not None:
            return tensors
        self._check_fitted()
        tensors |= strings_to_tensors("vocabulary", self.vocabulary_)
        return tensors if self.idf_ is None else {**tensors, "idf": self.idf_}

    def restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> Self:
        """Restore what `state` returned; everything is checked, errors name `path`."""
        analysis = WordAnalysis.restored(self.config, tensors, path)
        if self.config.hash_bits is not None:
            self._set_analysis(analysis)
            return self
        vocabulary = strings_from_tensors("vocabulary", tensors, path)
        idf = None
        if self.config.idf:
            idf = get_tensor(tensors, "idf", path)
            if idf.dtype != np.float64 or idf.shape != (len(vocabulary),) or not np.isfinite(idf).all():
                raise ModelFormatError(f"{path}: idf is not a finite weight for each of {len(vocabulary):,} terms")
        lookup = build_lookup(vocabulary, self.config)
        if lookup is None:
            raise ModelFormatError(
                f"{path}: the vocabulary holds a duplicate term, or one that does not consist of words"
            )
        self.vocabulary_, self.idf_, self._lookup = vocabulary, idf, lookup
        self._set_analysis(analysis)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lookup": None, "_rewriters": None}

    def _check_fitted(self) -> None:
        if not hasattr(self, "vocabulary_"):
            raise NotFittedError("this Tfidf has not learned a vocabulary yet; call fit or fit_transform first")

    def _set_analysis(self, analysis: WordAnalysis | None) -> None:
        self.analysis_ = analysis
        self._rewriters = None if analysis is None else RewriterPool(analysis)

    def _learn_streamed(self, texts: Strings, folder: Path, limit: int) -> None:
        """Set vocabulary and weights from counts that need not fit in memory."""
        config, documents = self.config, len(texts)
        counted = StreamedTerms(Counting(config, self._rewriters), folder, limit)
        counted.add(texts)
        kept, found = [], 0
        for terms in counted.lists():
            found += int((terms.frequency > 0).sum())
            kept.append(sorted_terms(terms, within_limits(terms.frequency, documents, config)))
        n_kept = sum(len(one.terms) for one in kept)
        refuse_no_terms(found, n_kept, documents, config)
        vocabulary = concatenate_texts([one.terms for one in kept], None)
        frequency = np.concatenate([one.frequency for one in kept])
        if config.max_features is not None:
            occurrences = np.concatenate([one.occurrences for one in kept])
            chosen = most_frequent(np.arange(n_kept), occurrences, config.max_features) != UNKNOWN
            vocabulary, frequency = vocabulary[chosen].compact(), frequency[chosen]
        self._set_vocabulary(vocabulary, frequency, documents, counted.forms)

    def _learn(self, terms: Terms, documents: int) -> np.ndarray:
        """Set vocabulary and weights; the column of each counted term."""
        config = self.config
        kept = within_limits(terms.frequency, documents, config)
        refuse_no_terms(int((terms.frequency > 0).sum()), int(kept.sum()), documents, config)
        columns = column_order(terms.table, kept)
        if config.max_features is not None:
            columns = most_frequent(columns, terms.occurrences, config.max_features)
        ordered = by_column(columns)
        self._set_vocabulary(terms.table.spell(ordered), terms.frequency[ordered], documents, terms.forms)
        return columns

    def _set_vocabulary(self, vocabulary: Strings, frequency: np.ndarray, documents: int, forms: Forms) -> None:
        self.vocabulary_, self._lookup = vocabulary, None
        self.idf_ = np.log((1 + documents) / (1 + frequency)) + 1 if self.config.idf else None
        if self.analysis_ is not None:
            table = new_table(self.config)
            self.analysis_.choose_readable(forms, words_of_terms(table, table.numbers_of(vocabulary)))

    def _write(self, counts: Counts, columns: np.ndarray, pruned: bool) -> sparse.csr_array:
        """Build the matrix from the counts, which are freed on the way."""
        row_ends, row_ranges = counts.row_ends, counts.row_ranges
        sizes = np.zeros(len(row_ends) + 1, np.int64)
        columns_of = [columns[numbers] for numbers in counts.numbers]

        def count_entries(rows: RowRange) -> None:
            sizes_here = sizes[rows.first + 1 : rows.last + 1]
            ends_here = row_ends[rows.first : rows.last]
            ends_here -= rows.begin
            if pruned and rows.arrays:
                count_kept(rows.arrays[0][rows.begin : rows.end], ends_here, columns_of[rows.worker], sizes_here)
            else:
                sizes_here[:] = np.diff(ends_here, prepend=0)

        run_all(count_entries, row_ranges)
        indptr = np.cumsum(sizes)
        indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
        bits = max(1, (len(self.vocabulary_) - 1).bit_length())
        weights = np.empty(0) if self.idf_ is None else self.idf_

        def write(_: int) -> None:
            rows = row_ranges.pop()  # a range's counts are freed once no list holds it
            if rows.arrays:
                write_rows(
                    rows.arrays[0][rows.begin : rows.end], row_ends[rows.first : rows.last],
                    columns_of[rows.worker], bits, weights, self.config.sublinear, self.config.norm is not None,
                    indptr[rows.first : rows.last], indices, values,
                )  # fmt: skip

        run_all(write, range(len(row_ranges)))
        return _matrix(FeatureRows(indptr, indices, values, (len(indptr) - 1, self.n_features)))

    def _known_terms(self) -> TermLookup:
        """The lookup table of terms, built on first use."""
        if self.config.hash_bits is not None:
            return NO_TERMS
        self._check_fitted()
        if self._lookup is None:
            with _building:
                self._lookup = self._lookup or build_lookup(self.vocabulary_, self.config)
        if self._lookup is None:
            raise DataError("the vocabulary was changed: a term is a duplicate or does not consist of words")
        return self._lookup

    def _known_words(self) -> RewriterPool | None:
        """What rewrites words, built on first use; None if they are counted as they are."""
        if self._rewriters is None and self._changes_words:
            with _building:
                if self._rewriters is None:
                    known = getattr(self, "analysis_", None)
                    self._set_analysis(WordAnalysis.of(self.config) if known is None else known)
        return self._rewriters


def _as_strings(texts: Strings | Iterable[str]) -> Strings:
    if isinstance(texts, str):
        raise DataError("expected a list of texts, got a single str; pass [text]")
    return Strings.of(texts)


def _matrix(rows: FeatureRows) -> sparse.csr_array:
    matrix = rows.sparse
    matrix.has_canonical_format = True  # columns are sorted and unique: scipy need not check
    return matrix
