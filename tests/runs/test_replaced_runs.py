"""`--force`: the old run is complete until the new one is finished, whatever happens in between."""

import json
import os

import pytest

import labelwise as lw
from cli.commands import labelwise
from killing import kill_where_it_holds

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")

HOLD_WHILE_CLEARING = """
import shutil
plain = shutil.rmtree
def rmtree(path, *more, **named):
    if str(path).endswith("run/model"):
        (path / "state.safetensors").unlink()
        hold()
    plain(path, *more, **named)
shutil.rmtree = rmtree
"""
HOLD_BEFORE_RENAMING = """
import os
plain = os.replace
def replace(source, target):
    if str(target).endswith({ending!r}):
        hold()
    plain(source, target)
os.replace = replace
"""


@pytest.fixture
def run(tmp_path, config):
    """A finished run whose evaluation has k = 5."""
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
    assert not (run / "replacement").exists()


def test_a_mistake_of_auto_keeps_the_old_run(tmp_path, run):
    before = contents(run)
    (tmp_path / "few.csv").write_text("text,labels\none,a\n")
    assert "few" in labelwise("auto", tmp_path / "few.csv", "-o", run, "--force", code=2).err
    assert contents(run) == before
    assert not (run / "replacement").exists()


@pytest.mark.parametrize("ending", ["run/replacement/model", "run/replacement/results.json"])
def test_a_replacement_that_is_killed_is_resumed(config, run, ending):
    before = contents(run)
    changed = ("--set", "evaluate.k=7")
    kill_where_it_holds(HOLD_BEFORE_RENAMING.format(ending=ending), "train", config, "--force", *changed)
    assert {name: text for name, text in contents(run).items() if not name.startswith("replacement/")} == before
    resumed = labelwise("train", config, *changed)
    assert ("already trained" in resumed.err) == ending.endswith("results.json")
    assert (k_of(run), state(run)["status"], state(run)["name"]) == (7, "finished", "run")
    assert not (run / "replacement").exists()
    assert "is finished" in labelwise("train", config, code=2).err


@pytest.mark.parametrize("patch", [HOLD_WHILE_CLEARING, HOLD_BEFORE_RENAMING.format(ending="run/config.yml")])
def test_a_kill_while_the_new_run_takes_over_is_completed_at_the_next_start(config, run, patch):
    kill_where_it_holds(patch, "train", config, "--force", "--set", "evaluate.k=7")
    assert state(run)["status"] == "clearing"
    assert "is finished" in labelwise("train", config, code=2).err
    assert (k_of(run), state(run)["status"]) == (7, "finished")
    assert sorted(path.name for path in run.iterdir() if path.name.startswith("replacement")) == []
    assert len(lw.load(run / "model").predict("text", k=3)) == 1


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


def test_a_restart_by_torchrun_resumes_the_replacement(config, run, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_0/0/error.json")
    command = ("train", config, "--force", "--set", "evaluate.k=7")
    kill_where_it_holds(HOLD_BEFORE_RENAMING.format(ending="run/replacement/results.json"), *command)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_1/0/error.json")
    assert "already trained" in labelwise(*command).err
    assert k_of(run) == 7
