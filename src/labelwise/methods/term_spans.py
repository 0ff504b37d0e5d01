"""Where in a text the words of its explanation are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelwise.methods.base import Method

WORD = re.compile(r"\w+")
MOST = 200
"""Positions per term."""
Span = tuple[int, int]


def term_spans(model: Method, text: str, terms: Sequence[Sequence[str]]) -> list[list[list[Span]]]:
    """For several lists of terms: the (start, end) of each occurrence of each term in the text.

    Words are compared by what the model counts them as, so that `libraries` is found by its stem; words that it drops
    may lie between those of a term.
    """
    tokens = [(match[0], match.start(), match.end()) for match in WORD.finditer(text)]
    counted = model._counted_words([word for word, _, _ in tokens])
    kept = [(word, begin, end) for word, (_, begin, end) in zip(counted, tokens, strict=True) if word]
    first: dict[str, list[int]] = {}
    for index, (word, _, _) in enumerate(kept):
        first.setdefault(word, []).append(index)
    found: dict[str, list[Span]] = {}
    for term in {term for some in terms for term in some}:
        found[term] = _occurrences(model, term, kept, first) or _substrings(text, term)
    return [[found[term] for term in some] for some in terms]


def _occurrences(
    model: Method, term: str, kept: Sequence[tuple[str, int, int]], first: dict[str, list[int]]
) -> list[Span]:
    words = [word for word in model._counted_words(term.split()) if word]
    if not words:
        return []
    spans = []
    for index in first.get(words[0], ()):
        some = kept[index : index + len(words)]
        if [word for word, _, _ in some] == words:
            spans.append((some[0][1], some[-1][2]))
    return spans[:MOST]


def _substrings(text: str, term: str) -> list[Span]:
    """Occurrences of a term of characters."""
    wanted, lowered = term.strip().lower(), text.lower()
    if not wanted or len(lowered) != len(text):  # letters whose lower case is longer would shift the positions
        return []
    spans, begin = [], lowered.find(wanted)
    while begin >= 0 and len(spans) < MOST:
        spans.append((begin, begin + len(wanted)))
        begin = lowered.find(wanted, begin + len(wanted))
    return spans
