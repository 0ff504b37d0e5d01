"""The method of faces: vectors, people, saving, record files, and the command `verify`."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from data.record_files import content, image_bytes, write_records
from data.test_pairs import protocol
from killing import AFTER_A_CHECKPOINT, kill_where_it_holds
from labelwise.commands.small import verify_pairs
from labelwise.data.faces import Pairs, read_pairs
from labelwise.errors import ConfigError, DataError
from labelwise.model.inputs import Documents
from labelwise.nn.config import ImageConfig
from labelwise.nn.images.inputs import ImageInputs
from labelwise.runtime.threads import using_threads
from labelwise.strings import Strings

SIZE, PEOPLE = 32, 6
SETTINGS = {
    "image": {"size": SIZE},
    "network": {"network": "r10", "width_factor": 0.125, "dimension": 16},
    "head": {"margin": 0.2, "scale": 16.0},
    "valid_fraction": 0.0,
    "monitor": {"enabled": False},
    "training": {"epochs": None, "steps": 30, "batch_size": 20, "optimiser": {"rate": 0.05}},
}


def faces(count, seed):
    """Pictures of people: each has a pattern of its own, and every picture has noise and another brightness."""
    patterns = np.random.default_rng(9).integers(0, 256, (PEOPLE, 4, 4, 3))
    rng = np.random.default_rng(seed)
    who = np.arange(count) % PEOPLE
    pixels = np.kron(patterns[who], np.ones((1, SIZE // 4, SIZE // 4, 1))) * rng.uniform(0.7, 1, (count, 1, 1, 1))
    return np.clip(pixels + rng.normal(0, 12, pixels.shape), 0, 255).astype(np.uint8), who


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of images per person, and a model of them."""
    place = tmp_path_factory.mktemp("faces")
    pixels, who = faces(60, 0)
    for number, (picture, person) in enumerate(zip(pixels, who, strict=True)):
        path = place / f"P{person}" / f"P{person}_{number // PEOPLE + 1:04d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(image_bytes(picture))
    return place


@pytest.fixture(scope="module")
def model(folder):
    paths = sorted(map(str, folder.glob("P*/*.png")))
    labels = [[path.split("/")[-2]] for path in paths]
    return lw.MheFace(**SETTINGS).fit(lw.Dataset(paths=paths, labels=labels))


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "faces"
    model.save(path)
    return path


def paths_of(folder):
    return sorted(map(str, folder.glob("P*/*.png")))


def test_it_learns_people(model, folder):
    top = model.predict(paths_of(folder), k=2)
    expected = [path.split("/")[-2] for path in paths_of(folder)]
    right = [top.label_names[int(row[0])] == name for row, name in zip(top.ids, expected, strict=True)]
    assert np.mean(right) > 0.7
    assert ((top.scores >= 0) & (top.scores <= 1)).all()


