"""Settings of TF-IDF."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from labelwise.config import Config
from labelwise.errors import ConfigError, did_you_mean
from labelwise.io.contents import content_of_path

# --- stemming ---
# Snowball stemmers: words to stems by language.
#
# The package `snowballstemmer` is plain Python and uses `PyStemmer` (the same algorithms in C, 60 times as fast) where
# that is installed.

LANGUAGES = (
    "arabic", "armenian", "basque", "catalan", "czech", "danish", "dutch", "dutch_porter", "english", "esperanto",
    "estonian", "finnish", "french", "german", "greek", "hindi", "hungarian", "indonesian", "irish", "italian",
    "lithuanian", "nepali", "norwegian", "persian", "polish", "porter", "portuguese", "romanian", "russian", "serbian",
    "sesotho", "spanish", "swedish", "tamil", "turkish", "yiddish",
)  # fmt: skip
"""The languages of Snowball 3.1; `porter` is Porter's older stemmer for English."""


def snowball(language: str) -> Callable[[list[str]], list[str]]:
    """The stems of words in a language. Not thread-safe."""
    import snowballstemmer

    try:
        return snowballstemmer.stemmer(language).stemWords
    except KeyError:
        raise ConfigError(
            f"stemmer: {stemmer_version()} has no '{language}'; install a newer version of that package"
        ) from None


def stemmer_version() -> str:
    """The package that computes stems, with its version."""
    for package in ("PyStemmer", "snowballstemmer"):
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return "snowballstemmer"


def _count_or_fraction(value: Any) -> Any:
    """An integer is a count of 1 or more, a float a fraction from 0 to 1: 1 and 1.0 differ."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a count (1, 2, ...) or a fraction (0.0 to 1.0)")
    if isinstance(value, int) and value < 1:
        raise ValueError("as an integer must be 1 or more documents (a fraction has a decimal point: 0.5)")
    if isinstance(value, float) and not 0 <= value <= 1:
        raise ValueError("as a fraction must lie between 0.0 and 1.0 (a count of documents has no decimal point)")
    return value


def _language(value: Any) -> Any:
    if value is not None and value not in LANGUAGES:
        raise ValueError(f"there is no Snowball stemmer '{value}'; {did_you_mean(str(value), LANGUAGES)}")
    return value


class TfidfConfig(Config):
    """Which terms count, and how much."""

    analyzer: Literal["word", "char", "char_wb"] = "word"
    """Terms: n-grams of words, of characters, or of characters inside words (with a blank at both ends)."""
    ngrams: tuple[Annotated[int, Field(ge=1, le=8)], Annotated[int, Field(ge=1, le=8)]] = (1, 1)
    """Minimum and maximum number of words (or characters) in a term; [1, 2] uses unigrams and bigrams."""
    stop_words: Annotated[str, Field(min_length=1)] | list[str] | None = None
    """Words to ignore: a language such as `english`, a list, or a file with one per line."""
    lemmas: Annotated[str, Field(min_length=1)] | None = None
    """A file of form<TAB>lemma lines: forms are replaced by their lemmas. Stored in the model."""
    lemmatizer: Annotated[str, Field(min_length=1)] | None = None
    """A lemmatizer that an installed package registers under this name (entry-point group `labelwise.analyzers`)."""
    stemmer: Annotated[str | None, BeforeValidator(_language)] = None
    """The language of a Snowball stemmer: words are replaced by their stems, after lemmas."""
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
    """Hash terms into 2^bits columns instead of a vocabulary: no terms are learned or stored."""

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
        if self.analyzer != "word" and self.changes_words:
            unfit = ", ".join(self.changes_words)
            raise ValueError(f"analyzer: {self.analyzer} reads characters, so it cannot be used with {unfit}")
        return self

    def check_files(self) -> None:
        """Raise an error if a file of stop words or lemmas, or a stemmer, is missing."""
        if self.changes_words:
            from labelwise.features.words import WordAnalysis

            WordAnalysis.of(self)

    def contents(self) -> list[Any]:
        from labelwise.features.words import STOP_WORDS

        named = [name for name in (self.stop_words, self.lemmas) if isinstance(name, str) and name not in STOP_WORDS]
        return [content_of_path(name) for name in named]

    @property
    def changes_words(self) -> list[str]:
        """The options given that replace or drop words."""
        options = ("stop_words", "lemmas", "lemmatizer", "stemmer")
        return [name for name in options if getattr(self, name) is not None]

    @property
    def what_terms_are(self) -> str:
        """For the message that there are none."""
        if self.analyzer != "word":
            return f"none has {self.ngrams[0]} characters"
        dropped = f", and is not dropped by {' or '.join(self.changes_words)}" if self.changes_words else ""
        return "a word has two or more letters, digits or underscores" + dropped


LINEAR_TFIDF = TfidfConfig(sublinear=True)
"""Default TF-IDF of linear methods and mach."""
