"""Run folders after kills at bad moments, with links inside, and under names that are none."""

import errno
import json
import os
import shutil
import threading

import pytest

import labelwise as lw
from cli.commands import labelwise
from forking import run_forked
from killing import BEFORE_RENAMING, kill_where_it_holds
from labelwise.errors import DataError
from labelwise.io.atomic import is_locked, lock_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL and links")


def hidden_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != ".lock")


def status(run):
    return json.loads((run / "state.json").read_text())["status"]


@pytest.mark.parametrize(
    "ending", ["state.json", "config.yml", "machine.json", "model", "results.json", "calibration.json"]
)
def test_a_run_killed_while_it_writes_can_be_started_again(tmp_path, config, ending):
    run = tmp_path / "run"
    kill_where_it_holds(BEFORE_RENAMING.format(ending=ending), "train", config)
    assert len(hidden_in(run)) == 1
    labelwise("train", config)
    assert status(run) == "finished"
    assert hidden_in(run) == []


def test_other_hidden_files_stay_and_make_a_folder_foreign(tmp_path, config):
    run = tmp_path / "run"
    run.mkdir()
    for name in (".state.json.new", ".notes.0123456789ab.new", ".model"):
        (run / name).write_text("mine")
        assert "not a run folder" in labelwise("train", config, code=2).err
        (run / name).unlink()
    labelwise("train", config)
    (run / ".notes.0123456789ab.new").write_text("mine")
    labelwise("train", config, "--force")
    assert hidden_in(run) == [".notes.0123456789ab.new"]


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
def test_a_model_that_is_replaced_is_never_gone(tmp_path, config, exchange):
    """`calibrate` is killed at its last rename, or between its two where names cannot be exchanged."""
    run = tmp_path / "run"
    labelwise("train", config, "--set", "calibrate.enabled=false")
    before = lw.load(run / "model").predict("text", k=5)
    patch = "from labelwise.io import atomic\n" + (
        "plain = atomic._exchange\ndef exchange(*given):\n    assert plain(*given)\n    hold()\natomic._exchange = exchange\n"
        if exchange
        else "atomic._exchange = lambda *given: False\n" + BEFORE_RENAMING.format(ending="/model")
    )
    kill_where_it_holds(patch, "calibrate", run, tmp_path / "corpus")
    if exchange:
        assert lw.load(run / "model").calibration_ is not None  # the new one, whole
    else:
        with pytest.raises(lw.errors.ModelFormatError, match="replacement was interrupted, rename"):
            lw.load(run / "model")
    assert "is finished" in labelwise("train", config, "--set", "calibrate.enabled=false", code=2).err
    assert hidden_in(run) == []
    assert lw.load(run / "model").predict("text", k=5).labels == before.labels


@pytest.mark.parametrize("name", ["report.html", "calibration.json", "results.json", "log.txt", "state.json", ".lock"])
def test_links_in_a_run_folder_are_refused(tmp_path, config, name):
    run, outside = tmp_path / "run", tmp_path / "outside"
    labelwise("train", config)
    outside.write_text("mine")
    if (run / name).exists():
        shutil.copy(run / name, outside)
        (run / name).unlink()
    before = outside.read_bytes()
    (run / name).symlink_to(outside)
    commands = [("train", config, "--force")]
    commands += [("report", run)] if name == "report.html" else []
    commands += [("calibrate", run, tmp_path / "corpus", "--force")] if name == "calibration.json" else []
    for command in commands:
        assert "this is a link" in labelwise(*command, code=2).err
        assert outside.read_bytes() == before


def test_a_lock_changes_nothing_and_is_held_by_one(tmp_path):
    (tmp_path / ".lock").write_text("kept")
    with (
        lock_folder(tmp_path, DataError("busy")),
        pytest.raises(DataError, match="busy"),
        lock_folder(tmp_path, DataError("busy"), wait=0.2),
    ):
        pytest.fail("two hold the lock")
    with lock_folder(tmp_path, DataError("busy")):
        assert (tmp_path / ".lock").read_text() == "kept"


def test_asking_for_a_lock_refuses_nobody_and_waits_for_nothing(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    assert not is_locked(tmp_path)
    with (tmp_path / ".lock").open("wb") as asked:
        fcntl.flock(asked, fcntl.LOCK_SH)
        end = threading.Timer(0.05, fcntl.flock, (asked, fcntl.LOCK_UN))
        end.start()
        with lock_folder(tmp_path, DataError("busy")):
            assert is_locked(tmp_path)
        end.join()
    (tmp_path / ".lock").unlink()
    os.mkfifo(tmp_path / ".lock")
    assert run_forked(lambda: is_locked(tmp_path), timeout=20).code == 0


@pytest.mark.parametrize(("key", "value", "words"), [
    ("run.folder", "a\0b", "run.folder: a folder name is needed"),
    ("run.folder", "", "run.folder: a folder name is needed"),
    ("data.split_seed", -5, "data.split_seed: should be greater than or equal to 0"),
])  # fmt: skip
def test_impossible_values_are_named(config, key, value, words):
    section, name = key.split(".")
    values = json.loads(config.read_text())
    values[section] = {**values[section], name: value}
    config.write_text(json.dumps(values))
    assert words in " ".join(labelwise("train", config, code=2).err.split())


@pytest.mark.parametrize("written", ["labelwise.io.folder.os.fsync", "labelwise.runs.folder.RunFolder.record"])
def test_a_disk_that_is_full_is_named_by_a_path(tmp_path, config, written, monkeypatch):
    def fail(*given, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # without a path, as of write()

    monkeypatch.setattr(written, fail)
    said = labelwise("train", config, code=2).err
    assert f"labelwise: {tmp_path / 'run'}" in said
    assert "No space left on device" in said
