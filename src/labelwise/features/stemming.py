"""Snowball stemmers: words to stems by language.

The package `snowballstemmer` is plain Python and uses `PyStemmer` (the same algorithms in C, 60 times as fast) where
that is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from labelwise.errors import ConfigError

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
