"""calibrate, explain, thresholds by themselves, and the run stage between training and evaluation."""

import contextlib
import json
import re

import pytest

import labelwise as lw
from cli.commands import labelwise
from conformance.planted import planted_texts
from killing import kill_where_it_holds

PARTS = (("train", 0, 300), ("valid", 1, 120), ("test", 2, 100))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "corpus"
    folder.mkdir()
    for split, seed, n in PARTS:
        data = planted_texts(n_documents=n, n_labels=30, seed=seed)
        rows = [" ".join(row) for row in lw.TopK.from_csr(data.labels, 5, data.label_names).labels]
        (folder / f"{split}_texts.txt").write_text("\n".join(data.texts) + "\n")
        (folder / f"{split}_labels.txt").write_text("\n".join(rows) + "\n")
    return folder


def train(folder, corpus, *settings, method="linear_tree", code=0):
    config = folder / "run.yml"
    config.write_text(f"data:\n  path: {corpus}\nmodel:\n  method: {method}\nevaluate:\n  bootstrap: 0\n")
    given = [part for setting in settings for part in ("--set", setting)]
    return labelwise("train", config, *given, cwd=folder, code=code)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(folder, corpus, "model.trees=2", "model.leaf_size=8", "model.branching=4", "run.report=false")
    return folder / "runs" / "run"


def test_a_run_with_a_valid_part_ends_with_probabilities(run, corpus):
    results = json.loads((run / "results.json").read_text())
    reported = results["calibration"]
    model = lw.load(run / "model")
    valid, test = (lw.read(corpus, split=split) for split in ("valid", "test"))
    assert reported["n_documents"] == len(valid) == 120
    assert model.threshold_ == reported["threshold"]
    assert reported == json.loads((run / "calibration.json").read_text())
    expected = lw.evaluate(model.predict(test, k=10), test, metrics=["micro-F1"], threshold=reported["threshold"])
    assert results["evaluation"]["values"]["micro-F1"] == pytest.approx(expected["micro-F1"])
    assert results["timings"]["calibrate"] > 0
    said = labelwise("evaluate", run, corpus, "--set", "bootstrap=0", "--set", "metrics=[micro-F1]").out
    assert f"{100 * expected['micro-F1']:.2f}" in said
    assert f"calibrated threshold of the model, {reported['threshold']:.4g}" in said
    without = labelwise("evaluate", run, corpus, "--set", "bootstrap=0", "--set", "metrics=[P@1]").out
    assert "calibrated threshold" not in without
    other = labelwise(
        "evaluate", run, corpus, "--set", "bootstrap=0", "--set", "metrics=[micro-F1]", "--set", "threshold=0.99"
    ).out
    assert "calibrated threshold" not in other


def test_predict_with_the_threshold_found(run):
    words = "word3x0 word3x1 group0 noise1"
    threshold = lw.load(run / "model").threshold_
    plain = json.loads(labelwise("predict", run, stdin=words + "\n").out)["labels"]
    auto = json.loads(labelwise("predict", run, "--threshold", "auto", stdin=words + "\n").out)["labels"]
    assert auto == [one for one in plain if one["score"] >= threshold]
    assert 0 < len(auto) < len(plain)
    assert auto[0]["label"] == "L3"
    bad = labelwise("predict", run, "--threshold", "much", stdin="x\n", code=2)
    assert "a number or auto" in bad.err


def test_calibrate_by_command(run, corpus, tmp_path):
    train(tmp_path, corpus, "calibrate.enabled=false", "run.report=false", method="popularity")
    plain = tmp_path / "runs" / "run"
    assert lw.load(plain / "model").threshold_ is None
    assert json.loads((plain / "results.json").read_text())["calibration"] is None
    refused = labelwise("predict", plain, "--threshold", "auto", stdin="x\n", code=2)
    assert "not calibrated" in refused.err
    refused = labelwise("evaluate", plain, corpus, "--set", "metrics=[micro-F1]", code=2)
    assert "needs a threshold" in refused.err
    done = labelwise("calibrate", plain, corpus)
    assert "threshold" in done.out
    threshold = lw.load(plain / "model").threshold_
    assert f"{threshold:.4g}" in done.out
    assert "--force" in labelwise("calibrate", plain, corpus, code=2).err
    assert "there is no file or folder nosuch.csv" in labelwise("calibrate", plain, "nosuch.csv", code=2).err
    labelwise("calibrate", plain, corpus, "--force", "--precision", "0.9", "-k", "5")
    assert lw.load(plain / "model").threshold_ != threshold


def test_documents_are_held_out_before_training(corpus, tmp_path):
    train(
        tmp_path, corpus, "calibrate.fraction=0.2", "calibrate.precision=0.5", "run.report=false", method="popularity"
    )
    results = json.loads((tmp_path / "runs" / "run" / "results.json").read_text())
    assert results["calibration"]["n_documents"] == 60
    assert results["calibration"]["wanted_precision"] == 0.5
    assert results["data"]["train"]["documents"] == 240


