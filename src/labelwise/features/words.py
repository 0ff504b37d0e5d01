"""What happens to words before they are counted: stop words are dropped, forms replaced by lemmas and stems.

Every distinct word is analysed once, in Python; texts are rewritten by kernels (`rewriting`). Word lists are kept with
the model, so that it does not depend on files or on the lists of this version; stemmers and lemmatizers are code, which
a model only names. Their version is recorded, and loading a model with another version checks that it gives the same
words for a sample of those of the training texts.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np

from labelwise.data.stream import text_lines
from labelwise.errors import ConfigError, DataError, ModelFormatError, did_you_mean
from labelwise.features.settings import TfidfConfig, snowball, stemmer_version
from labelwise.io.folder import strings_from_tensors, strings_to_tensors
from labelwise.kernels.rewriting import write_replacements
from labelwise.kernels.term_table import TermTable
from labelwise.kernels.words import NEEDS_PYTHON
from labelwise.strings import Strings

# --- stop words ---
# Function words of some languages: articles, pronouns, prepositions, conjunctions, auxiliary verbs and the like.
#
# Short lists of our own, in lower case; words that also carry a subject ("may", "will", "mine") are left out. Words of
# one letter never count, and contractions are split at the apostrophe ("qu" of "qu'il" is therefore listed).

STOP_WORDS: dict[str, frozenset[str]] = {
    path.stem: frozenset(path.read_text(encoding="utf-8").split())
    for path in sorted((Path(__file__).parent / "stop_words").glob("*.txt"))
}

log = logging.getLogger(__name__)

GROUP = "labelwise.analyzers"
CHECKED_WORDS = 2000
"""Words whose analysis is compared when a model is loaded with another version of a stemmer or lemmatizer."""
_WORD = re.compile(r"\w\w+")

Analyzer = Callable[[list[str]], list[str]]

PYTHON_BATCH = 64
"""Texts that Python lower-cases at a time."""


class WordAnalysis:
    """Maps a word to the word that is counted, or to '' to drop it.

    `readable` maps counted words to the form that is most frequent in the training texts, where that differs; of hashed
    words to a form, for some of them.
    """

    def __init__(self, config: TfidfConfig, stop_words: frozenset[str], lemmas: Mapping[str, str]) -> None:
        self.config, self.stop_words, self.lemmas = config, stop_words, lemmas
        self.versions: dict[str, str] = {}
        self.steps: list[tuple[str, Analyzer]] = []
        if config.lemmatizer is not None:
            lemmatize, self.versions["lemmatizer"] = registered_analyzer(config.lemmatizer)
            self.steps.append((f"the lemmatizer '{config.lemmatizer}'", lemmatize))
        if config.stemmer is not None:
            self.steps.append((f"the stemmer '{config.stemmer}'", snowball(config.stemmer)))
            self.versions["stemmer"] = stemmer_version()
        self.readable: dict[str, str] = {}

    @classmethod
    def of(cls, config: TfidfConfig) -> WordAnalysis | None:
        """As a config asks for; None if words are counted as they are."""
        if not config.changes_words:
            return None
        lemmas = {} if config.lemmas is None else _read_lemmas(Path(config.lemmas), config.lowercase)
        return cls(config, _stop_words(config), lemmas)

    def analysed(self, words: list[str]) -> list[str]:
        """What each word is counted as; '' for words that are not counted. Not thread-safe."""
        results = ["" if word in self.stop_words else self.lemmas.get(word, word) for word in words]
        for name, step in self.steps:
            split = [word.split() for word in results]  # a lemma may be several words
            given = [word for parts in split for word in parts]
            found = iter(_checked(step(given), len(given), name))
            results = [" ".join(next(found) for _ in parts) for parts in split]
            if self.config.lowercase:
                results = [word.lower() for word in results]
        # the tokens of a text have two or more characters, so a shorter stem could not be counted
        return [word if len(result) == 1 else result for word, result in zip(words, results, strict=True)]

    def choose_readable(self, occurrences: Mapping[str, tuple[str, int]], counted: Iterable[str]) -> None:
        """Set `readable` from how often each form occurs (form -> counted word, occurrences)."""
        best: dict[str, tuple[int, str]] = dict.fromkeys(counted, (0, ""))
        for form, (word, times) in occurrences.items():
            if word in best:
                best[word] = min(best[word], (-times, form))
        self.readable = {word: form for word, (_, form) in sorted(best.items()) if form and form != word}

    def readable_term(self, term: str) -> str:
        """A term in readable words."""
        return " ".join(self.readable.get(word, word) for word in term.split(" "))

    def state(self) -> dict[str, np.ndarray]:
        """Word lists, versions and readable words as arrays for a model folder."""
        lists = {
            "stop_words": sorted(self.stop_words),
            "lemma_forms": self.lemmas.keys(),
            "lemmas": self.lemmas.values(),
            "stems": self.readable.keys(),
            "stem_forms": self.readable.values(),
            "analysis": [json.dumps(self.versions)],
        }
        tensors: dict[str, np.ndarray] = {}
        for name, words in lists.items():
            tensors |= strings_to_tensors(name, Strings.of(words))
        return tensors

    @classmethod
    def restored(cls, config: TfidfConfig, tensors: Mapping[str, np.ndarray], path: Path) -> WordAnalysis | None:
        """Restore what `state` returned; None if the config does not ask for an analysis."""
        if not config.changes_words:
            return None
        stop_words, forms, lemmas, stems, stem_forms, versions = (
            list(strings_from_tensors(name, tensors, path))
            for name in ("stop_words", "lemma_forms", "lemmas", "stems", "stem_forms", "analysis")
        )
        if len(forms) != len(lemmas) or len(stems) != len(stem_forms):
            raise ModelFormatError(f"{path}: the word lists of the text analysis are damaged")
        analysis = cls(config, frozenset(stop_words), dict(zip(forms, lemmas, strict=True)))
        analysis.readable = dict(zip(stems, stem_forms, strict=True))
        analysis._check_versions(versions, path)
        return analysis

    def _check_versions(self, recorded: list[str], path: Path) -> None:
        """Refuse a stemmer or lemmatizer of another version that gives other words."""
        try:
            (text,) = recorded
            before = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            raise ModelFormatError(f"{path}: the versions of the text analysis are damaged") from None
        if before == self.versions:
            return
        pairs = list(self.readable.items())
        if not pairs:
            log.warning(
                "%s: trained with %s, installed: %s; the model has no words by which both can be compared", path,
                _shown(before), _shown(self.versions),
            )  # fmt: skip
        pairs = pairs[:: max(1, len(pairs) // CHECKED_WORDS)]
        found = self.analysed([form for _, form in pairs])
        for (word, form), now in zip(pairs, found, strict=True):
            if word != now:
                raise ModelFormatError(
                    f"{path}: '{form}' became '{word}' when the model was trained and becomes '{now}' here, so that "
                    f"predictions would differ; trained with {_shown(before)}, installed: {_shown(self.versions)}; "
                    "install the version of the training"
                )

    def __getstate__(self) -> tuple:
        return self.config, self.stop_words, self.lemmas, self.readable

    def __setstate__(self, state: tuple) -> None:
        config, stop_words, lemmas, readable = state
        self.__init__(config, stop_words, lemmas)  # type: ignore[misc]
        self.readable = readable


def registered_analyzer(name: str) -> tuple[Analyzer, str]:
    """The function that a package registers under this name, and the package with its version."""
    points = entry_points(group=GROUP)
    for point in points:
        if point.name == name:
            package = "unknown" if point.dist is None else f"{point.dist.name} {point.dist.version}"
            return point.load(), package
    names = sorted(point.name for point in points)
    known = did_you_mean(name, names) if names else "no installed package registers one"
    raise ConfigError(
        f"lemmatizer: no installed package registers '{name}' under the entry-point group {GROUP}; {known}"
    )


def _checked(found: list[str], count: int, name: str) -> list[str]:
    if not isinstance(found, list) or len(found) != count or not all(isinstance(word, str) for word in found):
        raise ConfigError(f"{name} must return a list with one str per word")
    return found


def _shown(versions: Mapping[str, str]) -> str:
    return ", ".join(map(str, versions.values())) or "none"


def _stop_words(config: TfidfConfig) -> frozenset[str]:
    given = config.stop_words
    if given is None:
        return frozenset()
    if isinstance(given, str):
        if given in STOP_WORDS:
            return STOP_WORDS[given]
        if not Path(given).is_file():
            raise ConfigError(
                f"stop_words: '{given}' is neither a file nor a language; {did_you_mean(given, STOP_WORDS)}"
            )
        given = [line.strip() for _, line in text_lines(given)]
    words = {word.lower() if config.lowercase else word for word in given if word}
    split = sorted(word for word in words if not _WORD.fullmatch(word))
    if split:
        log.warning(
            "stop_words: %s never occur as words (a word is two or more letters, digits or underscores): %s",
            f"{len(split):,}", ", ".join(split[:5]),
        )  # fmt: skip
    return frozenset(words.difference(split))


def _read_lemmas(path: Path, lowercase: bool) -> dict[str, str]:
    """Lemmas by form. A form that occurs again with another lemma is an error."""
    lemmas: dict[str, str] = {}
    for number, line in text_lines(path):
        if not line.strip():
            continue
        form, tab, lemma = ((line.lower() if lowercase else line).rstrip()).partition("\t")
        if not tab or not form or not lemma.strip():
            raise DataError(f"{line[:80]!r} is not form<TAB>lemma", path, number)
        if lemmas.setdefault(form, lemma) != lemma:
            raise DataError(f"'{form}' has the lemma '{lemmas[form]}' on an earlier line", path, number)
    if not lemmas:
        raise DataError("the file is empty; lines of form<TAB>lemma are needed", path)
    return lemmas


# --- rewriting ---
# Rewrite texts with analysed words, block by block: stems instead of words, without stop words.
#
# A `Rewriter` belongs to one thread at a time and remembers the words it has seen, so that Python sees each distinct
# word once. Rewriters share a cache of analysed words, and are kept between calls: a server does not stem a word twice.

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
    """Replaces words of texts. `occurrences` counts each word of `table`, unless it is None."""

    def __init__(self, pool: RewriterPool) -> None:
        self.pool = pool
        self.table = TermTable()
        self.occurrences: np.ndarray | None = None
        self._replacements = np.empty(0, np.uint8)
        self._starts, self._ends = np.empty(0, np.int64), np.empty(0, np.int64)

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
        """For each word seen what it is counted as, and how often it occurred."""
        words = list(self.table.spell(np.arange(len(self.table))))
        assert self.occurrences is not None
        return {
            word: (analysed, times)
            for word, analysed, times in zip(words, self.pool.analysed(words), self.occurrences.tolist(), strict=False)
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
