"""The card of a model: what is written, what changes it, and what a stranger may write into it."""

import hashlib
import json
import shutil
from datetime import UTC, datetime
from importlib.metadata import Distribution, EntryPoint

import numpy as np
import pytest

import labelwise as lw
from conformance.planted import planted_features, planted_texts
from labelwise import registry
from labelwise.data.hashing import dataset_hash
from labelwise.errors import ModelFormatError
from labelwise.io.folder import MANIFEST, Folder
from labelwise.model.card import (
    CARD_FILE,
    PAGE_FILE,
    Change,
    read_card,
    short_name,
    update_card,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a small model, only to be copied."""
    folder = tmp_path_factory.mktemp("models") / "model"
    model = lw.LinearTree(trees=1).fit(planted_texts(60, 8))
    model.calibrate(planted_texts(60, 8, seed=1), k=5)
    model.save(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def rewrite(folder, content: bytes):
    """Another card, with which the manifest agrees."""
    (folder / CARD_FILE).write_bytes(content)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][CARD_FILE] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_saved_model_describes_itself(folder):
    card = lw.load(folder).card_
    data = planted_texts(60, 8)
    assert abs((datetime.now(UTC) - card.created).total_seconds()) < 600
    assert (card.data.documents, card.data.labels) == (60, 8)
    assert card.data.hash == dataset_hash(data)
    assert card.packages["labelwise"] == lw.__version__
    assert card.packages["numpy"] == np.__version__
    assert "torch" not in card.packages, "a linear model does not use it"
    assert card.calibration.documents == 60
    assert card.calibration.threshold == lw.load(folder).threshold_


def test_the_hash_of_data_depends_on_documents_labels_and_order():
    data, features = planted_texts(20, 6), planted_features(20, 6)
    hashes = [dataset_hash(data), dataset_hash(data.take(np.arange(20)[::-1])), dataset_hash(data.take(slice(0, 19)))]
    moved = lw.Dataset(data.labels[np.arange(20)[::-1]], data.label_names, data.texts)
    renamed = lw.Dataset(data.labels, lw.Strings.numbers(6), data.texts)
    hashes += [dataset_hash(moved), dataset_hash(renamed), dataset_hash(features)]
    assert len(set(hashes)) == 6
    assert dataset_hash(planted_texts(20, 6)) == hashes[0]


def test_only_card_and_manifest_differ_between_two_trainings(saved, tmp_path):
    again = tmp_path / "again"
    model = lw.LinearTree(trees=1).fit(planted_texts(60, 8))
    model.calibrate(planted_texts(60, 8, seed=1), k=5)
    model.card_ = model.card_.with_change("made a second time")
    model.save(again)
    names = {path.name for path in saved.iterdir()} - {CARD_FILE, PAGE_FILE, MANIFEST}
    assert all((saved / name).read_bytes() == (again / name).read_bytes() for name in names)


def test_a_change_is_kept_through_saving_and_a_new_fit_forgets_it(folder, tmp_path):
    update_card(folder, {"changes": (Change(what="made smaller"),)})
    model = lw.load(folder)
    assert [change.what for change in model.card_.changes] == ["made smaller"]
    model.calibration_ = None
    model.save(tmp_path / "copy")
    copy = lw.load(tmp_path / "copy").card_
    assert copy.changes == model.card_.changes
    assert copy.calibration is None, "of a model that is not calibrated any more"
    assert lw.load(folder).fit(planted_texts(60, 8)).card_.changes == ()


def test_models_without_a_card_load(folder):
    (folder / CARD_FILE).unlink()
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["files"][CARD_FILE]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    model = lw.load(folder)
    assert model.card_.created is None
    assert len(model.predict(["word1x1"], k=2)) == 1
    update_card(folder, {"changes": (Change(what="described"),)})
    assert read_card(Folder(folder, "model")).changes[0].what == "described"


@pytest.mark.parametrize(
    "content",
    [
        b"[]", b'"x"', b"{", b"\xff", b'{"created": "yesterday"}', b'{"created": "2026-01-01T00:00:00"}',
        b'{"data": {"documents": -1}}', b'{"data": {"documents": 1e300}}', b'{"data": []}', b'{"changes": [{}]}',
        b'{"reading": {"options": {"text_column": ["a"]}}}', b'{"scores": {"values": {"P@1": "good"}}}',
        b'{"scores": {"intervals": {"P@1": [0.1]}}}', b'{"packages": {"numpy": {}}}',
        b'{"data": {"name": "' + b"x" * 3000 + b'"}}', b'{"changes": "' + b"x" * (2 << 20) + b'"}',
    ],
)  # fmt: skip
def test_damaged_cards_are_refused(folder, content):
    rewrite(folder, content)
    with pytest.raises(ModelFormatError, match=r"card\.json"):
        lw.load(folder)


def test_a_newer_card_with_more_in_it_loads(folder):
    card = json.loads((folder / CARD_FILE).read_text())
    rewrite(folder, json.dumps({**card, "licence": "CC0", "scores": None}).encode())
    assert lw.load(folder).card_.data.documents == 60


def test_names_of_data_hold_no_folder_of_the_machine():
    assert short_name("/home/ann/catalogue.csv") == "catalogue.csv"
    assert short_name("/data/eurlex57k/train_texts.txt") == "eurlex57k/train_texts.txt"
    assert short_name("data") == "data"
    assert len(short_name("x" * 5000)) == 200
    data = planted_texts(20, 6)
    named = lw.Dataset(data.labels, data.label_names, data.texts, name="/home/ann/" + "x" * 5000)
    assert lw.Popularity().fit(named).card_.data.name == short_name("x" * 5000)


class Installed(Distribution):
    """A package that is only said to be installed."""

    def read_text(self, filename):
        return "Name: knnx\nVersion: 0.3\n" if filename == "METADATA" else None

    def locate_file(self, path):
        return path


def test_the_manifest_names_the_package_of_a_plugged_in_method(tmp_path, monkeypatch):
    point = EntryPoint("knn", "labelwise.methods.popularity:Popularity", "labelwise.methods")._for(Installed())
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    plugged_in = type("Knn", (lw.Popularity,), {"name": "knn"})
    plugged_in().fit(planted_texts(20, 6)).save(tmp_path / "m")
    assert json.loads((tmp_path / "m" / MANIFEST).read_text())["plugin"] == {"package": "knnx", "version": "0.3"}
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    with pytest.raises(ModelFormatError, match=r"no method 'knn' here; .* package knnx 0\.3.*pip install knnx$"):
        lw.load(tmp_path / "m")


@pytest.mark.parametrize("package", ["--index-url=http://evil x", "knnx; rm", "", None, {"a": 1}, "x" * 500])
def test_a_package_name_that_is_none_is_not_repeated(folder, package):
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest |= {"method": "knn", "plugin": {"package": package, "version": "1"}}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ModelFormatError, match="there is no method 'knn'; accepted") as caught:
        lw.load(folder)
    assert "pip" not in str(caught.value)


def test_a_model_that_learns_very_often_can_still_be_loaded(folder, tmp_path):
    model = lw.load(folder)
    for number in range(12_000):
        model.card_ = model.card_.with_change(f"learned {number:,} documents; new labels: 0, and so on")
    model.save(tmp_path / "often")
    changes = lw.load(tmp_path / "often").card_.changes
    assert len(changes) == 1000
    assert "11,999" in changes[-1].what
