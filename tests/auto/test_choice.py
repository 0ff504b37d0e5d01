"""How `auto` judges, chooses and combines, against independent computations."""

import numpy as np
import pytest

import labelwise as lw
from conformance.planted import planted_texts
from labelwise.cli.options import parse_duration
from labelwise.errors import ConfigError, DataError
from labelwise.methods.ensemble import Ensemble
from labelwise.metrics.result import ResamplingSums
from labelwise.report.schema import AutoRecord
from labelwise.runs.run_time import RunTime
from labelwise.runtime.budget import NO_LIMIT
from labelwise.strings import Strings
from labelwise.topk import TopK
from labelwise.tuning.auto import Search
from labelwise.tuning.ladder import (
    Facts,
    Judge,
    Trial,
    checked_metric,
    choose,
    cross_fitted,
    is_better,
    ladder,
    rules_for,
    run_trial,
    sets_of_members,
)


def sums_of(values):
    """One value per document."""
    values = np.asarray(values, float)[None]
    return ResamplingSums(("P@5",), values, np.ones_like(values), values.shape[1], 0)


@pytest.fixture(scope="module")
def judge():
    data = planted_texts(n_documents=500, n_labels=12)
    train, valid = data.take(slice(0, 400)), data.take(slice(400, 500))
    return train, Judge(valid, train.label_counts(), len(train), checked_metric("P@5"))


@pytest.fixture(scope="module")
def trials(judge, tmp_path_factory):
    """Two different models."""
    train, judged = judge
    models = {
        "one": {"method": "linear_tree", "trees": 1, "leaf_size": 3},
        "other": {"method": "linear_flat", "solver": {"cost_positive": 0.05, "cost_negative": 0.05}},
    }
    place = tmp_path_factory.mktemp("trials")
    return [
        run_trial(place, name, model, "data", train, judged.valid, judged.k, NO_LIMIT) for name, model in models.items()
    ]


def test_noise_is_one_standard_error_of_the_paired_difference():
    draw = np.random.default_rng(0)
    base = draw.random(400)
    change = draw.normal(size=400)
    change = (change - change.mean()) / change.std()  # its standard error is 0.05

    def chosen(gain):
        return choose({"cheap": sums_of(base), "costly": sums_of(base + change + gain)}).chosen

    assert chosen(0.035) == "cheap", "two thirds of a standard error"
    assert chosen(0.075) == "costly", "one and a half"
    assert chosen(0.0) == "cheap"
    same = choose({"cheap": sums_of(base), "costly": sums_of(base)})
    assert (same.chosen, same.best) == ("cheap", "cheap")
    assert not is_better(sums_of(base), sums_of(base))
    assert is_better(sums_of(base + change + 0.075), sums_of(base))


def test_f1_is_judged_at_the_threshold_of_the_other_half(judge, trials):
    _, plain = judge
    judged = Judge(plain.valid, plain.label_counts, plain.n_train, checked_metric("micro-F1"))
    top, truth = trials[0].top, plain.valid.labels.toarray() > 0
    scores = np.full(truth.shape, -np.inf)
    for row, (ids, values) in enumerate(zip(top.ids, top.scores, strict=True)):
        scores[row, ids[ids >= 0]] = values[ids >= 0]
    hits = predicted = 0
    for rows, others in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        levels = np.unique(scores[others][np.isfinite(scores[others])])
        middles = (levels[1:] + levels[:-1]) / 2

        def f1(level, others=others):
            taken = scores[others] >= level
            return 2 * (taken & truth[others]).sum() / (taken.sum() + truth[others].sum())

        level = max(middles, key=f1)
        hits += ((scores[rows] >= level) & truth[rows]).sum()
        predicted += (scores[rows] >= level).sum()
    expected = 2 * hits / (predicted + truth.sum())
    assert float(judged.sums(top).values()[0]) == pytest.approx(expected, abs=1e-6)


def test_metrics_that_cannot_be_paired_are_refused():
    for name in ("macro-F1", "coverage@5"):
        with pytest.raises(ConfigError, match="not a mean over documents"):
            checked_metric(name)


