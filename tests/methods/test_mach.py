"""MACH: repetitions that need nobody, models of some of them, single labels, learned buckets, files."""

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from cli.commands import labelwise
from common import Stop
from conformance.planted import planted
from killing import kill_where_it_holds
from labelwise.codes.buckets import BucketTables
from labelwise.errors import ConfigError, DataError, MissingDependencyError
from labelwise.fit_context import FitContext
from labelwise.parallel import using_threads
from labelwise.store import Folder, FolderWriter, new_folder
from labelwise.training.repetition_fitting import RepetitionFitting

TRAINING = {"epochs": 6, "batch_size": 32, "optimiser": {"rate": 0.02}}
SMALL = {"repetitions": 4, "buckets": 32, "hidden": [24], "training": TRAINING}


@pytest.fixture(scope="module")
def data():
    return planted("features", n_documents=300, n_labels=90)


@pytest.fixture(scope="module")
def model(data):
    return lw.Mach(**SMALL).fit(data)


def same_repetitions(a, b):
    for one, other in zip(a, b, strict=True):
        assert one.number == other.number
        for name, array in one.tensors.items():
            np.testing.assert_array_equal(array, other.tensors[name], err_msg=f"{one.number} {name}")


@pytest.mark.parametrize("at_once", [2, 3, 4])
def test_repetitions_side_by_side_learn_what_they_learn_alone(data, model, at_once):
    same_repetitions(lw.Mach(**SMALL, at_once=at_once).fit(data).repetitions_, model.repetitions_)


def test_repetitions_differ(model):
    first, second = (one.tensors for one in model.repetitions_[:2])
    assert np.abs(first["table"] - second["table"]).mean() > 0.01


def run_file(tmp_path, data, **model):
    lw.write(data, tmp_path / "data.jsonl")
    config = {
        "data": {"train": str(tmp_path / "data.jsonl")},
        "model": {"method": "mach", **SMALL, "repetitions_folder": str(tmp_path / "parts"), **model},
        "run": {"folder": str(tmp_path / "run"), "report": False, "threads": 1},
    }
    (tmp_path / "run.yml").write_text(json.dumps(config))
    return tmp_path / "run.yml"


def trained_alone(tmp_path, **model):
    read = lw.read(tmp_path / "data.jsonl")
    with using_threads(1):
        return lw.Mach(**{**SMALL, **model}).fit(read), read


def test_processes_that_know_nothing_of_each_other(tmp_path, data):
    config = run_file(tmp_path, data)
    command = [sys.executable, "-m", "labelwise.cli.main", "train", str(config), "--repetition"]
    at_the_same_time = [subprocess.Popen([*command, number], stderr=subprocess.PIPE) for number in ("2", "0")]
    for process in at_the_same_time:
        _, messages = process.communicate(timeout=120)
        assert process.returncode == 0, messages.decode()
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["000", "002"]
    done = labelwise("train", config)
    assert "2 of 4 repetitions are already finished" in done.err
    expected, read = trained_alone(tmp_path)
    found = lw.load(tmp_path / "run" / "model")
    same_repetitions(found.repetitions_, expected.repetitions_)
    np.testing.assert_array_equal(found.predict(read, k=5).ids, expected.predict(read, k=5).ids)