def test_what_cannot_be_calibrated_is_found_before_training(corpus, tmp_path):
    only = tmp_path / "only"
    only.mkdir()
    for name in ("train_texts.txt", "train_labels.txt", "test_texts.txt", "test_labels.txt"):
        (only / name).write_text((corpus / name).read_text())
    done = train(tmp_path, only, "calibrate.enabled=true", method="popularity", code=2)
    assert "no valid part" in done.err
    assert "calibrate.fraction" in done.err
    assert not (tmp_path / "runs" / "run" / "model").exists()
    done = train(tmp_path, only, "evaluate.metrics=[micro-F1]", method="popularity", code=2)
    assert "needs a threshold" in done.err
    assert not (tmp_path / "runs" / "run" / "model").exists()
    done = train(
        tmp_path, corpus, "evaluate.metrics=[micro-F1]", "calibrate.enabled=false", method="popularity", code=2
    )
    assert "needs a threshold" in done.err
    train(tmp_path, only, "run.report=false", method="popularity")  # auto: nothing to calibrate on, so it is not
    assert json.loads((tmp_path / "runs" / "run" / "results.json").read_text())["calibration"] is None


HOLD = """
import labelwise.{module} as module
module.{name} = lambda *args, **kwargs: hold()
"""


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("model.method", "Method.save_calibration", "already trained"),
        ("runs.train", "evaluate_model", "already calibrated"),
    ],
)
def test_a_killed_run_goes_on_with_the_calibration(corpus, tmp_path, module, name, said):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    train(whole, corpus, "run.report=false", method="popularity")
    config = cut / "run.yml"
    config.write_text((whole / "run.yml").read_text())
    with contextlib.chdir(cut):
        kill_where_it_holds(HOLD.format(module=module, name=name), "train", "run.yml", "--set", "run.report=false")
    done = labelwise("train", config, "--set", "run.report=false", cwd=cut)
    assert said in done.err
    results = [json.loads((place / "runs" / "run" / "results.json").read_text()) for place in (whole, cut)]
    assert results[0]["calibration"] == results[1]["calibration"]
    assert results[0]["evaluation"] == results[1]["evaluation"]
    assert lw.load(cut / "runs" / "run" / "model").threshold_ == results[0]["calibration"]["threshold"]


def test_explain_shows_words_and_paths(run, corpus):
    words = "word3x0 word3x1 group0 noise1"
    out = labelwise("explain", run, words, "-k", "2", "--terms", "3").out
    first = out.splitlines()[0]
    assert first.startswith("L3 ")
    score = lw.load(run / "model").predict([words], k=1).scores[0, 0]
    assert f"   probability {score:.4f}" in first
    assert "word3x" in out
    assert "█" in out
    assert re.search(r"path in tree 2, score 0\.\d{4} before calibration", out)
    assert labelwise("explain", run, "-", "-k", "2", "--terms", "3", stdin=words).out == out
    named = labelwise("explain", run, words, "--label", "L9", "--label", "L3").out
    assert [line.split()[0] for line in named.splitlines() if line.startswith("L")] == ["L9", "L3"]
    found = json.loads(labelwise("explain", run, "--data", corpus, "--document", "4", "--json", "--terms", "500").out)
    assert len(found) == 3
    assert all(one["calibrated"] for one in found)
    text = lw.read(corpus, split="test").texts[4]
    for one in found:
        assert one["bias"] + sum(term["contribution"] for term in one["terms"]) == pytest.approx(one["margin"])
        assert all(term["name"] in text for term in one["terms"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a text", "--label", "L99"], "no label 'L99'"),
        (["a text", "--data", "x"], "not both"),
        ([], "no text given"),
        ([""], "no text given"),
        (["-"], "no text given"),
    ],
)
def test_mistakes_in_explain_are_told(run, arguments, message):
    assert message in labelwise("explain", run, *arguments, code=2, stdin="").err


def test_printed_explanations_are_what_the_command_shows(run):
    words = "word3x0 word3x1 group0 noise1"
    found = lw.load(run / "model").explain(words, k=2, terms=3)
    shown = labelwise("explain", run, words, "-k", "2", "--terms", "3").out
    assert f"{found}\n" == shown
    assert shown.startswith(f"{found[0]}\n\n")
    assert len(repr(found[0])) < 120
    assert repr(found[0]).startswith("<Explanation: L3   probability ")
    assert repr(found).count("\n") == 1


def test_explain_of_documents_and_methods_that_have_none(run, corpus, tmp_path):
    done = labelwise("explain", run, "--data", corpus, "--document", "100", code=2)
    assert "no document '100'; indices go from 0 to 99" in done.err
    lw.Popularity().fit(lw.read(corpus, split="train")).save(tmp_path / "popularity")
    assert "cannot explain" in labelwise("explain", tmp_path / "popularity", "x", code=2).err
