"""The mean over several models against the definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.linear.trees import averaged
from labelwise.topk import NO_LABEL, TopK


def random_top(rng, n, n_ranks, n_labels):
    ids, scores = np.full((n, n_ranks), NO_LABEL, np.int32), np.full((n, n_ranks), -np.inf, np.float32)
    for row in range(n):
        count = int(rng.integers(0, n_ranks + 1))
        chosen = np.sort(rng.choice(n_labels, count, replace=False))
        values = np.round(rng.random(count), 1).astype(np.float32)
        order = np.lexsort((chosen, -values))
        ids[row, :count], scores[row, :count] = chosen[order], values[order]
    return TopK(ids, scores)


def by_definition(tops, row, k, product):
    total: dict[int, float] = {}
    floors = []
    for top in tops:
        found = {int(i): float(s) for i, s in zip(top.ids[row], top.scores[row], strict=True) if i != NO_LABEL}
        floors.append((found, 0.0 if product or not found else min(found.values())))
    for label in {label for found, _ in floors for label in found}:
        total[label] = float(np.float32(sum(found.get(label, floor) for found, floor in floors) / len(tops)))
    return sorted(total.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 8), st.booleans())
@settings(max_examples=60)
def test_equals_the_definition(seed, models, k, product):
    rng = np.random.default_rng(seed)
    tops = [random_top(rng, 20, 6, 12) for _ in range(models)]
    top = averaged(tops, k, product)
    for row in range(20):
        expected = by_definition(tops, row, k, product)
        found = [(int(i), float(s)) for i, s in zip(top.ids[row], top.scores[row], strict=True) if i != NO_LABEL]
        np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], atol=1e-6)
        distinct = [s for _, s in expected]
        if len(set(np.round(distinct, 5))) == len(distinct):
            assert [i for i, _ in found] == [i for i, _ in expected]
        assert (top.ids[row, len(found) :] == NO_LABEL).all()
