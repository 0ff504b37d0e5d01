"""Commands with `--launcher processes` write the same files as without, through kills of their workers too."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from labelwise.features.tfidf import Tfidf
from labelwise.io.folder import STATE
from labelwise.linear import train as level_tasks
from labelwise.linear.train import read_shard
from labelwise.runtime.job import Job
from labelwise.runtime.tasks import Launcher, Processes
from labelwise.testing.subject import planted_texts
from runtime.launched import MODELS, fork_workers, model_files, same_files, trained, vectors, write_config
from sweep.planted import fork_trials, plant, write_study


@pytest.fixture(autouse=True)
def _forked_workers(monkeypatch):
    fork_workers(monkeypatch)


TWO = ("--launcher", "processes", "--workers", "2")


@pytest.mark.parametrize("method", MODELS)
def test_the_model_is_the_same(method, tmp_path):
    alone = trained(tmp_path, MODELS[method], "alone")
    assert same_files(alone, trained(tmp_path, MODELS[method], "launched", *TWO))


def test_the_model_of_mapped_data_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("labelwise.runtime.tasks.MAPPED_BYTES", 0)  # as large features: written for tasks to map
    model = {**MODELS["linear_tree"], "precision": "int8"}
    alone = trained(tmp_path, model, "alone")
    config = write_config(tmp_path, model, "launched")
    labelwise("train", config, "--set", "data.mapped=true", *TWO)
    folder = tmp_path / "launched"
    assert same_files(alone, model_files(folder / "model"))
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".") and path.is_dir()]


def test_members_of_mapped_data_keep_their_features_in_files(tmp_path, monkeypatch):
    folders, plain = tmp_path / "folders.txt", Tfidf.fit_transform_mapped

    def fit_transform_mapped(self, texts, folder, limit):
        with folders.open("a") as file:
            file.write(f"{os.getpid()} {folder.relative_to(tmp_path / 'launched')}\n")
        return plain(self, texts, folder, limit)

    monkeypatch.setattr(Tfidf, "fit_transform_mapped", fit_transform_mapped)
    alone = trained(tmp_path, MODELS["ensemble"], "alone")
    assert not folders.exists()
    labelwise("train", write_config(tmp_path, MODELS["ensemble"], "launched"), "--set", "data.mapped=true", *TWO)
    assert same_files(alone, model_files(tmp_path / "launched" / "model"))
    process, folder = folders.read_text().split()
    assert int(process) != os.getpid()
    assert folder == ".rows/member0"


def test_levels_without_checkpoints_write_no_shards_of_the_same_name(tmp_path, monkeypatch):
    paths, plain = [], Processes._submit

    def submit(self, function, shared, task):
        paths.append(task.path)
        return plain(self, function, shared, task)

    monkeypatch.setattr(Processes, "_submit", submit)
    data, parameters = planted_texts(120, 16), {"trees": 2, "leaf_size": 2, "branching": 2}
    with Launcher("processes", workers=2).opened(tmp_path / "tasks") as opened:
        model = lw.LinearTree(**parameters).fit(data, job=Job(tasks=opened))
    assert len(paths) == len(set(paths)) > 4
    alone = lw.LinearTree(**parameters).fit(data)
    np.testing.assert_array_equal(model.predict(data, k=3).scores, alone.predict(data, k=3).scores)


def test_the_model_is_the_same_when_a_worker_is_killed_and_a_shard_is_damaged(tmp_path, monkeypatch):
    alone = trained(tmp_path, MODELS["linear_tree"], "alone")
    events = []
    plain_submit, plain_read = Processes._submit, level_tasks.read_shard

    def submit(self, function, shared, task):
        if self._workers and "killed" not in events:
            events.append("killed")
            os.kill(self._workers[0].pid, signal.SIGKILL)
        return plain_submit(self, function, shared, task)

    def read(path, fingerprint):
        if "damaged" not in events and path.exists():
            events.append("damaged")
            (path / "chunks.safetensors").write_bytes(b"")
        return plain_read(path, fingerprint)

    monkeypatch.setattr(Processes, "_submit", submit)
    monkeypatch.setattr(level_tasks, "read_shard", read)
    assert same_files(alone, trained(tmp_path, MODELS["linear_tree"], "launched", *TWO))
    assert sorted(events) == ["damaged", "killed"]


def test_a_task_that_runs_twice_writes_the_same_and_does_not_train_again(tmp_path, monkeypatch):
    tasks = []
    plain = Processes.map

    def twice(self, function, items, shared=None, **how):
        if function is not level_tasks.train_chunks:
            return plain(self, function, items, shared, **how)
        results = list(plain(self, function, items, shared, **how))
        before = {task.path: sorted(path.stat().st_mtime_ns for path in task.path.iterdir()) for task in items}
        assert len(list(plain(self, function, items, shared, **how))) == len(results)
        for task in items:
            assert sorted(path.stat().st_mtime_ns for path in task.path.iterdir()) == before[task.path]
            assert set(task.firsts) == {first for *_, first in read_shard(task.path, task.fingerprint)}
            tasks.append(task)
        return iter(results)

    monkeypatch.setattr(Processes, "map", twice)
    trained(tmp_path, MODELS["linear_tree"], "launched", *TWO)
    assert len(tasks) > 4


def test_predictions_and_vectors_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("labelwise.commands.predict.BATCH", 16)
    documents = tmp_path / "new.csv"
    data = planted_texts(100, 16, seed=3)
    lw.write(data, documents)
    lw.LinearTree(trees=1, leaf_size=4).fit(planted_texts(120, 16)).save(tmp_path / "tree")
    for name, options in (("a.csv", ()), ("a.npz", ("-k", "3")), ("a.jsonl", ("--explain", "2"))):
        outputs = [tmp_path / f"{place}-{name}" for place in ("alone", "launched")]
        labelwise("predict", tmp_path / "tree", documents, "-o", outputs[0], *options)
        labelwise("predict", tmp_path / "tree", documents, "-o", outputs[1], *options, *TWO)
        assert outputs[0].read_bytes() == outputs[1].read_bytes()
    lw.TextEncoder(encoder={"model": "tiny"}, training={"epochs": 1}).fit(data).save(tmp_path / "encoder")
    one, two = tmp_path / "one.npy", tmp_path / "two.npy"
    monkeypatch.setenv("LABELWISE_THREADS", "1")
    labelwise("encode", tmp_path / "encoder", documents, "-o", one, "--batch-size", 30)
    labelwise("encode", tmp_path / "encoder", documents, "-o", two, "--batch-size", 30, *TWO)
    assert vectors(one) == vectors(two)


def test_a_sweep_with_processes_is_the_same(tmp_path, monkeypatch):
    fork_trials(monkeypatch)
    plant(tmp_path / "data")
    rows = []
    for name, options in (("alone", ()), ("launched", ("--launcher", "processes"))):
        study = write_study(tmp_path, folder=str(tmp_path / name))
        labelwise("sweep", study, *options)
        found = json.loads((tmp_path / name / "results.json").read_text(encoding="utf-8"))
        rows.append([{**row, "seconds": None} for row in found["rows"]])
    assert rows[0] == rows[1]
    names = [
        sorted(path.name for path in (tmp_path / name / "trials").glob("*/model/*")) for name in ("alone", "launched")
    ]
    assert names[0] == names[1] != []


def test_a_study_sets_its_own_trials_and_threads(tmp_path):
    plant(tmp_path / "data")
    done = labelwise("sweep", write_study(tmp_path), *TWO, code=2)
    assert "`parallel` and `threads` of the study set these" in done.err
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("model", "changes", "options", "message"),
    [
        ({"method": "popularity"}, [], TWO, "training popularity has no parts that share nothing, as ensemble"),
        (MODELS["linear_tree"], ["model.time_budget=60"], TWO, "model's time_budget: not with --launcher processes"),
        (MODELS["linear_tree"], ["run.time_budget=60"], TWO, "run.time_budget: not with --launcher processes"),
        (MODELS["linear_tree"], [], ("--launcher", "slurm"), "accepted: local, processes, ray"),
        (MODELS["linear_tree"], [], ("--workers", "2"), "--workers needs --launcher processes or ray"),
    ],
)
def test_what_cannot_be_launched_is_refused(model, changes, options, message, tmp_path):
    words = [word for change in changes for word in ("--set", change)]
    done = labelwise("train", write_config(tmp_path, model), *words, *options, code=2)
    assert message in " ".join(done.err.split())
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_refuses_the_same(tmp_path):
    config = write_config(tmp_path, {"method": "popularity"})
    labelwise("train", config)
    state = tmp_path / "run" / STATE
    state.write_text(json.dumps({**json.loads(state.read_text(encoding="utf-8")), "status": "running"}))
    assert "has no parts that share nothing" in labelwise("train", config, *TWO, code=2).err
    assert "already trained" in labelwise("train", config).err


def test_single_texts_are_not_launched(tmp_path):
    lw.Popularity().fit(planted_texts(20, 4)).save(tmp_path / "model")
    done = labelwise("predict", tmp_path / "model", "-", *TWO, code=2)
    assert "for files of documents" in done.err


def test_ray_that_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    done = labelwise("train", write_config(tmp_path, MODELS["linear_tree"]), "--launcher", "ray", code=2)
    assert "pip install 'labelwise[ray]'" in done.err
    assert not Path(tmp_path / "run" / ".tasks").exists()
