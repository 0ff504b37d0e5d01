"""Texts as word ids of a vocabulary, in one flat buffer, and batches packed by time steps. Does not import torch.

A word is a run of letters, digits and underscores; words of digits only are ignored unless configured. Only
words within `max_length` count for the vocabulary. Id 0 is the unknown word; a text without words becomes one unknown
word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise.encoders.word_config import WordsConfig
from labelwise.errors import ModelFormatError
from labelwise.progress import progress
from labelwise.store import strings_from_tensors, strings_to_tensors
from labelwise.strings import Strings

WORD = re.compile(r"\w+")
CHUNK = 1024
"""Texts between two updates of the progress bar."""
LETTERS_PER_WORD = 12
"""Characters of a long text that are read first, per word needed of it."""
UNKNOWN = 0


@dataclass(frozen=True)
class WordBatch:
    """Documents in order of descending length, packed by time steps: all first words, then all second ones, ..."""

    rows: np.ndarray
    """Indices of the documents, in the order of the batch."""
    ids: np.ndarray
    """Word ids [tokens], int64."""
    lengths: np.ndarray
    """Words of each document, int64, descending."""

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The arguments of `RecurrentEncoder.forward`."""
        return self.ids, self.lengths


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

    def batch(self, documents: np.ndarray) -> WordBatch:
        """The given documents, in order of descending length."""
        begins = self.starts[documents]
        lengths = self.starts[np.asarray(documents) + 1] - begins
        order = np.argsort(-lengths, kind="stable")
        begins, lengths = begins[order], lengths[order]
        steps = np.arange(int(lengths[0]) if len(lengths) else 0)[:, None]
        positions = (begins + steps)[steps < lengths]
        return WordBatch(np.asarray(documents)[order], self.ids[positions].astype(np.int64), lengths)

    def identity(self) -> tuple[np.ndarray, ...]:
        """The word ids of all texts."""
        return self.ids, self.starts


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
    parts, chunk, sizes = [np.empty(0, np.int32)], [], []
    for row in rows:
        kept = row or [-1]
        chunk += kept
        sizes.append(len(kept))
        if len(chunk) > 1 << 20:
            parts.append(np.array(chunk, np.int32))
            chunk = []
    parts.append(np.array(chunk, np.int32))
    return np.concatenate(parts), np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


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
