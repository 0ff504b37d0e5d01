"""Dense columns beside sparse ones: the same search to the bit, the same training to rounding as with CSR."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import labelwise as lw
from conformance.planted import planted
from labelwise.data.csr import Blocks
from labelwise.errors import DataError
from labelwise.features.rows import MAX_FEATURES, FeatureOrder, FeatureRows, blocks_of
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.memory import bytes_of, training_need
from labelwise.linear.search import TreeSearch
from labelwise.linear.settings import SearchSettings, TrainingSettings
from labelwise.linear.solver import SolverConfig, squared_norms
from labelwise.linear.train import TrainingExamples, train_tree
from labelwise.runtime.job import Job


def problem(seed, n=150, n_sparse=80, n_dense=24, n_labels=40, density=0.15):
    rng = np.random.default_rng(seed)
    left = sparse.random_array((n, n_sparse), density=density, format="csr", rng=rng, dtype=np.float32)
    left.sort_indices()
    dense = rng.normal(size=(n, n_dense)).astype(np.float32)
    dense[rng.random(dense.shape) < 0.1] = 0
    scores = left @ rng.normal(size=(n_sparse, n_labels)) + dense @ rng.normal(size=(n_dense, n_labels))
    labels = sparse.csr_array((scores >= np.sort(scores, axis=1)[:, -3:-2]).astype(np.float32))
    return left, dense, labels


def same(a, b):
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_array_equal(a.scores, b.scores)


# --- the order of features ---


@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.integers(0, 9))
@settings(max_examples=40)
def test_the_order_keeps_dense_columns_together(seed, n_sparse, n_dense):
    left, dense, _ = problem(seed, 20, n_sparse, n_dense, 5)
    order, rows, _ = FeatureOrder.learn(Blocks(left, dense))
    joined = np.hstack([left.toarray(), dense])
    assert sorted(order.original) == list(range(n_sparse + n_dense))
    occurring = np.count_nonzero(left.toarray().any(axis=0))
    assert (rows.first_dense, rows.unused) == (occurring, n_sparse - occurring)
    back = rows.sparse.toarray()
    back[:, occurring : occurring + n_dense] += rows.dense
    np.testing.assert_array_equal(back, joined[:, order.original])
    again = order.rows(Blocks(left, dense))
    np.testing.assert_array_equal(again.indices, rows.indices)
    np.testing.assert_array_equal(again.dense, rows.dense)


def test_dense_columns_of_another_model_are_taken_as_sparse_ones():
    left, dense, _ = problem(0)
    joined = sparse.csr_array(np.hstack([left.toarray(), dense]))
    order = FeatureOrder.by_frequency(joined)
    mixed = FeatureOrder(np.random.default_rng(0).permutation(104).astype(np.int32))
    for one in (order, mixed):
        found, expected = one.rows(Blocks(left, dense)), one.rows(joined)
        if found.n_dense:
            continue
        kept = found.data != 0  # blocks hold their zeros
        np.testing.assert_array_equal(found.indices[kept], expected.indices)
        np.testing.assert_array_equal(found.data[kept], expected.data)
    assert mixed.rows(Blocks(left, dense)).n_dense == 0


def test_an_array_of_mostly_zeros_is_sparse():
    assert blocks_of(np.eye(9, dtype=np.float32))[1].shape[1] == 0
    csr, dense = blocks_of(np.ones((9, 4), np.float16))
    assert csr.shape == (9, 0)
    assert dense.dtype == np.float16


# --- training and search ---


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("n_sparse", [0, 80])
@pytest.mark.parametrize("negatives", ["teacher", "matcher"])
def test_training_gives_the_weights_of_the_csr_path(n_sparse, dtype, negatives):
    left, dense, labels = problem(5, n=600, n_sparse=n_sparse)
    dense = dense.astype(dtype)
    joined = sparse.csr_array(np.hstack([left.toarray(), dense.astype(np.float32)]))
    _, rows, _ = FeatureOrder.learn(Blocks(left, dense))
    assert rows.dense.dtype == dtype
    # the same numbers of features for both
    order = FeatureOrder(FeatureOrder.learn(Blocks(left, dense))[0].original)
    tree = LabelTree.balanced(np.asarray((labels.T @ joined).todense(), np.float32), leaf_size=6, branching=3, seed=0)
    solver = SolverConfig(tolerance=1e-4, max_passes=3000, threshold=0.05)
    options = TrainingSettings(solver, SearchSettings(beam=2), negatives)
    found = train_tree(TrainingExamples(rows), tree, tree.aggregate(labels), options, Job())
    alone = TrainingExamples(FeatureRows.of(order.apply(joined)))
    expected = train_tree(alone, tree, tree.aggregate(labels), options, Job())
    for a, b in zip(found, expected, strict=True):
        wide, plain = (as_matrix(level) for level in (a, b))
        differences = np.abs(wide - plain)
        assert np.count_nonzero(wide) == pytest.approx(np.count_nonzero(plain), rel=0.01)
        sure = (np.abs(plain) > 0.06) | (np.abs(wide) > 0.06)  # the others may be just above or below the threshold
        assert differences[sure].max() < 5e-3
        np.testing.assert_allclose(a.bias, b.bias, atol=5e-3)


def as_matrix(level):
    """A level's weights, dense [features, children]."""
    weights = np.zeros((level.n_features, level.n_children))
    rows = np.repeat(level.features, np.diff(level.row_offsets))
    np.add.at(weights, (rows, level.entry_children()), level.values)
    return weights


