"""Models made smaller after training are those that training with the same settings gives, to the last bit."""

import json
import re

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from common import same_predictions
from conformance.planted import planted_features, planted_texts
from labelwise.errors import ConfigError
from labelwise.io.folder import MANIFEST
from labelwise.model.card import CARD_FILE, PAGE_FILE

SOLVER = {"threshold": 0.02}
EXACT = {"solver": SOLVER, "precision": "float32"}
CHOICES = [("int8", None), ("float16", None), (None, 0.25), ("int8", 0.25), ("float16", 0.1)]


@pytest.fixture(scope="module")
def trained():
    """Models with many small weights: of texts, of features, and of every label at once."""
    return {
        "texts": (lw.LinearTree(trees=2, leaf_size=4, **EXACT), planted_texts(200, 30)),
        "features": (lw.LinearTree(trees=1, leaf_size=4, **EXACT), planted_features(150, 24)),
        "flat": (lw.LinearFlat(**EXACT), planted_texts(150, 40)),
    }


def fitted(trained, name):
    model, data = trained[name]
    return (model if hasattr(model, "label_names_") else model.fit(data)), data


def again(model, data, precision, threshold):
    """Trained once more, with the settings that a smaller model has."""
    given = {"precision": precision, "solver__threshold": threshold}
    return type(model)(**model.get_params(deep=False)).set_params(
        **{key: value for key, value in given.items() if value is not None}
    ).fit(data)  # fmt: skip


@pytest.mark.parametrize("name", ["texts", "features", "flat"])
@pytest.mark.parametrize(("precision", "threshold"), CHOICES)
def test_it_is_the_model_that_training_gives(trained, name, precision, threshold, tmp_path):
    model, data = fitted(trained, name)
    before = model.fitted_.tensors()
    smaller = model.shrink(precision=precision, threshold=threshold)
    smaller.save(tmp_path / "smaller")
    again(model, data, precision, threshold).save(tmp_path / "trained")
    for path in (tmp_path / "smaller").iterdir():
        if path.name not in (CARD_FILE, PAGE_FILE, MANIFEST):
            assert path.read_bytes() == (tmp_path / "trained" / path.name).read_bytes(), path.name
    same_predictions(lw.load(tmp_path / "smaller").predict(data, k=5), smaller.predict(data, k=5))
    assert all(np.array_equal(array, before[key]) for key, array in model.fitted_.tensors().items()), (
        "the larger one is kept"
    )
    assert model.config.precision == "float32"
    assert sum(array.nbytes for array in smaller.fitted_.tensors().values()) < sum(
        array.nbytes for array in before.values()
    )


def test_a_small_model_is_made_smaller_still(trained, tmp_path):
    model, data = fitted(trained, "texts")
    model.shrink(precision="int8").save(tmp_path / "int8")
    twice = lw.load(tmp_path / "int8").shrink(threshold=0.25)
    assert twice.config.precision == "int8"
    assert twice.trees_[0][1][0].precision == "int8"
    once = model.shrink(precision="int8", threshold=0.25)
    agree = twice.predict(data, k=3).ids == once.predict(data, k=3).ids
    assert agree.mean() > 0.9, "weights near the threshold may be rounded across it"
    assert [change.what for change in twice.card_.changes] == [
        "shrunk: weights stored as int8",
        "shrunk: weights below 0.25 dropped",
    ]
    assert lw.load(tmp_path / "int8").shrink(precision="int8", threshold=0.25).config.precision == "int8"
    half = model.shrink(precision="float16").shrink(precision="int8")
    assert half.trees_[0][1][0].precision == "int8"


def test_every_weight_may_go(trained):
    model, data = fitted(trained, "flat")
    empty = model.shrink(precision="int8", threshold=1e6)
    assert sum(level.n_weights for _, levels in empty.trees_ for level in levels) == 0
    assert np.isfinite(empty.predict(data, k=3).scores).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs a precision"),
        ({"precision": "int4"}, "accepted: float32, float16, int8|did you mean 'int8'"),
        ({"precision": "float32"}, "stored as float32 already"),
        ({"threshold": 0.02}, "weights below 0.02 were dropped in training"),
        ({"threshold": float("nan")}, "a number above that is needed"),
        ({"threshold": float("inf")}, "a number above that is needed"),
    ],
)
def test_what_makes_nothing_smaller_is_refused(trained, given, message):
    with pytest.raises(ConfigError, match=message):
        fitted(trained, "flat")[0].shrink(**given)