def test_the_figure_of_an_ensemble_does_not_know_the_labels_it_is_judged_on(judge, trials):
    """With random true labels, what is learned on a document's own labels would look better than chance."""
    _, plain = judge
    honest = cross_fitted(trials, "logistic", plain)
    first, second = plain.halves()
    changed = plain.valid.labels.tolil()
    for row in second:  # other labels of the second half change nothing for its own predictions
        changed[row] = np.roll(changed[row].toarray(), 3)
    valid = lw.Dataset(changed.tocsr(), plain.valid.label_names, texts=plain.valid.texts)
    other = cross_fitted(trials, "logistic", Judge(valid, plain.label_counts, plain.n_train, plain.metric))
    assert np.array_equal(honest.top.ids[second], other.top.ids[second])
    assert not np.array_equal(honest.top.scores[first], other.top.scores[first])


def test_the_ensemble_is_that_of_a_training_with_the_same_settings(judge, trials):
    _, plain = judge
    for rule in ("logistic", "probability_average"):
        tried = cross_fitted(trials, rule, plain)
        found = tried.fitted(plain)
        settings = {key: value for key, value in tried.model(plain.metric).items() if key not in ("method", "members")}
        expected = Ensemble(members=[one.load() for one in trials], **settings).fit(plain.valid)
        one, other = found.predict(plain.valid, 5), expected.predict(plain.valid, 5)
        assert np.array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)
        assert found.refits


def test_members_are_distinct_and_good():
    top = TopK(np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32))
    named = [Trial(name, {}, None, top, 0.0, 0.0, 0, False) for name in ("tree", "trees", "weak", "pairs")]
    sets = sets_of_members(named, [0.50, 0.52, 0.30, 0.51], {"tree"})
    assert [[one.name for one in members] for members in sets] == [["trees"], ["pairs"], ["trees", "pairs"]]
    assert rules_for(2, 100) == ("logistic", "probability_average")


def test_the_ladder_follows_the_data():
    english = lw.Dataset(
        np.eye(3), Strings.of("abc"), texts=Strings.of(["the law of the sea and of the air"] * 3), name="laws"
    )
    facts = Facts.of(english, vectors=False, encoder=None)
    assert (facts.language, facts.kind, facts.n_documents, facts.n_labels) == ("english", "texts", 3, 3)
    rungs = {rung.name: rung for rung in ladder(facts)}
    assert rungs["pairs"].model(["soft"], facts)["tfidf"]["stemmer"] == "english"
    assert rungs["pairs"].model(["soft"], facts)["solver"] == {"cost_positive": 0.5, "cost_negative": 0.5}
    assert "label_text_weight" not in rungs["flat"].model(["names"], facts)
    words = lw.Dataset(np.eye(3), Strings.of("abc"), texts=Strings.of(["x1 x2", "x3", ""]), name="codes")
    assert Facts.of(words, vectors=False, encoder=None).language is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5 h", 5400), ("2min", 120), ("10M", 600)]
)
def test_time_spans(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-5", "10d", "1e3", "nan", "0s", "5 5"])
def test_other_words_are_no_time_spans(text):
    with pytest.raises(ConfigError, match="not a time span"):
        parse_duration(text)


def test_a_failed_tree_is_a_row_of_the_table_and_no_reason_to_stop(judge, tmp_path, monkeypatch):
    train, judged = judge
    facts = Facts.of(train, False, None)
    record = AutoRecord(data="data", budget=1e6, metric="P@5", n_train=len(train), n_valid=len(judged.valid))
    one = Search(
        tmp_path, record, train, judged, facts, RunTime(1e6, tmp_path / "time"), False, lambda table, left: None
    )
    one.rungs = {name: one.rungs[name] for name in ("tree", "soft")}

    def run(workspace, name, *others):
        if name == "tree":
            raise DataError("too large")
        return run_trial(workspace, name, *others)

    monkeypatch.setattr("labelwise.tuning.auto.run_trial", run)
    one.try_models()
    assert {name: option.status for name, option in one.options.items()} == {"tree": "failed", "soft": "tried"}
    assert one.decide().chosen == "soft"