@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(["float32", "float16", "int8"]))
@settings(max_examples=15, deadline=None)
def test_the_search_is_that_of_the_csr_path_to_the_bit(seed, mixed, precision):
    """In whatever range of numbers the dense columns stand: models of earlier versions have them in front."""
    rng = np.random.default_rng(seed)
    left, dense, labels = problem(seed, density=0.5 if mixed else 0.15)
    blocks = Blocks(left, dense)
    joined = blocks.to_csr()
    first = int(rng.integers(0, 81)) if mixed else 0
    columns = rng.permutation(np.arange(80, 104)) if mixed else np.arange(80, 104)
    others = rng.permutation(80)
    order = FeatureOrder(np.concatenate([others[:first], columns, others[first:]]).astype(np.int32))
    tree = LabelTree.balanced(np.asarray((labels.T @ joined).todense(), np.float32), leaf_size=6, branching=3, seed=0)
    examples = TrainingExamples(FeatureRows.of(order.apply(joined)))
    solver = SolverConfig(threshold=0.05)
    levels = train_tree(examples, tree, tree.aggregate(labels), TrainingSettings(solver), Job())
    search = TreeSearch([level.stored_as(precision) for level in levels], tree.label_order)
    found, expected = order.rows(blocks), order.rows(joined)
    assert found.n_dense == 24
    assert found.first_dense == first
    same(search.best(found, 3, 5), search.best(expected, 3, 5))
    for row in (0, 7):
        one = order.rows(blocks[row : row + 1])
        same(search.best(one, 3, 5), search.best(expected, 3, 5)[row : row + 1])
    array = joined.toarray()
    found = order.rows(array)
    assert found.n_dense == (104 if np.count_nonzero(array) >= 0.5 * array.size else 0)
    same(search.best(found, 3, 5), search.best(order.rows(sparse.csr_array(array)), 3, 5))
    half = order.rows(Blocks(left, dense.astype(np.float16)))
    assert half.dense.dtype == np.float16
    rounded = Blocks(left, dense.astype(np.float16).astype(np.float32)).to_csr()
    same(search.best(half, 3, 5), search.best(order.rows(rounded), 3, 5))


def test_norms_count_both_blocks():
    left, dense, _ = problem(1, n=5000)
    rows = FeatureRows.of(left)._replace(shape=(5000, 104), dense=dense, first_dense=80)
    expected = left.multiply(left).sum(axis=1) + np.square(dense, dtype=np.float64).sum(axis=1)
    np.testing.assert_allclose(squared_norms(rows), expected, rtol=1e-5)


