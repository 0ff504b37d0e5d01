"""Labels that move: against the rule written out for one label after the other."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from labelwise.labelspace import buckets as repartition
from labelwise.labelspace.buckets import RepartitionConfig


def by_hand(labels, table, scores, n_buckets, choices, offers):
    """Most frequent labels first: the least loaded of the buckets that score higher for a label's documents than on average."""
    counts = labels.sum(0).astype(int)
    loads, found = np.zeros(n_buckets, int), table.copy()
    for label in sorted(range(len(table)), key=lambda label: (-counts[label], label)):
        preferred = [table[label]]
        if counts[label]:
            centred = scores[:, labels[:, label] > 0].mean(1) - scores.mean(1)
            offered = range(n_buckets) if offers is None else sorted(offers.rows_of(np.array([label]))[0])
            preferred = sorted(offered, key=lambda bucket: -centred[bucket])[:choices]
        found[label] = min(preferred, key=lambda bucket: loads[bucket])
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
    scores[2] += 100  # a bucket with high scores for all documents must not attract labels
    monkeypatch.setattr(repartition, "SUMS_AT_ONCE", at_once)
    monkeypatch.setattr(repartition, "DOCUMENTS_AT_ONCE", 7)
    monkeypatch.setattr(repartition, "LABELS_AT_ONCE", 13)
    offered = RepartitionConfig(offers=offers).offered(40, 9, seed=3, number=1)
    found = repartition.repartitioned(
        sparse.csr_array(labels), table, lambda rows: scores[:, rows], 9, choices, offered
    )
    assert found.dtype == np.uint16
    assert found[5] == table[5]
    np.testing.assert_array_equal(found, by_hand(labels, table, scores, 9, choices, offered))


def test_labels_are_offered_different_buckets_in_every_table():
    offered = [RepartitionConfig(offers=4).offered(5000, 500, 0, number).rows(0, 5000) for number in range(3)]
    for table in offered:
        assert table.shape == (5000, 4)
        assert np.bincount(table.ravel(), minlength=500).min() > 0
    common = [
        (offered[a][:, :, None] == offered[b][:, None, :]).any((1, 2)).mean() for a, b in ((0, 1), (0, 2), (1, 2))
    ]
    assert max(common) < 0.06, "16 pairs of 500 buckets agree in about 3 % of the labels"
    assert RepartitionConfig(offers=500).offered(5000, 500, 0, 0) is None


def peak_of(labels, scores, n_buckets):
    """Memory that it takes to move labels, the second time."""
    for _ in range(2):
        tracemalloc.start()
        offers = RepartitionConfig().offered(labels.shape[1], n_buckets, 0, 0)
        repartition.repartitioned(labels, np.zeros(labels.shape[1], np.uint16), scores, n_buckets, 2, offers)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def drawn_labels(n_documents, n_labels, count):
    columns = np.random.default_rng(0).integers(0, n_labels, (n_documents, count))
    ends = np.arange(n_documents + 1) * count
    return sparse.csr_array((np.ones(columns.size, np.float32), columns.ravel(), ends), shape=(n_documents, n_labels))


def test_memory_holds_the_sums_of_some_labels_and_little_else(monkeypatch):
    monkeypatch.setattr(repartition, "SUMS_AT_ONCE", 1 << 21)
    monkeypatch.setattr(repartition, "DOCUMENTS_AT_ONCE", 100)
    peak = peak_of(drawn_labels(4200, 5000, 2), lambda rows: np.zeros((1000, len(rows)), np.float32), 1000)
    assert peak < 1.5 * 4 * (1 << 21), peak


def test_memory_does_not_grow_with_the_labels_of_documents(monkeypatch):
    monkeypatch.setattr(repartition, "LABELS_AT_ONCE", 1 << 12)
    monkeypatch.setattr(repartition, "DOCUMENTS_AT_ONCE", 100)
    labels = drawn_labels(10_000, 300, 50)
    assert peak_of(labels, lambda rows: np.zeros((8, len(rows)), np.float32), 8) < labels.nnz * 2
