"""`native`: everything, exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from data_cases import plain, small
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.formats.native import TENSORS
from labelwise.data.read import detect, find_parts, read
from labelwise.data.write import write
from labelwise.errors import ConfigError, LabelwiseError, ModelFormatError
from labelwise.strings import Strings


def whole() -> Dataset:
    """A data set with every part, unused labels and relevances."""
    return Dataset(
        labels=sparse.csr_array(np.array([[0.5, 0, 2, 0], [0, 0, 1, 0]], np.float32)),
        label_names=Strings.of(["z", "", "a\nb", "unused"]),
        texts=Strings.of(["é\n", ""]),
        features=sparse.csr_array(np.array([[0, 1.5, 0], [0, 0, 0]], np.float32)),
        paths=Strings.of(["a/b", "c"]),
        label_texts=Strings.of(["1", "2", "3", "\t"]),
        ids=Strings.of(["", "7"]),
    )


def test_everything_comes_back_exactly(tmp_path):
    data = whole()
    write(data, tmp_path / "out")
    found = read(tmp_path / "out")
    for part in ("label_names", "texts", "paths", "label_texts", "ids"):
        assert list(getattr(found, part)) == list(getattr(data, part))
    for part in ("labels", "features"):
        np.testing.assert_array_equal(getattr(found, part).toarray(), getattr(data, part).toarray())
        assert getattr(found, part).shape == getattr(data, part).shape


def test_the_data_stay_on_disk(tmp_path):
    write(whole(), tmp_path / "out")
    found = read(tmp_path / "out")
    for array in (found.texts.buffer, found.labels.data, found.features.data):
        owner = array
        while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
            owner = owner.base
        assert isinstance(owner, np.memmap)
        assert not array.flags.writeable


def test_one_folder_a_part(tmp_path):
    write(small(["a"], [["x"]]), tmp_path / "train")
    write(small(["b"], [["y"]]), tmp_path / "tst")
    assert detect(tmp_path).name == "native"
    assert list(find_parts(tmp_path)[1]) == ["train", "test"]
    assert list(read(tmp_path, split="test").texts) == ["b"]
    assert plain(read(tmp_path / "train")) == [{"x": 1}]


def test_a_folder_is_not_overwritten_unasked_and_a_strange_one_never(tmp_path):
    write(small(["a"], [["x"]]), tmp_path / "out")
    with pytest.raises(ConfigError, match="exists already"):
        write(small(["b"], [["x"]]), tmp_path / "out")
    assert list(read(tmp_path / "out").texts) == ["a"]
    write(small(["b"], [["x"]]), tmp_path / "out", force=True)
    assert list(read(tmp_path / "out").texts) == ["b"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep me")
    with pytest.raises(ConfigError, match="not a data folder of labelwise"):
        write(small(), tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "keep me"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_damage_is_noticed(tmp_path):
    write(whole(), tmp_path / "out")
    file = tmp_path / "out" / TENSORS
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(ModelFormatError, match="damaged"):
        read(tmp_path / "out")


@pytest.mark.parametrize("drop", ["labels.indptr", "label_names.ends", "texts.buffer", "features.data", "labels.shape"])
def test_a_missing_tensor_is_an_error(tmp_path, drop):
    from labelwise.io.folder import map_tensors, new_folder

    write(whole(), tmp_path / "out")
    tensors = {key: value.copy() for key, value in map_tensors(tmp_path / "out" / TENSORS).items() if key != drop}
    with new_folder(tmp_path / "other", "dataset", {}) as folder:
        folder.write_tensors(TENSORS, tensors)
    with pytest.raises(LabelwiseError, match="missing"):
        read(tmp_path / "other")


def test_a_folder_of_another_kind_is_not_taken_for_data(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"format": "labelwise-model"}))
    with pytest.raises(LabelwiseError, match="no data in any format"):
        read(tmp_path)
