"""Word vectors of a vocabulary: from a file of pretrained vectors, from labels, or at random. Does not import torch.

Text files (GloVe, word2vec, fastText) are read line by line and only lines of words in the vocabulary are parsed, so
that memory grows with the vocabulary, not the file. Words that are not in the file get random vectors of the same
standard deviation; the unknown word gets the mean of all vectors read.
"""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from labelwise.encoders.label_vectors import label_vectors
from labelwise.encoders.words import Vocabulary, WordTokens
from labelwise.errors import DataError
from labelwise.progress import progress

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
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file of vectors") from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not an array of numbers: {error}") from None
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: an archive of arrays (.npz); one array (.npy) is needed")
    if array.ndim != 2 or array.dtype.kind != "f" or array.shape[1] == 0:
        raise DataError(f"{path}: vectors are a float array [words, width], this is {array.dtype} {array.shape}")
    try:
        words = listed.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{listed}: the words of the vectors cannot be read: {error}") from None
    if words[-1] == "":
        words.pop()
    if len(words) != len(array):
        raise DataError(f"{listed}: {len(words):,} words for the {len(array):,} vectors in {path}")
    positions = vocabulary.words.positions
    row_of_word: dict[int, int] = {}
    for row, word in enumerate(words):
        if word in positions:
            row_of_word.setdefault(positions[word], row)
    rows = np.array(list(row_of_word), np.int64)
    lines = np.array(list(row_of_word.values()), np.int64)
    vectors = np.array(array[lines], np.float32) if len(lines) else np.empty((0, array.shape[1]), np.float32)
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
            if _is_number(word.split()[1]):
                raise DataError(f"{path}:{number}: more than the {width} numbers of the lines before: {_shown(line)}")
            continue  # words with spaces, whose first part happens to be in the vocabulary
        vectors.append(_parse(values, width, path, number, line))
        rows.append(index)
        del missing[word]
        if not missing:
            break
    return np.array(rows, np.int64), np.array(vectors, np.float32).reshape(len(rows), width)


def _parse(values: list[bytes], width: int, path: Path, number: int, line: bytes) -> np.ndarray:
    try:
        vector = np.array([float(value) for value in values], np.float32)
    except ValueError:
        raise DataError(f"{path}:{number}: not a word and {width} numbers: {_shown(line)}") from None
    if len(vector) != width:
        raise DataError(f"{path}:{number}: {len(vector)} numbers, the lines before have {width}: {_shown(line)}")
    if not np.isfinite(vector).all():
        raise DataError(f"{path}:{number}: a number is not finite: {_shown(line)}")
    return vector


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_header(line: bytes) -> bool:
    """Whether this is the header of word2vec and fastText: number of words and dimension."""
    parts = line.split()
    return len(parts) == 2 and all(part.isdigit() for part in parts)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a plain or gzip file."""
    try:
        size = path.stat().st_size
        with _open(path) as file, progress("reading word vectors", size) as step:
            for number, line in enumerate(file, 1):
                yield number, line
                step(len(line))
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file of vectors") from None
    except IsADirectoryError:
        raise DataError(f"{path}: this is a folder; a file of vectors is needed") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the vectors cannot be read: {error}") from None


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[bad-return]


def _shown(line: bytes) -> str:
    text = line[: 2 * SHOWN].decode(errors="replace").strip()
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
