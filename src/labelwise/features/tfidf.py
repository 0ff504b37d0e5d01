"""TF-IDF over words and n-grams with scikit-learn's tokenization and formula, many times as fast.

Words are runs of two or more letters, digits or underscores after lower-casing, exactly as the default pattern of
`TfidfVectorizer` finds them; weights are ``tf * (ln((1 + n) / (1 + df)) + 1)``, rows normalized to unit L2 norm. The
vocabulary is sorted, so columns agree too. The result is bitwise independent of the number of threads.

Cost of `fit_transform`: one pass over the text, one over the counts. Memory: 8 bytes per non-zero besides the result's
8, freed while the result is written, and a table of all terms per thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator
from scipy import sparse

from labelwise import pages
from labelwise.config import Config
from labelwise.errors import ConfigError, DataError, ModelFormatError, NotFittedError
from labelwise.features.rows import FeatureRows
from labelwise.features.text_blocks import RowRange, Worker, process_texts
from labelwise.features.vocabulary import (
    Counting,
    Counts,
    Terms,
    choose,
    column_order,
    count,
    most_frequent,
    unknown_terms,
)
from labelwise.kernels.text.term_rows import UNKNOWN, count_kept, look_up, write_columns, write_rows
from labelwise.kernels.text.term_table import TermTable, as_bytes, as_positions
from labelwise.kernels.text.words import folding_table
from labelwise.parallel import run_all
from labelwise.store import get_tensor, strings_from_tensors, strings_to_tensors
from labelwise.strings import Strings


def _count_or_fraction(value: Any) -> Any:
    """An integer is a count of 1 or more, a float a fraction from 0 to 1: 1 and 1.0 differ."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a count (1, 2, ...) or a fraction (0.0 to 1.0)")
    if isinstance(value, int) and value < 1:
        raise ValueError("as an integer must be 1 or more documents (a fraction has a decimal point: 0.5)")
    if isinstance(value, float) and not 0 <= value <= 1:
        raise ValueError("as a fraction must lie between 0.0 and 1.0 (a count of documents has no decimal point)")
    return value


