"""`--force`: the old run is complete until the new one is finished, whatever happens in between."""

import errno
import json
import os
import shutil

import pytest

import labelwise as lw
from cli.commands import labelwise
from killing import BEFORE_RENAMING, kill_where_it_holds
from labelwise.io.atomic import lock_folder
from labelwise.runs import folder, train

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")

HOLD_BEFORE_MOVING = """
from pathlib import Path
plain = Path.replace
def replace(path, target):
    if str(target).endswith({ending!r}):
        hold()
    return plain(path, target)
Path.replace = replace
"""


@pytest.fixture
def run(tmp_path, config):
    """A finished run whose evaluation has k = 10."""
    labelwise("train", config)
    return tmp_path / "run"


def contents(run):
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def state(run):
    return json.loads((run / "state.json").read_text())


def k_of(run):
    return json.loads((run / "results.json").read_text())["k"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("--set", "data.path=nowhere"), "nowhere"),
        (("--set", "data.format=csv"), "csv"),
        (("--launcher", "processes"), "--launcher"),
        (("--set", "calibrate.enabled=true", "--set", "calibrate.fraction=0.999"), "0.999 of 60 documents"),
        (("--set", "model.method=linear_tree", "--set", "model.memory=0.001"), "training needs about"),
    ],
)
def test_a_mistake_keeps_the_old_run(config, run, wrong, message):
    before = contents(run)
    assert message in labelwise("train", config, "--force", *wrong, code=2).err
    assert contents(run) == before
    assert not (run / ".replacement").exists()


def test_a_mistake_of_auto_keeps_the_old_run(tmp_path, run):
    before = contents(run)
    (tmp_path / "few.csv").write_text("text,labels\none,a\n")
    assert "few" in labelwise("auto", tmp_path / "few.csv", "-o", run, "--force", code=2).err
    assert contents(run) == before
    assert not (run / ".replacement").exists()


@pytest.mark.parametrize("ending", ["run/.replacement/model", "run/.replacement/results.json"])
def test_a_replacement_that_is_killed_is_resumed(config, run, ending):
    before = contents(run)
    changed = ("--set", "evaluate.k=7")
    kill_where_it_holds(BEFORE_RENAMING.format(ending=ending), "train", config, "--force", *changed)
    assert {name: text for name, text in contents(run).items() if not name.startswith(".replacement/")} == before
    resumed = labelwise("train", config, *changed)
    assert ("already trained" in resumed.err) == ending.endswith("results.json")
    assert (k_of(run), state(run)["status"], state(run)["name"]) == (7, "finished", "run")
    assert not (run / ".replacement").exists()
    assert "is finished" in labelwise("train", config, code=2).err


@pytest.mark.parametrize(
    "ending", [".replaced/inspection.json", ".replaced/model", "run/results.json", "run/state.json"]
)
def test_a_kill_while_the_new_run_takes_over_is_completed_at_the_next_start(config, run, ending):
    (run / "inspection.json").write_text("{}")  # of the old run alone
    kill_where_it_holds(HOLD_BEFORE_MOVING.format(ending=ending), "train", config, "--force", "--set", "evaluate.k=7")
    assert state(run)["status"] == "clearing"
    assert len(lw.load(run / "model").predict("text", k=3)) == 1, "the old model or the new one"
    shown = labelwise("info", run).out
    assert "stopped while it was replaced" in shown
    assert f"resume labelwise train {run}/config.yml completes that" in " ".join(shown.split())
    assert "is finished" in labelwise("train", run / "config.yml", code=2).err
    assert (k_of(run), state(run)["status"]) == (7, "finished")
    assert sorted(path.name for path in run.iterdir() if path.name.startswith(".")) == [".lock"]
    assert not (run / "inspection.json").exists()
    assert len(lw.load(run / "model").predict("text", k=3)) == 1


