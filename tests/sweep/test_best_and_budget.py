"""The best setting as a run config, a time limit of a whole sweep, and progress that names settings."""

import re

import pytest

from cli.commands import labelwise
from labelwise.config import ConfigSource
from labelwise.runs.config import run_config
from labelwise.tuning import runner
from labelwise.tuning.results import result_rows
from labelwise.tuning.study import Setting, read_study
from sweep.planted import plant, write_study

STAND_IN = """
import json, pathlib, sys, time
folder, value, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
time.sleep(seconds)
folder.mkdir(exist_ok=True)
(folder / "valid.json").write_text(json.dumps({"values": {"P@1": value}}))
(folder / "state.json").write_text(json.dumps({"status": "finished"}))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Planted data, and trials that end at once: the higher leaf_size, the better."""
    plant(tmp_path / "data", valid=False)

    def stand_in(trial, metric):
        value, slow = trial.config.model.get("leaf_size", 1) / 100, 0.3 if trial.config.model["trees"] > 1 else 0.0
        return ["-S", "-c", STAND_IN, str(trial.folder), str(value), str(slow)]

    monkeypatch.setattr(runner, "trial_command", stand_in)
    return tmp_path


def test_progress_names_position_and_setting(place, caplog):
    caplog.set_level("INFO")
    study = write_study(place, vary={"model.leaf_size": [50, 60]}, seeds=[3, 4], seed_field="model.seed")
    runner.run_sweep(read_study(ConfigSource.from_file(study)))
    started = [line for line in caplog.messages if line.endswith("started")]
    found = [re.sub(r"[0-9a-f]{12}", "HASH", line) for line in started]
    assert found[0] == "trial 1 of 4 (leaf_size 50, seed 3; HASH) started"
    assert found[3] == "trial 4 of 4 (leaf_size 60, seed 4; HASH) started"
    assert any(re.fullmatch(r"trial 3 of 4 .* finished, P@1 60\.00 %", line) for line in caplog.messages)


def test_the_best_setting_is_a_config_that_train_takes(place):
    study = write_study(place, vary={"model.leaf_size": [50, 60, 2]}, seeds=[3, 4], seed_field="model.seed")
    done = labelwise("sweep", study, cwd=place)
    best = place / "sweep" / "best.yml"
    assert f"labelwise train {best}" in done.out
    assert "P@1 60.00 % on the valid part" in best.read_text().splitlines()[0]
    config = run_config(ConfigSource.from_file(best))
    assert (config.model["leaf_size"], config.model["seed"]) == (60, 3)
    assert config.data.valid_fraction == 0.1, "as the trials"
    assert (config.run.threads, config.run.report, config.inspect.enabled) == (None, True, True), "as any run"
    labelwise("train", best, "--set", "run.report=false", cwd=place)
    assert (place / "runs" / "sweep-best" / "results.json").exists()
    labelwise("sweep", write_study(place, vary={"model.trees": [1]}), "--force", cwd=place)
    assert "leaf_size: 60" not in best.read_text()


def test_trials_are_not_refitted_on_the_documents_that_compare_them(place):
    run = {"data": {"path": str(place / "data")}, "model": {"method": "linear_tree"}, "run": {"refit": True}}
    study = read_study(ConfigSource.from_file(write_study(place, run=run)))
    setting = Setting(study.groups[0], {"model.leaf_size": 2})
    assert [trial.config.run.refit for trial in study.trials(setting)] == [False]
    assert study.best_run(setting).run.refit, "a run of its own is"


def test_no_trial_starts_after_the_time_budget(place, caplog):
    vary = {"model.leaf_size": [50, 60, 70]}
    run = {"data": {"path": str(place / "data")}, "model": {"method": "linear_tree", "trees": 2}}
    path = write_study(place, run=run, vary=vary, seeds=[0, 1], seed_field="model.seed", time_budget=0.1)
    study = read_study(ConfigSource.from_file(path))
    (row,) = result_rows(study, runner.run_sweep(study))
    assert row["status"] == "1 finished, 1 unfinished", "the one that was running has ended"
    assert "time_budget: 100 ms are over; 1 of 6 trials have ended" in caplog.text
    caplog.clear()
    other = read_study(ConfigSource.from_file(path).override(["time_budget=60"]))
    rows = result_rows(other, runner.run_sweep(other))
    assert [row["status"] for row in rows] == ["finished"] * 3
    assert "time_budget" not in caplog.text
    assert "time_budget" in labelwise("sweep", path, "--set", "time_budget=0", code=2).err