def test_calibration_and_labels_stay(trained):
    data = fitted(trained, "texts")[1]
    calibrated = lw.LinearTree(trees=1, **EXACT).fit(data)
    calibrated.calibrate(planted_texts(100, 30, seed=2), k=5)
    smaller = calibrated.shrink(precision="int8")
    assert smaller.threshold_ == calibrated.threshold_
    assert smaller.label_names_ == data.label_names


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("shrink")
    for part, seed, count in (("train", 0, 150), ("valid", 1, 40), ("test", 2, 50)):
        lw.write(planted_texts(count, 20, seed=seed), place / "data" / f"{part}.jsonl")
    (place / "run.yml").write_text(
        f"data: {{path: {place / 'data'}}}\nmodel: {{method: linear_flat, precision: float32, solver: {{threshold: 0.02}}}}\n"
        "evaluate: {bootstrap: 0}\nrun: {folder: runs/one, report: false}\n"
    )
    labelwise("train", "run.yml", cwd=place)
    return place


def test_a_run_is_compared_on_its_own_test_documents(run):
    done = labelwise("shrink", "runs/one", "--precision", "int8", "--threshold", "0.2", cwd=run)
    rows = {line[:22].strip(): line[22:].split() for line in done.out.splitlines()}
    assert "on 50 documents" in done.out
    scores = json.loads((run / "runs" / "one" / "results.json").read_text())["evaluation"]["values"]
    for metric in ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "micro-F1"):
        assert rows[f"{metric}, %"][0] == f"{100 * scores[metric]:.2f}"
    assert "documents per second" in rows
    assert "the calibration was kept" in done.out
    small = lw.load(run / "runs" / "one-small")
    assert (small.config.precision, small.config.solver.threshold) == ("int8", 0.2)
    assert f"{100 * small.card_.scores.values['P@5']:.2f}" == rows["P@5, %"][1]
    assert lw.load(run / "runs" / "one").config.precision == "float32"
    assert "exists already" in labelwise("shrink", "runs/one", "--precision", "int8", cwd=run, code=2).err


def test_scores_on_documents_of_the_training_are_called_that(run, tmp_path):
    folder = tmp_path / "all"
    labelwise("train", "run.yml", "-o", folder, "--set", "run.refit=true", cwd=run)
    done = labelwise("shrink", folder, "--precision", "int8", "-o", tmp_path / "small", cwd=run)
    assert "50 of 50 documents (100.0 %) were in the training data" in done.err
    assert lw.load(tmp_path / "small").card_.scores == lw.load(folder).card_.scores, "those of new documents stay"


def test_a_model_is_compared_on_given_documents_or_by_size(run, tmp_path):
    model = run / "runs" / "one" / "model"
    sizes = labelwise("shrink", model, "--precision", "float16", "-o", tmp_path / "a")
    assert "P@1" not in sizes.out
    assert "--data" in sizes.err
    given = labelwise("shrink", model, "--precision", "float16", "-o", tmp_path / "b", "--data", run / "data")
    assert "on 50 documents" in given.out
    labelwise("shrink", tmp_path / "a", "--precision", "int8", "-o", tmp_path / "a", "--force")
    assert lw.load(tmp_path / "a").config.precision == "int8", "replaced by the smaller one"


def test_methods_that_cannot_are_named(tmp_path):
    lw.Popularity().fit(planted_texts(20, 6)).save(tmp_path / "m")
    done = labelwise("shrink", tmp_path / "m", "--precision", "int8", code=2)
    assert "popularity cannot be shrunk after training; " in done.err
    assert re.search(r"; [^;]*\blinear_flat, linear_tree\b[^;]* can$", done.err.strip())
    assert not (tmp_path / "m-small").exists()
    assert "--precision int8" in labelwise("shrink", tmp_path / "m", code=2).err