def test_a_model_between_two_renames_is_said_to_be_replaced(config, run):
    kill_where_it_holds(HOLD_BEFORE_MOVING.format(ending="run/model"), "train", config, "--force")
    assert "stopped while it was replaced" in labelwise("predict", run, "a text", code=2).err
    assert (run / ".replaced" / "model").exists()
    assert "is finished" in labelwise("train", config, code=2).err
    labelwise("predict", run, "a text")


def test_a_restart_by_torchrun_replaces_the_old_run_but_not_its_own(config, run, monkeypatch):
    """The first start has died before it began: what is finished then is the old run."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_1/0/error.json")
    labelwise("train", config, "--force", "--set", "evaluate.k=7")
    assert k_of(run) == 7
    before = contents(run)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_2/0/error.json")
    labelwise("train", config, "--force", "--set", "evaluate.k=7")
    assert contents(run) == before
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_b/none_b/attempt_1/0/error.json")
    assert "is finished" in labelwise("train", config, "--set", "evaluate.k=7", code=2).err  # that of another start


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_restart_that_this_node_does_not_count_resumes_the_run(config, run, force, monkeypatch):
    """Other nodes have left: torchrun starts the processes of this one again, with a count of 0."""
    shutil.rmtree(run)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_0/0/error.json")
    with monkeypatch.context() as patch:
        patch.setattr(train, "evaluate_model", interrupt)
        labelwise("train", config, *force, code=130)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_1/0/error.json")
    assert "already trained" in labelwise("train", config, *force).err
    before = contents(run)
    labelwise("train", config, *force)
    assert contents(run) == before


def test_a_start_of_torchrun_waits_for_its_own_processes_alone(config, run, monkeypatch):
    monkeypatch.setattr(folder, "RESTART_SECONDS", 0.5)
    for number, patience in (("a", 0.0), ("b", 0.0), ("b", 0.5)):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", f"/tmp/torchelastic_{number}/none_b/attempt_0/0/error.json")
        assert folder.RunFolder(run)._patience() == patience
        if (number, patience) == ("b", 0.0):
            labelwise("train", config, "--force")


def test_a_restart_by_torchrun_resumes_the_replacement(config, run, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_0/0/error.json")
    command = ("train", config, "--force", "--set", "evaluate.k=7")
    kill_where_it_holds(BEFORE_RENAMING.format(ending="run/.replacement/results.json"), *command)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_1/0/error.json")
    assert "already trained" in labelwise(*command).err
    assert k_of(run) == 7


def interrupt(*arguments, **named):
    raise KeyboardInterrupt


def full(*arguments, **named):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_replacement_that_was_stopped_is_resumed_with_its_own_config_alone(config, run, monkeypatch):
    """Stopped before anything is trained, where a run of its own could be started with any config."""
    old = contents(run)
    with monkeypatch.context() as patch:
        patch.setattr(train, "load_run_data", interrupt)
        labelwise("train", config, "--force", "--set", "evaluate.k=7", code=130)
    before = contents(run)
    refused = labelwise("train", config, "--set", "evaluate.k=3", code=2).err
    assert "another config exists (evaluate.k)" in refused
    assert f"remove {run / '.replacement'}" in refused
    assert contents(run) == before
    assert {name: text for name, text in before.items() if not name.startswith(".replacement/")} == old
    labelwise("train", config, "--set", "evaluate.k=7")
    assert k_of(run) == 7


def test_a_full_disk_before_the_training_keeps_the_old_run(config, run, monkeypatch):
    before = contents(run)
    with monkeypatch.context() as patch:
        patch.setattr(train, "load_run_data", full)
        assert "No space left" in labelwise("train", config, "--force", code=2).err
    assert contents(run) == before
    assert not (run / ".replacement").exists()
    assert "is finished" in labelwise("train", config, "--set", "evaluate.k=3", code=2).err


def test_what_is_stopped_before_it_begins_is_as_if_never_asked_for(config, run, monkeypatch):
    before = contents(run)
    (run / ".replacement").mkdir()
    for content in ({}, {"format": "labelwise-run", "status": "clearing"}):
        if content:
            (run / ".replacement" / "state.json").write_text(json.dumps(content))
        assert "is finished" in labelwise("train", config, "--set", "evaluate.k=3", code=2).err
        assert {name: text for name, text in contents(run).items() if not name.startswith(".replacement/")} == before
    labelwise("train", config, "--force", "--set", "evaluate.k=7")
    assert k_of(run) == 7


def test_folders_of_users_stay(config, run):
    (run / "replacement").mkdir()
    (run / "replacement" / "notes.txt").write_text("mine")
    assert "is finished" in labelwise("train", config, "--set", "evaluate.k=3", code=2).err
    labelwise("train", config, "--force", "--set", "evaluate.k=7")
    assert k_of(run) == 7
    assert (run / "replacement" / "notes.txt").read_text() == "mine"
    (run / "replacement").rename(run / ".replacement")
    assert "is not a run folder" in labelwise("train", config, "--force", code=2).err
    assert (run / ".replacement" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("kind", ["file", "dangling link", "link"])
def test_only_folders_can_be_a_replacement(config, run, tmp_path, kind):
    path = run / ".replacement"
    if kind == "file":
        path.write_text("")
    else:
        path.symlink_to(tmp_path / ("corpus" if kind == "link" else "nowhere"))
    assert f"{path}: this is {'not a folder' if kind == 'file' else 'a link'}" in labelwise(
        "train", config, "--force", code=2
    ).err  # fmt: skip
    assert k_of(run) == 10


def test_info_names_the_replacement_and_its_command(config, run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(train, "_evaluate", interrupt)
        labelwise("train", config, "--force", "--set", "evaluate.k=7", code=130)
    shown = labelwise("info", run).out
    command = f"labelwise train {run}/.replacement/config.yml"
    assert "replacement   stopped: trained" in shown
    assert f"resume {command} keep this run" in " ".join(shown.split())
    assert json.loads(labelwise("info", run, "--json").out)["replacement"]["folder"] == str(run / ".replacement")
    with lock_folder(run, RuntimeError()):
        assert "another process" in labelwise(*command.split()[1:], code=2).err
    lock = (run / ".lock").stat().st_ino
    labelwise(*command.split()[1:])
    assert (k_of(run), state(run)["name"], (run / ".lock").stat().st_ino) == (7, "run", lock)
    assert "replacement" not in labelwise("info", run).out


def test_a_replacement_is_no_run_of_its_own(config, run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(train, "_evaluate", interrupt)
        labelwise("train", config, "--force", code=130)
    inner = run / ".replacement"
    assert f"belongs to the run in {run}" in labelwise("train", config, "--set", f"run.folder={inner}", code=2).err
    (inner / ".lock").write_text("")  # nothing that is moved
    lock = (run / ".lock").stat().st_ino
    labelwise("train", config)
    assert (run / ".lock").stat().st_ino == lock


def test_the_demo_resumes_its_replacement(config, run, tmp_path, monkeypatch):
    """With the run of the fixture as one of the demo's."""
    monkeypatch.setattr("labelwise.cli.report.METHODS", ("popularity",))
    (tmp_path / "demo").mkdir()
    build = tmp_path / "demo" / "pydocs"
    (tmp_path / "corpus").rename(build)
    labelwise("demo", tmp_path / "demo")
    finished = state(tmp_path / "demo" / "popularity")["started"]
    inner = tmp_path / "demo" / "popularity" / ".replacement"
    shutil.copytree(inner.parent, tmp_path / "copy")
    (tmp_path / "copy").rename(inner)
    (inner / "results.json").unlink()
    changed = {**state(inner), "status": "running", "started": "2000-01-01T00:00:00+00:00"}
    (inner / "state.json").write_text(json.dumps(changed))
    labelwise("demo", tmp_path / "demo")
    assert not inner.exists()
    assert state(inner.parent)["started"] == "2000-01-01T00:00:00+00:00" != finished
    shutil.copytree(inner.parent, tmp_path / "copy")
    (tmp_path / "copy").rename(inner.with_name(".replacement.finished"))
    labelwise("demo", tmp_path / "demo")
    assert not inner.with_name(".replacement.finished").exists()
