"""The data of a run: several files as one part, a single file as `path`, and splits by the hash of each document."""

import logging

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from conformance.planted import planted_texts
from labelwise.config import ConfigSource
from labelwise.errors import ConfigError, DataError
from labelwise.runs.config import run_config
from labelwise.runs.data import load_run_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("parts")
    data = planted_texts(n_documents=300, n_labels=20)
    lw.write(data.take(slice(0, 100)), place / "a.csv")
    lw.write(data.take(slice(100, 300)), place / "b.csv")
    lw.write(data, place / "all.csv")
    lw.write(data.take(slice(0, 3)), place / "few.csv")
    (place / "header.csv").write_text("text,labels\n")
    return place


def load(**data):
    config = run_config(ConfigSource({"data": data, "model": {"method": "popularity"}}, "test"))
    return load_run_data(config.data)


def test_lists_and_patterns_are_one_part(folder):
    a, b = str(folder / "a.csv"), str(folder / "b.csv")
    whole = lw.read(folder / "all.csv")
    joined = load(train=[a, b], test=str(folder / "[ab].csv"))
    assert joined.train.texts == whole.texts
    assert joined.train.label_names == whole.label_names
    assert (joined.train.labels != whole.labels).nnz == 0
    assert joined.test.texts == whole.texts
    assert load(path=str(folder / "all.csv")).train.texts == whole.texts


@pytest.mark.parametrize("wrong", [[], 3, [1, "a"], {"a": 1}])
def test_anything_else_is_refused_in_one_line(wrong):
    with pytest.raises(ConfigError, match=r"^test: data.train: a path or a list of paths is needed"):
        load(train=wrong)


def test_a_part_by_hash_stays_when_the_data_grows(folder):
    settings = {"test_fraction": 0.2, "valid_fraction": 0.2, "split_by": "hash"}
    small, large = load(train=str(folder / "b.csv"), **settings), load(train=str(folder / "all.csv"), **settings)
    for part in ("train", "valid", "test"):
        assert set(getattr(small, part).texts) == set(getattr(large, part).texts) & set(lw.read(folder / "b.csv").texts)
    assert len(large.train) + len(large.valid) + len(large.test) == 300


def test_few_documents_are_named_and_none_are_no_part(folder, caplog):
    with caplog.at_level(logging.WARNING, "labelwise"):
        few = load(train=str(folder / "few.csv"), test_fraction=0.01, split_by="hash")
        assert few.test is None
        assert "3 documents are too few to hold out 0.01" in caplog.text
        load(train=str(folder / "all.csv"), test_fraction=0.1, split_by="hash")
        assert "too few to rely on: the scores vary by chance" in caplog.text
    with pytest.raises(DataError, match=r"0.01 of 3 documents leaves one part without any"):
        load(train=str(folder / "few.csv"), test_fraction=0.01)
    for data in ({"train": str(folder / "header.csv")}, {"path": str(folder / "header.csv"), "test_fraction": 0.1}):
        with pytest.raises(DataError, match=r"header.csv: there are no documents$"):
            load(**data)


def test_a_part_by_hash_without_any_label_is_no_part(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("text,labels\n" + "".join(f"text {n},\n" for n in range(40)) + "a text,x\n")
    with caplog.at_level(logging.WARNING, "labelwise"):
        loaded = load(train=str(tmp_path / "a.csv"), test_fraction=0.1, split_by="hash")
    assert (loaded.test, len(loaded.train)) == (None, 41)
    assert "of the test part has a label: there is no such part, and the model is not evaluated" in caplog.text


def test_mapped_rows_are_split_by_hash_too(folder, tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{i % 5} {rng.integers(50)}:1 {60 + i}:0.5" for i in range(80)]
    (tmp_path / "train.txt").write_text("80 200 5\n" + "\n".join(lines) + "\n")
    config = run_config(
        ConfigSource(
            {
                "data": {
                    "train": str(tmp_path / "train.txt"),
                    "test_fraction": 0.3,
                    "split_by": "hash",
                    "mapped": True,
                },
                "model": {"method": "popularity"},
            }
        )
    )
    scratch = tmp_path / "rows"
    scratch.mkdir()
    mapped, plain = load_run_data(config.data, scratch), load_run_data(config.data)
    assert (mapped.test.features != plain.test.features).nnz == 0
    assert 0 < len(mapped.test) < 80


def test_data_split_by_hash(folder, tmp_path):
    labelwise("data", "split", folder / "b.csv", tmp_path / "small", "--by", "hash")
    labelwise("data", "split", folder / "all.csv", tmp_path / "large", "--by", "hash")
    small, large = (set(lw.read(tmp_path / name, split="test").texts) for name in ("small", "large"))
    assert small < large
    assert (
        "there is no split by 'day'"
        in labelwise("data", "split", folder / "all.csv", tmp_path / "x", "--by", "day", code=2).err
    )
