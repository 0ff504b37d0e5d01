"""What is special to mhe_image: every head, files and arrays, bad files, explanations, resume, commands."""

import copy
import json
import logging
import re

import numpy as np
import pytest
from PIL import Image

import labelwise as lw
from cli.commands import labelwise
from common import same_predictions
from killing import AFTER_A_CHECKPOINT, kill_where_it_holds
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.model.fitted import Saved
from labelwise.nn.images import networks
from labelwise.runs.config import EvaluateSection
from labelwise.runs.evaluate import evaluate_model
from labelwise.runtime.budget import NO_LIMIT
from labelwise.runtime.threads import using_threads

SIDE, LABELS = 8, 16


@pytest.fixture(autouse=True)
def one_thread():
    with using_threads(1):
        yield


def pictures(count, seed, several=False):
    """Grey images in which a bright square of 2 x 2 pixels has a place per label."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 60, (count, SIDE, SIDE), dtype=np.uint8)
    lists = []
    for row in range(count):
        chosen = random.choice(LABELS, 2 if several else 1, replace=False)
        for label in chosen:
            top, left = 2 * (label // 4), 2 * (label % 4)
            pixels[row, top : top + 2, left : left + 2] = 250
        lists.append([f"at{label:02}" for label in sorted(chosen)])
    return lw.Dataset(lists, [f"at{label:02}" for label in range(LABELS)], arrays=pixels, name="squares")


def made(training=None, **settings):
    common = {
        "image": {"size": SIDE, "channels": 1},
        "backbone": {"name": "tiny", "channels": 4, "pool": "flatten"},
        "valid_fraction": 0.0,
        "monitor": {"enabled": False},
    }
    quick = {
        "epochs": 5, "batch_size": 16, "optimiser": {"name": "adam", "rate": 0.01}, "validate_every": None,
        "schedule": {"kind": "poly", "power": 1.5, "final": 0.01, "warmup": 0},
    }  # fmt: skip
    return lw.MheImage(**{**common, "training": {**quick, **(training or {})}, **settings})


@pytest.fixture(scope="module")
def data():
    return pictures(240, 0)


@pytest.fixture(scope="module")
def model(data):
    with using_threads(1):
        return made().fit(data)


def accuracy(model, test):
    return lw.evaluate(model.predict(test, k=1), test, metrics=["P@1"])["P@1"]


@pytest.mark.parametrize(
    "head",
    [
        {"kind": "one_hot"},
        {"kind": "product", "radices": [4, 4]},
        {"kind": "cascade", "radices": [4, 5], "order": "clustered", "bottleneck": 16},
        {"kind": "sampling", "radices": [8, 2], "sampled_groups": 4, "order": "frequency"},
    ],
    ids=lambda head: head["kind"],
)
def test_every_head_learns_and_a_loaded_model_is_the_same(data, head, tmp_path):
    test = pictures(80, 1)
    model = made(head=head).fit(data)
    top = model.predict(test, k=5)
    assert lw.evaluate(top, test, metrics=["P@1"])["P@1"] > 0.8
    assert 0 <= top.scores.min() <= top.scores.max() <= 1
    model.save(tmp_path / "model")
    again = lw.load(tmp_path / "model")
    same_predictions(again.predict(test, k=5), top)
    np.testing.assert_array_equal(again.encode(test), model.encode(test))


def test_several_labels(caplog):
    train, test = pictures(300, 2, several=True), pictures(60, 3, several=True)
    model = made(head={"loss": "bce"}).fit(train)
    assert lw.evaluate(model.predict(test, k=2), test, metrics=["P@2"])["P@2"] > 0.8
    with caplog.at_level(logging.WARNING, logger="labelwise"):
        made({"steps": 1}).fit(train)
    assert "bce learns every label separately" in caplog.text


@pytest.fixture(scope="module")
def files(data, tmp_path_factory):
    """The same images as PNG files, in folders of their labels."""
    folder = tmp_path_factory.mktemp("files")
    paths = []
    for row in range(len(data)):
        label = data.labels_of(row)[0]
        (folder / label).mkdir(exist_ok=True)
        paths.append(folder / label / f"{row:03}.png")
        Image.fromarray(data.arrays[row]).save(paths[-1])
    return folder, [str(path) for path in paths]


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_files_give_the_model_of_the_arrays(data, files, memory):
    image = {
        "size": SIDE,
        "channels": 1,
        "memory": memory,
        "augmentation": {"crop": "padded", "padding": 1, "flip": True},
    }
    short = {"steps": 6, "load_ahead": 2}
    from_files = lw.Dataset(data.labels, data.label_names, paths=files[1])
    with using_threads(2):
        one = made(short, image=image).fit(data)
        other = made(short, image=image).fit(from_files)
    top, its = one.predict(data, k=3), other.predict(files[1], k=3)
    np.testing.assert_allclose(top.scores, its.scores, rtol=1e-4, atol=1e-6)


def test_bad_files_are_named_or_left_out(data, files, tmp_path, caplog):
    broken = tmp_path / "broken.png"
    with open(files[1][3], "rb") as whole:
        broken.write_bytes(whole.read()[:60])
    paths = [*files[1][:40], str(broken)]
    some = lw.Dataset([data.labels_of(row) for row in [*range(40), 0]], paths=paths)
    with pytest.raises(DataError, match=r"broken\.png.*damaged.*image\.bad_images: skip"):
        made({"epochs": 1}).fit(some)
    image = {"size": SIDE, "channels": 1, "bad_images": "skip"}
    with caplog.at_level(logging.WARNING, logger="labelwise"):
        model = made({"steps": 1}, image=image).fit(some)
    assert re.search(r"1 of 41 training images cannot be decoded.*broken\.png", caplog.text)
    with pytest.raises(DataError, match=r"broken\.png"):
        model.predict([str(broken)])
    with pytest.raises(DataError, match="none of the 1 images"):
        made(image=image).fit(lw.Dataset([["a"]], paths=[str(broken)]))


def test_the_map_shows_where_the_square_is(model, data, tmp_path):
    hits = 0
    for row in range(10):
        (one,) = model.explain(data.take([row]), labels=data.labels_of(row), terms=4)
        label = int(one.label.removeprefix("at"))
        hits += int(np.argmax(one.falls)) == label
        assert one.falls.shape == (4, 4)
    assert hits >= 8
    shown = str(one)
    assert one.label in shown
    assert "multiplied by" in shown
    assert one.to_dict()["falls"][0][0] == pytest.approx(float(one.falls[0, 0]), abs=1e-4)
    calibrated = copy.copy(model)
    calibrated.calibrate(data)
    shown = str(calibrated.explain(data.take([0]), k=1, terms=2)[0])
    assert "  probability " in shown
    assert "the score before calibration is multiplied by" in shown
    with pytest.raises(ConfigError, match="parts per side"):
        model.explain(data.take([0]), terms=100)
    with pytest.raises(DataError, match="no label 'nowhere'"):
        model.explain(data.take([0]), labels=["nowhere"])


def test_covered_images_are_scored_together_and_in_parts(model, data, monkeypatch):
    calls, best = [], model.network_.head.best
    monkeypatch.setattr(model.network_.head, "best", lambda vectors, k: calls.append(len(vectors)) or best(vectors, k))
    together = model.explain(data.take([5]), k=3, terms=4)
    assert calls[1:] == [17]  # the first is the prediction
    monkeypatch.setattr(networks, "PIXELS_AT_ONCE", 6 * SIDE * SIDE)
    monkeypatch.setattr(networks, "SCORES_AT_ONCE", 4 * LABELS)
    for one, other in zip(model.explain(data.take([5]), k=3, terms=4), together, strict=True):
        np.testing.assert_allclose(one.falls, other.falls, atol=1e-4)
    assert max(calls[3:]) == 4


def test_examples_have_maps_while_there_is_time(model, data, tmp_path):
    test = data.take(np.arange(30))

    def maps(budget):
        evaluate_model(model, test, EvaluateSection(examples=4, bootstrap=0), tmp_path, budget)
        return [json.loads(line)["map"] for line in (tmp_path / "examples.jsonl").read_text().splitlines()]

    assert all(uri.startswith("data:image/png") for uri in maps(NO_LIMIT))
    assert maps(NO_LIMIT.limited(1e-6)) == [None] * 4


def test_damaged_weights_are_refused(model, tmp_path):
    state = model.fitted_.tensors()
    about = Saved(model.config, "arrays", model.label_names_, path=tmp_path / "state")
    for name, change in (
        ("encoder.std", lambda array: array * 0),
        ("encoder.backbone.first.weight", lambda array: array[:2]),
        ("encoder.backbone.norm.running_var", lambda array: -array),
        ("head.weight", lambda array: array.astype(np.float64)),
    ):
        with pytest.raises(ModelFormatError):
            type(model.fitted_).from_tensors({**state, name: change(state[name])}, about)


@pytest.mark.parametrize(
    "architecture",
    [
        {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"},
        {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 16, "patch_size": 4},
    ],
    ids=lambda given: given["model_type"],
)  # fmt: skip
def test_networks_of_transformers(data, architecture, tmp_path):
    model = made({"steps": 2}, backbone={"name": "transformers", "architecture": architecture}).fit(data)
    model.save(tmp_path / "model")
    same_predictions(lw.load(tmp_path / "model").predict(data, k=3), model.predict(data, k=3))
    with pytest.raises(ConfigError, match="no family of image networks"):
        made(backbone={"name": "transformers", "architecture": {"model_type": "bert"}}).fit(data)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backbone": {"name": "resnet18", "model": "x"}}, "model is a setting of name: transformers"),
        ({"backbone": {"name": "transformers"}}, "needs model"),
        ({"training": {"schedule": {"kind": "cosine", "power": 3}}}, "power is a setting of kind: poly"),
        (
            {"training": {"schedule": {"kind": "constant", "final": 0.1}}},
            "final is a setting of kind: linear, cosine, poly",
        ),
    ],
)
def test_settings_without_effect_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        lw.MheImage(**settings)


# --- commands ---


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
    """A finished run on the files, and its config."""
    folder = tmp_path_factory.mktemp("run")
    values = {
        "data": {"train": str(files[0]), "test_fraction": 0.2},
        "model": {
            "method": "mhe_image", "image": {"size": SIDE, "channels": 1, "augmentation": {"crop": "padded", "padding": 1}},
            "backbone": {"name": "tiny", "channels": 4, "pool": "flatten"},
            "training": {"epochs": 4, "batch_size": 16, "optimiser": {"name": "adam", "rate": 0.01},
                         "checkpoint_every": {"steps": 4}},
        },
        "evaluate": {"bootstrap": 0, "metrics": ["P@1"], "examples": 4},
    }  # fmt: skip
    (folder / "run.yml").write_text(json.dumps(values))
    with using_threads(1):
        labelwise("train", folder / "run.yml", "--set", f"run.folder={folder / 'whole'}")
    return folder


def test_a_killed_run_resumes_to_the_same_model(run, data):
    resumed = ("--set", f"run.folder={run / 'resumed'}")
    kill_where_it_holds(AFTER_A_CHECKPOINT, "train", run / "run.yml", *resumed)
    assert not (run / "resumed" / "model").exists()
    labelwise("train", run / "run.yml", *resumed)
    one, other = (lw.load(run / name / "model") for name in ("whole", "resumed"))
    paths = other.predict(_paths(run), k=5)
    np.testing.assert_allclose(one.predict(_paths(run), k=5).scores, paths.scores, rtol=1e-3, atol=1e-6)


def _paths(run):
    folder = json.loads((run / "run.yml").read_text())["data"]["train"]
    return list(lw.read(folder).paths)[:20]


def test_reports_have_pictures(run):
    page = (run / "whole" / "report.html").read_text()
    assert page.count("data:image/png;base64,") >= 8  # an image and a map for each of four examples


def test_commands_take_images(run, files, tmp_path):
    model, first = run / "whole", files[1][0]
    assert "at" in labelwise("predict", model, first, "-k", 2).out
    assert labelwise("predict", model, files[0], "-o", tmp_path / "all.tsv").err is not None
    assert len((tmp_path / "all.tsv").read_text().splitlines()) >= 240
    explained = labelwise("explain", model, first, "-k", 2, "-o", tmp_path / "map.png")
    assert "multiplied by" in explained.out
    assert Image.open(tmp_path / "map.png").size[0] > 3 * 256
    refused = labelwise("predict", model, first, "--explain", 2, code=2)
    assert "labelwise explain" in refused.err
    missing = labelwise("predict", model, "nothere.png", code=2)
    assert "there is no file 'nothere.png'" in missing.err
    assert "echo" not in missing.err
    assert "explain by maps of pixels" in labelwise("info", model).out
    labelwise("encode", model, files[0], "-o", tmp_path / "vectors.npy")
    assert np.load(tmp_path / "vectors.npy").shape == (240, 8 * 4 * 4)
    labelwise("calibrate", model, files[0])
    assert lw.load(model / "model").threshold_ is not None


def test_models_of_arrays_take_images_and_models_of_images_arrays(data, model, run, files, tmp_path):
    model.save(tmp_path / "model")
    expected = model.predict(data.take(np.arange(5)), k=3)
    for paths in ([files[1][0]], files[1][:5]):
        found = model.predict(paths, k=3)
        np.testing.assert_array_equal(found.ids, expected.ids[: len(paths)])
        np.testing.assert_allclose(found.scores, expected.scores[: len(paths)], atol=1e-5)
    colour = tmp_path / "large.png"
    Image.open(files[1][0]).resize((40, 40), Image.Resampling.NEAREST).convert("RGB").save(colour)
    for picture in (files[1][0], colour):
        answer = json.loads(labelwise("predict", tmp_path / "model", picture, "-k", 1).out)
        assert [one["label"] for one in answer["labels"]] == [model.label_names_[int(expected.ids[0, 0])]]
    (tmp_path / "paths.txt").write_text("\n".join(files[1][:5]))
    assert len(labelwise("predict", tmp_path / "model", tmp_path / "paths.txt").out.splitlines()) == 5
    assert "multiplied by" in labelwise("explain", tmp_path / "model", colour, "-k", 1).out
    assert model.score(files[1][:20], [data.labels_of(row) for row in range(20)]) > 0.8
    with_files = lw.load(run / "whole")
    np.testing.assert_allclose(
        with_files.predict(data.arrays[:9], k=3).scores, with_files.predict(files[1][:9], k=3).scores, atol=1e-5
    )


def test_data_commands_take_images(files, tmp_path):
    shown = labelwise("data", "stats", files[0], "--sheet", tmp_path / "sheet.png")
    assert "labels that occur" in shown.out
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape[1] > 900
    assert (sheet < 128).any()
    assert "PNG" in labelwise("data", "stats", files[0], "--sheet", tmp_path / "sheet.gif", code=2).err
    labelwise("data", "split", files[0], tmp_path / "parts", "--fraction", 0.25)
    parts = lw.read_splits(tmp_path / "parts")
    assert {name: len(part) for name, part in parts.items()} == {"train": 180, "test": 60}
    labelwise("data", "convert", tmp_path / "parts", tmp_path / "tables", "--to", "csv")
    assert list(lw.read(tmp_path / "tables", split="test").paths) == list(parts["test"].paths)
