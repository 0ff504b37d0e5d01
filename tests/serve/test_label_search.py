"""The search among labels, against a search of every label."""

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from labelwise.serve import label_search
from labelwise.serve.label_search import LabelSearch
from labelwise.strings import Strings

NAMES = ["a", "Ab", "b", "bab", "a b", "ba", "abab", "c", "aa"]
TEXTS = ["ba", "x", "a", "ab c", "\n", "b\na", "", "a", "bb"]


def slow_search(names, texts, counts, wanted):
    found = []
    for index, name in enumerate(names):
        forms = [name.lower()] if texts is None else [name.lower(), texts[index].lower()]
        if any(wanted in form.replace("\n", " ") for form in forms):
            rank = 0 if wanted in forms else 1 if any(form.startswith(wanted) for form in forms) else 2
            found.append((rank, -counts[index], index))
    return [names[index] for _, _, index in sorted(found)]


@pytest.mark.parametrize("texts", [None, TEXTS])
@pytest.mark.parametrize("query", ["a", "b", "AB", "ba", "b a", "x", "nothing"])
def test_it_finds_what_contains_the_query(texts, query):
    counts = np.arange(len(NAMES)) % 4
    search = LabelSearch(Strings.of(NAMES), None if texts is None else Strings.of(texts), counts)
    found, more = search.find(query, 100)
    assert [one.label for one in found] == slow_search(NAMES, texts, counts, query.lower())
    assert not more


def test_equal_labels_are_found_behind_many_others(monkeypatch):
    monkeypatch.setattr(label_search, "MOST", 5)
    names, texts = ["x-tax", *(f"taxi {i}" for i in range(20)), "tax", "other"], [*["text"] * 22, "Tax"]
    counts = np.ones(len(names), np.int64)
    for labels in (None, Strings.of(texts)):
        found, more = LabelSearch(Strings.of(names), labels, counts).find("tax", 3)
        expected = ["tax", "taxi 0", "taxi 1"] if labels is None else ["tax", "other", "taxi 0"]
        assert ([one.label for one in found], more) == (expected, True)