def test_vectors_have_norm_one_and_do_not_see_a_mirror(model, folder):
    paths = paths_of(folder)[:8]
    vectors = model.encode(paths)
    assert vectors.shape == (8, 16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    pixels = np.stack([_pixels(path) for path in paths])
    straight, mirrored = (
        model.fitted_.image_vectors(Documents(arrays=some), model.config) for some in (pixels, pixels[:, :, ::-1])
    )
    np.testing.assert_allclose(straight, mirrored, atol=1e-4)
    np.testing.assert_allclose(
        straight, model.fitted_.image_vectors(model._as_documents(paths), model.config), atol=1e-4
    )


def _pixels(path):
    from PIL import Image

    return np.asarray(Image.open(path))


def test_a_saved_model_needs_nothing_else(model, saved, folder):
    again = lw.load(saved)
    np.testing.assert_allclose(again.encode(paths_of(folder)[:5]), model.encode(paths_of(folder)[:5]), atol=1e-6)
    assert np.array_equal(again.predict(paths_of(folder), k=3).ids, model.predict(paths_of(folder), k=3).ids)


@pytest.mark.parametrize(
    "head",
    [{"sampling": "groups", "radices": (3, 2), "sampled_groups": 2}, {"sampling": "classes", "sample_rate": 0.5}],
)
def test_sampling_heads_learn_too(head, folder):
    paths = paths_of(folder)
    labels = [[path.split("/")[-2]] for path in paths]
    model = lw.MheFace(**{**SETTINGS, "head": {**SETTINGS["head"], **head}}).fit(lw.Dataset(paths=paths, labels=labels))
    assert model.score(paths, labels) > 0.5  # of six people, after 30 steps


def test_record_files_and_folders_give_the_same_vectors(model, folder, tmp_path):
    paths = paths_of(folder)[:6]
    contents = [content([7, 7])] + [
        content(float(number), Path(path).read_bytes()) for number, path in enumerate(paths)
    ]
    write_records(tmp_path / "train.rec", contents)
    data = lw.read(tmp_path / "train.rec")
    np.testing.assert_allclose(model.encode(data), model.encode(paths), atol=1e-6)
    short = tmp_path / "short.rec"
    short.write_bytes((tmp_path / "train.rec").read_bytes()[:300])
    with pytest.raises(DataError, match=r"short\.rec"):
        model.encode([f"{short}#{data.paths[2].rpartition('#')[2]}"])


# --- the command ---


def lfw_pairs(folder):
    """Two folds of pairs in LFW's format."""
    lines = ["2\t6"]
    for fold in range(2):
        lines += [f"P{person}\t{2 * fold + 1}\t{2 * fold + 2}" for person in range(PEOPLE)]
        lines += [f"P{person}\t{fold + 1}\tP{(person + 1) % PEOPLE}\t{fold + 3}" for person in range(PEOPLE)]
    path = folder.parent / f"{folder.name}-pairs.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_verify_pairs(saved, folder, tmp_path):
    page, numbers = tmp_path / "report.html", tmp_path / "scores.json"
    done = labelwise(
        "verify", saved, lfw_pairs(folder), "--images", folder, "-o", page, "--far", "0.5", "--far", "0.01"
    )
    assert "accuracy, 2 folds" in done.out
    assert "needs at least 100 pairs of different classes, there are 12" in done.out
    assert "<svg" in page.read_text()
    labelwise("verify", saved, lfw_pairs(folder), "--images", folder, "-o", numbers)
    found = json.loads(numbers.read_text())
    assert (found["n_same"], found["n_different"], found["images"]) == (12, 12, 24)
    assert found["auc"] > 0.9
    assert found["accuracy"]["mean"] > 0.8
    assert found["roc"]["far"][0] == 0
    assert found["roc"]["tar"][-1] == 1
    labelwise("verify", saved, lfw_pairs(folder), "--images", folder, "-o", numbers, code=2)
    assert "labelwise: " in labelwise("verify", saved, lfw_pairs(folder), code=2).err
    assert ".html or .json" in labelwise("verify", saved, lfw_pairs(folder), "-o", tmp_path / "x.txt", code=2).err


def test_verify_a_bin_set(saved, folder, tmp_path):
    lw_pairs = lfw_pairs(folder)
    pairs = read_pairs(lw_pairs, folder)
    images = [Path(pairs.images[i]).read_bytes() for pair in zip(pairs.first, pairs.second, strict=True) for i in pair]
    (tmp_path / "a.bin").write_bytes(pickle.dumps((images, pairs.same.tolist()), 2))
    out = tmp_path / "a.json"
    labelwise("verify", saved, tmp_path / "a.bin", "-o", out)
    other = tmp_path / "b.json"
    labelwise("verify", saved, lw_pairs, "--images", folder, "-o", other)
    assert json.loads(out.read_text())["auc"] == pytest.approx(json.loads(other.read_text())["auc"])
    images[3] = b"no image"
    (tmp_path / "a.bin").write_bytes(pickle.dumps((images, pairs.same.tolist()), 2))
    assert "a.bin, image 3" in labelwise("verify", saved, tmp_path / "a.bin", code=2).err


def test_images_of_a_bin_set_are_shrunk_as_they_are_decoded(model):
    side = 500
    images = [image_bytes(np.full((side + number, side, 3), 8 * number, np.uint8)) for number in range(24)]
    answers = np.arange(12) % 2 == 0
    pairs = Pairs(images, np.arange(0, 24, 2), np.arange(1, 24, 2), answers, None)
    tracemalloc.start()
    found = verify_pairs(model, pairs, [0.5])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.n_images == 24
    assert peak < 6 * side * side * 3  # decoded together they are 24 times that


@pytest.mark.parametrize("crop", ["none", "resized"])
def test_verified_images_have_the_pixels_of_predicted_ones(crop, tmp_path):
    from PIL import Image

    config = ImageConfig.model_validate({"size": 16, "augmentation": {"crop": crop}})
    paths = [str(tmp_path / f"{number}.jpg") for number in range(2)]
    for path in paths:
        Image.fromarray(np.random.default_rng(1).integers(0, 256, (200, 200, 3), np.uint8)).save(path)
    seen = []

    def image_vectors(images, config):
        seen.append(images.batch(np.arange(2)).arrays[0])
        return np.ones((2, 1))

    recorder = SimpleNamespace(
        config=SimpleNamespace(image=config), fitted_=SimpleNamespace(image_vectors=image_vectors)
    )
    verify_pairs(recorder, Pairs(paths, np.array([0, 0]), np.array([1, 1]), np.array([True, False]), None), [0.5])
    predicted = ImageInputs(config, paths=Strings.of(paths)).batch(np.arange(2)).arrays[0]
    np.testing.assert_array_equal(seen[0], predicted)


def test_verify_templates(saved, folder, tmp_path):
    images = [
        (f"P{person}/P{person}_{n:04d}.png", 10 * person + n % 2, n) for person in range(PEOPLE) for n in (1, 2, 3)
    ]
    pairs = [(10 * a, 10 * b + 1, int(a == b)) for a in range(PEOPLE) for b in range(PEOPLE)]
    from labelwise.data.faces import MEAN_FACE

    protocol(tmp_path, images, pairs, points=MEAN_FACE * SIZE / 112)  # already aligned
    out = tmp_path / "ijb.json"
    labelwise("verify", saved, tmp_path, "--images", folder, "-o", out)
    found = json.loads(out.read_text())
    assert (found["templates"], found["n_same"], found["n_different"]) == (12, 6, 30)
    assert found["accuracy"] is None
    assert found["auc"] > 0.9


def test_models_of_texts_do_not_verify(tmp_path, folder):
    lw.Popularity().fit(["a", "b"], [["x"], ["y"]]).save(tmp_path / "m")
    assert "mhe_face has" in labelwise("verify", tmp_path / "m", lfw_pairs(folder), "--images", folder, code=2).err


def test_settings_that_are_refused():
    with pytest.raises(ConfigError, match="setting of sampling: classes"):
        lw.MheFace(head={"sample_rate": 0.3})
    with pytest.raises(ConfigError, match="network"):
        lw.MheFace(network={"network": "r51"})
    grey = lw.MheFace(image={"channels": 1})
    assert grey.config.image.mean is None


# --- runs ---


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    """A run, and the same run killed after its first checkpoint and started again."""
    place = tmp_path_factory.mktemp("runs")
    training = {**SETTINGS["training"], "steps": 9, "checkpoint_every": {"steps": 4}}
    values = {
        "data": {"train": str(folder), "test_fraction": 0.25},
        "model": {"method": "mhe_face", **SETTINGS, "training": training},
        "evaluate": {"metrics": ["P@1"], "examples": 0, "bootstrap": 50}, "inspect": {"enabled": False},
        "calibrate": {"enabled": False}, "run": {"report": False},
    }  # fmt: skip
    (place / "run.yml").write_text(json.dumps(values))
    with using_threads(1):
        labelwise("train", place / "run.yml", "-o", place / "whole")
        kill_where_it_holds(AFTER_A_CHECKPOINT, "train", place / "run.yml", "-o", place / "resumed")
        assert not (place / "resumed" / "model").exists()
        said = labelwise("train", place / "run.yml", "-o", place / "resumed").err
    assert "resuming after step 4 of 9" in said
    return place


def test_a_killed_run_resumes_to_the_same_model(runs, folder):
    one, other = (lw.load(runs / name).encode(paths_of(folder)) for name in ("whole", "resumed"))
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_runs_of_images_are_compared(runs, tmp_path):
    found = json.loads(labelwise("compare", runs / "whole", runs / "resumed", "--json").out)
    assert [run["method"] for run in found["runs"]] == ["mhe_face", "mhe_face"]
    assert found["runs"][0]["n_documents"] == 15
    assert found["paired"]  # the same images, recognised by their content
    table = labelwise("compare", runs / "whole", runs / "resumed", "-o", tmp_path / "page.html").out
    assert "P@1" in table
    assert "<svg" in (tmp_path / "page.html").read_text()
