"""Time budgets of linear methods, on a clock that the tests move."""

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from common import Clock, same_predictions
from conformance.planted import planted
from labelwise.linear.solver import LevelTrainer, PassLimit
from labelwise.runtime.budget import NO_LIMIT
from labelwise.runtime.job import Job
from labelwise.runtime.threads import using_threads


@pytest.fixture(scope="module")
def data():
    return planted("features", n_documents=300, n_labels=60)


@pytest.fixture
def clock(monkeypatch):
    """Every chunk that is trained takes a second."""
    moved, local = Clock(), LevelTrainer._local

    def slow(self, chunk):
        moved.now += 1.0
        return local(self, chunk)

    monkeypatch.setattr("time.monotonic", moved)
    monkeypatch.setattr(LevelTrainer, "_local", slow)
    with using_threads(1):
        yield moved


SMALL = {"leaf_size": 8, "branching": 4}


def test_enough_time_changes_nothing(data, clock):
    budget = NO_LIMIT.limited(1e6)
    limited = lw.LinearTree(**SMALL).fit(data, job=Job(budget=budget))
    assert not budget.ended_early
    same_predictions(limited.predict(data, 5), lw.LinearTree(**SMALL).fit(data).predict(data, 5))
    assert len(limited.trees_) == 3


def test_the_budget_decides_how_many_trees_there_are(data, clock, caplog):
    caplog.set_level("INFO")
    begin = clock.now
    lw.LinearTree(**SMALL, trees=1).fit(data)
    one_tree = clock.now - begin
    budget = NO_LIMIT.limited(2.2 * one_tree)
    model = lw.LinearTree(**SMALL).fit(data, job=Job(budget=budget))
    assert len(model.trees_) == 2
    assert budget.ended_early
    assert "time budget: 2 of 3 trees are trained, the others are left out" in caplog.messages
    assert any(message.startswith("tree 2 of 3, level 1 of") for message in caplog.messages)
    assert lw.evaluate(model.predict(data, 1), data, metrics=["P@1"])["P@1"] > 0.8


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
def test_without_time_labels_are_scored_by_their_frequency(data, clock, caplog, tmp_path, loss):
    caplog.set_level("INFO")
    begin = clock.now
    model = lw.LinearFlat(time_budget=2.0, solver={"loss": loss}).fit(data, job=Job(tmp_path))
    assert clock.now - begin <= 3.0, "one group of labels more than the budget at most"
    assert "groups to the frequencies of their labels" in caplog.text
    assert np.isfinite(model.predict(data, 60).scores).all()
    weights = model.trees_[0][1][0]
    assert weights.n_weights > 0
    margins = weights.bias[48:]  # the last group has no label that is more frequent than those of the others
    expected = 2 * data.label_counts()[48:] / len(data) - 1
    np.testing.assert_allclose(np.tanh(margins / 2) if loss == "logistic" else margins, expected, atol=1e-3)
    # chunks that were cut are trained again by a fit with more time, in the same folder
    whole = lw.LinearFlat(solver={"loss": loss}).fit(data, job=Job(tmp_path))
    same_predictions(whole.predict(data, 5), lw.LinearFlat(solver={"loss": loss}).fit(data).predict(data, 5))


def test_chunks_below_a_cut_level_are_trained_again(data, clock, caplog, tmp_path, monkeypatch):
    """With `matcher` their documents are those that the cut classifiers above predict."""
    caplog.set_level("INFO")
    settings = {**SMALL, "trees": 1, "negatives": "matcher", "beam": 1, "solver": {"tolerance": 1e-6}}
    with monkeypatch.context() as patch:  # the root has no passes, all other nodes are trained to the end
        levels = []

        def passes(self, work, max_passes):
            if self not in levels:
                levels.append(self)
            return 0 if self is levels[0] else max_passes

        patch.setattr(PassLimit, "passes", passes)
        lw.LinearTree(**settings, time_budget=1e6).fit(data, job=Job(tmp_path))
    (cut,) = (message for message in caplog.messages if "time budget limited" in message)
    assert cut.startswith("level 1 of")
    whole = lw.LinearTree(**settings).fit(data, job=Job(tmp_path))
    same_predictions(whole.predict(data, 5), lw.LinearTree(**settings).fit(data).predict(data, 5))


def test_nodes_without_any_document_take_no_time(data, clock):
    unused = sparse.csr_array((len(data), 60), dtype=np.float32)
    wide = lw.Dataset(sparse.csr_array(sparse.hstack([data.labels, unused])), features=data.features)
    limited = lw.LinearTree(**SMALL, trees=1, time_budget=1e6).fit(wide)
    same_predictions(limited.predict(wide, 5), lw.LinearTree(**SMALL, trees=1).fit(wide).predict(wide, 5))
