"""Labels that move: against the rule written out for one label after the other."""

import numpy as np
import pytest
from scipy import sparse

from labelwise.training import repartition
from labelwise.training.repartition import RepartitionConfig


def by_hand(labels, table, scores, n_buckets, choices, offers):
    """Most frequent labels first: the least loaded of the buckets that a label's documents like more than others do."""
    counts = labels.sum(0).astype(int)
    loads, found = np.zeros(n_buckets, int), table.copy()
    for label in sorted(range(len(table)), key=lambda label: (-counts[label], label)):
        liked = [table[label]]
        if counts[label]:
            lift = scores[:, labels[:, label] > 0].mean(1) - scores.mean(1)
            offered = range(n_buckets) if offers is None else sorted(offers.rows_of(np.array([label]))[0])
            liked = sorted(offered, key=lambda bucket: -lift[bucket])[:choices]
        found[label] = min(liked, key=lambda bucket: loads[bucket])
        loads[found[label]] += 1
    return found


@pytest.mark.parametrize("offers", [3, 5, 9])
@pytest.mark.parametrize("choices", [1, 4, 50])
@pytest.mark.parametrize("at_once", [1, 100, 1 << 25])
def test_labels_move_as_the_rule_says(monkeypatch, offers, choices, at_once):
    random = np.random.default_rng(choices)
    labels = (random.random((60, 40)) < 0.08).astype(np.float32)
    labels[:, 5] = 0
    table = random.integers(0, 9, 40).astype(np.uint16)
    scores = random.normal(size=(9, 60)).astype(np.float32)
    scores[2] += 100  # a bucket that all documents like is nobody's favourite
    monkeypatch.setattr(repartition, "SUMS_AT_ONCE", at_once)
    monkeypatch.setattr(repartition, "DOCUMENTS_AT_ONCE", 7)
    offered = RepartitionConfig(offers=offers).offered(40, 9, seed=3, number=1)
    found = repartition.moved(sparse.csr_array(labels), table, lambda rows: scores[:, rows], 9, choices, offered)
    assert found.dtype == np.uint16
    assert found[5] == table[5]
    np.testing.assert_array_equal(found, by_hand(labels, table, scores, 9, choices, offered))


def test_labels_are_offered_other_buckets_in_every_table():
    offered = [RepartitionConfig(offers=4).offered(5000, 500, 0, number).rows(0, 5000) for number in range(3)]
    for table in offered:
        assert table.shape == (5000, 4)
        assert np.bincount(table.ravel(), minlength=500).min() > 0
    alike = [(offered[a][:, :, None] == offered[b][:, None, :]).any((1, 2)).mean() for a, b in ((0, 1), (0, 2), (1, 2))]
    assert max(alike) < 0.06, "16 pairs of 500 buckets meet in about 3 % of the labels"
    assert RepartitionConfig(offers=500).offered(5000, 500, 0, 0) is None
