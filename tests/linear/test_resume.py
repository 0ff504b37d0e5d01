"""A killed training resumes from finished chunks, and gives the same result as an undisturbed one."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from conformance.planted import planted
from killing import kill_where_it_holds
from labelwise.io.folder import Folder
from labelwise.linear import train as chunk_shards
from labelwise.linear.solver import Chunk, LevelTrainer
from labelwise.linear.train import ChunkShards
from labelwise.linear.weights import ChunkPart
from labelwise.runtime.job import Job
from labelwise.runtime.threads import using_threads

SMALL = {"trees": 2, "leaf_size": 10, "branching": 4}


def keys_in(checkpoints: Path) -> list[tuple]:
    """The chunks in all shards, repeated if in several of them."""
    found = []
    for path in sorted(checkpoints.rglob("chunks-*")):
        keys = Folder(path, "chunks").tensors("chunks.safetensors")["keys"]
        found += [(path.parent.name, *key) for key in keys.tolist()]
    return found


HOLD_AFTER_THREE_CHUNKS = """
from labelwise.linear import train as chunk_shards
from labelwise.linear.solver import LevelTrainer
chunk_shards.MIN_INTERVAL = 0.0
trained, plain = [], LevelTrainer._train_piece
def three_at_most(self, chunk):
    if len(trained) == 3:
        hold()
    trained.append(chunk.first)
    return plain(self, chunk)
LevelTrainer._train_piece = three_at_most
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_run_resumes_and_predicts_the_same(tmp_path):
    data = planted("texts", n_documents=700, n_labels=150)
    lw.write(data, tmp_path / "data.jsonl")
    data = lw.read(tmp_path / "data.jsonl")
    run = tmp_path / "run"
    config = {
        "data": {"train": str(tmp_path / "data.jsonl")},
        "model": {"method": "linear_tree", **SMALL},
        "run": {"folder": str(run), "report": False, "threads": 1},
    }
    (tmp_path / "run.yml").write_text(json.dumps(config))
    before: list = []
    for _ in range(2):  # killed twice, each time with more chunks finished than before
        kill_where_it_holds(HOLD_AFTER_THREE_CHUNKS, "train", tmp_path / "run.yml")
        assert not (run / "model").exists()
        before.append(keys_in(run / "checkpoints"))
    assert len(before[1]) > len(before[0]) > 0
    assert len(set(before[1])) == len(before[1]), "a chunk was trained twice"
    labelwise("train", tmp_path / "run.yml")
    resumed = re.findall(r"resuming after (\d+) finished chunks", (run / "log.txt").read_text())
    assert int(resumed[-1]) == len(before[1]), "both kills were in the first tree"
    assert not (run / "checkpoints").exists()
    expected = lw.LinearTree(**SMALL).fit(data).predict(data, k=10)
    same(lw.load(run / "model").predict(data, k=10), expected)


class Interrupted(Exception):
    """Raised to stop a training."""


def count_chunks(monkeypatch, stop_after=None) -> list:
    """The first child of every chunk trained from now on; with `stop_after` the next one fails."""
    trained = []
    plain = LevelTrainer._train_piece

    def counted(self, chunk):
        if stop_after is not None and len(trained) == stop_after:
            raise Interrupted
        trained.append(chunk.first)
        return plain(self, chunk)

    monkeypatch.setattr(LevelTrainer, "_train_piece", counted)
    return trained


def interrupted_fit(method, data, folder, after):
    with pytest.MonkeyPatch.context() as patch:
        count_chunks(patch, after)
        with pytest.raises(Interrupted):
            method.fit(data, job=Job(folder))


def same(a, b):
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_array_equal(a.scores, b.scores)


def part_with(features) -> ChunkPart:
    """One label's weights: 1 for each of the features."""
    count = len(features)
    return ChunkPart(
        np.array(features, np.int32), np.ones(count, np.int32), np.zeros(count, np.uint16),
        np.ones(count, np.float32), np.zeros(1, np.float32),
    )  # fmt: skip


@pytest.mark.parametrize("method", [lambda: lw.LinearTree(**SMALL), lambda: lw.LinearFlat(precision="int8")])
@pytest.mark.parametrize("after", [0, 1, 4, 9])
def test_only_what_is_missing_is_trained(monkeypatch, tmp_path, method, after):
    data = planted("features", n_labels=160)
    with using_threads(1):
        every = count_chunks(monkeypatch)
        expected = method().fit(data).predict(data, k=5)
        total = len(every)
        interrupted_fit(method(), data, tmp_path / "work", after)
        rest = count_chunks(monkeypatch)
        found = method().fit(data, job=Job(tmp_path / "work")).predict(data, k=5)
    assert len(rest) == total - after
    same(found, expected)


