"""`predict(threshold=...)`: a threshold alone limits nothing but the scores; with k both limit."""

import copy
import json

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from common import same_predictions
from labelwise.errors import ConfigError, NotFittedError

N_LABELS = 60


def documents(n, seed, low=1, high=40):
    """Texts whose words are their labels, from one to many."""
    rng = np.random.default_rng(seed)
    lists = [[f"L{i}" for i in rng.permutation(N_LABELS)[: rng.integers(low, high)]] for _ in range(n)]
    return [" ".join(f"word{label}" for label in labels) for labels in lists], lists


@pytest.fixture(scope="module")
def model():
    fitted = lw.LinearTree(trees=1, leaf_size=8, branching=4, beam=20).fit(*documents(300, 0))
    fitted.calibrate(*documents(100, 1))
    return fitted


def test_a_threshold_alone_cuts_nothing(model):
    texts, _ = documents(50, 2)
    everything = model.predict(texts, N_LABELS)
    older = copy.copy(model)
    older.trained_on_ = None  # begins with 20 labels and doubles twice
    same_predictions(older.predict(texts, threshold=0), model.predict(texts, threshold=0))
    for threshold in (model.threshold_, 0.9, 0.01, 0, -np.inf):
        found = model.predict(texts, threshold=threshold)
        expected = everything.above(threshold)
        assert found.k == (expected.ids >= 0).sum(1).max()
        same_predictions(found, expected.head(found.k))
    counts = (model.predict(texts, threshold="auto").ids >= 0).sum(1)
    assert counts.min() < 10 < 30 < counts.max()
    same_predictions(model.predict(texts, threshold="auto"), model.predict(texts, threshold=model.threshold_))


def test_k_and_threshold_limit_both(model):
    texts, _ = documents(20, 3)
    same_predictions(model.predict(texts, 5, threshold=0.5), model.predict(texts, 5).above(0.5))
    assert model.predict(texts, 5, threshold=2.0).k == 5
    assert model.predict(texts).k == model.predict(texts, None).k == 10
    assert model.predict(texts, threshold=2.0).labels == [[]] * 20
    assert len(model.predict([], threshold=0.5)) == 0


def test_a_threshold_among_chosen_labels(model):
    texts, _ = documents(20, 4, low=20)
    names = [f"L{i}" for i in range(30)]
    found = model.predict(texts, threshold=0.2, labels=names)
    same_predictions(found, model.predict(texts, 60, labels=names).above(0.2).head(found.k))
    assert found.k > 10


@pytest.mark.parametrize("threshold", ["much", float("nan"), True, [0.5]])
def test_a_threshold_is_a_number_or_auto(model, threshold):
    with pytest.raises(ConfigError, match="a number or 'auto'"):
        model.predict(["x"], threshold=threshold)


def test_auto_needs_a_calibrated_model():
    plain = lw.Popularity().fit(["a"], [["x"]])
    with pytest.raises(NotFittedError, match="not calibrated"):
        plain.predict(["a"], threshold="auto")
    assert plain.predict(["a"], threshold=0).labels == [["x"]]


def test_the_command_cuts_only_where_k_is_given(model, tmp_path):
    model.save(tmp_path / "model")
    texts, _ = documents(30, 5)
    lines = "\n".join(texts) + "\n"

    def predicted(*options):
        out = labelwise("predict", tmp_path / "model", *options, stdin=lines).out
        return [len(json.loads(line)["labels"]) for line in out.splitlines()]

    expected = [len(row) for row in model.predict(texts, threshold="auto").labels]
    assert predicted("--threshold", "auto") == expected
    assert max(expected) > 10
    assert predicted("--threshold", "auto", "-k", "10") == [min(count, 10) for count in expected]
    assert predicted() == [10] * 30


@pytest.mark.parametrize("trees", [1, 3])
def test_a_larger_k_does_not_change_the_first_labels(trees):
    """What the labels of a document are does not depend on how many of them are asked for, up to 20 in several trees."""
    fitted = lw.LinearTree(trees=trees, leaf_size=8, branching=4, beam=4).fit(*documents(200, 6))
    texts, _ = documents(30, 7)
    same_predictions(fitted.predict(texts, 20).head(5), fitted.predict(texts, 5))
    if trees == 1:
        same_predictions(fitted.predict(texts, N_LABELS).head(20), fitted.predict(texts, 20))
