"""From buckets back to labels: the exact search against all scores computed, and the estimator against its formula."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_kernels as reference
from labelwise.labelspace.bucket_search import BucketSearch
from labelwise.labelspace.buckets import BucketTables
from labelwise.runtime.threads import using_threads


def brute_force(scores, rows, aggregation, k, labels=None):
    values = reference.bucket_scores(scores, rows, aggregation)
    chosen = np.arange(len(rows)) if labels is None else labels
    values = values[:, chosen]
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    return chosen[order], np.take_along_axis(values, order, 1)


def check(scores, tables, aggregation, k, labels=None):
    top = BucketSearch(tables).best(scores, k, labels, aggregation)
    ids, values = brute_force(scores, tables.side_by_side(), aggregation, k, labels)
    np.testing.assert_allclose(top.scores, values, rtol=1e-6, atol=1e-7)
    differ = top.ids != ids
    if differ.any():  # sums in another order may round to other neighbours: never by more than the last bit
        np.testing.assert_allclose(top.scores[differ], values[differ], rtol=3e-7)
    assert (np.diff(top.scores, axis=1) <= 0).all()


@given(
    seed=st.integers(0, 10_000),
    n_labels=st.integers(1, 3000),
    n_buckets=st.integers(1, 90),
    n_tables=st.integers(1, 19),
    n_documents=st.integers(1, 70),
    aggregation=st.sampled_from(["mean", "least", "median"]),
    kind=st.sampled_from(["murmur", "universal", "balanced"]),
    coarse=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_best_of_all_labels(seed, n_labels, n_buckets, n_tables, n_documents, aggregation, kind, coarse):
    random = np.random.default_rng(seed)
    tables = BucketTables(n_labels, n_buckets, tuple(range(n_tables)), kind, seed)
    scores = random.normal(size=(n_tables, n_buckets, n_documents)).astype(np.float32)
    if coarse:  # many equal scores, all exact: ids must be right too
        scores = np.round(scores)
    check(scores, tables, aggregation, min(5, n_labels))


@pytest.mark.parametrize("aggregation", ["mean", "least", "median"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n_documents", [2, 40])
def test_many_labels_on_any_threads(aggregation, threads, n_documents):
    """Enough labels for several phases and blocks; peaked scores, as networks give them."""
    random = np.random.default_rng(n_documents)
    tables = BucketTables(60_000, 500, tuple(range(7)))
    rows = tables.side_by_side()
    scores = (random.normal(size=(7, 500, n_documents)) - 6).astype(np.float32)
    for document in range(n_documents):
        for label in random.integers(0, 60_000, 4):
            scores[np.arange(7), rows[label], document] = random.normal(size=7) + 1
    with using_threads(threads):
        top = BucketSearch(tables).best(scores, 7, aggregation=aggregation)
    ids, values = brute_force(scores, rows, aggregation, 7)
    np.testing.assert_allclose(top.scores, values, rtol=1e-6)
    assert (top.ids == ids).mean() > 0.99


def test_equal_scores_go_to_the_lower_label():
    tables = BucketTables(5000, 3, (0, 1))
    top = BucketSearch(tables).best(np.zeros((2, 3, 40), np.float32), 6)
    np.testing.assert_array_equal(top.ids, np.tile(np.arange(6), (40, 1)))


@pytest.mark.parametrize("n_documents", [1, 20])
@pytest.mark.parametrize("offset", [1e4, -1e6])
def test_scores_that_are_equal_only_once_rounded(n_documents, offset):
    """High scores that hardly differ: many means become the same float32, and the lower label is still the one."""
    random = np.random.default_rng(8)
    tables = BucketTables(40_000, 2000, tuple(range(19)))
    spread = np.abs(random.normal(size=(19, 2000, n_documents)))
    scores = (offset - abs(offset) * 1e-7 * spread).astype(np.float32)
    sums = np.zeros((n_documents, 40_000))
    for table, buckets in zip(scores, tables.side_by_side().T, strict=True):
        sums += table[buckets].T
    values = (sums / 19).astype(np.float32)
    expected = np.argsort(-values, axis=1, kind="stable")[:, :5]
    top = BucketSearch(tables).best(scores, 5)
    np.testing.assert_array_equal(top.ids, expected)
    np.testing.assert_array_equal(top.scores, np.take_along_axis(values, expected, 1))


@pytest.mark.parametrize("n_documents", [1, 5])
def test_more_tables_than_a_byte_counts(n_documents):
    """The median, whose limit is half of the tables, and candidates, which count tables, with 600 of them."""
    random = np.random.default_rng(9)
    tables = BucketTables(400, 5, tuple(range(600)))
    scores = random.normal(size=(600, 5, n_documents)).astype(np.float32)
    check(scores, tables, "median", 4)
    search = BucketSearch(tables)
    for hits in (200, 255, 600):
        quick = search.best_candidates(scores, 4, buckets=5, hits=hits)
        np.testing.assert_array_equal(quick.ids, search.best(scores, 4).ids)


def test_no_labels_to_choose_from():
    tables = BucketTables(10, 3, (0, 1))
    for n_documents in (1, 5):
        top = BucketSearch(tables).best(np.zeros((2, 3, n_documents), np.float32), 3, np.empty(0, np.int64))
        assert (top.ids == -1).all()
        assert top.ids.shape == (n_documents, 3)


def test_few_of_many_labels_need_little_memory():
    """Labels far apart, computed on demand: those between them are not."""
    tables = BucketTables(50_000_000, 40, tuple(range(8)), "universal", seed=2)
    labels = np.arange(17, 50_000_000, 500_000)
    scores = np.random.default_rng(10).normal(size=(8, 40, 6)).astype(np.float32)
    search = BucketSearch(tables)
    tracemalloc.start()
    top = search.best(scores, 5, labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    rows = np.concatenate([tables.rows(label, label + 1) for label in labels])
    ids, _ = brute_force(scores, rows, "mean", 5)
    np.testing.assert_array_equal(top.ids, labels[ids])


@pytest.mark.parametrize("kind", ["murmur", "universal"])
def test_some_labels_only(kind):
    random = np.random.default_rng(0)
    tables = BucketTables(9000, 50, tuple(range(5)), kind)
    labels = np.sort(random.choice(9000, 700, replace=False))
    check(random.normal(size=(5, 50, 37)).astype(np.float32), tables, "mean", 8, labels)


def test_weights_of_labels():
    random = np.random.default_rng(1)
    tables = BucketTables(6000, 40, (0, 1, 2))
    scores = random.random((3, 40, 9)).astype(np.float32)
    weights = random.random(6000).astype(np.float32)
    labels = np.arange(0, 6000, 2)
    top = BucketSearch(tables).best_weighted(scores, 5, labels, weights, lambda values: values * 2)
    values = reference.bucket_scores(scores, tables.side_by_side(), "mean")[:, labels] * 2 * weights[labels]
    expected = np.argsort(-values, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(top.ids, labels[expected])
    np.testing.assert_allclose(top.scores, np.take_along_axis(values, expected, 1), rtol=1e-6)


@pytest.mark.parametrize("n_documents", [2, 40])
def test_documents_without_finite_scores_get_nothing(n_documents):
    random = np.random.default_rng(2)
    tables = BucketTables(2000, 30, (0, 1, 2))
    scores = random.normal(size=(3, 30, n_documents)).astype(np.float32)
    scores[1, 7, 1] = np.nan
    top = BucketSearch(tables).best(scores, 4)
    assert (top.ids[1] == -1).all()
    assert np.isneginf(top.scores[1]).all()
    others = np.delete(np.arange(n_documents), 1)
    expected = BucketSearch(tables).best(np.ascontiguousarray(scores[:, :, others]), 4)
    np.testing.assert_array_equal(top.ids[others], expected.ids)


def test_candidates_are_scored_exactly_and_complete_where_scores_are_peaked():
    random = np.random.default_rng(3)
    tables = BucketTables(20_000, 200, tuple(range(8)))
    rows = tables.side_by_side()
    scores = (random.normal(size=(8, 200, 25)) - 8).astype(np.float32)
    for document in range(25):
        for label in random.integers(0, 20_000, 5):
            scores[np.arange(8), rows[label], document] = random.normal(size=8) + 2
    search = BucketSearch(tables)
    exact, quick = search.best(scores, 5), search.best_candidates(scores, 5, buckets=10, hits=3)
    np.testing.assert_array_equal(exact.ids, quick.ids)
    np.testing.assert_array_equal(exact.scores, quick.scores)


def test_candidates_when_few_labels_have_enough_hits():
    """Buckets with one label each: no label is found twice, and k is larger than the number of labels found."""
    tables = BucketTables(
        12, 12, (0, 1), given={0: np.arange(12, dtype=np.uint16), 1: np.arange(12, dtype=np.uint16)[::-1]}
    )
    scores = np.random.default_rng(4).normal(size=(2, 12, 3)).astype(np.float32)
    top = BucketSearch(tables).best_candidates(scores, 6, buckets=2, hits=2)
    assert ((top.ids >= 0).sum(1) <= 4).all()
    values = reference.bucket_scores(scores, tables.side_by_side(), "mean")
    for document, (ids, found) in enumerate(zip(top.ids, top.scores, strict=True)):
        filled = ids >= 0
        np.testing.assert_allclose(found[filled], values[document][ids[filled]], rtol=1e-6)


def test_the_estimator_is_unbiased():
    """With true probabilities in the buckets, B/(B-1) (mean - 1/B) is right on average over tables."""
    probabilities = np.random.default_rng(5).dirichlet(np.full(60, 0.3))
    n_buckets, n_tables = 8, 4000
    tables = BucketTables(60, n_buckets, tuple(range(n_tables)), "universal", seed=1).side_by_side()
    scores = np.zeros((n_tables, n_buckets))
    for table in range(n_tables):
        np.add.at(scores[table], tables[:, table], probabilities)
    at_labels = scores[np.arange(n_tables)[None], tables]  # [labels, tables]
    estimates = n_buckets / (n_buckets - 1) * (at_labels.mean(1) - 1 / n_buckets)
    spread = at_labels.std(1) * n_buckets / (n_buckets - 1) / np.sqrt(n_tables)
    assert (np.abs(estimates - probabilities) < 5 * spread + 1e-9).all()
