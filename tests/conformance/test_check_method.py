"""`labelwise.testing.check_method` in the hands of an author of a method: a class, and an installed package."""

import tomllib
from pathlib import Path

import pytest

import labelwise as lw
from cli.commands import labelwise
from conformance.test_broken_methods import Centroid, TakesAnything, WorstFirst
from labelwise import registry
from labelwise.errors import ConfigError, DataError
from labelwise.testing import ConformanceError, check_method
from labelwise.testing.checks import CHECKS
from labelwise.testing.subject import planted_features, planted_texts

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "knn_method"
QUICK = ["predictions_are_well_formed", "save_and_load_are_exact", "wrong_inputs_are_refused", "sklearn_manners"]


def test_a_class_that_is_not_installed_is_checked():
    assert check_method(Centroid, {"power": 0.6}, inputs=["features"], checks=QUICK) == QUICK
    assert "centroid" not in registry.method_names(), "its name is free again"


def test_all_failures_are_named_with_what_the_check_is_about():
    class Broken(TakesAnything, WorstFirst):
        name = "broken"

    with pytest.raises(ConformanceError) as raised:
        check_method(Broken, inputs=["features"], checks=QUICK)
    assert set(raised.value.failures) == {"predictions_are_well_formed", "wrong_inputs_are_refused"}
    text = str(raised.value)
    assert f"Broken fails 2 of {len(CHECKS)} checks" in text
    assert "best score first, equal scores by label id" in text
    assert "a DataError must be raised, and none was" in text


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(ConfigError, match="there is no check 'is_determinist'; did you mean 'is_deterministic'"):
        check_method(Centroid, checks=["is_determinist"])
    with pytest.raises(ConformanceError, match=r"reads .*texts.*not .*sounds"):
        check_method(Centroid, inputs=["sounds"], checks=["batch_equals_single"])
    with pytest.raises(ConfigError, match=r"'popularity' of Taken belongs to labelwise\.methods\.popularity"):
        check_method(type("Taken", (Centroid,), {"name": "popularity"}))


def test_a_method_of_features_says_how_texts_become_features():
    needy = type("Needy", (Centroid,), {"inputs": ("features",)})
    with pytest.raises(DataError, match=r"needs features, the data has none; texts become features with .*Tfidf"):
        needy().fit(planted_texts(20, 5))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The example as pip would install it: its module, and the entry points of its pyproject.toml."""
    site = tmp_path / "site"
    about = site / "knn_method-0.1.0.dist-info"
    about.mkdir(parents=True)
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in points.items()) for group, points in groups]
    (about / "entry_points.txt").write_text("\n".join(lines))
    (site / "knn_method.py").write_text((EXAMPLE / "knn_method.py").read_text(encoding="utf-8"))
    monkeypatch.syspath_prepend(site)
    return tmp_path


def test_the_example_package_is_a_method_like_any_other(installed):
    assert "knn" in registry.method_names(), "and so it goes through the conformance suite"
    assert "knn" in labelwise("models").out
    assert "neighbours" in labelwise("models", "knn").out
    train, test = planted_texts(300, 20).split(1 / 3)
    lw.write(train, installed / "data" / "train.jsonl")
    lw.write(test, installed / "data" / "test.jsonl")
    (installed / "run.yml").write_text(
        "data: {path: data}\nmodel: {method: knn, neighbours: 5}\nrun: {report: false}\nevaluate: {bootstrap: 0}\n"
    )
    labelwise("train", "run.yml", cwd=installed)
    said = labelwise("predict", "runs/run", "-k", "2", "-o", "-", stdin=f"{test.texts[0]}\n", cwd=installed).out
    assert said.count('"label"') == 2
    model = lw.load(installed / "runs" / "run" / "model")
    assert lw.evaluate(model.predict(test, k=1), test, "P@1")["P@1"] > 0.8
    knn = registry.method_class("knn")
    assert check_method(knn, {"neighbours": 5}, inputs=["features"], checks=QUICK) == QUICK
    features = planted_features(40, 8)
    assert knn().fit(features).predict(features.features, k=3).ids.shape == (40, 3)
