"""Training straight from shards, rows in memory or in files: the same model to the last bit, and no files left."""

import json

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from conformance.planted import planted
from killing import kill_where_it_holds
from labelwise.config import ConfigSource
from labelwise.data.csr import ArrayOnDisk
from labelwise.errors import ConfigError, DataError
from labelwise.io.folder import SCRATCH
from labelwise.methods.mach import Mach
from labelwise.runs.config import run_config
from labelwise.runs.train import train, train_repetitions
from labelwise.tuning.preflight import check_study
from labelwise.tuning.study import read_study
from labelwise.tuning.trial import run_trial

MODEL = {
    "method": "mach", "repetitions": 2, "buckets": 16, "hidden": [8],
    "training": {"epochs": 2, "batch_size": 32, "optimiser": {"rate": 0.02}},
}  # fmt: skip


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """The same documents as shards of both formats."""
    folder = tmp_path_factory.mktemp("corpora")
    data = planted("features", n_documents=400, n_labels=40)
    data = lw.Dataset(data.labels, features=data.features)
    for number, begin in enumerate((0, 100, 130)):
        shard = data.take(slice(begin, (100, 130, 300)[number]))
        lw.write(shard, folder / "tfrecord" / f"part{number}_train.tfrecords")
        lw.write(shard, folder / "native" / f"train-{number:02d}")
    for name in ("tfrecord/test.tfrecords", "native/test"):
        lw.write(data.take(slice(300, 400)), folder / name)
    lw.write(planted("texts", n_documents=30), folder / "texts" / "train.csv")
    return folder


def settings(corpus, folder, calibrate=None, model=None, **data):
    return {
        "data": {"path": str(corpus), **data},
        "model": {**MODEL, **(model or {})},
        "calibrate": calibrate or {},
        "run": {"folder": str(folder), "report": False, "threads": 1},
    }


def config(*given, **more):
    return run_config(ConfigSource(settings(*given, **more)))


def predictions(run, corpora):
    return lw.load(run / "model").predict(lw.read(corpora / "native" / "test"), k=5)


def same_models(one, two, corpora):
    assert (one / "model" / "state.safetensors").read_bytes() == (two / "model" / "state.safetensors").read_bytes()
    found, expected = predictions(one, corpora), predictions(two, corpora)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.scores, expected.scores)


@pytest.fixture(scope="module")
def expected(tmp_path_factory, corpora):
    """A run on rows in memory, from the data in one piece."""
    place = tmp_path_factory.mktemp("expected")
    lw.write(lw.read(corpora / "native", split="train"), place / "in" / "train")
    return train(config(place / "in", place / "run")).path


@pytest.mark.parametrize("format", ["tfrecord", "native"])
@pytest.mark.parametrize("mapped", [False, True])
def test_shards_give_the_same_model(tmp_path, corpora, expected, format, mapped):
    """From the shards as they are, once with the real command."""
    given = settings(corpora / format, tmp_path / "run", mapped=mapped)
    if (format, mapped) == ("tfrecord", True):
        (tmp_path / "run.yml").write_text(json.dumps(given))
        assert "P@1" in labelwise("train", tmp_path / "run.yml").out
    else:
        train(run_config(ConfigSource(given)))
    assert not (tmp_path / "run" / SCRATCH).exists()
    same_models(tmp_path / "run", expected, corpora)


@pytest.mark.parametrize("format", ["tfrecord", "native"])
@pytest.mark.parametrize(
    "parts",
    [
        {"test_fraction": 0.2, "valid_fraction": 0.1, "limit": 150},
        {"calibrate": {"fraction": 0.2}},
        {"valid_fraction": 0.2, "model": {"training": {**MODEL["training"], "validate_every": "epoch"}}},
    ],
    ids=["fractions", "calibrate", "validate"],
)
def test_documents_set_aside_are_the_same_in_files(tmp_path, corpora, format, parts):
    place = corpora / format
    if "test_fraction" in parts:
        place = tmp_path / "in"
        place.mkdir()
        for path in (corpora / format).glob("*train*"):
            (place / path.name).symlink_to(path)
    runs = [train(config(place, tmp_path / str(mapped), mapped=mapped, **parts)).path for mapped in (False, True)]
    same_models(*runs, corpora)
    one, two = (json.loads((run / "results.json").read_text())["evaluation"] for run in runs)
    assert one == two


def test_rows_are_in_files_while_a_run_trains(tmp_path, corpora, monkeypatch):
    from labelwise.io.tensors import mapping_of

    seen, plain = [], Mach._fit

    def looking(self, data, *others):
        seen.append([mapping_of(array) is not None for array in (data.features.data, data.labels.indices)])
        return plain(self, data, *others)

    monkeypatch.setattr(Mach, "_fit", looking)
    train(config(corpora / "tfrecord", tmp_path / "run", mapped=True))
    assert seen == [[True, True]]


def test_a_repetition_alone(tmp_path, corpora, expected):
    folder = {"repetitions_folder": str(tmp_path / "parts")}
    given = config(corpora / "native", tmp_path / "run", mapped=True, model=folder)
    train_repetitions(given, [1])
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["001"]
    same_models(train(given).path, expected, corpora)


