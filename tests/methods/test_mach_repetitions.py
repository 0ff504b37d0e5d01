"""Finished repetitions of MACH in a folder: of other processes, of a killed one, of other settings, damaged."""

import tempfile
from functools import partial

import numpy as np
import pytest
from mach_cases import SHORT, SMALL, TRAINING, few_documents, run_file, same_repetitions, trained_alone
from scipy import sparse

import labelwise as lw
from cli.commands import labelwise
from forking import Forked
from killing import kill_where_it_holds
from labelwise.cli.main import main
from labelwise.errors import ConfigError, DataError
from labelwise.io.folder import Folder, FolderWriter, new_folder
from labelwise.labelspace.buckets import BucketTables
from labelwise.runtime.job import FILE, KEY, KIND, Each


@pytest.fixture(scope="module")
def data():
    return few_documents()


@pytest.fixture(scope="module")
def model(data):
    return lw.Mach(**SMALL).fit(data)


def test_processes_that_know_nothing_of_each_other(tmp_path, data):
    config = run_file(tmp_path, data)
    with tempfile.TemporaryFile("w+b") as printed:
        at_the_same_time = [
            Forked(partial(main, ["train", str(config), "--repetition", number]), stderr=printed.fileno())
            for number in ("2", "0")
        ]
        codes = [process.wait() for process in at_the_same_time]
        printed.seek(0)
        assert codes == [0, 0], printed.read().decode()
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["000", "002"]
    done = labelwise("train", config)
    assert "repetition: 2 of 4 are already finished" in done.err
    expected, read = trained_alone(tmp_path)
    found = lw.load(tmp_path / "run" / "model")
    same_repetitions(found.repetitions_, expected.repetitions_)
    np.testing.assert_array_equal(found.predict(read, k=5).ids, expected.predict(read, k=5).ids)


HOLD_IN_THE_SECOND_REPETITION = """
from labelwise.nn.train.repetitions import RepetitionFitting
plain, seen = RepetitionFitting.loss, []
def held(self, batch):
    seen.append(self.numbers)
    if self.numbers == [1] and seen.count([1]) == 30:
        hold()
    return plain(self, batch)
RepetitionFitting.loss = held
"""


def test_a_kill_costs_unfinished_steps_only(tmp_path, data):
    config = run_file(tmp_path, data)
    checkpoint = ("--set", "model.training.checkpoint_every.steps=10")
    kill_where_it_holds(HOLD_IN_THE_SECOND_REPETITION, "train", config, *checkpoint)
    assert (tmp_path / "parts" / "000").is_dir()
    assert not (tmp_path / "parts" / "001").exists()
    done = labelwise("train", config, *checkpoint)
    assert "repetition: 1 of 4 are already finished" in done.err
    assert "resuming after step" in done.err
    expected, _ = trained_alone(tmp_path)
    same_repetitions(lw.load(tmp_path / "run" / "model").repetitions_, expected.repetitions_)


def test_more_repetitions_later_use_those_there_are(tmp_path, data, caplog):
    folder = str(tmp_path / "parts")
    first = lw.Mach(**{**SMALL, "repetitions": 2}, repetitions_folder=folder).fit(data)
    with caplog.at_level("INFO"):
        more = lw.Mach(**SMALL, repetitions_folder=folder).fit(data)
    assert "repetition: 2 of 4 are already finished" in caplog.text
    same_repetitions(more.repetitions_[:2], first.repetitions_)


def with_more_labels(data):
    """The same with a label that no document has."""
    n_documents, n_labels = data.labels.shape
    parts = data.labels.data, data.labels.indices, data.labels.indptr
    return lw.Dataset(sparse.csr_array(parts, shape=(n_documents, n_labels + 1)), features=data.features)


@pytest.mark.parametrize("change", ["data", "labels", "buckets", "epochs", "seed", "lookups", "damaged", "bucket"])
def test_what_does_not_belong_here_is_trained_anew(tmp_path, data, caplog, change):
    """Whatever a repetition depends on: a finished one that differs in any of it is not this one."""
    folder, other, settings = tmp_path / "parts", data, dict(SHORT)
    if change in ("lookups", "bucket"):
        settings["lookups"] = str(tmp_path)
        BucketTables(data.n_labels, 32, range(1)).write_lookups(tmp_path)
    elif change == "labels":
        settings["hash"] = "balanced"
    lw.Mach(**settings, repetitions_folder=str(folder)).fit(data)
    if change == "data":
        other = data.take(slice(0, 299))
    elif change == "labels":
        other = with_more_labels(data)
    elif change == "buckets":
        settings["buckets"] = 31
    elif change in ("epochs", "seed"):
        settings["training"] = {**settings["training"], change: 2}
    elif change == "lookups":
        BucketTables(data.n_labels, 32, range(1), "universal").write_lookups(tmp_path)
    elif change == "damaged":
        file = folder / "000" / FILE
        content = file.read_bytes()
        file.write_bytes(content[:-3] + b"xyz")
    else:  # a stranger's file, whole in itself, with a bucket that there is not
        held = Folder(folder / "000", KIND)
        tensors = {name: np.array(array) for name, array in held.tensors(FILE).items()}
        tensors["buckets"][7] = 60_000
        about = {KEY: held.manifest[KEY]}
        with new_folder(folder / "000", KIND, about, force=True) as new:
            new.write_tensors(FILE, tensors)
    expected = lw.Mach(**settings).fit(other)
    with caplog.at_level("WARNING"):
        found = lw.Mach(**settings, repetitions_folder=str(folder)).fit(other)
    assert "not used" in caplog.text
    same_repetitions(found.repetitions_, expected.repetitions_)


