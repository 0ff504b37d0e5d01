"""Methods in scikit-learn's hands: nested parameters, searches, cross-validation, matrices of scores."""

import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score

import labelwise as lw
from conformance.planted import planted_features, planted_texts
from labelwise.errors import ConfigError, DataError, MissingDependencyError, NotFittedError
from labelwise.linear.solver import SolverConfig
from labelwise.topk import TopK

DATA = planted_texts(90, 12)
TEXTS = list(DATA.texts)
LISTS = [DATA.labels_of(row) for row in range(len(DATA))]
MATRIX = planted_features(90, 12).features


@pytest.fixture(scope="module")
def fitted():
    return lw.LinearTree(trees=1).fit(TEXTS, LISTS)


# --- parameters ---


def test_fields_of_sections_are_parameters():
    model = lw.LinearTree(solver__cost_positive=0.5, solver={"bias": 2.0})
    assert model.config.solver.cost_positive == 0.5
    assert model.config.solver.bias == 2.0
    assert model.get_params()["solver__cost_positive"] == 0.5
    assert "solver__bias" not in model.get_params(deep=False)
    model.set_params(solver__cost_positive=0.25)
    assert (model.config.solver.cost_positive, model.config.solver.bias) == (0.25, 2.0)
    assert clone(model).config == model.config
    assert model.set_params(**model.get_params()).config == clone(model).config
    given = lw.LinearTree(solver=SolverConfig(bias=2.0)).set_params(solver__threshold=0.2)
    assert (given.config.solver.bias, given.config.solver.threshold) == (2.0, 0.2)
    deep = lw.Mach(training__optimiser__rate=0.5, repartition__times=2)
    assert deep.config.training.optimiser.rate == 0.5
    assert deep.config.training.optimiser.name == "adam", "the method's own default"
    assert deep.config.repartition.times == 2
    assert deep.set_params(**deep.get_params()).get_params() == clone(deep).get_params()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tree_count": 3}, "tree_count: there is no such key; did you mean 'tree' or 'trees'"),
        ({"solver__cost": 1}, "solver.cost: there is no such key; did you mean 'cost_positive'"),
        ({"solver__cost_positive": -1}, "solver.cost_positive: should be greater than"),
        ({"trees__count": 1}, "trees__count: trees is not a section"),
        ({"solvers__bias": 1}, "solvers: there is no such key; did you mean 'solver'"),
    ],
)
def test_wrong_parameters_name_the_right_ones(given, message):
    model = lw.LinearTree(trees=2)
    before = model.get_params()
    with pytest.raises(ConfigError, match=message):
        model.set_params(**given)
    with pytest.raises(ConfigError, match=message):
        lw.LinearTree(**given)
    assert model.get_params() == before


def test_a_grid_of_nested_parameters():
    grid = {"solver__cost_positive": [0.01, 1.0], "trees": [1]}
    search = GridSearchCV(lw.LinearTree(), grid, cv=2).fit(TEXTS, LISTS)
    assert search.cv_results_["param_solver__cost_positive"].tolist() == [0.01, 1.0]
    assert search.best_estimator_.config.solver.cost_positive == search.best_params_["solver__cost_positive"]


# --- cross-validation ---


def test_cross_validated_predictions_are_predictions():
    top = cross_val_predict(lw.LinearTree(trees=1), TEXTS, LISTS, cv=3)
    assert isinstance(top, TopK)
    assert lw.evaluate(top, LISTS, "P@1")["P@1"] > 0.7
    dense = DATA.labels.toarray()
    for labels in (DATA.labels, dense):
        assert lw.evaluate(cross_val_predict(lw.LinearTree(trees=1), MATRIX, labels, cv=3), dense, "P@1")["P@1"] > 0.7
    assert cross_val_score(lw.LinearTree(trees=1), TEXTS, LISTS, cv=3).min() > 0.5
    scores = cross_val_predict(lw.LinearTree(trees=1), MATRIX, dense, cv=3, method="decision_function")
    assert sparse.issparse(scores)
    assert scores.shape == dense.shape


def test_predictions_over_different_labels_are_joined_by_name():
    one = TopK(np.array([[0, 1]]), np.array([[2.0, 1.0]]), lw.Strings(["b", "c"]))
    other = TopK(np.array([[0, 1, -1]]), np.array([[1.0, 1.0, -np.inf]]), lw.Strings(["a", "b"]))
    both = np.concatenate([one, other.head(2)])
    assert list(both.label_names) == ["b", "c", "a"]
    assert both.to_lists() == [["b", "c"], ["b", "a"]], "equal scores in the order of the new ids"
    assert np.concatenate([other, other]).ids.tolist() == [[0, 1, -1]] * 2
    unnamed = lw.Popularity().fit(MATRIX, DATA.labels[:, :5]).predict(MATRIX[:1], k=2)
    with pytest.raises(DataError, match="without names cannot be concatenated"):
        np.concatenate([one, unnamed])


def test_predictions_do_not_become_arrays(fitted):
    top = fitted.predict(TEXTS[:2])
    for convert in (np.asarray, np.array, lambda top: np.vstack([top, top]), np.sort):
        with pytest.raises(TypeError, match=r"to_csr|TopK"):
            convert(top)


# --- classes and matrices of scores ---