HOLD_IN_THE_SECOND_REPETITION = """
from labelwise.training.repetition_fitting import RepetitionFitting
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
    assert "1 of 4 repetitions are already finished" in done.err
    assert "resuming after step" in done.err
    expected, _ = trained_alone(tmp_path)
    same_repetitions(lw.load(tmp_path / "run" / "model").repetitions_, expected.repetitions_)


def test_more_repetitions_later_use_those_there_are(tmp_path, data, caplog):
    folder = str(tmp_path / "parts")
    first = lw.Mach(**{**SMALL, "repetitions": 2}, repetitions_folder=folder).fit(data)
    with caplog.at_level("INFO"):
        more = lw.Mach(**SMALL, repetitions_folder=folder).fit(data)
    assert "2 of 4 repetitions are already finished" in caplog.text
    same_repetitions(more.repetitions_[:2], first.repetitions_)


SHORT = {**SMALL, "repetitions": 1, "training": {**TRAINING, "epochs": 1}}


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
        file = folder / "000" / "repetition.safetensors"
        content = file.read_bytes()
        file.write_bytes(content[:-3] + b"xyz")
    else:  # a stranger's file, whole in itself, with a bucket that there is not
        held = Folder(folder / "000", "repetition")
        tensors = {name: np.array(array) for name, array in held.tensors("repetition.safetensors").items()}
        tensors["buckets"][7] = 60_000
        about = {"fingerprint": held.manifest["fingerprint"], "number": 0}
        with new_folder(folder / "000", "repetition", about, force=True) as new:
            new.write_tensors("repetition.safetensors", tensors)
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
    assert Folder(tmp_path / "000", "repetition").manifest["number"] == 0

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
    assert caplog.text.count("1 of 1 repetitions") == 1
    whole = trained(time_budget=1000)
    assert np.abs(whole[0].tensors["table"] - short[0].tensors["table"]).max() > 0
    caplog.clear()
    with caplog.at_level("INFO"):
        same_repetitions(trained(), whole)  # which no budget has ended
        same_repetitions(trained(time_budget=500), whole)
    assert caplog.text.count("1 of 1 repetitions") == 2


def test_a_finished_repetition_is_never_lost(tmp_path, data, caplog):
    """Another training in the same folder puts its repetitions beside those that are there."""

    def trained(epochs):
        settings = {**SHORT, "training": {**TRAINING, "epochs": epochs}}
        return lw.Mach(**settings, repetitions_folder=str(tmp_path)).fit(data).repetitions_

    first, second = trained(1), trained(2)
    assert len(list(tmp_path.iterdir())) == 2
    with caplog.at_level("INFO"):
        again = trained(1), trained(2)
    assert caplog.text.count("1 of 1 repetitions are already finished") == 2
    same_repetitions(again[0], first)
    same_repetitions(again[1], second)


def test_a_repetition_that_has_diverged_is_not_finished(tmp_path, data, caplog):
    settings = {**SHORT, "training": {**TRAINING, "epochs": 1, "optimiser": {"rate": 1e30}}}
    with caplog.at_level("WARNING"):
        model = lw.Mach(**settings, repetitions_folder=str(tmp_path / "parts")).fit(data)
    assert "repetition 0 has diverged" in caplog.text
    assert not (tmp_path / "parts" / "000").exists()
    assert (model.predict(data, k=2).ids == -1).all()


def test_the_rate_of_the_head_is_the_outputs(data):
    def trained(**optimiser):
        training = {**TRAINING, "epochs": 1, "optimiser": {"rate": 1e-9, "weight_decay": 0, **optimiser}}
        return lw.Mach(**{**SHORT, "training": training}).fit(data).repetitions_[0].tensors

    still, moved = trained(), trained(head_rate=0.1)
    changed = {name for name in still if np.abs(still[name] - moved[name]).max() > 1e-3}
    assert changed == {"weight0", "bias1"}


def test_a_model_of_what_is_finished(tmp_path, data, model, caplog):
    folder = str(tmp_path / "parts")
    lw.Mach(**SMALL, repetitions_folder=folder).fit_parts(data, [3, 1])
    with caplog.at_level("INFO"):
        found = lw.Mach(**SMALL, repetitions_folder=folder, missing="leave").fit(data)
    assert "2 of 4 repetitions are finished and used" in caplog.text
    subset = model.subset([1, 3])
    np.testing.assert_array_equal(found.predict(data, k=5).ids, subset.predict(data, k=5).ids)
    found.save(tmp_path / "model")
    caplog.clear()
    with caplog.at_level("INFO"):
        loaded = lw.load(tmp_path / "model")
    assert "2 of 4 repetitions are present and used" in caplog.text
    np.testing.assert_array_equal(loaded.predict(data, k=5).scores, found.predict(data, k=5).scores)


def test_more_repetitions_are_better(data, model):
    scores = [model.subset(range(count)).score(data) for count in (1, 4)]
    assert scores[1] > scores[0]
    with pytest.raises(ConfigError, match="choose some of"):
        model.subset([7])


@pytest.mark.parametrize("score", ["logits", "mean", "least", "median", "unbiased"])
def test_every_way_to_score_finds_labels(data, model, score):
    top = model.set_params(score=score).predict(data, k=3)
    put_together = {"least": np.min, "median": np.median}.get(score, np.mean)
    tables, buckets = (
        BucketTables(data.n_labels, 32, range(4)).side_by_side(),
        model._decoder.scores(data.features, model.decoding),
    )
    values = put_together([table[places] for table, places in zip(buckets, tables.T, strict=True)], axis=0).T
    found = np.take_along_axis(values, top.ids, 1)
    np.testing.assert_allclose(found, np.sort(values, axis=1)[:, :-4:-1], rtol=1e-5)
    assert lw.evaluate(top, data, metrics=["P@1"])["P@1"] > lw.Popularity().fit(data).score(data) + 0.1
    assert (np.diff(top.scores, axis=1) <= 0).all()
    model.set_params(score=None)


def test_candidates_find_nearly_the_same(data, model):
    exact = model.predict(data, k=3)
    quick = lw.Mach(**SMALL, candidates={"buckets": 12, "hits": 2}).fit(data).predict(data, k=3)
    assert (exact.ids == quick.ids).mean() > 0.9


@pytest.fixture(scope="module")
def single():
    """One label a document."""
    data = planted("features", n_documents=500, n_labels=40)
    first = data.labels.indices[data.labels.indptr[:-1]]
    labels = sparse.csr_array((np.ones(500, np.float32), first, np.arange(501)), shape=data.labels.shape)
    return lw.Dataset(labels, features=data.features)


def test_several_labels_with_softmax_are_told(caplog, data, single):
    settings = {**SMALL, "repetitions": 1, "loss": "softmax", "training": {**TRAINING, "epochs": 1}}
    lw.Mach(**settings).fit(single)
    assert "softmax" not in caplog.text
    lw.Mach(**settings).fit(data)
    several = int((np.diff(data.labels.indptr) > 1).sum())
    assert several
    assert f"softmax is for one label per document; {several} have more" in caplog.text


def test_single_labels_with_softmax(single):
    settings = {**SMALL, "buckets": 16, "training": {**TRAINING, "epochs": 15}}
    model = lw.Mach(**settings, loss="softmax").fit(single)
    assert model.config.aggregation == "unbiased"
    assert model.score(single) > lw.Popularity().fit(single).score(single) + 0.4
    buckets = model._decoder.scores(single.features, model.decoding)
    np.testing.assert_allclose(buckets.sum(1), 1, rtol=1e-5)
    tables = BucketTables(40, 16, range(4)).side_by_side()
    means = np.mean([table[places] for table, places in zip(buckets, tables.T, strict=True)], axis=0).T
    top = model.predict(single, k=40)
    np.testing.assert_allclose(top.scores, np.take_along_axis(16 / 15 * (means - 1 / 16), top.ids, 1), atol=1e-6)


def test_linear_networks_and_hashed_features(data):
    settings = {**SMALL, "hidden": [], "training": {**TRAINING, "epochs": 10}}
    floor = lw.Popularity().fit(data).score(data)
    assert lw.Mach(**settings).fit(data).score(data) > floor + 0.2
    hashed = lw.Mach(**settings, feature_hashing=64).fit(data)
    assert hashed.repetitions_[0].tensors["table"].shape == (64, 32)
    assert hashed.score(data) > floor + 0.1


def test_tables_of_features_are_built_once(data, monkeypatch):
    hashed = lw.Mach(**SMALL, feature_hashing=64).fit(data)
    expected = hashed.predict(data, k=5)
    monkeypatch.setattr(BucketTables, "table", None)
    np.testing.assert_array_equal(hashed.predict(data, k=5).scores, expected.scores)


def test_tables_of_the_original(tmp_path, data, model):
    """Lookups written by MACH's own tools take the place of the hash, and are part of the model."""
    BucketTables(data.n_labels, 32, range(4), "universal", seed=9).write_lookups(tmp_path / "lookups")
    found = lw.Mach(**SMALL, lookups=str(tmp_path / "lookups")).fit(data)
    found.save(tmp_path / "model")
    for path in (tmp_path / "lookups").iterdir():
        path.unlink()
    loaded = lw.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(data, k=5).ids, found.predict(data, k=5).ids)
    BucketTables(data.n_labels, 32, range(4)).write_lookups(tmp_path / "lookups")
    same_repetitions(lw.Mach(**SMALL, lookups=str(tmp_path / "lookups")).fit(data).repetitions_, model.repetitions_)
    with pytest.raises(DataError, match="bucket_order_3"):
        (tmp_path / "lookups" / "bucket_order_3.npy").unlink()
        lw.Mach(**SMALL, lookups=str(tmp_path / "lookups")).fit(data)


