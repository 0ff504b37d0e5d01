"""Explanations add up to the margins, and their paths to what the beam search gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import labelwise as lw
from conformance.planted import planted_features, planted_texts
from labelwise.errors import ConfigError, DataError, NotFittedError
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.explain import TreeExplainer, node_weights
from labelwise.linear.search import POST_PROCESSORS, beam_search
from labelwise.linear.weights import ChunkedWeights, ChunkPart, PackedWeights
from labelwise.model.explanation import top_words
from labelwise.registry import method_class

N_FEATURES, N_LABELS = 30, 40


def made_level(rng, offsets):
    parts = []
    for width in np.diff(offsets):
        dense = np.where(rng.random((N_FEATURES, width)) < 0.4, rng.normal(size=(N_FEATURES, width)), 0)
        rows, lanes = np.nonzero(dense)
        features, counts = np.unique(rows, return_counts=True)
        bias = rng.normal(size=width).astype(np.float32)
        parts.append(ChunkPart(features.astype(np.int32), counts, lanes, dense[rows, lanes], bias))
    return ChunkedWeights.joined(parts, N_FEATURES, np.asarray(offsets))


def made_tree(seed, flat=False):
    rng = np.random.default_rng(seed)
    tree = LabelTree.flat(N_LABELS)
    if not flat:
        levels = [np.array([0, 14, 25, 40]), np.array([0, 5, 9, 14, 20, 25, 30, 38, 40])]
        tree = LabelTree.from_bounds(rng.permutation(N_LABELS), levels)
    row = sparse.random_array((1, N_FEATURES), density=0.4, format="csr", rng=rng, dtype=np.float32)
    row.data -= np.float32(0.4)
    row.sort_indices()
    row.indices = row.indices.astype(np.int32)
    return tree, [made_level(rng, tree.children_offsets(depth)) for depth in range(tree.depth)], row


def packed(levels):
    return [PackedWeights.of(level) for level in levels]


def dense_weights(level):
    """Weights by the definition of the layout, [features, children]."""
    weights = np.zeros((N_FEATURES, level.n_children))
    rows = np.repeat(level.features, np.diff(level.row_offsets))
    children = level.entry_children()
    weights[rows, children] = level.values.astype(np.float64) * (level.scales[children] if len(level.scales) else 1)
    return weights


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_terms_and_bias_are_the_margin(precision, seed):
    tree, levels, row = made_tree(seed)
    levels = [level.stored_as(precision) for level in levels]
    paths = TreeExplainer(tree, packed(levels)).explain(row, range(N_LABELS), beam=3)
    document = row.toarray()[0].astype(np.float64)
    for label, path in enumerate(paths):
        assert path.label == label
        last = path.steps[-1]
        assert last.margin == pytest.approx((path.values * path.weights).sum() + last.bias, abs=1e-12)
        for depth, (level, step) in enumerate(zip(levels, path.steps, strict=True)):
            weights = dense_weights(level)[:, step.node]
            assert step.margin == pytest.approx(document @ weights + level.bias[step.node], abs=1e-6)
            assert step.node == tree.ancestors(depth)[label]
            below = np.flatnonzero(tree.ancestors(depth) == step.node)
            np.testing.assert_array_equal(np.sort(path.below[depth]), below)
            assert step.n_labels == len(below)
        np.testing.assert_array_equal(path.values, document[path.features])
        assert (path.weights != 0).all()


def test_weights_of_a_node_are_found_for_any_features():
    _, levels, _ = made_tree(4)
    level = levels[-1]
    dense = dense_weights(level)
    for chunk, (begin, end) in enumerate(zip(level.children_offsets[:-1], level.children_offsets[1:], strict=True)):
        for node in range(begin, end):
            for features in (np.arange(N_FEATURES), np.array([3, 29]), np.empty(0, np.int64)):
                np.testing.assert_array_equal(
                    node_weights(PackedWeights.of(level), chunk, node, features), dense[features, node]
                )


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", POST_PROCESSORS)
@given(seed=st.integers(0, 2**32 - 1), beam=st.integers(1, 9))
@settings(max_examples=6)
def test_paths_give_what_the_beam_search_gives(name, flat, seed, beam):
    tree, levels, row = made_tree(seed, flat)
    top = beam_search(row, levels, tree.label_order, beam, N_LABELS, name)
    given = dict(zip(top.ids[0].tolist(), top.scores[0].tolist(), strict=True))
    for path in TreeExplainer(tree, packed(levels), name).explain(row, range(N_LABELS), beam):
        assert path.reached == (path.label in given)
        assert len(path.steps) == tree.depth
        if path.reached:
            assert path.given == pytest.approx(given[path.label], rel=1e-4, abs=1e-5)
            assert path.given == path.steps[-1].total
        else:
            assert path.given == (0 if POST_PROCESSORS[name][2] else path.steps[-1].total)
            assert not all(step.kept for step in path.steps)


def test_totals_are_products_of_scores():
    tree, levels, row = made_tree(3)
    for path in TreeExplainer(tree, packed(levels), "sigmoid").explain(row, range(N_LABELS), beam=2):
        scores = [step.score for step in path.steps]
        np.testing.assert_allclose([step.total for step in path.steps], np.cumprod(scores), rtol=1e-9)
        assert scores[0] == pytest.approx(1 / (1 + np.exp(-path.steps[0].margin)))


def test_trees_are_prepared_once_for_explanations(monkeypatch):
    data = planted_features(n_documents=100, n_labels=20)
    model = lw.LinearTree(trees=2, leaf_size=4, branching=2).fit(data)
    expected = model.explain(data.features[:1], k=2)
    monkeypatch.setattr("labelwise.linear.explain.TreeSearch", None)
    assert model.explain(data.features[:1], k=2) == expected


def test_a_document_without_features():
    tree, levels, row = made_tree(3)
    path = TreeExplainer(tree, packed(levels)).explain(row * 0, [7], beam=2)[0]
    empty = sparse.csr_array((1, N_FEATURES), dtype=np.float32)
    empty.indices = empty.indices.astype(np.int32)
    assert TreeExplainer(tree, packed(levels)).explain(empty, [7], beam=2)[0].steps[-1].margin == path.steps[-1].bias


# --- through the methods ---


@pytest.fixture(scope="module", params=[1, 3])
def model(request):
    return lw.LinearTree(trees=request.param, leaf_size=8, branching=4).fit(planted_texts(500, 40))


def test_a_models_explanation_is_its_prediction_in_words(model):
    document = planted_texts(5, 40, seed=3).texts[0]
    top = model.predict([document], k=20)
    found = model.explain(document, k=20, terms=None)
    assert [one.label for one in found] == top.labels[0]
    for rank, one in enumerate(found):
        assert one.score == top.scores[0, rank]
        assert one.predicted
        assert one.other == 0
        assert one.bias + sum(term.contribution for term in one.terms) == pytest.approx(one.margin, abs=1e-12)
        assert one.margin == pytest.approx(np.mean([path.margin for path in one.paths]), abs=1e-9)
        for path in one.paths:
            assert path.bias + sum(term.contribution for term in path.terms) == pytest.approx(path.margin, abs=1e-12)
            assert path.steps[-1].examples == (one.label,)
            assert len(path.steps[0].examples) == 3
        for term in one.terms:
            assert term.name in document
            assert term.contribution == pytest.approx(term.value * term.weight)
        if all(path.reached for path in one.paths[:5]) and rank < 5:
            assert one.score == pytest.approx(np.mean([path.score for path in one.paths]), abs=1e-5)
    own = found[0].label.removeprefix("L")
    assert found[0].terms[0].name.startswith(f"word{own}x")


def test_few_terms_still_add_up_and_labels_can_be_named(model):
    document = planted_texts(5, 40, seed=3).texts[0]
    everything = model.explain(document, ["L7", "L3"], terms=None)
    few = model.explain(document, ["L7", "L3"], terms=2)
    assert [one.label for one in few] == ["L7", "L3"]
    for one, whole in zip(few, everything, strict=True):
        assert one.terms == whole.terms[:2]
        assert one.bias + sum(t.contribution for t in one.terms) + one.other == pytest.approx(whole.margin, abs=1e-12)
    assert isinstance(few[0].to_dict()["paths"][0]["steps"][0]["margin"], float)
    assert model.explain(document, "L7", terms=0)[0].terms == ()


def test_meanings_probabilities_and_nameless_features():
    data = planted_features(400, 30)
    data = lw.Dataset(
        data.labels, data.label_names, features=data.features, label_texts=[f"label {j}" for j in range(30)]
    )
    model = lw.LinearTree(trees=2, leaf_size=8, branching=4, precision="int8").fit(data)
    model.calibrate(data, k=5)
    one = model.explain(data.take(slice(0, 1)), k=1)[0]
    assert one.text == one.label.replace("L", "label ")
    assert one.score == model.predict(data.take(slice(0, 1)), k=1).scores[0, 0]
    assert all(term.name.startswith("feature ") for term in one.terms)
    assert one.paths[0].steps[0].examples[0].startswith("label ")
    far = [e for e in model.explain(data.take(slice(0, 1)), list(data.label_names)) if not e.predicted]
    assert all(0 < e.score < one.score for e in far)


def test_what_cannot_be_explained_is_refused(model):
    with pytest.raises(DataError, match="one document, got 2"):
        model.explain(["a", "b"])
    with pytest.raises(DataError, match="no label 'L77'"):
        model.explain("a", ["L77"])
    with pytest.raises(ConfigError, match="terms"):
        model.explain("a", terms=-1)
    with pytest.raises(ConfigError, match="popularity cannot explain"):
        lw.Popularity().fit(planted_texts(50, 10)).explain("a")
    with pytest.raises(NotFittedError):
        lw.LinearTree().explain("a")
    assert model.explain("words nobody knows", k=2)[0].terms == ()


def test_one_versus_rest_is_a_path_of_one_step():
    data = planted_texts(300, 20)
    model = method_class("linear_flat")().fit(data)
    document = data.texts[0]
    top = model.predict([document], k=5)
    for rank, one in enumerate(model.explain(document, k=5, terms=None)):
        assert [len(path.steps) for path in one.paths] == [1]
        assert one.score == top.scores[0, rank]
        assert one.paths[0].score == pytest.approx(one.score, rel=1e-4, abs=1e-5)
        assert one.bias + sum(term.contribution for term in one.terms) == pytest.approx(one.margin, abs=1e-12)


@pytest.mark.parametrize("at_once", [1 << 22, 5])
def test_words_of_many_documents_are_those_of_single_explanations(model, monkeypatch, at_once):
    """Also if no document, or the first or last one, has a word that the model knows."""
    monkeypatch.setattr("labelwise.linear.explain.BLOCK_SUMS", at_once)
    texts = [*planted_texts(6, 8).texts, "unknown"]
    for some in (["unknown"], ["unknown", *texts], ["", "unknown"]):
        top = model.predict(some, k=3)
        words = top_words(model, some, top, 2)
        for text, labels, found in zip(some, top.labels, words, strict=True):
            one = model.explain(text, labels=labels, terms=None)
            assert found == [[t.name for t in label.terms if t.contribution > 0][:2] for label in one]
