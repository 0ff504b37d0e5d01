"""One-versus-rest against scikit-learn's LinearSVC, which is LIBLINEAR."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.svm import LinearSVC

import labelwise as lw
from conformance.planted import planted
from labelwise.errors import ConfigError, DataError, NotFittedError

EXACT = {"tolerance": 1e-5, "max_passes": 5000, "threshold": 0}


def decision_values(model, features):
    return model.predict(features, k=len(model.label_names_)).to_csr().toarray()


def problem():
    data = planted("features", n_documents=250, n_labels=40)
    features = sparse.csr_array(data.features, dtype=np.float32)
    features.data /= np.repeat(sparse.linalg.norm(features, axis=1), np.diff(features.indptr)).astype(np.float32)
    features.indices, features.indptr = features.indices.astype(np.int32), features.indptr.astype(np.int32)
    return features, data.labels[:, np.flatnonzero(data.label_counts() > 1)]


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
@pytest.mark.parametrize(("positive", "negative", "bias"), [(1.0, 1.0, 1.0), (3.0, 0.5, 2.0), (0.7, 0.7, 0.0)])
def test_decision_values_are_those_of_linear_svc(loss, positive, negative, bias):
    features, labels = problem()
    solver = {**EXACT, "loss": loss, "cost_positive": positive, "cost_negative": negative, "bias": bias}
    model = lw.LinearFlat(solver=solver, post_processor="none", precision="float32").fit(features, labels)
    found = decision_values(model, features)
    for label in range(labels.shape[1]):
        peer = LinearSVC(
            loss=loss, C=1.0, class_weight={1: positive, 0: negative}, dual=True, tol=1e-7, max_iter=1_000_000,
            fit_intercept=bias > 0, intercept_scaling=bias or 1.0,
        )  # fmt: skip
        target = labels[:, [label]].toarray().ravel() > 0
        np.testing.assert_allclose(
            found[:, label], peer.fit(features, target.astype(int)).decision_function(features), atol=2e-3
        )


def test_no_label_is_lost_on_the_way():
    """Every label of every document has a place when all are asked for, whatever the number of groups of 16."""
    data = planted("features", n_labels=47)
    top = lw.LinearFlat().fit(data).predict(data, k=47)
    assert (np.sort(top.ids, axis=1) == np.arange(47)).all()


def test_few_weights_are_kept_where_few_are_wanted():
    data = planted("features")
    levels = lw.LinearFlat(solver={"max_weights": 3}).fit(data).trees_[0][1]
    assert len(levels) == 1
    assert np.bincount(levels[0].unpacked().entry_children()).max() <= 4  # more only where weights are equal
    whole = lw.LinearFlat(solver={"threshold": 0}).fit(data).trees_[0][1][0]
    assert whole.n_weights > 10 * levels[0].n_weights


def test_empty_documents_without_bias_do_no_harm():
    features = np.eye(6, dtype=np.float32)
    features[5] = 0
    model = lw.LinearFlat(solver={"loss": "hinge", "bias": 0.0}).fit(features, [["a"], ["b"]] * 3)
    assert model.predict(features[:2], k=1).labels == [["a"], ["b"]]


def test_a_fit_that_fails_leaves_nothing_half_done():
    features = np.eye(6, dtype=np.float32)
    model = lw.LinearFlat().fit(features, [["a"], ["b"]] * 3)
    model.set_params(memory=1e-9)
    with pytest.raises(ConfigError, match="memory"):
        model.fit(features, [["a"], ["b"]] * 3)
    with pytest.raises(NotFittedError):
        model.predict(features)


def test_negative_relevances_are_refused():
    with pytest.raises(DataError, match="relevance"):
        lw.LinearFlat(relevance=True).fit(np.eye(2, dtype=np.float32), np.array([[-1.0, 0], [0, 1]]))


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(ConfigError, match="seed"):
        lw.LinearFlat(seed=seed)


def test_both_kinds_of_sparse_matrices_are_taken_and_left_as_they_are():
    rng = np.random.default_rng(0)
    X = sparse.random_array((30, 20), density=0.4, format="csr", rng=rng, dtype=np.float32)
    X.sort_indices()
    model = lw.LinearFlat().fit(X, [[str(row % 3)] for row in range(30)])
    wanted = model.predict(X, k=2)
    older = sparse.csr_matrix(X)
    before = older.indices.copy()
    found = model.predict(older, k=2)
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    np.testing.assert_array_equal(older.indices, before)
    older.data[3] = np.nan
    with pytest.raises(DataError, match="NaN"):
        model.predict(older)
    with pytest.raises(DataError, match="trained on 20 features"):
        model.predict(sparse.csr_matrix((1, 25), dtype=np.float32))