def test_the_memory_estimate_counts_dense_numbers_at_their_size():
    left, dense, labels = problem(1, n=600)
    tree = LabelTree.flat(labels.shape[1])
    _, rows, _ = FeatureOrder.learn(Blocks(left, dense))
    half = rows._replace(dense=dense.astype(np.float16))
    assert bytes_of(rows, labels).bytes - bytes_of(half, labels).bytes == dense.nbytes // 2
    joined = sparse.csr_array(np.hstack([left.toarray(), dense]))
    found, expected = (
        training_need(one, tree.aggregate(labels), tree, TrainingSettings()).total for one in (rows, joined)
    )
    assert found == pytest.approx(expected, rel=0.02)


# --- methods ---


@pytest.mark.parametrize("method", [lw.LinearTree, lw.LinearFlat])
@pytest.mark.parametrize("kind", ["blocks", "array"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_model_of_dense_features_is_that_of_csr_to_rounding(method, kind, dtype, tmp_path):
    data = planted("features")
    rng = np.random.default_rng(0)
    dense = data.features @ rng.normal(size=(data.features.shape[1], 30))
    dense = (dense / np.linalg.norm(dense, axis=1, keepdims=True)).astype(dtype)
    features = Blocks(data.features, dense) if kind == "blocks" else dense
    plain = dense.astype(np.float32)
    joined = Blocks(data.features, plain).to_csr() if kind == "blocks" else sparse.csr_array(plain)
    solver = {"tolerance": 1e-4, "max_passes": 2000}
    hierarchy = tmp_path / "tree.tsv"
    hierarchy.write_text("".join(f"{name}\tgroup{i // 6}\n" for i, name in enumerate(data.label_names)))
    params = {"tree": "hierarchy", "hierarchy": str(hierarchy)} if method is lw.LinearTree else {}
    params["precision"] = "float32"  # 8 bits round weights that differ in their last bits to different numbers
    training = lw.Dataset(data.labels, data.label_names, features=features)
    assert blocks_of(training.features)[1].dtype == dtype
    model = method(solver=solver, **params).fit(training)
    peer = method(solver=solver, **params).fit(lw.Dataset(data.labels, data.label_names, features=joined))
    found, expected = model.predict(features, k=5), peer.predict(joined, k=5)
    np.testing.assert_allclose(found.scores, expected.scores, atol=2e-3)
    assert (found.ids[:, 0] == expected.ids[:, 0]).mean() > 0.98
    model.save(tmp_path / "model")
    loaded = lw.load(tmp_path / "model")
    same(loaded.predict(features, k=5), found)
    same(loaded.predict(joined, k=5), found)
    one = features[:1]
    (explained,) = loaded.explain(one, k=1)
    (from_csr,) = loaded.explain(joined[:1], k=1)
    assert explained == from_csr
    assert {term.name for term in explained.terms} & {
        f"feature {j}" for j in range(joined.shape[1] - 30, joined.shape[1])
    }


# --- many declared features ---


@pytest.mark.parametrize("method", [lw.LinearTree, lw.LinearFlat])
def test_features_that_do_not_occur_cost_little(method):
    data = planted("features")
    params = {"memory": 3.0} if method is lw.LinearFlat else {"memory": 3.0, "trees": 1}
    wide = data.features.copy()
    wide.indices = wide.indices * 100_000 + 7
    width = int(wide.indices.max()) + 1
    wide = sparse.csr_array((wide.data, wide.indices, wide.indptr), shape=(len(data), width))
    assert width > 10_000_000
    found = method(**params).fit(wide, data.labels).predict(wide, k=5)
    same(found, method(**params).fit(data.features, data.labels).predict(data.features, k=5))


@pytest.mark.parametrize("width", [MAX_FEATURES + 1, 2**31 - 1])
def test_too_many_features_are_refused(width):
    data = planted("features")
    wide = sparse.csr_array((data.features.data, data.features.indices, data.features.indptr), (len(data), width))
    with pytest.raises(DataError, match=r"too many.*accepts at most 1,073,741,824; renumber the features"):
        lw.LinearFlat().fit(wide, data.labels)


def test_a_beam_wider_than_the_tree_is_the_whole_tree():
    data = planted("features")
    model = lw.LinearTree(trees=1, leaf_size=5, beam=10**9).fit(data)
    expected = lw.LinearTree(trees=1, leaf_size=5, beam=1000).fit(data).predict(data.features[:20], k=5)
    same(model.predict(data.features[:20], k=5), expected)
    assert len(model.explain(data.features[:1], k=2)) == 2
