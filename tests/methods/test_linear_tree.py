"""What the parameters of the linear tree do: kinds of trees, negatives, blocks of features, memory."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import norm

import labelwise as lw
from common import same_predictions
from conformance.planted import SIBLINGS, planted
from labelwise.data.csr import Blocks
from labelwise.errors import ConfigError, DataError
from labelwise.linear import train

# --- kinds of trees ---


def planted_hierarchy(n_labels):
    return "".join(f"L{j}\tgroup{j // SIBLINGS}\n" for j in range(n_labels))


def test_a_hierarchy_is_the_tree(tmp_path):
    data = planted("features")
    (tmp_path / "tree.tsv").write_text(planted_hierarchy(60))
    model = lw.LinearTree(tree="hierarchy", hierarchy=str(tmp_path / "tree.tsv"), beam=3).fit(data)
    assert len(model.trees_) == 1
    tree = model.trees_[0][0]
    assert tree.sizes == (10, 60)
    groups = tree.ancestors(0)
    assert (groups == groups[np.arange(60) // SIBLINGS * SIBLINGS]).all()
    assert lw.evaluate(model.predict(data, k=1), data, metrics=["P@1"])["P@1"] > 0.9
    model.save(tmp_path / "model")
    (tmp_path / "tree.tsv").unlink()  # the model needs the file no more
    same_predictions(lw.load(tmp_path / "model").predict(data), model.predict(data))


def test_kway_makes_shallow_trees():
    data = planted("features", n_labels=180)
    shallow = lw.LinearTree(tree="kway", branching=20, leaf_size=10, trees=1).fit(data).trees_[0][0]
    deep = lw.LinearTree(tree="balanced", branching=2, leaf_size=10, trees=1).fit(data).trees_[0][0]
    assert shallow.depth < deep.depth
    assert shallow.sizes[0] == 18  # as many clusters as hold the labels, ten each


def test_lists_with_a_value_per_level_train_and_predict_as_one_value_does():
    data = planted("features")
    options = {"trees": 1, "branching": 4, "leaf_size": 8, "negatives": "matcher"}
    one = lw.LinearTree(**options, beam=3).fit(data)
    depth = one.trees_[0][0].depth
    lists = lw.LinearTree(**options, beam=[3] * (depth - 1), post_processor=["l3_hinge"] * depth).fit(data)
    same_predictions(lists.predict(data), one.predict(data))
    for wrong in ({"beam": [3] * depth}, {"post_processor": ["l3_hinge"]}):
        with pytest.raises(ConfigError, match="for a tree that needs"):
            lw.LinearTree(**options, **wrong).fit(data)
    for wrong, message in (({"beam": [3, 0]}, "1 or more"), ({"post_processor": ["l3_hinge", "l3"]}, "no post-proc")):
        with pytest.raises(ConfigError, match=message):
            lw.LinearTree(**wrong)


def test_feature_norm_takes_one_copy_of_the_features_and_leaves_those_of_the_user(monkeypatch):
    features = sparse.random_array((5000, 3000), density=0.02, format="csr", rng=0, dtype=np.float32)
    labels = [[str(number % 20)] for number in range(5000)]
    columns, values, held, plain = features.indices.copy(), features.data.copy(), [], train.train_tree

    def watched(*given, **named):
        held.append(tracemalloc.get_traced_memory()[0])
        return plain(*given, **named)

    monkeypatch.setattr(train, "train_tree", watched)
    for scaled in (None, None, "l2"):  # what the first fit loads does not count
        tracemalloc.start()
        lw.LinearTree(feature_norm=scaled, trees=1, leaf_size=4, branching=4).fit(features, labels)
        tracemalloc.stop()
    assert held[2] < held[1] + features.data.nbytes / 4
    np.testing.assert_array_equal(features.indices, columns)
    np.testing.assert_array_equal(features.data, values)


def test_feature_norm_scales_documents_when_training_and_when_predicting():
    data = planted("features")
    factors = np.random.default_rng(0).uniform(0.2, 9, data.features.shape[0])
    unit = sparse.csr_array(data.features / norm(data.features, axis=1)[:, None])
    scaled = sparse.csr_array(data.features * factors[:, None])
    exact = {"trees": 1, "precision": "float32"}
    expected = lw.LinearTree(**exact).fit(unit.astype(np.float32), data.labels).predict(unit.astype(np.float32))
    model = lw.LinearTree(**exact, feature_norm="l2").fit(scaled.astype(np.float32), data.labels)
    found = model.predict(scaled.astype(np.float32))
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-3, atol=1e-3)
    dense = model.predict(scaled.toarray().astype(np.float32))
    blocks = model.predict(Blocks(scaled[:, :20].astype(np.float32), scaled[:, 20:].toarray().astype(np.float32)))
    for other in (dense, blocks):
        np.testing.assert_allclose(other.scores, found.scores, rtol=1e-3, atol=1e-4)
    with pytest.raises(ConfigError, match=r"tfidf\.norm"):
        model.fit(["a text", "another"], [["a"], ["b"]])


def test_mistakes_with_files_are_told_before_anything_is_done(tmp_path, monkeypatch):
    data = planted("texts")
    monkeypatch.setattr("labelwise.features.featurizers.Tfidf", None)  # nobody gets as far as this
    (tmp_path / "tree.tsv").write_text("A\tB\nB\tA\n")
    (tmp_path / "strange.tsv").write_text("A\tB\n")
    sparse.save_npz(tmp_path / "short.npz", sparse.csr_matrix((5, 60)))
    sparse.save_npz(tmp_path / "narrow.npz", sparse.csr_matrix((600, 7)))
    (tmp_path / "broken.npz").write_text("no")
    lw.write(planted("texts", n_documents=7), tmp_path / "short.jsonl")
    (tmp_path / "other.jsonl").write_text('{"text": "x", "labels": ["unheard"]}\n' * 600)
    for params, message in (
        ({"tree": "hierarchy", "hierarchy": "tree.tsv"}, "has a cycle"),
        ({"tree": "hierarchy", "hierarchy": "strange.tsv"}, "none of the 60 labels is in the hierarchy"),
        ({"tree": "hierarchy", "hierarchy": "missing.tsv"}, "missing.tsv"),
        ({"negatives": "user", "user_negatives": "missing.npz"}, "no such file"),
        ({"negatives": "user", "user_negatives": "short.npz"}, "5 documents, but training has 600"),
        ({"negatives": "matcher+user", "user_negatives": "narrow.npz"}, "7 labels, but training has 60"),
        ({"negatives": "user", "user_negatives": "broken.npz"}, "not a sparse matrix"),
        ({"negatives": "user", "user_negatives": "short.jsonl"}, "7 documents, but training has 600"),
        ({"negatives": "user", "user_negatives": "other.jsonl"}, "'unheard'"),
    ):
        key = "hierarchy" if "hierarchy" in params else "user_negatives"
        with pytest.raises(DataError, match=message):
            lw.LinearTree(**{**params, key: str(tmp_path / params[key])}).fit(data)
    for params in ({"tree": "hierarchy"}, {"hierarchy": "x"}, {"negatives": "user"}, {"user_negatives": "x"}):
        with pytest.raises(ConfigError, match="go together"):
            lw.LinearTree(**params)


# --- negatives ---


def misled():
    """Labels A1, A2 under A and B1, B2 under B. `bait` speaks for A1 among A's documents; B's documents have it too."""
    words = ["a", "b", "one", "two", "bait"]
    documents = {
        "A1": ["a", "one", "bait"],
        "A2": ["a", "two"],
        "B1": ["b", "one", "bait"],
        "B2": ["b", "two", "bait"],
    }
    names = [name for name in documents for _ in range(20)]
    features = sparse.csr_array(np.array([[float(w in documents[name]) for w in words] for name in names]))
    labels = sparse.csr_array(np.array([[name == label for label in documents] for name in names], np.float32))
    return lw.Dataset(labels, list(documents), features=features)


def margins(data, tmp_path, **params):
    (tmp_path / "tree.tsv").write_text("A1\tA\nA2\tA\nB1\tB\nB2\tB\n")
    model = lw.LinearTree(
        tree="hierarchy", hierarchy=str(tmp_path / "tree.tsv"), post_processor="none", beam=2, **params
    ).fit(data)
    bait = sparse.csr_array(np.array([[0, 1, 0, 0, 1]], np.float32))  # a document of B with the bait
    return dict(next(iter(model.predict(bait, k=4))))


@pytest.mark.parametrize("kind", ["npz", "jsonl"])
def test_a_users_negatives_teach_what_siblings_cannot(tmp_path, kind):
    data = misled()
    wrong = sparse.lil_array((80, 4))
    wrong[40:, 0] = -1  # B's documents are not A1, whatever the number says
    if kind == "npz":
        sparse.save_npz(tmp_path / "wrong.npz", sparse.csr_matrix(wrong))
    else:
        lines = ['{"text": "x", "labels": %s}' % ('["A1"]' if row >= 40 else "[]") for row in range(80)]
        (tmp_path / "wrong.jsonl").write_text("\n".join(lines) + "\n")
    without = margins(data, tmp_path)
    taught = margins(data, tmp_path, negatives="user", user_negatives=str(tmp_path / f"wrong.{kind}"))
    assert without["A1"] > 0  # trained on A's documents alone, the bait is all that is needed
    assert taught["A1"] < -0.5
    assert taught["B1"] == without["B1"]  # B's own classifiers have seen nothing new


def test_the_matcher_finds_such_documents_by_itself(tmp_path):
    data = misled()
    assert margins(data, tmp_path, negatives="matcher")["A1"] < margins(data, tmp_path)["A1"] - 0.5


# --- features in blocks ---


@pytest.mark.parametrize("method", [lw.LinearTree, lw.LinearFlat])
def test_blocks_are_columns_side_by_side(method, tmp_path):
    data = planted("features")
    dense = np.random.default_rng(0).normal(size=(len(data), 12)).astype(np.float32)
    dense[:, 3] = 0
    joined = np.hstack([data.features.toarray(), dense])
    params = {"label_features": None, "trees": 1} if method is lw.LinearTree else {"precision": "float32"}
    blocks = Blocks(data.features, dense)
    model = method(**params).fit(lw.Dataset(data.labels, features=blocks))
    expected = method(**params).fit(joined, data.labels).predict(joined, k=5)
    found = model.predict(blocks, k=5)
    if method is lw.LinearFlat:  # equal but for the order in which features are added up
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
        from_csr = method(**params).fit(sparse.csr_array(joined), data.labels).predict(joined, k=5)
        np.testing.assert_allclose(from_csr.scores, expected.scores, atol=1e-5)
    else:  # sums over dense and sparse columns are rounded differently, so a label may stand in another cluster
        assert (found.ids[:, 0] == expected.ids[:, 0]).mean() > 0.95
    model.save(tmp_path / "model")
    same_predictions(lw.load(tmp_path / "model").predict(blocks[:9], k=5), found[:9])
    with pytest.raises(DataError, match="features"):
        model.predict(Blocks(None, joined[:, :-1]))
    with pytest.raises(DataError, match="same number of rows"):
        Blocks(data.features, dense[:-1])


# --- memory ---


def test_what_does_not_fit_is_refused(caplog):
    data = planted("features", n_labels=160)
    with pytest.raises(ConfigError, match=r"needs about .* of memory, and the limit of 0.001 GB .* raise the limit"):
        lw.LinearTree(memory=0.001).fit(data)
    with pytest.raises(ConfigError, match="fewer"):
        lw.LinearFlat(memory=0.001).fit(data)
    with caplog.at_level("INFO"):
        lw.LinearFlat(memory=8).fit(data)
    assert "needs about" in caplog.text
    with pytest.raises(ConfigError, match="memory"):
        lw.LinearFlat(memory=-1)
    with pytest.raises(ConfigError, match="memory"):
        lw.LinearFlat(memory="perhaps")


def test_ignore_means_ignore(monkeypatch):
    monkeypatch.setattr("labelwise.linear.memory.free_memory", lambda: 1000)
    data = planted("features")
    with pytest.raises(ConfigError, match="needs about"):
        lw.LinearFlat().fit(data)
    lw.LinearFlat(memory="ignore").fit(data)
    monkeypatch.setattr("labelwise.linear.memory.free_memory", lambda: None)
    lw.LinearFlat().fit(data)


def test_what_trees_share_is_computed_once(monkeypatch):
    from labelwise.labelspace.tree import LabelTree
    from labelwise.linear import train as train_tree

    calls = []
    norms, aggregate = train_tree.squared_norms, LabelTree.aggregate
    monkeypatch.setattr(train_tree, "squared_norms", lambda rows: calls.append("norms") or norms(rows))
    monkeypatch.setattr(LabelTree, "aggregate", lambda tree, labels: calls.append("targets") or aggregate(tree, labels))
    lw.LinearTree(trees=3, leaf_size=4, branching=2).fit(planted("features", n_documents=60, n_labels=20))
    assert sorted(calls) == ["norms", "targets", "targets", "targets"]


SEARCH_BOTH = """
import sys
import tracemalloc
import labelwise as lw
from labelwise.kernels.term_rows import look_up
from labelwise.kernels import search as averaging, packing as feature_sets, packing as packed_rows, packing as renumber, search as tree_search
texts = [f"word{i} word{i % 7} common" for i in range(60)]
model = lw.LinearTree(leaf_size=2, branching=4).fit(texts, [[f"l{i % 40}"] for i in range(60)])
model.predict(texts)
model.save(sys.argv[1])
lw.load(sys.argv[1]).predict(texts[0])
for kernel in (
    look_up, averaging.average, renumber.renumber_rows, tree_search.descend, feature_sets.choose_shapes,
    feature_sets.fill_sets,
):
    assert len(kernel.signatures) == 1, kernel.signatures
"""


def test_a_fitted_and_a_loaded_model_are_searched_by_the_same_machine_code(tmp_path):
    command = [sys.executable, "-c", SEARCH_BOTH, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
