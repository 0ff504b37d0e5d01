"""`labelwise data shard`: any text or sparse format becomes native shards with the same documents, all or nothing."""

import gzip
import json
import os
import signal

import numpy as np
import pytest
from data_cases import assert_same
from scipy import sparse

import labelwise as lw
from cli.commands import labelwise
from killing import kill_where_it_holds
from labelwise.data import shard as shard_module
from labelwise.data.shard import parse_size, shard
from labelwise.data.write import convert
from labelwise.errors import ConfigError, DataError
from labelwise.io.atomic import hidden_folder, keep_leftovers
from labelwise.io.tensors import mapping_of
from labelwise.strings import Strings

DOCUMENTS = 60


def texts(rows=DOCUMENTS):
    words = ["apple", "pear", "plum", "élan", "naïve", "Straße", "x1"]
    return [" ".join(words[(row * step) % 7] for step in range(1, 4 + row % 9)) for row in range(rows)]


def drawn(rows=DOCUMENTS, **parts):
    labels = sparse.csr_array(np.random.default_rng(0).random((rows, 7)) < 0.4, dtype=np.float32)
    labels = sparse.csr_array(np.maximum(labels.toarray(), np.eye(1, 7, dtype=np.float32)))  # each has a label
    return lw.Dataset(labels, [f"L{n}" for n in range(7)], **parts)


def read_back(folder, split="train", scratch=None):
    return lw.read(folder, split=split, scratch=scratch)


@pytest.mark.parametrize("options", [("--size", "1kB"), ("--documents", "10")])
def test_more_shards_than_there_are_numbers_are_refused(tmp_path, monkeypatch, options):
    lw.write(drawn(texts=texts()), tmp_path / "d.jsonl")
    monkeypatch.setattr(shard_module, "MOST_SHARDS", 3)
    said = labelwise("data", "shard", tmp_path / "d.jsonl", tmp_path / "out", *options, code=2).err
    assert "a part has 3 at most" in said
    assert f"use a larger {options[0]}" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.jsonl"]


HOLD_AT_THE_FIRST_SHARD = """
from labelwise.data import shard
plain = shard.take_mapped
def first(data, rows, scratch):
    (scratch / "left").write_bytes(bytes(1000))
    hold()
shard.take_mapped = first
"""


