"""Learning more documents: what a model knows afterwards, what stays as it was, and what the report says."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from common import same_predictions
from conformance.planted import planted
from labelwise.data.csr import Blocks
from labelwise.errors import ConfigError, DataError
from labelwise.runtime.threads import using_threads

METHODS = {
    "tree": lambda **more: lw.LinearTree(trees=2, leaf_size=8, branching=3, **more),
    "flat": lambda **more: lw.LinearFlat(**more),
}


def p_at(model, data, k=3):
    return lw.evaluate(model.predict(data, k=k), data.align(model.label_names_), metrics=[f"P@{k}"])[f"P@{k}"]


def without(data, labels):
    """The documents without these labels, and a label space that does not have them; and the other documents."""
    has = np.asarray(data.labels[:, labels].sum(axis=1)).ravel() > 0
    keep = np.setdiff1d(np.arange(data.n_labels), labels)
    old = data.take(~has)
    return replace(old, labels=old.labels[:, keep], label_names=data.label_names[keep]), data.take(has)


@pytest.fixture(scope="module", params=METHODS)
def make(request):
    return METHODS[request.param]


@pytest.fixture(scope="module")
def parts():
    """900 documents to fit on, 100 to learn, 400 to test; all drawn in the same way."""
    data = planted("texts", n_documents=1400, n_labels=60)
    return data.take(slice(0, 900)), data.take(slice(900, 1000)), data.take(slice(1000, 1400))


def test_learning_is_about_as_good_as_fitting_all_documents(make, parts):
    old, new, test = parts
    model, full = make().fit(old), make().fit(lw.concat([old, new]))
    report = model.learn(new)
    assert p_at(model, test) >= p_at(full, test) - 0.01
    assert report.n_documents == 100
    assert report.reasons == ()
    assert 0.3 < report.precision_before <= 1
    assert model.n_documents_ == 1000
    np.testing.assert_array_equal(model.label_counts_, old.label_counts() + new.label_counts())


def test_documents_of_another_kind_are_learned_and_the_old_ones_remembered(make, parts):
    """A label gets a second meaning, in words that the vocabulary does not have."""
    old, _, test = parts
    model = make().fit(old)
    before = p_at(model, test)
    texts = [f"comet{i % 3} asteroid meteor noise{i}" for i in range(30)]
    labels = [["L7"]] * 30
    assert model.predict(texts, k=1).labels.count(["L7"]) < 5
    report = model.learn(texts, labels)
    assert report.n_new_features == 5
    assert model.predict(["comet0 meteor noise3"], k=1).labels == [["L7"]]
    assert p_at(model, test) >= before - 0.02
    words = [term.name for term in model.explain("comet0 meteor noise3", k=1)[0].terms]
    assert "comet0" in words


@pytest.mark.parametrize("with_old", [True, False])
def test_new_labels_are_predicted_and_appended(make, parts, with_old):
    train, _, test = parts
    chosen = np.array([3, 11, 30])
    old, new = without(train, chosen)
    model = make().fit(old)
    names = model.label_names_
    report = model.learn(new, old=old if with_old else None)
    assert report.n_new_labels == 3
    assert model.label_names_[: len(names)] == names
    assert sorted(model.label_names_[len(names) :]) == ["L11", "L3", "L30"]
    has = np.asarray(test.labels[:, chosen].sum(axis=1)).ravel() > 0
    assert p_at(model, test.take(has)) >= p_at(make().fit(train), test.take(has)) - 0.05
    found = [row.count("L3") for row in model.predict(test, k=3).labels]
    true = np.asarray(test.labels[:, [3]].sum(axis=1)).ravel() > 0
    assert np.mean(np.array(found)[true]) > 0.7
    if with_old:
        assert p_at(model, test) >= p_at(make().fit(train), test) - 0.02
        assert model.explain(new.take([0]), labels=["L3"])[0].label == "L3"


def test_a_new_label_goes_into_the_node_of_its_siblings(parts):
    train, _, _ = parts
    old, new = without(train, np.array([4]))
    model = METHODS["tree"]().fit(old)
    before = [tree.children_offsets(tree.depth - 1) for tree, _ in model.trees_]
    model.learn(new)
    for (tree, _), offsets in zip(model.trees_, before, strict=True):
        grown = np.flatnonzero(np.diff(tree.children_offsets(tree.depth - 1)) != np.diff(offsets))
        assert len(grown) == 1
        label = model.label_names_.positions["L4"]
        assert tree.parents[-1][tree.label_positions[label]] == grown[0]


@pytest.mark.parametrize(("method", "precision"), [("flat", "float16"), ("tree", "int8")])
def test_weights_of_fewer_bits_learn_too(parts, method, precision):
    old, new, test = parts
    model = METHODS[method](precision=precision).fit(old)
    before = p_at(model, test)
    model.learn(new)
    assert {level.values.dtype for _, levels in model.trees_ for level in levels} == {np.dtype(precision)}
    assert p_at(model, test) >= before - 0.01


@pytest.mark.parametrize(
    "more",
    [
        {"solver": {"loss": "logistic"}},
        {"solver": {"loss": "hinge", "bias": 0.0}},
        {"solver": {"max_weights": 20}},
        {"relevance": True},
        {"tfidf": {"hash_bits": 12, "idf": False}},
        {"tfidf": {"max_features": 200}},
    ],
    ids=str,
)
def test_learning_follows_the_parameters(parts, more):
    old, new, test = parts
    model = METHODS["tree"](**more).fit(old)
    before = p_at(model, test)
    report = model.learn(new)
    assert p_at(model, test) >= before - 0.02
    if "tfidf" in more:
        assert report.n_new_features == 0
    if "max_weights" in more.get("solver", {}):
        for _, levels in model.trees_:
            assert all(np.bincount(one.unpacked().entry_children()).max() <= 20 for one in levels)


def test_negatives_of_the_matcher_are_found_among_new_documents(parts):
    old, new, test = parts
    model = METHODS["tree"](negatives="matcher").fit(old)
    before = p_at(model, test)
    model.learn(new)
    assert p_at(model, test) >= before - 0.01


def test_dense_columns_are_learned_as_sparse_ones_are():
    data = planted("features", n_documents=700)
    wide = sparse.csr_array(data.features, dtype=np.float32)
    dense = np.ascontiguousarray(wide[:, -50:].toarray() + 0.1)
    blocks = replace(data, features=Blocks(wide[:, :-50], dense))
    plain = replace(data, features=sparse.csr_array(sparse.hstack([wide[:, :-50], dense])))
    tops = []
    for one in (blocks, plain):
        model = METHODS["flat"](precision="float32", solver={"tolerance": 1e-4, "max_passes": 1000}).fit(
            one.take(slice(0, 600))
        )
        model.learn(one.take(slice(600, 700)))
        tops.append(model.predict(one, k=5).to_csr(60).toarray())
    np.testing.assert_allclose(*tops, atol=5e-3)


def test_known_documents_are_skipped_unless_their_labels_changed(parts):
    old, new, _ = parts
    model = METHODS["tree"]().fit(old)
    before = model.predict(old, k=3)
    report = model.learn(old.take(slice(0, 50)), old=old)
    assert (report.n_documents, report.n_known) == (0, 50)
    same_predictions(model.predict(old, k=3), before)
    row = 5
    changed = old.take([row])
    wrong, right = changed.labels_of(0)[0], "L59"
    lists = [[right, *changed.labels_of(0)[1:]]]
    without_it = METHODS["tree"]().fit(old)
    without_it.learn(new)
    report = model.learn(lw.concat([new, lw.Dataset(*_labels(lists), texts=changed.texts)]), old=old)
    assert (report.n_documents, report.n_changed, report.n_known) == (101, 1, 0)
    assert model.n_documents_ == 1000
    counts = old.label_counts() + new.label_counts()
    counts[[old.label_names.positions[wrong], old.label_names.positions[right]]] += [-1, 1]
    np.testing.assert_array_equal(model.label_counts_, counts)
    found, before = (dict(next(iter(one.predict(changed, k=60)))) for one in (model, without_it))
    assert found[right] > before[right]
    assert found[wrong] < before[wrong]


def test_documents_are_recognised_without_the_old_ones(parts):
    old, new, _ = parts
    model = METHODS["flat"]().fit(old)
    assert model.learn(lw.concat([old.take(slice(0, 40)), new])).n_known == 40
    assert model.n_documents_ == 1000
    again = model.learn(new)
    assert (again.n_documents, again.n_known) == (0, 100)


def test_new_labels_in_a_file_that_grows_are_trained_against_its_old_documents(parts):
    train, _, test = parts
    old, new = without(train, np.array([3, 11, 30]))
    grown, given = (METHODS["tree"]().fit(old) for _ in range(2))
    report = grown.learn(lw.concat([old, new]))
    assert (report.n_documents, report.n_known, report.n_new_labels) == (len(new), len(old), 3)
    assert not any("without old" in reason for reason in report.reasons)
    given.learn(new, old=old)
    assert p_at(grown, test) == pytest.approx(p_at(given, test), abs=0.005)


def _labels(lists):
    from labelwise.data.dataset import labels_from_lists

    return labels_from_lists(lists)


def test_a_full_training_is_due_after_much_has_been_learned(parts):
    old, new, _ = parts
    model = METHODS["tree"]().fit(old.take(slice(0, 300)))
    assert model.learn(new.take(slice(0, 50))).reasons == ()
    reasons = model.learn(new.take(slice(50, 100))).reasons
    assert len(reasons) == 1
    assert "100 documents learned since, 33% of 300" in reasons[0]
    model.fit(lw.concat([old, new]))
    assert model.learn(new.take(slice(0, 50))).reasons == ()


def test_a_full_training_is_due_after_labels_without_old_documents(parts):
    train, _, _ = parts
    old, new = without(train, np.array([40]))
    model = METHODS["tree"]().fit(old)
    assert any("labels without old documents" in reason for reason in model.learn(new).reasons)
    model = METHODS["tree"]().fit(old)
    assert not any("labels without" in reason for reason in model.learn(new, old=old).reasons)


def test_a_full_training_is_due_when_new_documents_are_predicted_worse(parts):
    old, new, _ = parts
    model = METHODS["tree"]().fit(old)
    noise = [f"noise{i % 40} noise{i % 7}" for i in range(40)]
    model.learn(new)
    drops = [r for r in model.learn(lw.Dataset(*_labels([["L52"]] * 40), texts=noise)).reasons if "P@5" in r]
    assert len(drops) == 1


def test_what_was_learned_is_saved(make, parts, tmp_path):
    old, new, test = parts
    model = make().fit(old)
    model.learn(new)
    model.save(tmp_path / "model")
    loaded = lw.load(tmp_path / "model")
    same_predictions(loaded.predict(test, k=5), model.predict(test, k=5))
    assert loaded.linear_.statistics.learned == model.linear_.statistics.learned
    one, other = loaded.learn(test), model.learn(test)
    assert one == other
    same_predictions(loaded.predict(test, k=5), model.predict(test, k=5))


def test_threads_do_not_change_what_is_learned(make, parts):
    old, new, test = parts
    tops = []
    for count in (1, 3):
        model = make().fit(old)
        with using_threads(count):
            model.learn(new)
        tops.append(model.predict(test, k=5))
    same_predictions(*tops)


def test_a_model_without_statistics_says_so(parts, tmp_path):
    model = METHODS["flat"]().fit(parts[0])
    model.linear_.statistics = None
    model.save(tmp_path / "model")
    with pytest.raises(ConfigError, match="older version"):
        lw.load(tmp_path / "model").learn(parts[1])


def test_a_failed_learn_changes_nothing(parts):
    model = METHODS["tree"]().fit(parts[0])
    before = model.predict(parts[2], k=5)
    with pytest.raises(DataError, match="not documents that the model was trained on"):
        model.learn(parts[1], old=lw.Dataset(*_labels([["other"]]), texts=["text"]))
    with pytest.raises(DataError, match="trained on texts"):
        model.learn(planted("features"))
    same_predictions(model.predict(parts[2], k=5), before)
    assert model.n_documents_ == 900


def test_partial_fit_fits_and_then_learns(parts):
    old, new, test = parts
    model, other = METHODS["tree"](), METHODS["tree"]().fit(old)
    assert model.partial_fit(old) is model
    assert model.partial_fit(new) is model
    other.learn(new)
    same_predictions(model.predict(test, k=5), other.predict(test, k=5))
    assert not hasattr(lw.Popularity(), "partial_fit")


def test_other_methods_name_those_that_can():
    model = lw.Popularity().fit(planted("texts"))
    with pytest.raises(ConfigError, match="popularity cannot learn more documents; linear_flat and linear_tree can"):
        model.learn(planted("texts"))


def test_known_documents_that_the_old_ones_lack_are_skipped(parts):
    old, new, _ = parts
    model = METHODS["tree"]().fit(old)
    report = model.learn(lw.concat([old.take(slice(0, 40)), new]), old=old.take(slice(40, 900)))
    assert (report.n_documents, report.n_known) == (100, 40)
    assert model.n_documents_ == 1000


def test_labels_of_skipped_documents_are_not_added(parts):
    old, new, _ = parts
    for given in ({}, {"old": old.take(slice(40, 900))}):
        model = METHODS["tree"]().fit(old)
        relabelled = lw.Dataset([["first"], ["second"]], texts=old.texts[:2])
        own = lw.Dataset([["third", "L1"]], texts=["third comet"])
        report = model.learn(lw.concat([relabelled, new, own]), **given)
        assert (report.n_documents, report.n_known, report.n_new_labels) == (101, 2, 1)
        assert list(model.label_names_) == [*old.label_names, "third"]


def test_a_changed_document_given_twice_leaves_a_model_that_loads(tmp_path):
    old = lw.Dataset([["one"], ["two"]], texts=["alpha beta", "gamma delta"])
    model = METHODS["flat"]().fit(old)
    model.learn(lw.Dataset([["one"]] * 3, texts=["gamma delta"] * 3), old=old)
    model.save(tmp_path / "model")
    assert lw.load(tmp_path / "model").n_documents_ == 2


def test_a_document_without_labels_among_the_old_ones_is_not_counted_twice():
    old = lw.Dataset([["one"], ["two"], []], texts=["alpha beta", "gamma delta", "comet"])
    model = METHODS["flat"]().fit(old)
    report = model.learn(lw.Dataset([["one"]], texts=["comet"]), old=old)
    assert (report.n_documents, report.n_changed, model.n_documents_) == (1, 1, 3)
