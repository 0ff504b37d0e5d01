"""Texts as word ids of a vocabulary, in one flat buffer, and batches packed by time steps. Does not import torch.

A word is a run of letters, digits and underscores; words of digits only are ignored unless configured. Only
words within `max_length` count for the vocabulary. Id 0 is the unknown word; a text without words becomes one unknown
word.
"""

from __future__ import annotations

import gzip
import logging
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.errors import DataError, ModelFormatError
from labelwise.io.folder import strings_from_tensors, strings_to_tensors
from labelwise.nn.config import WordsConfig
from labelwise.nn.inputs import Batch
from labelwise.runtime.progress import progress
from labelwise.strings import Strings

WORD = re.compile(r"\w+")
CHUNK = 1024
"""Texts between two updates of the progress bar."""
LETTERS_PER_WORD = 12
"""Characters of a long text that are read first, per word needed of it."""
UNKNOWN = 0


@dataclass(frozen=True)
class WordTokens:
    """The words of many texts: text d is ``ids[starts[d]:starts[d + 1]]``, at least one word."""

    ids: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Words of each text."""
        return np.diff(self.starts)

    def batch(self, documents: np.ndarray, epoch: int | None = None) -> Batch:
        """The given documents in order of descending length: word ids [tokens], int64, and words of each document.

        Words are packed by time steps: all first words, then all second ones, ...
        """
        begins = self.starts[documents]
        lengths = self.starts[np.asarray(documents) + 1] - begins
        order = np.argsort(-lengths, kind="stable")
        begins, lengths = begins[order], lengths[order]
        steps = np.arange(int(lengths[0]) if len(lengths) else 0)[:, None]
        positions = (begins + steps)[steps < lengths]
        return Batch(np.asarray(documents)[order], (self.ids[positions].astype(np.int64), lengths))


class Vocabulary:
    """The words a model knows; the word at index ``n`` has the id ``n + 1``."""

    def __init__(self, words: Strings, config: WordsConfig) -> None:
        self.words = words
        self.config = config

    def __len__(self) -> int:
        """Number of ids, including that of unknown words."""
        return len(self.words) + 1

    @classmethod
    def learned(cls, texts: Strings, config: WordsConfig) -> tuple[Vocabulary, WordTokens]:
        """The vocabulary of some texts, and these texts as its word ids."""
        numbers: dict[str, int] = {}
        frequency: list[int] = []

        def ids_of(words: list[str]) -> list[int]:
            ids = [numbers.setdefault(word, len(numbers)) for word in words]
            frequency.extend([0] * (len(numbers) - len(frequency)))
            for number in set(ids):
                frequency[number] += 1
            return ids

        ids, starts = _ragged(map(ids_of, _words_of(texts, config)))
        words = list(numbers)
        ranked = sorted(
            (number for number, count in enumerate(frequency) if count >= config.min_frequency),
            key=lambda number: (-frequency[number], words[number]),
        )[: config.max_size]
        renumbered = np.zeros(len(words) + 1, np.int32)
        renumbered[ranked] = np.arange(1, len(ranked) + 1, dtype=np.int32)
        vocabulary = cls(Strings.of(words[number] for number in ranked), config)
        # a text without words has the number -1: the last entry, 0, which is the unknown word
        return vocabulary, WordTokens(renumbered[ids], starts)

    def encode(self, texts: Strings) -> WordTokens:
        """Texts as word ids of the vocabulary."""
        positions = self.words.positions
        ids, starts = _ragged([positions.get(word, -1) for word in words] for words in _words_of(texts, self.config))
        return WordTokens(ids + 1, starts)

    def name(self, word: int) -> str:
        """The word of an id."""
        return "(unknown)" if word == UNKNOWN else self.words[word - 1]

    def state(self) -> dict[str, np.ndarray]:
        """The vocabulary as arrays."""
        return strings_to_tensors("vocabulary", self.words)

    @classmethod
    def restored(cls, tensors: Mapping[str, np.ndarray], config: WordsConfig, path: Path) -> Vocabulary:
        """Rebuild the vocabulary from what `state` returned."""
        words = strings_from_tensors("vocabulary", tensors, path)
        if len(words.positions) != len(words):
            raise ModelFormatError(f"{path}: duplicate word in the vocabulary")
        return cls(words, config)


def _ragged(rows: Iterable[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate lists of ids; an empty list becomes [-1]. Returns the ids and the offsets of the lists."""
    ids, sizes = array("i"), [0]
    for row in rows:
        ids.extend(row or [-1])
        sizes.append(len(row) or 1)
    return np.array(ids, np.int32), np.cumsum(sizes, dtype=np.int64)


def _words_of(texts: Strings, config: WordsConfig) -> Iterator[list[str]]:
    """The first words of each text, as many as the config reads."""
    with progress("reading words", len(texts), alone=True) as step:
        for number, text in enumerate(texts, 1):
            yield first_words(text, config)
            if number % CHUNK == 0:
                step(CHUNK)


