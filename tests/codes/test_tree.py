"""Label trees: their invariants however they were made, aggregation, and errors for damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.io import folder as store
from labelwise.labelspace.hierarchy import bounds_from_ids
from labelwise.labelspace.tree import LabelTree


def tree_of_ids(parents, homes):
    """From the parent of each node and the node of each label."""
    names = list(map(str, range(len(parents))))
    return LabelTree.from_bounds(*bounds_from_ids(np.array(parents, np.int64), np.array(homes, np.int64), names))


def random_features(count, seed=0):
    random = np.random.default_rng(seed)
    return sparse.random_array((count, 60), density=0.1, rng=random, format="csr", dtype=np.float32)


@st.composite
def trees(draw):
    """Trees of all makes over up to 60 labels."""
    count, seed = draw(st.integers(1, 60)), draw(st.integers(0, 3))
    leaf_size, branching = draw(st.integers(1, 12)), draw(st.integers(2, 6))
    make = draw(st.sampled_from(["flat", "balanced", "kway", "ids"]))
    if make == "flat":
        return LabelTree.flat(count)
    if make == "balanced":
        return LabelTree.balanced(random_features(count, seed), leaf_size, branching, seed)
    if make == "kway":
        return LabelTree.kway(random_features(count, seed), branching, leaf_size, seed)
    random = np.random.default_rng(seed)
    nodes = draw(st.integers(1, 15))
    parents = [int(random.integers(-1, node)) for node in range(nodes)]
    return tree_of_ids(parents, random.integers(-1, nodes, count))


@given(trees())
def test_invariants(tree):
    assert tree.depth == len(tree.sizes) >= 1
    assert tree.sizes[-1] == tree.n_labels
    assert list(tree.sizes) == sorted(set(tree.sizes))
    assert sorted(tree.label_order.tolist()) == list(range(tree.n_labels))
    assert tree.label_order[tree.label_positions].tolist() == list(range(tree.n_labels))
    above = 1
    for level, parents in enumerate(tree.parents):
        assert parents.dtype == np.int32
        assert sorted(set(parents.tolist())) == list(range(above))
        assert (np.diff(parents) >= 0).all()
        offsets = tree.children_offsets(level)
        assert len(offsets) == above + 1
        for node in range(above):
            assert (parents[offsets[node] : offsets[node + 1]] == node).all()
        assert offsets[-1] == len(parents)
        above = len(parents)


@given(trees())
def test_ancestors_follow_the_parents(tree):
    for label in range(tree.n_labels):
        node = int(tree.label_positions[label])
        for level in range(tree.depth - 1, -1, -1):
            assert tree.ancestors(level)[label] == node
            node = tree.parents[level][node]
        assert node == 0


@given(trees(), st.integers(0, 10), st.integers(0, 5))
def test_aggregation_adds_up_what_is_below_a_node(tree, documents, seed):
    random = np.random.default_rng(seed)
    labels = sparse.csr_array((random.random((documents, tree.n_labels)) < 0.2) * random.integers(1, 4, tree.n_labels))
    before = labels.copy()
    found = tree.aggregate(labels)
    assert len(found) == tree.depth
    for level, matrix in enumerate(found):
        expected = np.zeros((documents, tree.sizes[level]))
        for label in range(tree.n_labels):
            expected[:, tree.ancestors(level)[label]] += labels.toarray()[:, label]
        assert matrix.has_canonical_format
        assert matrix.toarray().tolist() == expected.tolist()
        assert (matrix.data != 0).all()
    assert (before != labels).nnz == 0


@given(trees())
def test_there_and_back_through_tensors(tree):
    assert LabelTree.from_tensors("tree", tree.to_tensors(), Path("state")) == tree


def test_there_and_back_through_a_file(tmp_path):
    tree = LabelTree.balanced(random_features(50), 4, 3)
    with store.new_folder(tmp_path / "model", "model", {}) as folder:
        folder.write_tensors("state.safetensors", tree.to_tensors("label_tree"))
    tensors = store.Folder(tmp_path / "model", "model").tensors("state.safetensors")
    found = LabelTree.from_tensors("label_tree", tensors, tmp_path)
    assert found == tree
    assert found != LabelTree.flat(50)
    assert [m.shape for m in found.aggregate(np.eye(50))] == [(50, size) for size in tree.sizes]


def test_balanced_levels_group_neighbouring_leaves():
    tree = LabelTree.balanced(random_features(500), leaf_size=10, branching=4)
    assert tree.sizes == (4, 16, 64, 500)
    assert [np.diff(tree.children_offsets(level)).tolist() for level in (1, 2)] == [[4] * 4, [4] * 16]
    assert set(np.diff(tree.children_offsets(3))) == {7, 8}
    assert LabelTree.balanced(random_features(500), leaf_size=10, branching=16).sizes == (4, 64, 500)
    assert LabelTree.balanced(random_features(500), leaf_size=10, branching=100).sizes == (64, 500)
    assert repr(tree) == "LabelTree(4 > 16 > 64 > 500)"


def test_kway_is_shallow():
    assert LabelTree.kway(random_features(500), branching=100, leaf_size=10).sizes == (50, 500)
    assert LabelTree.kway(random_features(500), branching=8, leaf_size=10).sizes == (8, 56, 500)


def test_small_label_spaces_are_flat():
    for make in (LabelTree.balanced, LabelTree.kway):
        assert make(random_features(1)).sizes == (1,)
        assert make(random_features(100)).sizes == (100,)
        assert make(np.zeros((7, 0))).sizes == (7,)
    assert LabelTree.flat(5) == LabelTree((np.zeros(5, np.int32),), np.arange(5, dtype=np.int32))


def test_one_label_a_leaf_is_no_level_of_its_own():
    assert LabelTree.balanced(random_features(16), leaf_size=1, branching=4).sizes == (4, 16)


def test_what_is_refused():
    for call in (lambda: LabelTree.balanced(random_features(9), branching=1), lambda: LabelTree.kway(None, 1)):
        with pytest.raises(ConfigError, match="branching must be 2"):
            call()
    with pytest.raises(DataError, match="needs at least one label"):
        LabelTree.flat(0)
    with pytest.raises(DataError, match="holds 5 labels, the matrix has 4 columns"):
        LabelTree.flat(5).aggregate(np.eye(4))
    with pytest.raises(DataError, match="not a label tree: the order of labels"):
        LabelTree((np.zeros(3, np.int32),), np.array([0, 1, 1], np.int32))


def test_trees_are_compared_by_content_and_are_not_keys():
    assert LabelTree.flat(3) != "tree"
    with pytest.raises(TypeError, match="unhashable"):
        hash(LabelTree.flat(3))


def whole():
    """Two nodes, three under them, six labels under those."""
    return {
        "tree.sizes": np.array([2, 3, 6], np.int64),
        "tree.parents": np.array([0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 2], np.int32),
        "tree.label_order": np.array([3, 1, 0, 5, 4, 2], np.int32),
    }


def int32(*numbers):
    return np.array(numbers, np.int32)


DAMAGE = {
    "no sizes": ("sizes", None),
    "no parents": ("parents", None),
    "no order": ("label_order", None),
    "sizes of another type": ("sizes", np.array([2.0, 3, 6])),
    "sizes in int32": ("sizes", int32(2, 3, 6)),
    "sizes as a matrix": ("sizes", np.array([[2, 3, 6]])),
    "no level": ("sizes", np.array([], np.int64)),
    "an empty level": ("sizes", np.array([2, 3, 0, 6])),
    "a negative size": ("sizes", np.array([2, 3, 7, -1])),
    "sizes that overflow": ("sizes", np.array([2**62, 2**62, 2**62, 2**62, 11])),
    "sizes too small": ("sizes", np.array([2, 3, 5])),
    "too many levels": ("sizes", np.full(200, 1)),
    "a level too wide": ("sizes", np.array([3, 2, 6])),
    "parents of another type": ("parents", whole()["tree.parents"].astype(np.int64)),
    "parents as a matrix": ("parents", whole()["tree.parents"][None]),
    "parents cut short": ("parents", whole()["tree.parents"][:-1]),
    "a top node under nothing": ("parents", int32(0, 1, 0, 0, 1, 0, 0, 1, 1, 1, 2)),
    "a parent out of range": ("parents", int32(0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 3)),
    "a huge parent": ("parents", int32(0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 2**31 - 1)),
    "a negative parent": ("parents", int32(0, 0, 0, 0, 1, -1, 0, 1, 1, 1, 2)),
    "a node without children": ("parents", int32(0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2)),
    "a node without children at the end": ("parents", int32(0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2)),
    "children not beside each other": ("parents", int32(0, 0, 0, 0, 1, 0, 1, 0, 1, 1, 2)),
    "an order of another type": ("label_order", np.array([3, 1, 0, 5, 4, 2])),
    "an order as a matrix": ("label_order", int32(3, 1, 0, 5, 4, 2)[None]),
    "an order too short": ("label_order", int32(3, 1, 0, 4, 2)),
    "an order too long": ("label_order", int32(3, 1, 0, 5, 4, 2, 6)),
    "a duplicate label": ("label_order", int32(3, 1, 0, 5, 4, 3)),
    "a label out of range": ("label_order", int32(3, 1, 0, 6, 4, 2)),
    "a huge label": ("label_order", int32(3, 1, 0, 2**31 - 1, 4, 2)),
    "a negative label": ("label_order", int32(3, 1, 0, -1, 4, 2)),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_tensors_are_refused(kind):
    part, value = DAMAGE[kind]
    tensors = whole()
    assert LabelTree.from_tensors("tree", tensors, Path("here")).sizes == (2, 3, 6)
    if value is None:
        del tensors[f"tree.{part}"]
    else:
        tensors[f"tree.{part}"] = value
    with pytest.raises(ModelFormatError, match=r"^here: .*tree"):
        LabelTree.from_tensors("tree", tensors, Path("here"))
