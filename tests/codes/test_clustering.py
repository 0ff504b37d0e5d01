"""Clustering of labels: sizes, planted groups, odd inputs, and the same bits from any number of threads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from labelwise.data.csr import Blocks
from labelwise.errors import ConfigError, DataError
from labelwise.labelspace import clustering
from labelwise.labelspace.clustering import cluster, halve
from labelwise.runtime import threads as parallel


def planted(groups, size, seed=0, width=12, noise=40):
    """Labels whose features are mostly words of their group; shuffled. Returns the features and the group of each label."""
    random = np.random.default_rng(seed)
    of_label = random.permutation(np.repeat(np.arange(groups), size))
    rows = np.zeros((groups * size, groups * width + noise), np.float32)
    for label, group in enumerate(of_label):
        rows[label, group * width + random.choice(width, 8, replace=False)] = random.uniform(0.5, 1, 8)
        rows[label, groups * width + random.choice(noise, 3, replace=False)] = random.uniform(0, 0.5, 3)
    return rows, of_label


def random_rows(count, width=300, seed=0):
    random = np.random.default_rng(seed)
    return sparse.random_array((count, width), density=0.05, rng=random, format="csr", dtype=np.float32)


def groups_of(order, edges):
    return [set(order[begin:end].tolist()) for begin, end in pairwise(edges)]


@st.composite
def odd_features(draw):
    """Few different rows, equal and empty ones among them, possibly without any column."""
    width = draw(st.integers(0, 5))
    different = draw(arrays(np.float32, (draw(st.integers(1, 6)), width), elements=st.sampled_from([0, 0, 1, 2, -1])))
    picks = draw(st.lists(st.integers(0, len(different) - 1), min_size=1, max_size=70))
    return draw(st.sampled_from([sparse.csr_array, np.asarray]))(different[picks])


@given(odd_features(), st.integers(1, 20), st.integers(0, 5), st.integers(1, 4))
def test_halving_gives_equal_groups_with_every_label_once(features, leaf_size, seed, max_iterations):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "MAX_ITERATIONS", max_iterations)
        order, edges = halve(features, leaf_size, seed)
    count = features.shape[0]
    assert sorted(order.tolist()) == list(range(count))
    sizes = np.diff(edges)
    assert edges[0] == 0
    assert edges[-1] == count
    assert sizes.min() >= 1
    assert sizes.max() <= leaf_size
    assert sizes.max() - sizes.min() <= 1
    depth = max(0, int(np.ceil(np.log2(count / leaf_size))))
    assert len(sizes) == min(2**depth, count)


@given(odd_features(), st.integers(2, 6), st.integers(1, 20), st.integers(0, 5))
def test_clusters_keep_their_bounds_with_every_label_once(features, branching, leaf_size, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "MAX_ITERATIONS", 3)
        order, layers = cluster(features, branching, leaf_size, seed)
    count = features.shape[0]
    assert sorted(order.tolist()) == list(range(count))
    above = np.array([0, count])
    for edges in layers:
        assert set(above) < set(edges)
        for begin, end in pairwise(above):
            sizes = np.diff(edges[(edges >= begin) & (edges <= end)])
            if end - begin <= leaf_size:
                assert sizes.tolist() == [end - begin]
                continue
            assert len(sizes) == min(branching, -(-(end - begin) // leaf_size))
            assert sizes.max() - sizes.min() <= 1
        above = edges
    assert np.diff(above).max() <= leaf_size


@pytest.mark.parametrize("kind", [sparse.csr_array, np.asarray])
def test_planted_groups_are_found_by_halving(kind):
    features, of_label = planted(8, 32)
    order, edges = halve(kind(features), leaf_size=32)
    assert [len(set(of_label[list(group)])) for group in groups_of(order, edges)] == [1] * 8


def test_planted_groups_are_found_by_clustering():
    features, of_label = planted(8, 32)
    order, layers = cluster(sparse.csr_array(features), branching=8, leaf_size=32)
    groups = groups_of(order, layers[-1])
    assert [len(set(of_label[list(group)])) for group in groups] == [1] * 8


def test_halving_beats_chance_by_far():
    """The similarity within groups that is to be maximised: the norms of the groups' sums."""
    features = planted(16, 20, noise=200)[0]
    features /= np.linalg.norm(features, axis=1, keepdims=True)

    def within(order, edges):
        return sum(np.linalg.norm(features[list(group)].sum(0)) for group in groups_of(order, edges))

    order, edges = halve(features, 30)
    assert within(order, edges) > 1.5 * within(np.random.default_rng(0).permutation(order), edges)


