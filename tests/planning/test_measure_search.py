"""How long a search takes, from timings that are known: constants are found again, whatever the machine."""

import numpy as np
import pytest

from labelwise.linear.weights import PackedWeights
from labelwise.methods.linear_tree import LinearTree
from labelwise.planning import measure as measure_search
from labelwise.planning.measure import planted_features

CALL, LOOKUP, SEARCH = 2e-4, 5e-8, 8e-9


@pytest.fixture(scope="module")
def trained():
    data = planted_features(600, 800)
    return LinearTree(trees=1, leaf_size=50, branching=4, precision="int8").fit(data), data


def test_constants_are_found_again(trained, monkeypatch):
    model, data = trained
    sizes = model.linear_.trees[0][0].sizes
    assert sizes == (4, 16, 800), "50 children, so 4 groups of 16, in each of 10 chunks"
    chunks, groups = 1 + 4 + 10, 1 + 4 * 1 + 10 * 4
    nonzeros = float(np.median([data.features[row : row + 1].nnz for row in range(measure_search.SINGLES)]))

    def known(cases):
        assert len(cases) == 6
        assert [len(searches) for searches, _ in cases[3:]] == [1, 4, 16]
        flat, few = (CALL + nonzeros * (LOOKUP + SEARCH * labels / 16) for labels in (1000, 16))
        tree = CALL + nonzeros * (chunks * LOOKUP + groups * SEARCH)
        copies = [1e-4, 0.9e-4, 1e-4 + nonzeros * chunks * 3e-8]  # the second one: noise
        return [tree, flat, few, *copies]

    monkeypatch.setattr(measure_search, "measure_times", known)
    found = measure_search.measure_search(model, data)
    assert found["call"] == pytest.approx(CALL)
    assert found["search"] == pytest.approx(SEARCH)
    sizes, seconds = np.array(found["lookups"]).T
    assert seconds == pytest.approx([LOOKUP, LOOKUP, LOOKUP + 3e-8])
    assert sizes / sizes[0] == pytest.approx([1, 4, 16])


def test_copies_predict_the_same_from_other_memory(trained):
    model, data = trained
    rows = [data.features[row : row + 1] for row in range(20)]
    searches, ordered = measure_search._in_copies(model, rows)[-1]
    expected = model.predict(data.features[:20], k=10)
    for number, row in enumerate(ordered):
        top = searches[number % len(searches)](row)
        np.testing.assert_array_equal(top.ids[0], expected.ids[number])
    level = model.linear_.trees[0][1][-1]
    assert isinstance(level, PackedWeights)
    assert not np.shares_memory(measure_search._copied(level).lows, level.lows)


def test_each_document_gets_the_next_search(monkeypatch):
    monkeypatch.setattr(measure_search, "ROUNDS", 2)
    calls = []
    searches = [lambda row, name=name: calls.append((name, row)) for name in "ab"]
    found = measure_search.measure_times([(searches, [1, 2, 3]), (searches[:1], [4])])
    assert calls == 3 * [("a", 1), ("b", 2), ("a", 3), ("a", 4)]
    assert len(found) == 2
    assert all(seconds >= 0 for seconds in found)
