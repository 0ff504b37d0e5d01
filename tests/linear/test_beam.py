"""Beam search and stored weights against brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from labelwise.errors import ConfigError
from labelwise.kernels.jit import jit
from labelwise.linear.search import (
    MIN_DIVIDED,
    POST_PROCESSORS,
    LabelChoice,
    TreeSearch,
    beam_search,
    best_of_trees,
)
from labelwise.linear.weights import ChunkedWeights, ChunkPart
from labelwise.runtime.threads import using_threads


def random_level(rng, n_features, offsets):
    parts = []
    for width in np.diff(offsets):
        dense = np.where(rng.random((n_features, width)) < 0.4, rng.normal(size=(n_features, width)), 0)
        rows, lanes = np.nonzero(dense)
        features, counts = np.unique(rows, return_counts=True)
        bias = rng.normal(size=width).astype(np.float32)
        parts.append(ChunkPart(features.astype(np.int32), counts, lanes, dense[rows, lanes], bias))
    return ChunkedWeights.joined(parts, n_features, np.asarray(offsets))


def dense_weights(level):
    weights = np.zeros((level.n_features, level.n_children))
    rows = np.repeat(level.features, np.diff(level.row_offsets))
    weights[rows, level.entry_children()] = level.values
    return weights


def transformed(margin, name):
    plain = name.removeprefix("log_")
    if plain == "smooth_l3_hinge":
        return -((np.logaddexp(0, 3 * (1 - margin)) / 3) ** 3)
    if plain.endswith("hinge"):
        return -(np.maximum(0, 1 - margin) ** int(plain[1]))
    return -np.logaddexp(0, -margin) if plain == "sigmoid" else margin


def brute_force(X, levels, order, k, name):
    """All labels scored by the definition, best k by (score, label id)."""
    total = np.zeros((X.shape[0], 1))
    for level in levels:
        margin = X @ dense_weights(level) + level.bias
        parents = np.repeat(np.arange(len(level.children_offsets) - 1), np.diff(level.children_offsets))
        total = margin if name == "none" else total[:, parents] + transformed(margin, name)
    scores = np.empty_like(total)
    scores[:, order] = total
    ids = np.lexsort((np.broadcast_to(np.arange(scores.shape[1]), scores.shape), -scores), axis=1)[:, :k]
    return ids, np.take_along_axis(scores, ids, 1)


def case(seed):
    rng = np.random.default_rng(seed)
    n_features = 30
    levels = [
        random_level(rng, n_features, [0, 3]),
        random_level(rng, n_features, [0, 2, 5, 9]),
        random_level(rng, n_features, [0, 4, 4, 10, 13, 20, 22, 25, 29, 40]),
    ]
    X = sparse.random_array((25, n_features), density=0.3, format="csr", rng=rng, dtype=np.float32)
    X.data -= 0.5
    X.sort_indices()
    return X, levels, rng.permutation(40)


@pytest.mark.parametrize("name", POST_PROCESSORS)
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_a_beam_over_everything_equals_brute_force(name, seed):
    X, levels, order = case(seed)
    top = beam_search(X, levels, order, beam=50, k=7, post_processor=name)
    ids, scores = brute_force(X.toarray(), levels, order, 7, name)
    if POST_PROCESSORS[name][2]:
        scores = np.exp(scores)
    np.testing.assert_allclose(top.scores, scores, rtol=1e-3, atol=1e-4)
    differ = top.ids != ids
    assert np.isclose(scores[differ], top.scores[differ], rtol=1e-3, atol=1e-4).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
@settings(max_examples=15)
def test_a_document_gets_the_same_alone_and_in_company(seed, beam):
    X, levels, order = case(seed)
    many = beam_search(X, levels, order, beam, 5)
    with using_threads(1):
        for row in range(X.shape[0]):
            one = beam_search(X[row : row + 1], levels, order, beam, 5)
            np.testing.assert_array_equal(one.ids[0], many.ids[row])
            np.testing.assert_array_equal(one.scores[0], many.scores[row])


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("documents", [3, 25, MIN_DIVIDED])
def test_trees_are_searched_together_as_one_by_one(documents, threads):
    X = sparse.vstack([case(1)[0]] * (1 + documents // 25), format="csr")[:documents]
    trees = [case(seed)[1:] for seed in (1, 2, 3)]
    choices = [LabelChoice(), LabelChoice(allowed=np.arange(40) % 3 > 0), LabelChoice()]
    with using_threads(threads):
        together = best_of_trees([TreeSearch(*tree) for tree in trees], X, 3, 5, choices)
        for tree, choice, top in zip(trees, choices, together, strict=True):
            alone = [TreeSearch(*tree).best(X[[row]], 3, 5, choice) for row in range(documents)]
            assert np.array_equal(top.ids, np.concatenate([one.ids for one in alone]))
            assert np.array_equal(top.scores, np.concatenate([one.scores for one in alone]))


def test_scores_that_become_equal_are_ordered_by_label():
    from labelwise.kernels import search as beam

    rng = np.random.default_rng(0)
    logs = np.sort(-(rng.random((200, 8)) ** 6) * 1e-6, axis=1)[:, ::-1].astype(np.float32)
    ids = np.argsort(rng.random((200, 8)), axis=1).astype(np.int32)
    ids[::3, 5:], logs[::3, 5:] = -1, -np.inf
    before = [set(row.tolist()) for row in ids]
    expected = np.where(ids >= 0, np.exp(logs), -np.inf)
    jit(beam.from_logarithms.py_func)(ids, logs, 0, 200)
    np.testing.assert_allclose(logs, expected, rtol=1e-6)
    equal = (logs[:, 1:] == logs[:, :-1]) & (ids[:, 1:] >= 0)
    assert equal.any()
    assert (ids[:, 1:] > ids[:, :-1])[equal].all()
    assert (logs[:, 1:] <= logs[:, :-1]).all()
    assert [set(row.tolist()) for row in ids] == before


def test_the_smooth_hinge_ranks_by_margin_where_the_hinge_ties():
    offsets = np.array([0, 4])
    margins = np.array([1.2, 1.9, 0.5, 1.5], np.float32)
    empty = np.empty(0, np.int64)
    level = ChunkedWeights.joined([ChunkPart(empty.astype(np.int32), empty, empty, empty, margins)], 3, offsets)
    X = sparse.csr_array((1, 3), dtype=np.float32)
    X.indices = X.indices.astype(np.int32)
    tied = beam_search(X, [level], np.arange(4), 10, 4, "l3_hinge")
    assert tied.ids[0].tolist() == [0, 1, 3, 2]
    assert (tied.scores[0, :3] == 1).all()
    smooth = beam_search(X, [level], np.arange(4), 10, 4, "smooth_l3_hinge")
    assert smooth.ids[0].tolist() == [1, 3, 0, 2]
    assert (np.diff(smooth.scores[0]) < 0).all()
    assert smooth.scores.max() <= 1


def test_labels_can_be_left_out_and_weighed():
    X, levels, order = case(1)
    allowed = np.zeros(40, bool)
    allowed[[3, 17, 30]] = True
    top = TreeSearch(levels, order).best(X, 10, 5, LabelChoice(allowed=allowed))
    assert set(top.ids[top.ids >= 0].tolist()) <= set(order[allowed].tolist())
    assert ((top.ids >= 0).sum(1) == 3).all()
    extra = np.zeros(40, np.float32)
    extra[7] = 1000
    assert (TreeSearch(levels, order).best(X, 50, 1, LabelChoice(extra=extra)).ids == order[7]).all()


@pytest.mark.parametrize(("precision", "error"), [("float16", 5e-3), ("int8", 0.1)])
def test_fewer_bits_change_little(precision, error):
    X, levels, order = case(2)
    exact = beam_search(X, levels, order, 50, 40, "none")
    rough = beam_search(X, [level.stored_as(precision) for level in levels], order, 50, 40, "none")
    np.testing.assert_allclose(rough.to_csr(40).toarray(), exact.to_csr(40).toarray(), atol=error)


def test_a_beam_and_a_post_processor_per_level():
    """The first level keeps one node, the second all of its children; labels are ranked by their margins alone."""
    X, levels, order = case(3)
    margins = [X.toarray() @ dense_weights(level) + level.bias for level in levels]
    top = beam_search(X, levels, order, (1, 9), 40, ("sigmoid", "l3_hinge", "none"))
    for row, (ids, scores) in enumerate(zip(top.ids, top.scores, strict=True)):
        best = int(np.argmax(margins[0][row]))
        nodes = range(*levels[1].children_offsets[[best, best + 1]])
        reached = [label for node in nodes for label in range(*levels[2].children_offsets[[node, node + 1]])]
        expected = sorted(reached, key=lambda label: -margins[2][row, label])
        assert ids[: len(expected)].tolist() == order[expected].tolist()
        assert (ids[len(expected) :] == -1).all()
        np.testing.assert_allclose(scores[: len(expected)], margins[2][row, expected], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("beam", "names", "message"),
    [
        ((3,), "l3_hinge", "beam: 1 values are given for a tree that needs 2"),
        (3, ("l3_hinge", "l3_hinge"), "post_processor: 2 values are given for a tree that needs 3"),
        (3, ("none", "l3_hinge", "none"), "l3_hinge cannot follow none"),
        (3, ("sigmoid", "sigmoid", "log_sigmoid"), "log_sigmoid cannot follow sigmoid"),
    ],
)
def test_values_per_level_that_do_not_fit(beam, names, message):
    X, levels, order = case(0)
    with pytest.raises(ConfigError, match=message):
        beam_search(X, levels, order, beam, 5, names)
