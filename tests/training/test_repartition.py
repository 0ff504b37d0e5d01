"""Labels that move: against the rule written out for one label after the other."""

import numpy as np
import pytest
from scipy import sparse

from labelwise.training import repartition


def by_hand(labels, table, scores, n_buckets, choices):
    """Most frequent labels first: the least loaded of the buckets that a label's documents like best."""
    counts = labels.sum(0).astype(int)
    loads, found = np.zeros(n_buckets, int), table.copy()
    for label in sorted(range(len(table)), key=lambda label: (-counts[label], label)):
        liked = [table[label]]
        if counts[label]:
            sums = scores[:, labels[:, label] > 0].mean(1)
            liked = sorted(range(n_buckets), key=lambda bucket: -sums[bucket])[:choices]
        found[label] = min(liked, key=lambda bucket: loads[bucket])
        loads[found[label]] += 1
    return found


@pytest.mark.parametrize("choices", [1, 4, 50])
@pytest.mark.parametrize("at_once", [1, 100, 1 << 25])
def test_labels_move_as_the_rule_says(monkeypatch, choices, at_once):
    random = np.random.default_rng(choices)
    labels = (random.random((60, 40)) < 0.08).astype(np.float32)
    labels[:, 5] = 0
    table = random.integers(0, 9, 40).astype(np.uint16)
    scores = random.normal(size=(9, 60)).astype(np.float32)
    monkeypatch.setattr(repartition, "SUMS_AT_ONCE", at_once)
    monkeypatch.setattr(repartition, "DOCUMENTS_AT_ONCE", 7)
    found = repartition.moved(sparse.csr_array(labels), table, lambda rows: scores[:, rows], 9, choices)
    assert found.dtype == np.uint16
    assert found[5] == table[5]
    np.testing.assert_array_equal(found, by_hand(labels, table, scores, 9, choices))
