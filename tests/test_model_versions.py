"""Folders of every version that is read predict what the code that wrote them predicted; others are refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import labelwise as lw
from labelwise.errors import ModelFormatError
from labelwise.io.folder import FORMAT_VERSION, MANIFEST, OLDEST_VERSION
from labelwise.model.card import PAGE_FILE, update_card
from labelwise.registry import METHODS

MODELS = Path(__file__).parent / "models"
FOLDERS = sorted(path.parent for path in MODELS.glob("*/manifest.json"))


def test_there_is_a_folder_of_every_version_and_method():
    manifests = [json.loads((folder / MANIFEST).read_text()) for folder in FOLDERS]
    versions = set(range(OLDEST_VERSION, FORMAT_VERSION + 1))
    assert {manifest["format_version"] for manifest in manifests} == versions
    assert {manifest["method"] for manifest in manifests} == set(METHODS)


def expected_of(folder):
    """What the code that wrote a folder predicted, and the documents: texts, or the pixels of pictures."""
    expected = json.loads((MODELS / f"{folder.name}.expected.json").read_text())
    return expected, expected["texts"] if "texts" in expected else np.array(expected["arrays"], np.uint8)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_it_predicts_what_it_did(folder):
    expected, documents = expected_of(folder)
    model = lw.load(folder)
    top = model.predict(documents, k=len(expected["labels"][0]))
    np.testing.assert_allclose(top.scores, expected["scores"], rtol=1e-4, atol=1e-4)
    for row, labels in enumerate(expected["labels"]):
        ranked = [model.label_names_[i] for i in top.ids[row]]
        given = dict(zip(labels, expected["scores"][row], strict=True))
        # the order of labels whose scores are equal up to rounding may differ
        assert all(
            abs(given.get(name, given[labels[-1]]) - score) < 1e-3
            for name, score in zip(ranked, top.scores[row], strict=True)
        )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_it_can_be_saved_again_and_updated(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    update_card(copy, {})
    assert (copy / PAGE_FILE).read_text().startswith("# A model of labelwise")
    model = lw.load(copy)
    model.save(tmp_path / "again")
    _, documents = expected_of(folder)
    first, second = (one.predict(documents, k=2) for one in (model, lw.load(tmp_path / "again")))
    assert np.array_equal(first.ids, second.ids)


@pytest.mark.parametrize("folder", sorted((MODELS / "refused").iterdir()), ids=lambda folder: folder.name)
def test_a_folder_of_the_first_version_is_refused_in_words(folder):
    with pytest.raises(ModelFormatError, match=r"format version 1; .* it has to be trained again"):
        lw.load(folder)


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 0, "1", None])
def test_another_version_is_refused_with_both_versions(tmp_path, version):
    shutil.copytree(FOLDERS[0], tmp_path / "m")
    manifest = json.loads((tmp_path / "m" / MANIFEST).read_text())
    (tmp_path / "m" / MANIFEST).write_text(
        json.dumps({**manifest, "format_version": version, "labelwise_version": "9.1"})
    )
    with pytest.raises(
        ModelFormatError, match=rf"format version .*reads versions {OLDEST_VERSION} to {FORMAT_VERSION}.*9\.1"
    ):
        lw.load(tmp_path / "m")
