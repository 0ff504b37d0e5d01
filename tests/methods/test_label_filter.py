"""Predictions kept to some labels, and labels weighed: the same as filtering and weighing a full prediction."""

import dataclasses
import json

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from conformance.planted import planted
from labelwise.commands import predict
from labelwise.errors import ConfigError, DataError
from labelwise.model import predictions as label_filter
from labelwise.strings import Strings

EVERYTHING = {"leaf_size": 6, "branching": 3, "beam": 1000}
MAKE = {
    "one tree": lambda **more: lw.LinearTree(trees=1, **EVERYTHING, **more),
    "three trees": lambda **more: lw.LinearTree(trees=3, **EVERYTHING, **more),
    "flat": lambda **more: lw.LinearFlat(**more),
}


def best(full, mask, factors, k):
    """By the definition: all scores, weighed, without the labels left out, best first."""
    ids, scores = np.full((len(full), k), -1), np.full((len(full), k), -np.inf, np.float32)
    for row in range(len(full)):
        kept = [(label, score) for label, score in zip(full.ids[row], full.scores[row], strict=True) if mask[label]]
        kept.sort(key=lambda pair: -pair[1] * factors[pair[0]])
        for place, (label, score) in enumerate(kept[:k]):
            ids[row, place], scores[row, place] = label, score * factors[label]
    return ids, scores


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("post_processor", ["l3_hinge", "sigmoid", "none"])
def test_a_filter_is_a_full_prediction_filtered(make, post_processor):
    data = planted("features", n_documents=300)
    model = MAKE[make](post_processor=post_processor).fit(data)
    full = model.predict(data, k=data.n_labels)
    for count in (1, 7, 59):
        allowed = np.random.default_rng(count).permutation(data.n_labels)[:count]
        mask = np.isin(np.arange(data.n_labels), allowed)
        ids, scores = best(full, mask, np.ones(data.n_labels), 5)
        for given in (allowed.tolist(), [data.label_names[int(i)] for i in allowed], mask):
            top = model.predict(data, k=5, labels=given)
            np.testing.assert_array_equal(top.ids, ids)
            np.testing.assert_array_equal(top.scores, scores)


def test_few_labels_are_found_even_with_a_narrow_beam():
    data = planted("features", n_labels=180)
    model = lw.LinearTree(trees=1, leaf_size=3, branching=3, beam=1).fit(data)
    top = model.predict(data, k=10, labels=range(0, 180, 18))
    assert (np.sort(top.ids, axis=1) == np.arange(0, 180, 18)).all()


@pytest.mark.parametrize("make", MAKE)
def test_scores_are_multiplied_by_weights(make):
    data = planted("features")
    model = MAKE[make]().fit(data)
    factors = np.random.default_rng(0).uniform(0.1, 3, data.n_labels).astype(np.float32)
    factors[[4, 9]] = 0
    ids, scores = best(model.predict(data, k=data.n_labels), factors > 0, factors, 5)
    for given in (factors, {data.label_names[i]: float(factor) for i, factor in enumerate(factors)}):
        top = model.predict(data, k=5, label_weights=given)
        np.testing.assert_allclose(top.scores, scores, rtol=1e-4)
        differ = top.ids != ids
        assert np.isclose(top.scores[differ], scores[differ], rtol=1e-4).all()
        assert not np.isin(top.ids, [4, 9]).any()
    both = model.predict(data, k=5, labels=[4, 5], label_weights={5: 2.0, 4: 0.0})
    assert (both.ids[:, 0] == 5).all()
    assert (both.ids[:, 1:] == -1).all()


def test_mistakes_are_told():
    data = planted("features")
    model = lw.LinearFlat().fit(data)
    for wrong, message in (
        ({"labels": ["L1", "L1x"]}, "no label 'L1x'; did you mean"),
        ({"labels": [60]}, "label 60 is not among the 60"),
        ({"labels": "L1"}, "a list of names"),
        ({"labels": []}, "no label may be predicted"),
        ({"labels": [1.5]}, "by its name or id"),
        ({"labels": np.ones(3, bool)}, "not a vector over the 60"),
        ({"label_weights": {"L1": -1}}, "not below 0"),
        ({"label_weights": {"L1": float("nan")}}, "finite"),
        ({"label_weights": {"L1": "x"}}, "must be numbers"),
        ({"label_weights": np.ones(3)}, "not a vector over the 60"),
        ({"label_weights": np.zeros(60)}, "no label may be predicted"),
    ):
        with pytest.raises(DataError, match=message):
            model.predict(data, **wrong)
    with pytest.raises(ConfigError, match="popularity cannot leave out"):
        lw.Popularity().fit(data).predict(data, labels=["L1"])


