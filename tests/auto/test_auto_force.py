"""`labelwise auto --force` in the folder of a finished run, which is complete until the new one is finished."""

import json
import os
import shutil

import pytest

from auto.steady import steady
from cli.commands import labelwise
from cli.test_train_data import COLUMNS, write_table
from killing import kill_where_it_holds
from labelwise.runs import train
from labelwise.tuning.auto import Search

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL and locks")

QUICK = ("--set", "run.report=false", "--set", "evaluate.bootstrap=0")
HOLD_BEFORE_THE_TAKEOVER = """
from labelwise.runs import folder
plain = folder.take_over
def take_over(home):
    if (home / ".replacement" / "results.json").exists():
        hold()
    return plain(home)
folder.take_over = take_over
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a table and a finished run."""
    place = tmp_path_factory.mktemp("force")
    write_table(place / "table.csv", 150)
    labelwise("train", "table.csv", *COLUMNS, *QUICK, "--method", "popularity", "-o", "run", cwd=place)
    return place


@pytest.fixture
def place(finished, tmp_path, monkeypatch):
    """The same for one test; all but the cheapest model would take too long."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    with steady({"popularity": 100.0}):
        yield tmp_path


AUTO = ("auto", "table.csv", *COLUMNS, *QUICK, "--budget", "30s", "-o", "run")
TRAIN = ("train", "table.csv", *COLUMNS, *QUICK, "--method", "popularity", "-o", "run")


def old_files(place):
    files = (path for path in (place / "run").rglob("*") if path.is_file() and ".replacement" not in path.parts)
    return {str(path): path.read_bytes() for path in files}


def interrupt(*arguments, **named):
    raise KeyboardInterrupt


def assert_replaced(place):
    assert json.loads((place / "run" / "state.json").read_text())["status"] == "finished"
    assert (place / "run" / "auto.json").exists()
    assert not (place / "run" / ".replacement").exists()
    labelwise("predict", "run", "w1 w2", cwd=place)


def test_a_finished_run_is_replaced(place):
    assert "--force replaces it" in labelwise(*AUTO, cwd=place, code=2).err
    labelwise(*AUTO, "--force", cwd=place)
    assert_replaced(place)


@pytest.mark.parametrize("when", ["search", "evaluation"])
def test_an_interrupted_search_keeps_the_old_run_and_resumes(place, monkeypatch, when):
    before = old_files(place)
    with monkeypatch.context() as patch:
        owner, name = (Search, "try_ensembles") if when == "search" else (train, "evaluate_model")
        patch.setattr(owner, name, interrupt)
        labelwise(*AUTO, "--force", cwd=place, code=130)
    assert old_files(place) == before
    shown = " ".join(labelwise("info", "run", cwd=place).out.split())
    resume = "the auto command without --force" if when == "search" else "labelwise train run/.replacement/config.yml"
    assert f"resume {resume} keep this run remove run/.replacement" in shown
    refused = labelwise(*TRAIN, "--set", "evaluate.k=3", cwd=place, code=2).err
    assert ("unfinished search of labelwise auto" if when == "search" else "another config exists") in refused
    assert old_files(place) == before
    again = labelwise(*AUTO, cwd=place)
    assert "resuming the search" in again.err
    assert_replaced(place)


def test_train_starts_over_without_what_was_tried(place, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Search, "try_ensembles", interrupt)
        labelwise(*AUTO, "--force", cwd=place, code=130)
    labelwise(*TRAIN, "--force", cwd=place)
    assert sorted(path.name for path in (place / "run").iterdir() if path.name.startswith((".", "auto"))) == [".lock"]


def test_a_kill_before_the_takeover_is_completed_at_the_next_start(place):
    before = old_files(place)
    kill_where_it_holds(HOLD_BEFORE_THE_TAKEOVER, *AUTO, "--force")
    assert old_files(place) == before
    assert "this run is finished" in labelwise(*AUTO, cwd=place, code=2).err
    assert_replaced(place)


def test_an_unfinished_replacement_by_train_is_not_that_of_a_search(place, monkeypatch):
    before = old_files(place)
    with monkeypatch.context() as patch:
        patch.setattr(train, "_load_or_fit", interrupt)
        labelwise(*TRAIN, "--force", cwd=place, code=130)
    assert (place / "run" / ".replacement" / "state.json").exists()
    assert "this run is finished" in labelwise(*AUTO, cwd=place, code=2).err
    assert old_files(place) == before


def test_nobody_else_works_in_the_folder_of_a_search(place, monkeypatch):
    refused, plain = [], Search.try_ensembles

    def try_ensembles(self):
        refused.extend(labelwise(*TRAIN, *more, cwd=place, code=2).err for more in ((), ("--force",)))
        return plain(self)

    monkeypatch.setattr(Search, "try_ensembles", try_ensembles)
    labelwise(*AUTO, "--force", cwd=place)
    assert len(refused) == 2
    assert all("another process is working in this run folder" in message for message in refused)
    assert_replaced(place)
