"""Confused siblings against a count over all pairs in plain Python."""

from collections import Counter

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from labelwise.metrics import per_label as confusion
from labelwise.metrics.per_label import ConfusionCounter
from labelwise.testing.subject import planted_texts
from labelwise.topk import NO_LABEL, TopK


def by_hand(ids, scores, truth, groups, k, threshold):
    found = Counter()
    for row in range(len(ids)):
        given = [int(i) for i in ids[row][:k] if i != NO_LABEL]
        if k is None:
            given = [i for i, s in zip(given, scores[row], strict=False) if s >= threshold]
        true = set(truth[[row]].indices.tolist())
        for missed in true - set(given):
            if missed < len(groups):
                found.update((missed, one) for one in given if one not in true and groups[one] == groups[missed])
    return found


@pytest.mark.parametrize(("k", "threshold"), [(3, None), (None, 0.5), (1, None)])
@pytest.mark.parametrize("rows_at_once", [7, 1000])
def test_counts_are_those_of_all_pairs(monkeypatch, k, threshold, rows_at_once):
    monkeypatch.setattr(confusion, "_ROWS", rows_at_once)
    rng = np.random.default_rng(0)
    n_known, n_labels = 12, 15  # the last three are not known to the model
    groups = rng.integers(0, 4, n_known)
    ids = np.array([rng.permutation(n_known)[:5] for _ in range(60)], np.int32)
    ids[rng.random(ids.shape) < 0.1] = NO_LABEL
    ids = np.take_along_axis(ids, np.argsort(ids == NO_LABEL, axis=1, kind="stable"), axis=1)
    scores = -np.sort(-rng.random(ids.shape).astype(np.float32), axis=1)
    truth = sparse.csr_array((rng.random((60, n_labels)) < 0.3).astype(np.float32))
    counter = ConfusionCounter(groups, k, threshold)
    top = TopK(ids, scores)
    counter.add(top, truth)
    expected = by_hand(ids, scores, truth, groups, k, threshold)
    found = {(one.true, one.predicted): one.documents for one in counter.most_frequent(10_000)}
    assert expected
    assert found == expected
    counts = [one.documents for one in counter.most_frequent(5)]
    assert counts == sorted(expected.values(), reverse=True)[:5]


def test_siblings_are_the_labels_of_a_leaf_and_flat_models_have_none():
    data = planted_texts(120, 24)
    groups = lw.LinearTree(trees=1, leaf_size=4).fit(data).sibling_groups()
    assert len(groups) == 24
    assert np.bincount(groups).max() <= 4
    assert lw.LinearFlat().fit(data).sibling_groups() is None
    assert lw.Popularity().fit(data).sibling_groups() is None