def test_files_on_the_command_line(tmp_path):
    data = planted("texts", n_documents=200)
    lw.LinearFlat().fit(data).save(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(list(data.texts)[:20]) + "\n")
    (tmp_path / "labels.txt").write_text("L1\n\nL3\r\nL5\n")
    (tmp_path / "weights.tsv").write_text("L3\t0\nL5\t2.5\n")
    arguments = ["predict", tmp_path / "model", tmp_path / "texts.txt", "--labels", tmp_path / "labels.txt"]
    plain = [json.loads(line)["labels"] for line in labelwise(*arguments).out.splitlines()]
    assert {frozenset(label["label"] for label in row) for row in plain} == {frozenset(["L1", "L3", "L5"])}
    arguments += ["--label-weights", tmp_path / "weights.tsv"]
    weighed = [json.loads(line)["labels"] for line in labelwise(*arguments).out.splitlines()]
    for before, after in zip(plain, weighed, strict=True):
        scores = {label["label"]: label["score"] for label in before}
        found = {label["label"]: label["score"] for label in after}
        assert found == pytest.approx({"L1": scores["L1"], "L5": 2.5 * scores["L5"]}, rel=1e-5)
    (tmp_path / "weights.tsv").write_text("L3\t1\nL5 2.5\n")
    assert "weights.tsv:2" in labelwise(*arguments, code=2).err
    (tmp_path / "labels.txt").write_text("nothing\n")
    assert "no label 'nothing'" in labelwise(*arguments[:-2], code=2).err


def test_a_filter_made_before_is_not_checked_again(tmp_path, monkeypatch):
    data = planted("texts", n_documents=200)
    model = lw.LinearFlat().fit(data)
    weights = {"L3": 0, "L5": 2.5}
    chosen = model.label_filter(["L1", "L3", "L5"], weights)
    expected = model.predict(data, k=5, labels=["L1", "L3", "L5"], label_weights=weights)
    found = model.predict(data, k=5, labels=chosen)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert model.label_filter() is None
    with pytest.raises(DataError, match="pass it alone"):
        model.predict(data, labels=chosen, label_weights=weights)
    with pytest.raises(DataError, match="belongs to one model"):
        lw.LinearFlat().fit(["one", "two"], [["x"], ["y"]]).predict("one", labels=chosen)

    (tmp_path / "texts.txt").write_text("\n".join(data.texts) + "\n")
    (tmp_path / "labels.txt").write_text("L1\nL3\n")
    calls = []
    monkeypatch.setattr(
        label_filter, "_mask", lambda *given, plain=label_filter._mask: calls.append(1) or plain(*given)
    )
    monkeypatch.setattr(predict, "BATCH", 50)
    request = predict.Request(str(tmp_path / "texts.txt"), labels=str(tmp_path / "labels.txt"))
    predict.predict_file(model, request, str(tmp_path / "out.jsonl"), None, False)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 200
    assert len(calls) == 1


def test_label_texts_are_found_by_number(tmp_path):
    """No table of all names is needed, which would take gigabytes with millions of labels."""
    data = planted("texts", n_documents=100)
    texts = Strings.of([f"text of {name}" for name in data.label_names])
    model = lw.Popularity().fit(dataclasses.replace(data, label_texts=texts))
    model.label_names_ = Strings.of(list(model.label_names_))
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    predict.predict_file(model, predict.Request(str(tmp_path / "texts.txt")), str(tmp_path / "o.jsonl"), None, False)
    for line in (tmp_path / "o.jsonl").read_text().splitlines():
        found = json.loads(line)["labels"]
        assert len(found) == 10
        assert all(label["text"] == f"text of {label['label']}" for label in found)
    assert model.label_names_._positions is None
