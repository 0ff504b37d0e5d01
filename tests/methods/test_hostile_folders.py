"""Model folders that a stranger has changed in ways that hashes cannot show."""

import json

import numpy as np
import pytest

import labelwise as lw
from conformance.planted import planted_texts
from labelwise.errors import ModelFormatError
from labelwise.io.folder import MANIFEST, map_tensors, strings_to_tensors, update_folder
from labelwise.nn.config import WordsConfig
from labelwise.nn.words.vocabulary import Vocabulary
from labelwise.strings import Strings

STATE, LABELS = "state.safetensors", "labels.safetensors"


@pytest.fixture
def saved(tmp_path):
    lw.LinearTree().fit(planted_texts(40, 8)).save(tmp_path / "model")
    return tmp_path / "model"


def change(saved, file, **arrays):
    tensors = dict(map_tensors(saved / file)) | arrays
    with update_folder(saved, "model", {}) as folder:
        folder.write_tensors(file, tensors)


def refused(saved, match):
    with pytest.raises(ModelFormatError, match=match):
        lw.load(saved)


def test_a_manifest_that_is_a_link_is_refused(saved, tmp_path):
    (saved / MANIFEST).rename(tmp_path / "elsewhere.json")
    (saved / MANIFEST).symlink_to(tmp_path / "elsewhere.json")
    refused(saved, "link")


@pytest.mark.parametrize("value", ["x", 5, -1, 2.5])
def test_features_of_a_model_of_texts_are_refused(saved, value):
    manifest = json.loads((saved / MANIFEST).read_text())
    (saved / MANIFEST).write_text(json.dumps({**manifest, "n_features": value}))
    refused(saved, "do not fit the manifest")


@pytest.mark.parametrize("value", [1e308, -1e300, np.nan, np.inf])
def test_idf_that_no_weight_can_be_is_refused(saved, value):
    idf = next(name for name in map_tensors(saved / STATE) if name.endswith("idf"))
    array = map_tensors(saved / STATE)[idf].copy()
    array[3] = value
    change(saved, STATE, **{idf: array})
    refused(saved, "idf holds NaN, infinity or numbers above")


def test_label_names_that_are_equal_are_refused(saved):
    names = [f"L{j}" for j in range(7)] + ["L0"]
    change(saved, LABELS, **strings_to_tensors("names", Strings.of(names)))
    refused(saved, "duplicate label name 'L0'")


def test_words_that_are_equal_are_refused(tmp_path):
    tensors = strings_to_tensors("vocabulary", Strings.of(["one", "two", "one"]))
    with pytest.raises(ModelFormatError, match="duplicate word"):
        Vocabulary.restored(tensors, WordsConfig(), tmp_path)


def test_offsets_of_weights_that_wrap_around_are_refused(saved):
    tensors = map_tensors(saved / STATE)
    for name in [name for name in tensors if name.endswith(("set_offsets", "word_offsets", "low_offsets", "anchors"))]:
        offsets = tensors[name].copy()
        if len(offsets) > 2:
            offsets[:3] = [2**63 - 1, -(2**63), -1]
            change(saved, STATE, **{name: offsets})
            refused(saved, "weights of .* are damaged")
            change(saved, STATE, **{name: tensors[name]})
    assert len(lw.load(saved).predict(["word1x1"], k=2)) == 1


def test_scores_that_are_not_finite_are_an_error(saved):
    tensors = map_tensors(saved / STATE)
    name = next(name for name in tensors if name.endswith("level0.bias"))
    change(saved, STATE, **{name: np.full_like(tensors[name], np.nan)})
    refused(saved, "holds NaN")
    with pytest.raises(ModelFormatError):
        lw.load(saved, verify=False).predict(["word1x1"], k=2)


def test_statistics_that_no_training_has_are_refused_or_harmless(saved):
    counts = map_tensors(saved / STATE)["tree0.documents"].copy()
    change(saved, STATE, **{"tree0.documents": np.full_like(counts, 2**63 - 1)})
    refused(saved, "statistics of the training documents are damaged")
    change(saved, STATE, **{"tree0.documents": counts, "learned": np.array([[0.0, 0, 0, 0, 5, 5]])})
    report = lw.load(saved).learn(["word1x1 word2x2"], [["L0"]])
    assert report.n_documents == 1