def test_a_damaged_manifest_and_a_full_disk_do_not_end_training(tmp_path, data, caplog, monkeypatch):
    expected = lw.Mach(**SHORT, repetitions_folder=str(tmp_path)).fit(data)
    (tmp_path / "000" / "manifest.json").write_text("")
    again = lw.Mach(**SHORT, repetitions_folder=str(tmp_path)).fit(data)
    same_repetitions(again.repetitions_, expected.repetitions_)
    assert Folder(tmp_path / "000", KIND).manifest[KEY]

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FolderWriter, "write_tensors", full)
    again = lw.Mach(**SHORT, repetitions_folder=str(tmp_path / "full")).fit(data)
    same_repetitions(again.repetitions_, expected.repetitions_)
    assert "No space left on device" in caplog.text


def test_a_repetition_that_the_time_budget_ended_is_used_under_the_same_budget_only(tmp_path, data, caplog):
    def trained(**training):
        settings = {**SHORT, "training": {**TRAINING, "epochs": 2, **training}}
        return lw.Mach(**settings, repetitions_folder=str(tmp_path)).fit(data).repetitions_

    short = trained(time_budget=1e-9)
    with caplog.at_level("INFO"):
        same_repetitions(trained(time_budget=1e-9), short)
    assert caplog.text.count("1 of 1 are already finished") == 1
    whole = trained(time_budget=1000)
    assert np.abs(whole[0].tensors["table"] - short[0].tensors["table"]).max() > 0
    caplog.clear()
    with caplog.at_level("INFO"):
        same_repetitions(trained(), whole)  # which no budget has ended
        same_repetitions(trained(time_budget=500), whole)
    assert caplog.text.count("1 of 1 are already finished") == 2


def test_a_finished_repetition_is_never_lost(tmp_path, data, caplog):
    """Another training in the same folder puts its repetitions beside those that are there."""

    def trained(epochs):
        settings = {**SHORT, "training": {**TRAINING, "epochs": epochs}}
        return lw.Mach(**settings, repetitions_folder=str(tmp_path)).fit(data).repetitions_

    first, second = trained(1), trained(2)
    assert len(list(tmp_path.iterdir())) == 2
    with caplog.at_level("INFO"):
        again = trained(1), trained(2)
    assert caplog.text.count("repetition: 1 of 1 are already finished") == 2
    same_repetitions(again[0], first)
    same_repetitions(again[1], second)


def test_a_repetition_that_has_diverged_is_not_finished(tmp_path, data, caplog):
    settings = {**SHORT, "training": {**TRAINING, "epochs": 1, "optimiser": {"rate": 1e30}}}
    with caplog.at_level("WARNING"), pytest.raises(DataError, match="all repetitions have diverged"):
        lw.Mach(**settings, repetitions_folder=str(tmp_path / "parts")).fit(data)
    assert "repetition 0 has diverged: it is left out" in caplog.text
    assert not (tmp_path / "parts" / "000").exists()


def test_a_model_of_what_is_finished(tmp_path, data, model, caplog):
    folder = str(tmp_path / "parts")
    lw.Mach(**SMALL, repetitions_folder=folder).fit_parts(data, [3, 1])
    with caplog.at_level("INFO"):
        found = lw.Mach(**SMALL, repetitions_folder=folder, missing="leave").fit(data)
    assert "repetition: 2 of 4 are already finished" in caplog.text
    subset = model.subset([1, 3])
    np.testing.assert_array_equal(found.predict(data, k=5).ids, subset.predict(data, k=5).ids)
    found.save(tmp_path / "model")
    caplog.clear()
    with caplog.at_level("INFO"):
        loaded = lw.load(tmp_path / "model")
    assert "2 of 4 repetitions are present and used" in caplog.text
    np.testing.assert_array_equal(loaded.predict(data, k=5).scores, found.predict(data, k=5).scores)


def test_faults_of_single_repetitions_are_told(tmp_path, data):
    config = run_file(tmp_path, data)
    assert "repetitions 0 to 3, not 9" in labelwise("train", config, "--repetition", "9", code=2).err
    assert not (tmp_path / "parts").exists(), "nothing is left behind"
    assert "delete its folder" in labelwise("train", config, "--repetition", "0", "--force", code=2).err
    without = ("--set", "model.repetitions_folder=null", "--repetition", "0")
    assert "model.repetitions_folder" in labelwise("train", config, *without, code=2).err
    other = ("--set", "model={method: popularity}", "--repetition", "0")
    assert "popularity is not made of repetitions" in labelwise("train", config, *other, code=2).err
    with pytest.raises(ConfigError, match="no finished repetition"):
        lw.Mach(**SMALL, repetitions_folder=str(tmp_path / "none"), missing="leave").fit(data)


def test_finished_repetitions_are_read_once(tmp_path, data, monkeypatch):
    settings = {**SMALL, "repetitions": 2, "repetitions_folder": str(tmp_path), "training": {**TRAINING, "epochs": 1}}
    lw.Mach(**settings).fit(data)
    keys, find = [], Each.find
    monkeypatch.setattr(Each, "find", lambda work, key: keys.append(key) or find(work, key))
    assert len(lw.Mach(**settings, missing="leave").fit(data).repetitions_) == 2
    assert keys == [0, 1]