def test_more_starts_give_better_halves(monkeypatch):
    features = random_rows(400)
    rows = features.toarray() / np.linalg.norm(features.toarray(), axis=1, keepdims=True).clip(1e-9)

    def within(starts, seed):
        monkeypatch.setattr(clustering, "STARTS", starts)
        order, edges = halve(features, 200, seed)
        return sum(np.linalg.norm(rows[list(group)].sum(0)) for group in groups_of(order, edges))

    assert np.mean([within(8, seed) for seed in range(6)]) > np.mean([within(1, seed) for seed in range(6)])


METHODS = {
    "halve": lambda features: halve(features, 20, seed=4)[0],
    "cluster": lambda features: cluster(features, 5, 20, seed=4)[0],
}


@pytest.mark.parametrize("method", METHODS)
def test_threads_and_the_division_of_work_do_not_matter(method, monkeypatch):
    features = random_rows(500)
    found = []
    for threads, shared in ((1, 10**9), (2, 10**9), (1, 0), (2, 0), (3, 4000)):
        monkeypatch.setattr(clustering, "SHARED_WORK", shared)
        monkeypatch.setattr(clustering, "SHARED_COMPARISONS", shared)
        monkeypatch.setattr(clustering, "COLUMN_SAMPLE", 100 * threads)
        with parallel.using_threads(threads):
            found.append(METHODS[method](features).tolist())
    assert all(order == found[0] for order in found)


def test_large_groups_are_split_by_a_sample_first(monkeypatch):
    """The groups are found from a part of the labels, on any number of threads, and other labels join them."""
    features = planted(8, 60, noise=20)[0]
    monkeypatch.setattr(clustering, "SHARED_WORK", 0)
    monkeypatch.setattr(clustering, "COPIED_WORK", 0)
    monkeypatch.setattr(clustering, "SAMPLE_WORK", features.size // 4)

    def within(order, edges):
        return sum(np.linalg.norm(features[list(group)].sum(0)) for group in groups_of(order, edges))

    found = []
    for threads in (1, 2, 3):
        with parallel.using_threads(threads):
            found.append(halve(features, 60))
    assert all(order.tolist() == found[0][0].tolist() for order, _ in found)
    assert np.diff(found[0][1]).tolist() == [60] * 8
    monkeypatch.setattr(clustering, "COPIED_WORK", 10**9)
    assert within(*found[0]) > 0.95 * within(*halve(features, 60))


def test_a_dense_block_beside_a_sparse_one(monkeypatch):
    """Columns of both blocks are divided among threads, and together they are the whole row.

    Clusters are compared without their order: sums of a dense and of a sparse block round differently, and among equally
    good starts rounding decides which half is the left one.
    """
    features = planted(4, 25)[0]

    def clusters(rows):
        order, edges = halve(rows, 25)
        return {frozenset(group.tolist()) for group in np.split(order, edges[1:-1])}

    whole = clusters(sparse.csr_array(features))
    assert len(whole) == 4
    split = Blocks(sparse.csr_array(features[:, :30]), features[:, 30:])
    for shared in (0, 10**9):
        monkeypatch.setattr(clustering, "SHARED_WORK", shared)
        with parallel.using_threads(3):
            assert clusters(split) == whole


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_decides(method):
    features = random_rows(200)
    assert METHODS[method](features).tolist() == METHODS[method](features).tolist()
    assert halve(features, 20, seed=0)[0].tolist() != halve(features, 20, seed=1)[0].tolist()
    assert cluster(features, 5, 20, seed=0)[0].tolist() != cluster(features, 5, 20, seed=1)[0].tolist()


@pytest.mark.parametrize("kind", [sparse.csr_array, np.asarray])
def test_rows_are_used_with_unit_norm(kind):
    """Norms that differ by powers of two change no bit of the unit rows."""
    features = planted(4, 25)[0] * np.float32(3)
    scales = np.exp2(np.random.default_rng(0).integers(-20, 20, len(features))).astype(np.float32)
    scaled = features * scales[:, None]
    assert halve(kind(scaled), 10)[0].tolist() == halve(kind(features), 10)[0].tolist()


def test_what_is_refused():
    features = random_rows(10)
    for call in (lambda: halve(features, 0), lambda: cluster(features, 3, 0)):
        with pytest.raises(ConfigError, match="leaf_size must be 1"):
            call()
    with pytest.raises(ConfigError, match="branching must be 2"):
        cluster(features, 1, 5)
    with pytest.raises(DataError, match="no labels to cluster"):
        halve(sparse.csr_array((0, 5), dtype=np.float32), 5)
    with pytest.raises(DataError, match="NaN or infinity"):
        halve(np.full((3, 2), np.inf), 1)
