"""`labelwise train` of an ensemble of runs: learned weights, what it was made of, and refusing changed members."""

import json

import pytest
import yaml

import labelwise as lw
from cli.commands import labelwise
from conformance.planted import planted_texts

PLAIN = {"run": {"report": False}, "evaluate": {"bootstrap": 0}, "data": {"path": "data"}}


def write_config(place, name, model, **sections):
    text = json.dumps({**PLAIN, **sections, "model": model})
    (place / f"{name}.yml").write_text(text)
    return f"{name}.yml"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, a run, a saved model, and the run of an ensemble of both."""
    place = tmp_path_factory.mktemp("ensemble")
    train, rest = planted_texts(300, 20).split(0.4, seed=1)
    valid, test = rest.split(0.5, seed=2)
    for name, part in (("train", train), ("valid", valid), ("test", test)):
        lw.write(part, place / "data" / f"{name}.jsonl")
    labelwise(
        "train", write_config(place, "tree", {"method": "linear_tree", "trees": 1, "precision": "float32"}), cwd=place
    )
    lw.Popularity().fit(train).save(place / "popularity")
    model = {"method": "ensemble", "members": ["runs/tree", "popularity"], "weights": "learn"}
    labelwise("train", write_config(place, "both", model), cwd=place)
    return place


def test_the_run_notes_members_and_weights(place):
    model = yaml.safe_load((place / "runs" / "both" / "config.yml").read_text())["model"]
    assert [member["path"] for member in model["members"]] == ["runs/tree", "popularity"]
    assert all(len(member["fingerprint"]) == 16 for member in model["members"])
    found = lw.load(place / "runs" / "both")
    assert found.learned_on_ == (60, 0)
    assert found.threshold_ is not None, "it is calibrated on the valid part"
    said = labelwise("info", "runs/both", cwd=place).out
    assert "members       0 linear_tree, weight" in said
    assert "1 popularity, weight" in said
    assert "can           predict, calibrate, explain, shrink\n" in said, "popularity cannot leave out labels"
    results = json.loads((place / "runs" / "both" / "results.json").read_text())
    assert results["n_seen"] == 0
    assert not any("learned weights" in remark for remark in results["remarks"])
    shown = labelwise("explain", "runs/both", "word2x1 group0", "-k", "1", cwd=place).out
    assert "0 linear_tree" in shown
    assert "rank 1" in shown
    lines = labelwise("predict", "runs/both", "-k", "1", "-o", "-", "--explain", "1", stdin="word2x1\n", cwd=place).out
    assert json.loads(lines)["labels"][0]["words"] == ["word2x1"]
    labelwise("evaluate", "runs/both", "data", cwd=place)
    labelwise("shrink", "runs/both", "--precision", "int8", cwd=place)
    assert lw.load(place / "runs" / "both-small").members_[0].config.precision == "int8"


def unfinished(place, name):
    """A copy of the ensemble's run as a kill after training leaves it."""
    model = {"method": "ensemble", "members": ["runs/tree", "other"], "weights": [2, 1]}
    config = write_config(place, name, model)
    lw.load(place / "popularity").save(place / "other", force=True)
    labelwise("train", config, cwd=place)
    run = place / "runs" / name
    (run / "results.json").unlink()
    state = json.loads((run / "state.json").read_text())
    (run / "state.json").write_text(json.dumps({**state, "status": "running"}))
    return config


def test_a_run_resumes_with_the_same_members_and_refuses_changed_ones(place):
    config = unfinished(place, "killed")
    member = lw.load(place / "other")
    member.card_ = member.card_.with_change("somebody looked at it")
    member.save(place / "other", force=True)
    assert "the model of this run is already trained" in labelwise("train", config, cwd=place).err
    config = unfinished(place, "again")
    lw.Popularity().fit(planted_texts(100, 20, seed=9)).save(place / "other", force=True)
    said = labelwise("train", config, cwd=place, code=2).err
    assert "an unfinished run with another config exists (model.members)" in said
    said = labelwise("train", "runs/again/config.yml", "--force", cwd=place, code=2).err
    assert "member 1: other has changed: its fingerprint is" in said


def test_learning_on_what_members_know_is_remarked(place):
    model = {"method": "ensemble", "members": ["runs/tree", "popularity"], "weights": "learn"}
    data = {"train": "data/valid.jsonl", "valid": ["data/valid.jsonl", "data/train.jsonl"], "test": "data/test.jsonl"}
    said = labelwise("train", write_config(place, "seen", model, data=data), cwd=place).err
    assert "180 of 240 documents (75.0 %) were in the training data" in said
    results = json.loads((place / "runs" / "seen" / "results.json").read_text())
    assert any("180 of 240" in remark and "learned weights" in remark for remark in results["remarks"])
    alone = {"train": "data/train.jsonl", "test": "data/test.jsonl"}
    said = labelwise("train", write_config(place, "alone", model, data=alone), cwd=place, code=2).err
    assert "give held-out documents" in said


def test_trained_members_have_nothing_to_launch(place):
    config = write_config(place, "launched", {"method": "ensemble", "members": ["runs/tree", "popularity"]})
    said = labelwise("train", config, "--launcher", "processes", cwd=place, code=2).err
    assert "--launcher processes: the members of this ensemble are trained already; leave the option out" in said