class TfidfConfig(Config):
    """Which terms count, and how much."""

    ngrams: tuple[Annotated[int, Field(ge=1, le=8)], Annotated[int, Field(ge=1, le=8)]] = (1, 1)
    """Minimum and maximum number of words in a term; [1, 2] uses unigrams and bigrams."""
    min_df: Annotated[int | float, BeforeValidator(_count_or_fraction)] = 1
    """Ignore terms in fewer documents than this: an integer counts documents, 0.01 is a fraction of them."""
    max_df: Annotated[int | float, BeforeValidator(_count_or_fraction)] = 1.0
    """Ignore terms in more documents than this: an integer counts documents, 0.5 is a fraction of them."""
    max_features: Annotated[int, Field(ge=1)] | None = None
    """Keep at most this many terms, those that occur most often; ties in alphabetical order."""
    sublinear: bool = False
    """Count a term that occurs n times as 1 + ln(n)."""
    idf: bool = True
    """Weight terms by inverse document frequency."""
    norm: Literal["l2"] | None = "l2"
    """Normalize each document to unit L2 norm."""
    lowercase: bool = True
    """Convert texts to lower case first."""
    hash_bits: Annotated[int, Field(ge=8, le=30)] | None = None
    """Hash terms into 2^bits columns instead of a vocabulary: nothing is learned and nothing is stored."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ngrams[0] > self.ngrams[1]:
            raise ValueError(f"ngrams: the minimum {self.ngrams[0]} is larger than the maximum {self.ngrams[1]}")
        if self.hash_bits is not None:
            learned = [
                name for name in ("min_df", "max_df", "max_features")
                if repr(getattr(self, name)) != repr(type(self).model_fields[name].default)  # 1 is not 1.0
            ]  # fmt: skip
            if self.idf or learned:
                unfit = ", ".join((["idf"] if self.idf else []) + learned)
                raise ValueError(f"hash_bits learns nothing from documents, so it cannot be used with {unfit}")
        return self


LINEAR_TFIDF = TfidfConfig(sublinear=True)
"""Default TF-IDF of linear methods and mach."""


@dataclass(frozen=True)
class _Lookup:
    """The arrays of a `TermTable` with which a kernel looks up the columns of terms."""

    seed: np.uint64
    words: np.ndarray
    grams: np.ndarray
    arena: np.ndarray


_building = threading.Lock()
MODEL_PREFIX = "tfidf."
_EMPTY = _Lookup(np.uint64(0), *(np.zeros(4, dtype) for dtype in (np.uint64, np.uint64, np.uint8)))


class Tfidf:
    """Texts to sparse rows of TF-IDF.

    After `fit`: ``vocabulary_`` (the term of each column, sorted) and ``idf_`` (the weight of each column, None without
    idf). With `hash_bits` there is nothing to fit, and no vocabulary.

    Parameters
    ----------
    config
        Which terms count, and how much.
    """

    vocabulary_: Strings
    idf_: np.ndarray | None

    def __init__(self, config: TfidfConfig | None = None) -> None:
        self.config = config or TfidfConfig()
        self._lookup: _Lookup | None = None

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
        if self.config.hash_bits is None:
            self._learn(self._count(documents, keep=False)[0], len(documents))
        return self

    def fit_transform(self, texts: Strings | Iterable[str]) -> sparse.csr_array:
        """`fit` and `transform` in one pass over the texts: float32 [documents, terms]."""
        documents = _as_strings(texts)
        if self.config.hash_bits is not None:
            return self.transform(documents)
        terms, counts = self._count(documents, keep=True)
        columns = self._learn(terms, len(documents))
        pruned = len(self.vocabulary_) < int(np.count_nonzero(terms.frequency))
        del terms  # its table is large, and no longer needed
        return self._write(counts, columns, pruned)

    def transform(self, texts: Strings | Iterable[str]) -> sparse.csr_array:
        """Rows of the texts: float32 [documents, terms]; terms that `fit` has not seen are ignored."""
        return _matrix(self.rows(texts))

    def rows(self, texts: Strings | Iterable[str]) -> FeatureRows:
        """`transform` as plain arrays, for prediction: building a matrix takes longer than reading a short text."""
        documents = _as_strings(texts)
        lookup = self._known_terms()
        row_ends = np.zeros(len(documents) + 1, np.int64)
        _, row_ranges = process_texts(
            documents, lambda: _Reader(documents, self, lookup, row_ends[1:]), "computing TF-IDF"
        )
        return _joined(row_ranges, row_ends, self.n_features)

    def extended(self, texts: Strings | Iterable[str], n_documents: int) -> Tfidf:
        """With columns for the terms that only these texts have, after the others, whose weights stay the same.

        `n_documents` were counted before. With `max_features` or `hash_bits` there are no new columns.
        """
        config = self.config
        if config.hash_bits is not None or config.max_features is not None:
            return self
        documents = _as_strings(texts)
        terms, _ = self._count(documents, keep=False)
        total = n_documents + len(documents)
        new = unknown_terms(terms, self.vocabulary_, total, config.min_df, config.max_df)
        if not len(new):
            return self
        extended = Tfidf(config)
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

    def state(self) -> dict[str, np.ndarray]:
        """The learned state as arrays for a model folder."""
        if self.config.hash_bits is not None:
            return {}
        self._check_fitted()
        tensors = strings_to_tensors("vocabulary", self.vocabulary_)
        return tensors if self.idf_ is None else {**tensors, "idf": self.idf_}

    def restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> Self:
        """Restore what `state` returned; everything is checked, errors name `path`."""
        if self.config.hash_bits is not None:
            return self
        vocabulary = strings_from_tensors("vocabulary", tensors, path)
        idf = None
        if self.config.idf:
            idf = np.array(get_tensor(tensors, "idf", path))
            if idf.dtype != np.float64 or idf.shape != (len(vocabulary),) or not np.isfinite(idf).all():
                raise ModelFormatError(f"{path}: idf is not a finite weight for each of {len(vocabulary):,} terms")
        lookup = _build_lookup(vocabulary, self.config.ngrams[1])
        if lookup is None:
            raise ModelFormatError(
                f"{path}: the vocabulary holds a duplicate term, or one that does not consist of words"
            )
        self.vocabulary_, self.idf_, self._lookup = vocabulary, idf, lookup
        return self

    def for_model(self) -> dict[str, np.ndarray]:
        """The state under its tensor names in a model folder."""
        return {f"{MODEL_PREFIX}{key}": value for key, value in self.state().items()}

    @classmethod
    def of_model(cls, config: TfidfConfig, tensors: Mapping[str, np.ndarray], path: Path) -> Tfidf:
        """Restore what `for_model` returned."""
        own = {k.removeprefix(MODEL_PREFIX): v for k, v in tensors.items() if k.startswith(MODEL_PREFIX)}
        return cls(config).restore(own, path)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lookup": None}

    def _check_fitted(self) -> None:
        if not hasattr(self, "vocabulary_"):
            raise NotFittedError("this Tfidf has not learned a vocabulary yet; call fit or fit_transform first")

    def _count(self, documents: Strings, keep: bool) -> tuple[Terms, Counts]:
        config = self.config
        return count(documents, Counting(config.lowercase, *config.ngrams, keep, config.max_features is not None))

    def _learn(self, terms: Terms, documents: int) -> np.ndarray:
        """Set vocabulary and weights; the column of each counted term."""
        config = self.config
        kept = choose(terms.frequency, documents, config.min_df, config.max_df)
        columns = column_order(terms.table, kept)
        if config.max_features is not None:
            columns = most_frequent(columns, terms.occurrences, config.max_features)
        chosen = np.flatnonzero(columns != UNKNOWN)
        ordered = np.empty(len(chosen), np.int64)
        ordered[columns[chosen]] = chosen
        self.vocabulary_ = terms.table.spell(ordered)
        self.idf_ = np.log((1 + documents) / (1 + terms.frequency[ordered])) + 1 if config.idf else None
        self._lookup = None
        return columns

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
        return _matrix(_rows(indptr, indices, values, self.n_features))

    def _known_terms(self) -> _Lookup:
        """The lookup table of terms, built on first use."""
        if self.config.hash_bits is not None:
            return _EMPTY
        self._check_fitted()
        lookup = self._lookup
        if lookup is None:
            with _building:
                lookup = self._lookup
                if lookup is None:
                    lookup = _build_lookup(self.vocabulary_, self.config.ngrams[1])
                    if lookup is None:
                        raise DataError(
                            "the vocabulary was changed: a term is a duplicate or does not consist of words"
                        )
                    self._lookup = lookup
        return lookup


class _Reader(Worker):
    """Looks up terms and writes finished rows."""

    def __init__(self, texts: Strings, owner: Tfidf, lookup: _Lookup, row_ends: np.ndarray) -> None:
        config = owner.config
        super().__init__(texts, config.lowercase, config.ngrams[1] - config.ngrams[0] + 1, row_ends)
        self.config, self.lookup = config, lookup
        weights = None if config.hash_bits is not None else owner.idf_
        self.weights = np.empty(0) if weights is None else weights
        self.bits = max(1, (owner.n_features - 1).bit_length())

    def new_arrays(self, size: int) -> tuple[np.ndarray, ...]:
        return pages.empty(size, np.int32), pages.empty(size, np.float32)

    def run_kernel(self, texts: Strings, lowercase: bool, row_ends: np.ndarray) -> tuple[int, int]:
        if not self.arrays:
            self._allocate(texts, 0)
        config, known = self.config, self.lookup
        indices, values = self.arrays
        status, done, self.used = look_up(
            as_bytes(texts.buffer), as_positions(texts.starts), as_positions(texts.ends), folding_table(lowercase),
            int(lowercase), *config.ngrams, known.seed, known.words, known.grams, known.arena,
            config.hash_bits or 0, self.bits, self.weights, config.sublinear, config.norm is not None,
            indices, values, self.used, row_ends,
        )  # fmt: skip
        return status, done


def _build_lookup(vocabulary: Strings, max_words: int) -> _Lookup | None:
    """The lookup table of the vocabulary; None if a term is a duplicate or not words joined by blanks."""
    table = TermTable(max_words)
    numbers = table.numbers_of(vocabulary)
    if (numbers < 0).any() or table.spell(numbers) != vocabulary:
        return None
    columns = np.full(len(table), UNKNOWN, np.int32)
    columns[numbers] = np.arange(len(numbers))
    if (columns[numbers] != np.arange(len(numbers))).any():
        return None
    write_columns(table, columns)
    return _Lookup(table.seed, table.words, table.grams, table.arena)


def _as_strings(texts: Strings | Iterable[str]) -> Strings:
    if isinstance(texts, str):
        raise DataError("expected a list of texts, got a single str; pass [text]")
    return Strings.of(texts)


def _joined(row_ranges: list[RowRange], row_ends: np.ndarray, n_features: int) -> FeatureRows:
    """Concatenate the rows of all ranges, which are freed on the way. `row_ends` begins with a 0."""
    if len(row_ranges) == 1:
        indices, values = (array[: row_ends[-1]].copy() for array in row_ranges[0].arrays)
        return _rows(row_ends, indices, values, n_features)
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
    return _rows(indptr, indices, values, n_features)


def _rows(indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, n_features: int) -> FeatureRows:
    if indptr[-1] < 1 << 31:
        indptr = indptr.astype(np.int32)
    return FeatureRows(indptr, indices, values, (len(indptr) - 1, n_features))


def _matrix(rows: FeatureRows) -> sparse.csr_array:
    parts: Any = (rows.data, rows.indices, rows.indptr)
    matrix = sparse.csr_array(parts, shape=rows.shape)
    matrix.has_canonical_format = True  # columns are sorted and unique: scipy need not check
    return matrix