@pytest.mark.parametrize("change", ["parameter", "feature", "label", "method"])
def test_work_of_another_training_is_not_used(monkeypatch, tmp_path, caplog, change):
    data = planted("features", n_labels=160)
    folder = tmp_path / "work"
    interrupted_fit(lw.LinearTree(**SMALL), data, folder, 5)
    method = lw.LinearTree(**SMALL)
    features, labels = data.features.copy(), data.labels.copy()
    if change == "parameter":
        method = lw.LinearTree(**SMALL, solver={"cost_positive": 2.0})
    elif change == "feature":
        features.data[7] += 1
    elif change == "label":
        labels.data[3] = 0.5
    else:
        method = lw.LinearFlat()
    expected = method.fit(features, labels).predict(features, k=5)
    trained = count_chunks(monkeypatch)
    with caplog.at_level("INFO"):
        found = method.fit(features, labels, job=Job(folder)).predict(features, k=5)
    assert "another training" in caplog.text
    assert len(trained) >= 10
    same(found, expected)


@pytest.mark.parametrize("wider", ["labels", "features"])
def test_columns_without_entries_make_another_training(tmp_path, caplog, wider):
    data = planted("features", n_labels=160)
    folder = tmp_path / "work"
    interrupted_fit(lw.LinearTree(**SMALL), data, folder, 5)
    features, labels = data.features.copy(), data.labels.copy()
    matrix = labels if wider == "labels" else features
    matrix.resize((matrix.shape[0], matrix.shape[1] + 7))
    found = lw.LinearTree(**SMALL).fit(features, labels, job=Job(folder)).predict(features, k=5)
    assert "another training" in caplog.text
    same(found, lw.LinearTree(**SMALL).fit(features, labels).predict(features, k=5))


@pytest.mark.parametrize("damage", ["cut", "flip", "no manifest", "empty", "a file", "half written"])
def test_damaged_shards_are_not_used(tmp_path, caplog, monkeypatch, damage):
    monkeypatch.setattr("labelwise.linear.train.MIN_INTERVAL", 600.0)  # one shard, however slow the machine
    data = planted("features", n_labels=160)
    folder = tmp_path / "work"
    interrupted_fit(lw.LinearTree(**SMALL), data, folder, 5)
    folder = folder / "weights-0"
    (shard,) = folder.glob("chunks-*")
    file = shard / "chunks.safetensors"
    content = file.read_bytes()
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        file.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    elif damage == "no manifest":
        (shard / "manifest.json").unlink()
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "a file":
        (folder / "chunks-000007").write_text("nothing of ours")
    else:
        (folder / ".chunks-000009.new-x1").mkdir()
    with caplog.at_level("WARNING"):
        found = lw.LinearTree(**SMALL).fit(data, job=Job(folder.parent)).predict(data, k=5)
    same(found, lw.LinearTree(**SMALL).fit(data).predict(data, k=5))
    assert ("not used" in caplog.text) == (damage != "half written")
    assert not list(folder.glob(".*"))


def test_a_shard_that_lies_is_not_believed(tmp_path, caplog):
    """The hashes agree, but a feature index is out of range: it must not reach a kernel."""
    with pytest.raises(Interrupted), ChunkShards(tmp_path, "x") as shards:
        shards.add((0, 0), part_with([0, 99]))
        raise Interrupted
    with ChunkShards(tmp_path, "x") as shards:
        one = {0: Chunk(0, 1, None)}
        assert set(shards.level(0, one, n_features=100)) == {0}
        assert shards.level(0, one, n_features=99) == {}
        assert shards.level(0, {0: Chunk(0, 2, None)}, n_features=100) == {}
        assert shards.level(0, {16: Chunk(16, 17, None)}, n_features=100) == {}
        assert shards.level(1, one, n_features=100) == {}


def test_chunks_are_written_together(tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_shards, "MIN_INTERVAL", 3600.0)  # or a busy machine would write some earlier
    with ChunkShards(tmp_path, "x") as shards:
        for first in range(1000):
            shards.add((0, first), part_with([0]))
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setattr(chunk_shards, "MAX_BYTES", 10_000)
        shards.add((0, 1000), part_with([0]))
        assert len(keys_in(tmp_path)) == 1001
        assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_does_not_stop_training(tmp_path, monkeypatch, caplog):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    data = planted("features", n_labels=160)
    expected = lw.LinearTree(**SMALL).fit(data).predict(data, k=5)
    monkeypatch.setattr(chunk_shards.store.FolderWriter, "write_tensors", full)
    monkeypatch.setattr(chunk_shards, "MAX_BYTES", 1)
    same(lw.LinearTree(**SMALL).fit(data, job=Job(tmp_path / "work")).predict(data, k=5), expected)
    assert caplog.text.count("No space left") == 4, "of each of two trees: the tree, and the first of its chunks"
    assert not [path for path in (tmp_path / "work").rglob("*") if path.is_file()]