def hidden_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_temporary_files_of_an_ended_command_are_removed(tmp_path):
    lw.write(drawn(texts=texts()), tmp_path / "d.jsonl")
    command = ("data", "shard", tmp_path / "d.jsonl", tmp_path / "out")
    kill_where_it_holds(HOLD_AT_THE_FIRST_SHARD, *command, number=signal.SIGTERM, code=143)
    assert hidden_in(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL and locks")
def test_temporary_files_of_a_killed_command_are_removed_by_the_next_one(tmp_path):
    lw.write(drawn(texts=texts()), tmp_path / "d.jsonl")
    command = ("data", "shard", tmp_path / "d.jsonl", tmp_path / "out")
    kill_where_it_holds(HOLD_AT_THE_FIRST_SHARD, *command)
    (left,) = tmp_path.glob(".labelwise-*")
    (tmp_path / ".labelwise-of-a-user").mkdir()
    of_another_machine = tmp_path / ".labelwise-abcd1234"
    of_another_machine.mkdir()
    (of_another_machine / ".lock").write_text("another")
    with hidden_folder(tmp_path) as used, hidden_folder(tmp_path) as other:
        assert not left.exists()
        (used / "file").write_text("in use")
        labelwise(*command)
        assert (used / "file").read_text() == "in use"
        keep_leftovers(other)
    assert sorted(tmp_path.glob(".labelwise-*")) == [of_another_machine, tmp_path / ".labelwise-of-a-user"]


def test_folders_with_files_that_exist_nowhere_else_are_not_removed(tmp_path):
    stopped = hidden_folder(tmp_path)
    folder = stopped.__enter__()
    (folder / "old").write_text("of the user")
    keep_leftovers(folder)
    with hidden_folder(tmp_path):
        assert (folder / "old").exists()


@pytest.mark.parametrize(
    "name", ["d.csv", "d.tsv", "d.jsonl", "d.ft", "d_texts.txt", "d.csv.gz", "d.jsonl.xz", "d_texts.txt.gz"]
)
def test_texts_of_every_format_come_back_from_shards(tmp_path, name):
    data = drawn(texts=texts())
    lw.write(data, tmp_path / name)
    said = labelwise("data", "shard", tmp_path / name, tmp_path / "out", "--size", "1kB").out
    shards = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert len(shards) > 3
    assert shards[0] == "train-00000"
    assert f"{len(shards)} shards of train" in said
    for scratch in (None, tmp_path):
        found = read_back(tmp_path / "out", scratch=scratch)
        assert list(found.texts) == texts()
        assert found.label_names == data.label_names
        np.testing.assert_array_equal(found.labels.toarray(), data.labels.toarray())
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_features_ids_and_relevances_are_kept(tmp_path):
    features = sparse.random_array(
        (DOCUMENTS, 30), density=0.2, format="csr", dtype=np.float32, rng=np.random.default_rng(1)
    )
    data = drawn(texts=texts(), features=features, ids=[f"id {row}" for row in range(DOCUMENTS)])
    data.labels.data[:] = np.arange(1, 1 + data.labels.nnz)
    lw.write(data, tmp_path / "one")
    counts = shard(tmp_path / "one", tmp_path / "named", documents=7, split="train")
    assert counts == {"train": 9}
    assert_same(read_back(tmp_path / "named"), lw.read(tmp_path / "one"))


def test_sparse_files_and_several_of_them(tmp_path):
    features = sparse.random_array(
        (DOCUMENTS, 30), density=0.2, format="csr", dtype=np.float32, rng=np.random.default_rng(1)
    )
    data = drawn(features=features)
    lw.write(data.take(slice(0, 25)), tmp_path / "a.txt", "xc", drop=["label_names"])
    lw.write(data.take(slice(25, None)), tmp_path / "b.txt", "xc", drop=["label_names"])
    labelwise(
        "data", "shard", tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "out", "--documents", "8", "--from", "xc"
    )
    found = read_back(tmp_path / "out")
    np.testing.assert_array_equal(found.features.toarray(), features.toarray())
    np.testing.assert_array_equal(found.labels.toarray(), data.labels.toarray())


def test_several_text_files_get_one_label_space(tmp_path):
    (tmp_path / "a.tsv").write_text("red blue\tfirst text\n")
    (tmp_path / "b.tsv").write_text("blue green\tsecond text\nred\tthird\n")
    shard([tmp_path / "a.tsv", tmp_path / "b.tsv"], tmp_path / "out", documents=1)
    found = read_back(tmp_path / "out")
    assert [found.labels_of(row) for row in range(3)] == [["blue", "red"], ["blue", "green"], ["red"]]


def test_a_folder_keeps_its_parts(tmp_path):
    data = drawn(texts=texts())
    (tmp_path / "in").mkdir()
    lw.write(data.take(slice(0, 40)), tmp_path / "in" / "train.csv")
    lw.write(data.take(slice(40, None)), tmp_path / "in" / "test.csv")
    assert shard(tmp_path / "in", tmp_path / "out", documents=16) == {"train": 3, "test": 2}
    assert list(read_back(tmp_path / "out", "test").texts) == texts()[40:]
    assert shard(tmp_path / "in", tmp_path / "one", documents=100, split="test") == {"test": 1}
    assert len(read_back(tmp_path / "one", "test")) == 20


def test_mistakes_are_reported_and_leave_nothing(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"text": "a b", "labels": ["x"]}\n{"text": "c"\n')
    assert "d.jsonl" in labelwise("data", "shard", tmp_path / "d.jsonl", tmp_path / "out", code=2).err
    assert not (tmp_path / "out").exists()
    lw.write(drawn(texts=texts()), tmp_path / "d.csv")
    assert "512MB" in labelwise("data", "shard", tmp_path / "d.csv", tmp_path / "out", "--size", "many", code=2).err
    labelwise("data", "shard", tmp_path / "d.csv", tmp_path / "out")
    assert "exists" in labelwise("data", "shard", tmp_path / "d.csv", tmp_path / "out", code=2).err
    labelwise("data", "shard", tmp_path / "d.csv", tmp_path / "out", "--force", "--documents", "50")
    assert len(list((tmp_path / "out").glob("train-*"))) == 2
    with pytest.raises(ConfigError, match="train, valid or test"):
        shard(tmp_path / "d.csv", tmp_path / "other", split="everything")
    assert [parse_size(given) for given in ("1kB", "1.5 GB", "512MB")] == [1000, 1_500_000_000, 512_000_000]


def test_an_interruption_leaves_no_folder_and_the_command_can_be_repeated(tmp_path, monkeypatch):
    lw.write(drawn(texts=texts()), tmp_path / "d.csv")
    written, write = [], shard_module.native.write

    def fails(data, path):
        written.append(path)
        if len(written) == 2:
            raise KeyboardInterrupt
        write(data, path)

    monkeypatch.setattr(shard_module.native, "write", fails)
    with pytest.raises(KeyboardInterrupt):
        shard(tmp_path / "d.csv", tmp_path / "out", documents=10)
    assert [path.name for path in tmp_path.iterdir()] == ["d.csv"]
    assert shard(tmp_path / "d.csv", tmp_path / "out", documents=10) == {"train": 6}


def test_texts_of_files_are_mapped_and_converted(tmp_path):
    with gzip.open(tmp_path / "train.jsonl.gz", "wt") as file:
        for number, text in enumerate(texts()):
            file.write(json.dumps({"text": text, "labels": [f"l{number % 3}"], "id": f"d{number}"}) + "\n")
    (tmp_path / "scratch").mkdir()
    data = lw.read(tmp_path / "train.jsonl.gz", scratch=tmp_path / "scratch")
    assert all(mapping_of(part.buffer) is not None for part in (data.texts, data.ids))
    assert_same(data, lw.read(tmp_path / "train.jsonl.gz"))
    convert([tmp_path / "train.jsonl.gz"], tmp_path / "out.tsv")
    assert list(lw.read(tmp_path / "out.tsv").texts) == texts()


def test_compact_strings_of_a_range_share_the_buffer():
    strings = Strings(["ab", "", "cde", "f"])
    part = strings[1:3].compact()
    assert list(part) == ["", "cde"]
    assert np.shares_memory(part.buffer, strings.buffer)
    assert list(strings[[0, 3]].compact()) == ["ab", "f"]
    assert list(strings[2:2].compact()) == []


def test_a_path_of_another_program_is_not_replaced(tmp_path):
    lw.write(drawn(texts=texts()), tmp_path / "d.csv")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="not written by labelwise"):
        shard(tmp_path / "d.csv", tmp_path / "out", force=True)


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "of an earlier version"])
def test_a_missing_shard_is_named(tmp_path, counted):
    lw.write(drawn(texts=texts()), tmp_path / "d.csv")
    out = tmp_path / "out"
    assert shard(tmp_path / "d.csv", out, documents=20) == {"train": 3}
    about = json.loads((out / "source.json").read_text())
    assert about.pop("shards") == {"train": 3}
    if not counted:
        (out / "source.json").write_text(json.dumps(about))
    assert len(lw.read(out)) == DOCUMENTS
    (out / "train-00001").rename(tmp_path / "away")
    refused = labelwise("data", "stats", out, code=2).err
    assert f"{out / 'train-00001'}: this shard of the 3 of train is missing" in refused
    (tmp_path / "away").rename(out / "train-00001")
    (out / "train-00002").rename(tmp_path / "away")
    if counted:  # the last one is missed only if they are counted
        with pytest.raises(DataError, match="train-00002: this shard"):
            lw.read(out)
    assert len(lw.read(str(out / "train-*"))) == 40