class Stopped(Exception):
    pass


def stop(*_, **__):
    raise Stopped


def test_a_failure_leaves_no_files(tmp_path, corpora, monkeypatch):
    folder = {"repetitions_folder": str(tmp_path / "parts")}
    given = config(corpora / "tfrecord", tmp_path / "run", mapped=True, model=folder)
    for target, name in ((Mach, "_repetitions"), (ArrayOnDisk, "map")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, stop)
            with pytest.raises(Stopped):
                train(given)
            assert not (tmp_path / "run" / SCRATCH).exists()
            with pytest.raises(Stopped):
                train_repetitions(given, [0])
            assert list((tmp_path / "parts").iterdir()) == []


HOLD_WHILE_READING = """
from labelwise.data.csr import ArrayOnDisk
ArrayOnDisk.map = lambda self: hold()
"""
HOLD_IN_THE_SECOND_EPOCH = """
from labelwise.nn.train.repetitions import RepetitionFitting
plain = RepetitionFitting.batches
RepetitionFitting.batches = lambda self, epoch: hold() if epoch else plain(self, epoch)
"""


@pytest.mark.parametrize("patch", [HOLD_WHILE_READING, HOLD_IN_THE_SECOND_EPOCH], ids=["reading", "training"])
def test_what_a_kill_leaves_is_gone_after_the_next_run(tmp_path, corpora, expected, patch):
    steps = {"training": {**MODEL["training"], "checkpoint_every": {"steps": 1}}}
    given = settings(corpora / "tfrecord", tmp_path / "run", mapped=True, model=steps)
    (tmp_path / "run.yml").write_text(json.dumps(given))
    kill_where_it_holds(patch, "train", tmp_path / "run.yml")
    left = list((tmp_path / "run" / SCRATCH).iterdir())
    assert (len(left) > 0) == (patch == HOLD_WHILE_READING)
    train(run_config(ConfigSource(given)))
    assert not (tmp_path / "run" / SCRATCH).exists()
    same_models(tmp_path / "run", expected, corpora)


def test_a_run_goes_on_with_rows_in_memory(tmp_path, corpora, expected, monkeypatch):
    """And what lies there of rows in files is removed."""
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("labelwise.runs.train.Popularity", stop)
        train(config(corpora / "native", tmp_path / "run", mapped=True))
    (tmp_path / "run" / SCRATCH).mkdir()
    (tmp_path / "run" / SCRATCH / "old.rows").write_bytes(b"abc")
    train(config(corpora / "native", tmp_path / "run", mapped=False))
    assert not (tmp_path / "run" / SCRATCH).exists()
    same_models(tmp_path / "run", expected, corpora)


def test_formats_that_cannot_be_mapped_are_refused(tmp_path, corpora):
    (tmp_path / "full" / "train").mkdir(parents=True)
    (tmp_path / "full" / "train" / "one.txt").write_text("a text")
    (tmp_path / "full" / "train" / "one.tsv").write_text("<http://label>\tlabel\n")
    with pytest.raises(ConfigError, match=r"data\.mapped: .* is in the format fulltext, .*native, lines, tfrecord"):
        train(config(tmp_path / "full", tmp_path / "run", mapped=True))
    with pytest.raises(DataError, match=r"data\.path: there is no file or folder nothing"):
        train(config("nothing", tmp_path / "two", mapped=True))
    named = config("eurlex-4k", tmp_path / "three", mapped=True)
    with pytest.raises(ConfigError, match=r"data\.mapped: eurlex-4k is in the format"):
        train(named)


def test_a_folder_that_is_one_part_is_the_training_part(tmp_path, corpora, expected):
    """Whatever it is called: what `data convert FILE FOLDER` writes, or a single shard."""
    lw.write(lw.read(corpora / "native", split="train"), tmp_path / "corpus")
    train(config(tmp_path / "corpus", tmp_path / "run"))
    same_models(tmp_path / "run", expected, corpora)
    for mapped in (False, True):
        given = settings(None, tmp_path / str(mapped), mapped=mapped)
        given["data"] |= {"path": None, "train": str(tmp_path / "corpus"), "test": str(corpora / "native")}
        train(run_config(ConfigSource(given)))
        same_models(tmp_path / str(mapped), expected, corpora)


def test_a_study_leaves_no_files(tmp_path, corpora):
    """Neither the look at the data beforehand nor the scoring of a trial."""
    run = settings(corpora / "tfrecord", tmp_path / "run", mapped=True, valid_fraction=0.2)
    run["model"] = {"method": "popularity"}
    values = {"run": run, "vary": {"data.split_seed": [1, 2]}, "folder": str(tmp_path / "sweep")}
    check_study(read_study(ConfigSource(values)))
    assert list(tmp_path.iterdir()) == []
    run_trial(run_config(ConfigSource(run)), "P@1")
    assert not (tmp_path / "run" / SCRATCH).exists()
    assert json.loads((tmp_path / "run" / "valid.json").read_text())["n_documents"] == 60