def first_words(text: str, config: WordsConfig) -> list[str]:
    """The first words of a text, as many as the config reads."""
    count = config.max_length
    limit = (count + 1) * LETTERS_PER_WORD
    if len(text) > 2 * limit:
        # the last word may be cut in the middle, so one more than needed must be there
        words = _split(text[:limit], config)
        if len(words) > count:
            return words[:count]
    return _split(text, config)[:count]


def _split(text: str, config: WordsConfig) -> list[str]:
    words = WORD.findall(text.lower() if config.lowercase else text)
    return words if config.numbers else [word for word in words if not word.isnumeric()]


# --- label vectors ---
# Word vectors from the labels that words occur with: a start for networks where no pretrained vectors are at hand.
#
# A word is described by the labels of its documents, tf-idf weighted, and the table of words x labels is reduced to the
# dimension of the vectors by a randomised SVD (Halko, Martinsson and Tropp, 2011). The table is never built: products
# with it go through documents x words and documents x labels.
#
# Cost: a few passes over the distinct words of each document, times the dimension; seconds for 10,000 documents.

OVERSAMPLING, POWER_ITERATIONS = 16, 3


def label_vectors(
    tokens: WordTokens, labels: sparse.csr_array, n_words: int, width: int, std: float, seed: int
) -> np.ndarray:
    """Vectors of all words, float32 [words, width], with this standard deviation; the unknown word has the mean."""
    words = _weighted_words(tokens, n_words)
    counts = np.bincount(labels.indices, minlength=labels.shape[1])
    # frequent labels would fill all dimensions otherwise
    targets = (labels @ sparse.diags_array(1 / np.sqrt(np.maximum(counts, 1)))).tocsr().astype(np.float32)
    words_transposed, targets_transposed = words.T.tocsr(), targets.T.tocsr()
    random = np.random.default_rng(seed)
    rank = min(width + OVERSAMPLING, n_words, labels.shape[1])
    basis = words_transposed @ (targets @ random.standard_normal((labels.shape[1], rank), np.float32))
    for _ in range(POWER_ITERATIONS):
        basis = np.linalg.qr(basis)[0]
        basis = words_transposed @ (targets @ (targets_transposed @ (words @ basis)))
    basis = np.linalg.qr(basis)[0]
    left, sizes, _ = np.linalg.svd((targets_transposed @ (words @ basis)).T, full_matrices=False)
    found = (basis @ left)[:, :width] * np.sqrt(sizes[:width])
    vectors = np.zeros((n_words, width), np.float32)
    vectors[:, : found.shape[1]] = found / max(float(np.abs(found).max()), 1e-12)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.maximum(norms, 1e-12)  # a word's norm would be its frequency
    vectors *= std * np.sqrt(width)
    vectors[UNKNOWN] = vectors[UNKNOWN + 1 :].mean(0) if n_words > 1 else 0
    return vectors


def _weighted_words(tokens: WordTokens, n_words: int) -> sparse.csr_array:
    """Tf-idf of documents x words, and each word scaled so that frequent ones do not dominate."""
    ones = np.ones(len(tokens.ids), np.float32)
    # copied, because SciPy sorts and merges in place
    counts = sparse.csr_array((ones, tokens.ids, tokens.starts), shape=(len(tokens), n_words), copy=True)
    counts.sum_duplicates()
    counts.data = 1 + np.log(counts.data)
    frequency = np.bincount(counts.indices, minlength=n_words)
    idf = 1 + np.log((1 + len(tokens)) / (1 + frequency))
    norms = np.sqrt(np.add.reduceat((counts.data * idf[counts.indices]) ** 2, counts.indptr[:-1]))
    scaled = counts.data * idf[counts.indices] / np.repeat(norms, np.diff(counts.indptr))
    counts.data = (scaled / np.sqrt(np.maximum(frequency, 1))[counts.indices]).astype(np.float32)
    return counts


# --- word vectors ---
# Word vectors of a vocabulary: from a file of pretrained vectors, from labels, or at random. Does not import torch.
#
# Text files (GloVe, word2vec, fastText) are read line by line and only lines of words in the vocabulary are parsed, so
# that memory grows with the vocabulary, not the file. Words that are not in the file get random vectors of the same
# standard deviation; the unknown word gets the mean of all vectors read.

log = logging.getLogger("labelwise")

WIDTH = 300
RANDOM_STD = 0.4
"""Standard deviation of random vectors, about that of GloVe's."""
SHOWN = 40


