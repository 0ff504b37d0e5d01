"""An unfinished run is resumed by `labelwise train` when all that decides its result is the same, and only then."""

import json
import os
import shutil
from pathlib import Path

import pytest

import labelwise as lw
from cli.commands import labelwise
from conformance.planted import planted
from killing import kill_where_it_holds

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")

HOLD_AFTER_THREE_CHECKPOINTS = """
from labelwise.nn.train.checkpoint import Checkpoints
saved, plain = [], Checkpoints.save
def save(self, *given):
    plain(self, *given)
    saved.append(given)
    if len(saved) == 3:
        hold()
Checkpoints.save = save
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder with data, the config of a run, and what is left of that run after a kill at its third step."""
    pytest.importorskip("torch")
    place = tmp_path_factory.mktemp("killed")
    lw.write(planted("texts", n_documents=150, n_labels=20), place / "data.jsonl")
    training = {"epochs": 2, "batch_size": 25, "checkpoint_every": {"steps": 1}}
    config = {
        "data": {"train": str(place / "data.jsonl")},
        "model": {"method": "mach", "repetitions": 2, "buckets": 8, "hidden": [8], "training": training},
        "run": {"folder": str(place / "runs" / "first"), "report": False, "threads": 1},
    }
    (place / "first.yml").write_text(json.dumps(config))
    kill_where_it_holds(HOLD_AFTER_THREE_CHECKPOINTS, "train", place / "first.yml")
    assert not (place / "runs" / "first" / "model").exists()
    return place


@pytest.fixture(scope="module")
def expected(killed, tmp_path_factory):
    """The files of the model that the run ends with when nobody kills it."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    labelwise("train", killed / "first.yml", "--set", f"run.folder={folder}")
    return files_of(folder / "model")


@pytest.fixture
def place(killed, tmp_path):
    """A copy to work in: the config names its folder by a path from here."""
    shutil.copytree(killed / "runs", tmp_path / "runs")
    config = json.loads((killed / "first.yml").read_text())
    config["run"]["folder"] = "runs/first"
    (tmp_path / "first.yml").write_text(json.dumps(config))
    held = tmp_path / "runs" / "first" / "config.yml"
    held.write_text(held.read_text().replace(str(killed / "runs" / "first"), "runs/first"))
    return tmp_path


def files_of(model: Path) -> dict[str, bytes]:
    """What was learned; the parameters beside it may differ in those that decide nothing."""
    return {path.name: path.read_bytes() for path in model.iterdir() if path.suffix == ".safetensors"}


def assert_resumed(run: Path, expected: dict[str, bytes]) -> None:
    assert "step 3 of 12" in (run / "log.txt").read_text()
    assert json.loads((run / "state.json").read_text())["status"] == "finished"
    assert files_of(run / "model") == expected


TRAINING = "model.training"


@pytest.mark.parametrize(
    "changes",
    [
        [f"{TRAINING}.time_budget=3600"],
        [f"{TRAINING}.load_ahead=2", f"{TRAINING}.log_every=1"],
        [f"{TRAINING}.checkpoint_every.steps=5"],
        [f"{TRAINING}.checkpoint_every=" + "{seconds: 60}"],
        ["model.repetitions_folder=elsewhere", "inspect.vectors=10"],
    ],
    ids=lambda changes: changes[0].removeprefix("model."),
)
def test_settings_that_do_not_decide_the_result_may_change(place, expected, changes):
    options = [word for change in changes for word in ("--set", change)]
    labelwise("train", "first.yml", *options, cwd=place)
    assert_resumed(place / "runs" / "first", expected)


def test_tensorboard_may_be_added(place, expected):
    pytest.importorskip("tensorboard")
    labelwise("train", "first.yml", "--set", f"{TRAINING}.tensorboard=events", cwd=place)
    assert_resumed(place / "runs" / "first", expected)
    assert list((place / "events").rglob("events*"))


@pytest.mark.parametrize("where", ["renamed", "absolute", "with a slash"])
def test_another_path_of_the_folder_may_be_given(place, expected, where):
    run = place / "runs" / "first"
    if where == "renamed":
        run = run.rename(place / "moved")
    given = {"renamed": "moved", "absolute": run, "with a slash": "runs/first/"}[where]
    labelwise("train", "first.yml", "--set", f"run.folder={given}", cwd=place)
    assert_resumed(run, expected)
    assert json.loads((run / "state.json").read_text())["name"] == run.name


def test_the_config_of_a_run_folder_means_that_folder(place, expected):
    run = (place / "runs" / "first").rename(place / "moved")
    labelwise("train", "moved/config.yml", cwd=place)
    assert_resumed(run, expected)
    assert not (place / "runs" / "first").exists()
    labelwise("train", "moved/config.yml", "--set", "run.folder=other", cwd=place)
    assert files_of(place / "other" / "model") == expected


@pytest.mark.parametrize("change", [f"{TRAINING}.epochs=3", f"{TRAINING}.optimiser.rate=0.5", "model.repetitions=3",
                                    "model.score=mean", "evaluate.k=20", "data.limit=100"])  # fmt: skip
def test_other_settings_are_refused_and_named_by_their_place(place, change):
    refused = labelwise("train", "first.yml", "--set", change, cwd=place, code=2)
    assert f"another config exists ({change.partition('=')[0]})" in " ".join(refused.err.split())


def test_another_number_of_threads_is_recorded_and_warned_about(place):
    done = labelwise("train", "first.yml", "--set", "run.threads=2", cwd=place)
    assert "used 1 threads before and uses 2 now" in done.err
    machine = json.loads((place / "runs" / "first" / "machine.json").read_text())
    assert (machine["threads"], machine["threads_before"]) == (2, [1])


def test_the_end_of_a_training_that_is_over_cannot_change(place):
    """The time budget of a model that is trained, but not evaluated yet, is that in its folder."""
    run = place / "runs" / "first"
    labelwise("train", "first.yml", cwd=place)
    (run / "state.json").write_text(json.dumps({**json.loads((run / "state.json").read_text()), "status": "running"}))
    change = f"{TRAINING}.time_budget=3600"
    refused = labelwise("train", "first.yml", "--set", change, cwd=place, code=2)
    assert f"another config exists ({TRAINING}.time_budget)" in " ".join(refused.err.split())
    labelwise("train", "first.yml", cwd=place)
