"""Texts as words of a vocabulary: ids in one flat buffer, and batches packed by steps. Does not import torch.

A word is a run of letters, digits and underscores; words of digits only are ignored unless wanted. Only the words
that are going to be read count for the vocabulary. Word 0 stands for all that it does not hold; a text without any word
is read as one such word.
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
"""Texts between two steps of progress."""
LETTERS_A_WORD = 12
"""Letters of a long text that are tried first for every word wanted of it."""
UNKNOWN = 0


@dataclass(frozen=True)
class WordBatch:
    """Some documents, the longest first, packed by steps: first all first words, then all second ones, and so on."""

    rows: np.ndarray
    """Which documents, in the order of the batch."""
    ids: np.ndarray
    """Word ids [tokens], int64."""
    lengths: np.ndarray
    """Words of each document, int64; they do not rise."""

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The arguments of `RecurrentEncoder.forward`."""
        return self.ids, self.lengths


@dataclass(frozen=True)
class WordTokens:
    """The words of many texts: text d is ``ids[starts[d]:starts[d + 1]]``, one word at least."""

    ids: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Words of each text."""
        return np.diff(self.starts)

    def batch(self, documents: np.ndarray) -> WordBatch:
        """The given documents, in order of falling length."""
        begins = self.starts[documents]
        lengths = self.starts[np.asarray(documents) + 1] - begins
        order = np.argsort(-lengths, kind="stable")
        begins, lengths = begins[order], lengths[order]
        steps = np.arange(int(lengths[0]) if len(lengths) else 0)[:, None]
        places = (begins + steps)[steps < lengths]
        return WordBatch(np.asarray(documents)[order], self.ids[places].astype(np.int64), lengths)

    def identity(self) -> tuple[np.ndarray, ...]:
        """The words."""
        return self.ids, self.starts


class Vocabulary:
    """The words a model knows; word number ``n`` of it has the id ``n + 1``."""

    def __init__(self, words: Strings, config: WordsConfig) -> None:
        self.words = words
        self.config = config

    def __len__(self) -> int:
        """Ids in use, that of unknown words included."""
        return len(self.words) + 1

    @classmethod
    def learned(cls, texts: Strings, config: WordsConfig) -> tuple[Vocabulary, WordTokens]:
        """The vocabulary of some texts, and these texts in its words."""
        numbers: dict[str, int] = {}
        frequency: list[int] = []

        def ids_of(words: list[str]) -> list[int]:
            ids = [numbers.setdefault(word, len(numbers)) for word in words]
            frequency.extend([0] * (len(numbers) - len(frequency)))
            for number in set(ids):
                frequency[number] += 1
            return ids

        ids, starts = _ragged(map(ids_of, _words_of(texts, config)))
        found = list(numbers)
        ranked = sorted(
            (number for number, count in enumerate(frequency) if count >= config.min_frequency),
            key=lambda number: (-frequency[number], found[number]),
        )[: config.max_size]
        renumbered = np.zeros(len(found) + 1, np.int32)
        renumbered[ranked] = np.arange(1, len(ranked) + 1, dtype=np.int32)
        vocabulary = cls(Strings.of(found[number] for number in ranked), config)
        # a text without words holds the number -1, which is unknown: the last place, 0
        return vocabulary, WordTokens(renumbered[ids], starts)

    def encode(self, texts: Strings) -> WordTokens:
        """Texts in words of the vocabulary."""
        places = self.words.positions
        ids, starts = _ragged([places.get(word, -1) for word in words] for words in _words_of(texts, self.config))
        return WordTokens(ids + 1, starts)

    def name(self, word: int) -> str:
        """What a word id stands for."""
        return "(unknown)" if word == UNKNOWN else self.words[word - 1]

    def state(self) -> dict[str, np.ndarray]:
        """The vocabulary as arrays."""
        return strings_to_tensors("vocabulary", self.words)

    @classmethod
    def restored(cls, tensors: Mapping[str, np.ndarray], config: WordsConfig, path: Path) -> Vocabulary:
        """Take back what `state` gave."""
        words = strings_from_tensors("vocabulary", tensors, path)
        if len(words.positions) != len(words):
            raise ModelFormatError(f"{path}: vocabulary holds a word twice")
        return cls(words, config)


def _ragged(rows: Iterable[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lists of ids in one buffer; an empty one becomes [-1]."""
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
    """The words of each text that are read."""
    with progress("reading words", len(texts)) as step:
        for number, text in enumerate(texts, 1):
            yield first_words(text, config)
            if number % CHUNK == 0:
                step(CHUNK)


def first_words(text: str, config: WordsConfig) -> list[str]:
    """The first words of a text, as many as the config reads."""
    wanted = config.max_length
    limit = (wanted + 1) * LETTERS_A_WORD
    if len(text) > 2 * limit:
        # the last word may be cut in the middle, so one more than wanted must be there
        found = _plain(text[:limit], config)
        if len(found) > wanted:
            return found[:wanted]
    return _plain(text, config)[:wanted]


def _plain(text: str, config: WordsConfig) -> list[str]:
    words = WORD.findall(text.lower() if config.lowercase else text)
    return words if config.numbers else [word for word in words if not word.isnumeric()]