def word_table(vocabulary: Vocabulary, tokens: WordTokens, labels: Any, seed: int) -> np.ndarray:
    """The vectors of the unknown word and all words of the vocabulary, float32 [words + 1, width].

    `tokens` and `labels` are those of the training documents.
    """
    config = vocabulary.config
    random = np.random.default_rng(seed)
    width = config.width or WIDTH
    if config.vectors is None and config.initial == "labels":
        return label_vectors(tokens, labels, len(vocabulary), width, RANDOM_STD, seed)
    if config.vectors is None:
        return random.normal(0, RANDOM_STD, (len(vocabulary), width)).astype(np.float32)
    path = Path(config.vectors).expanduser()
    rows, vectors = _from_array(path, vocabulary) if path.suffix == ".npy" else _from_text(path, vocabulary)
    if len(rows) == 0:
        raise DataError(
            f"{path}: none of the {len(vocabulary.words):,} words of the training texts has a vector here; "
            "each line must be a word and its numbers"
        )
    log.info(
        "%s: vectors of %s of %s words (%.1f%%)",
        path, f"{len(rows):,}", f"{len(vocabulary.words):,}", 100 * len(rows) / len(vocabulary.words),
    )  # fmt: skip
    if config.normalise:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    table = random.normal(0, max(float(vectors.std()), 1e-6), (len(vocabulary), vectors.shape[1])).astype(np.float32)
    table[0] = vectors.mean(0)
    table[rows + 1] = vectors
    return table


def _from_array(path: Path, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the vocabulary's words that are in a .npy with its list of words, and their vectors."""
    listed = Path(str(vocabulary.config.vectors_words)).expanduser()
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not an array of numbers: {error}") from None
    if not isinstance(stored, np.ndarray):
        raise DataError(f"{path}: an archive of arrays (.npz); one array (.npy) is needed")
    if stored.ndim != 2 or stored.dtype.kind != "f" or stored.shape[1] == 0:
        raise DataError(f"{path}: vectors are a float array [words, width], this is {stored.dtype} {stored.shape}")
    try:
        words = listed.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{listed}: the words of the vectors cannot be read: {error}") from None
    if words[-1] == "":
        words.pop()
    if len(words) != len(stored):
        raise DataError(f"{listed}: {len(words):,} words for the {len(stored):,} vectors in {path}")
    positions = vocabulary.words.positions
    row_of_word: dict[int, int] = {}
    for row, word in enumerate(words):
        if word in positions:
            row_of_word.setdefault(positions[word], row)
    rows = np.array(list(row_of_word), np.int64)
    lines = np.array(list(row_of_word.values()), np.int64)
    vectors = np.array(stored[lines], np.float32)
    bad = np.flatnonzero(~np.isfinite(vectors).all(1))
    if len(bad):
        raise DataError(f"{path}: row {lines[bad[0]]:,} ('{words[lines[bad[0]]]}') has a number that is not finite")
    return rows, vectors


def _from_text(path: Path, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """The same from a text file."""
    missing = {word.encode(): index for index, word in enumerate(vocabulary.words)}
    rows: list[int] = []
    vectors: list[np.ndarray] = []
    width = 0
    for number, line in _lines(path):
        if number == 1 and _is_header(line):
            continue
        if width == 0:
            width = len(line.split()) - 1
            if width < 1:
                raise DataError(f"{path}:{number}: a word and its numbers are needed, got {_shown(line)}")
        first = (line.split(None, 1) or [b""])[0]
        if first not in missing:
            continue
        word, *values = line.strip().rsplit(None, width)
        index = missing.get(word)
        if index is None:
            if _numbers(word.split()[1:2]) is not None:
                raise DataError(f"{path}:{number}: more than the {width} numbers of the lines before: {_shown(line)}")
            continue  # words with spaces, whose first part happens to be in the vocabulary
        vectors.append(_parse(values, width, path, number, line))
        rows.append(index)
        del missing[word]
        if not missing:
            break
    return np.array(rows, np.int64), np.array(vectors, np.float32).reshape(len(rows), width)


def _parse(values: list[bytes], width: int, path: Path, number: int, line: bytes) -> np.ndarray:
    vector = _numbers(values)
    if vector is None:
        raise DataError(f"{path}:{number}: not a word and {width} numbers: {_shown(line)}")
    if len(vector) != width:
        raise DataError(f"{path}:{number}: {len(vector)} numbers, the lines before have {width}: {_shown(line)}")
    if not np.isfinite(vector).all():
        raise DataError(f"{path}:{number}: a number is not finite: {_shown(line)}")
    return vector


def _numbers(values: list[bytes]) -> np.ndarray | None:
    try:
        return np.array([float(value) for value in values], np.float32)
    except ValueError:
        return None


def _is_header(line: bytes) -> bool:
    """Whether this is the header of word2vec and fastText: number of words and dimension."""
    parts = line.split()
    return len(parts) == 2 and all(part.isdigit() for part in parts)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a plain or gzip file."""
    try:
        size, opened = path.stat().st_size, gzip.open if path.suffix == ".gz" else open
        with opened(path, "rb") as file, progress("reading word vectors", size) as step:
            for number, line in enumerate(file, 1):
                yield number, line
                step(len(line))
    except IsADirectoryError:
        raise DataError(f"{path}: this is a folder; a file of vectors is needed") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the vectors cannot be read: {error}") from None


def _shown(line: bytes) -> str:
    text = line[: 2 * SHOWN].decode(errors="replace").strip()
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