def test_labels_move_to_buckets_that_suit_them(tmp_path, data):
    settings = {**SMALL, "training": {**TRAINING, "epochs": 8}, "repartition": {"every": 3, "offers": 5}}
    model = lw.Mach(**settings).fit(data)
    hashed = BucketTables(data.n_labels, 32, range(4))
    for one in model.repetitions_:
        assert (one.buckets != hashed.table(one.number)).mean() > 0.3
        offered = model.config.repartition.offered(data.n_labels, 32, 0, one.number).rows(0, data.n_labels)
        assert (one.buckets[:, None] == offered).any(1)[data.label_counts() > 0].all()
        assert np.bincount(one.buckets, minlength=32).max() <= 12, "buckets stay about equally full"
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(lw.load(tmp_path / "model").predict(data, k=5).ids, model.predict(data, k=5).ids)


def test_learned_buckets_resume_to_the_same(tmp_path, data):
    settings = {**SMALL, "repetitions": 1, "repartition": {"every": 2}}
    expected = lw.Mach(**settings).fit(data)
    with pytest.MonkeyPatch.context() as patch:
        steps, plain = [], RepetitionFitting.loss

        def stopping(self, batch):
            steps.append(1)
            if len(steps) == 35:  # in the second round of ten steps an epoch
                raise Stop
            return plain(self, batch)

        patch.setattr(RepetitionFitting, "loss", stopping)
        with pytest.raises(Stop):
            lw.Mach(**settings).fit(data, context=FitContext(tmp_path / "work"))
    found = lw.Mach(**settings).fit(data, context=FitContext(tmp_path / "work"))
    same_repetitions(found.repetitions_, expected.repetitions_)
    np.testing.assert_array_equal(found.repetitions_[0].buckets, expected.repetitions_[0].buckets)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"at_once": 2, "training": {"clip": 1.0}}, "at_once"),
        ({"at_once": 2, "training": {"restore_best": True}}, "at_once"),
        ({"training": {"restore_best": True}}, "validate_every"),
        ({"training": {"tokens_per_batch": 100}}, "batch_size"),
        ({"missing": "leave"}, "repetitions_folder"),
        ({"repartition": {}, "training": {"epochs": None, "steps": 5}}, "epochs"),
        ({"repartition": {"choices": 4}}, "4 choices among 4 offered buckets"),
        ({"repartition": {"choices": 8, "offers": 100}, "buckets": 8}, "8 choices among 8 offered buckets"),
        ({"buckets": 1}, "buckets"),
        ({"hash": "md5"}, "hash"),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ConfigError, match=message):
        lw.Mach(**settings)


def test_without_torch_it_says_what_to_install(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match="torch"):
        lw.Mach(**SHORT).fit(data)


def test_ranks_are_refused(data, monkeypatch):
    """Rows of the table are not averaged over ranks: each would learn from its share of the documents alone."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="without torchrun"):
        lw.Mach(**SHORT).fit(data)


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
    from labelwise.training.finished_repetitions import FinishedRepetitions

    settings = {**SMALL, "repetitions": 2, "repetitions_folder": str(tmp_path), "training": {**TRAINING, "epochs": 1}}
    lw.Mach(**settings).fit(data)
    numbers, find = [], FinishedRepetitions.find
    monkeypatch.setattr(
        FinishedRepetitions, "find", lambda store, number: numbers.append(number) or find(store, number)
    )
    assert len(lw.Mach(**settings, missing="leave").fit(data).repetitions_) == 2
    assert numbers == [0, 1]