def test_classes_and_scores(fitted):
    assert fitted.classes_.tolist() == list(fitted.label_names_)
    assert not hasattr(lw.LinearTree(), "classes_")
    scores = fitted.decision_function(TEXTS[:5])
    assert (scores != fitted.predict(TEXTS[:5], k=12).to_csr()).nnz == 0
    assert np.diff(fitted.decision_function(TEXTS[:5], k=2).indptr).tolist() == [2] * 5
    with pytest.raises(NotFittedError, match=r"call calibrate .* or use decision_function"):
        fitted.predict_proba(TEXTS[:5])
    with pytest.raises(NotFittedError, match="not fitted"):
        lw.LinearTree().predict_proba(TEXTS[:5])
    model = pickle.loads(pickle.dumps(fitted))
    model.calibrate(TEXTS, LISTS)
    found = model.predict_proba(TEXTS[:5])
    assert sparse.issparse(found)
    assert (found != model.predict(TEXTS[:5], k=12).to_csr()).nnz == 0
    assert (model.decision_function(TEXTS[:5]) != scores).nnz == 0, "before calibration"


def test_scores_below_zero_are_not_a_sparse_matrix(fitted):
    model = clone(fitted).set_params(post_processor="log_sigmoid").fit(TEXTS, LISTS)
    with pytest.raises(DataError, match="below 0, less than what a sparse matrix does not store"):
        model.decision_function(TEXTS[:2])


# --- tables and short forms ---


def test_a_row_per_predicted_label(monkeypatch):
    top = TopK(np.array([[2, 0], [1, -1]]), np.array([[0.9, 0.2], [0.5, -np.inf]]), lw.Strings(["a", "b", "c"]))
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))  # not needed by anything else
    frame = top.to_frame(["x", "y"])
    assert frame["document"] == ["x", "x", "y"]
    assert frame["rank"].tolist() == [1, 2, 1]
    assert frame["label"] == ["c", "a", "b"]
    assert frame["score"].tolist() == [0.9, 0.2, 0.5]
    assert top.to_frame()["document"].tolist() == [0, 0, 1]
    with pytest.raises(DataError, match="3 identifiers for predictions of 2 documents"):
        top.to_frame([1, 2, 3])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="to_frame needs the package 'pandas': pip install pandas"):
        top.to_frame()


def test_short_forms_fit_on_a_few_lines(fitted, tmp_path):
    top = fitted.predict(TEXTS, k=10)
    assert repr(top).splitlines()[0] == "TopK(90 documents, k=10, 12 labels)"
    assert len(repr(top).splitlines()) == 5
    assert "no labels" in repr(top.above(2.0))
    assert repr(TopK(np.array([[0]]), np.array([[1.0]]), lw.Strings(["\x1b[31mred"]))).endswith("0: \\x1b[31mred 1")
    assert repr(lw.evaluate(top, LISTS, ["P@1", "P@3"])).startswith("Evaluation(P@1: 1.0000, P@3: ")
    fitted.save(tmp_path / "model")
    assert repr(lw.load(tmp_path / "model")) == repr(fitted) == "LinearTree(trees=1)"
    assert repr(lw.LinearTree(solver=SolverConfig(bias=2.0))) == "LinearTree(solver=SolverConfig(bias=2.0))"


def test_data_sets_take_lists_of_labels():
    data = lw.Dataset(texts=["x", "y", "z"], labels=[["a"], ["b", "a"], "c"])
    assert [data.labels_of(row) for row in range(3)] == [["a"], ["a", "b"], ["c"]]
    ordered = lw.Dataset(texts=["x"], labels=[["a"]], label_names=["b", "a"])
    assert ordered.labels.toarray().tolist() == [[0, 1]]
    assert lw.Dataset(texts=["x", "y"]).labels.shape == (2, 0)
    assert list(lw.Strings(["a", "é"])) == ["a", "é"]
    for given, message in (
        ({"labels": [["a"]], "label_names": ["b"]}, "'a' is not among the 1 given label names"),
        ({"labels": "a"}, "a list with each document's labels; got str"),
        ({"labels": ["a text"], "label_names": [["a"]]}, r"Write Dataset\(texts=..., labels=...\)"),
        ({"labels": [1.5]}, "document 0: its labels must be a list"),
    ):
        with pytest.raises(DataError, match=message):
            lw.Dataset(texts=["x"], **given)


def test_parameters_changed_after_fitting_do_not_change_what_is_saved(tmp_path):
    """As in memory: they take effect in the next fit, except those that predictions read."""
    texts = [f"word{i % 5} other{i % 7}" for i in range(60)]
    labels = [[f"l{i % 5}"] for i in range(60)]
    model = lw.LinearTree(trees=1, leaf_size=2).fit(texts, labels)
    expected = model.predict(texts, k=3)
    model.set_params(tfidf__norm=None, tfidf__lowercase=False, solver__bias=0.0, beam=7)
    model.save(tmp_path / "model")
    loaded = lw.load(tmp_path / "model")
    assert loaded.predict(texts, k=3).labels == expected.labels
    assert np.array_equal(loaded.predict(texts, k=3).scores, expected.scores)
    assert loaded.config.beam == 7
    assert loaded.config.tfidf.norm == "l2"


def test_a_matrix_of_minus_one_and_one_is_refused():
    features, wrong = np.eye(4, dtype=np.float32), 2 * np.eye(4) - 1
    with pytest.raises(DataError, match="give 1 for a label that a document has, 0 otherwise"):
        lw.LinearFlat().fit(features, wrong)
    top = lw.LinearFlat().fit(features, np.eye(4)).predict(features, k=1)
    with pytest.raises(DataError, match="negative values"):
        lw.evaluate(top, wrong)
