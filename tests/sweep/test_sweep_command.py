"""Whole sweeps on planted data: killed and taken up again, with trials that fail, with seeds and groups."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.commands import labelwise
from labelwise.config import ConfigSource
from labelwise.tuning import runner
from labelwise.tuning.results import result_rows
from labelwise.tuning.study import read_study
from sweep.planted import plant, write_study


def results(tmp_path):
    return json.loads((tmp_path / "sweep" / "results.json").read_text())


def finished(folder):
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("trials/*/valid.json")}


def test_killed_in_the_middle_it_goes_on(tmp_path):
    plant(tmp_path / "data")
    study = write_study(tmp_path, vary={"model.leaf_size": [2, 3, 4, 5]}, parallel=2)
    command = [sys.executable, "-m", "labelwise.cli.main", "sweep", str(study)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = tmp_path / "sweep"
    limit = time.monotonic() + 60
    # trials run two at a time: with one done, others are at work
    while not finished(folder) and time.monotonic() < limit and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the sweep was over before it could be killed"
    assert not (folder / "results.json").exists()
    labelwise("sweep", study)  # waits until the trials of the killed sweep have noticed
    rows = results(tmp_path)["rows"]
    assert [row["status"] for row in rows] == ["finished"] * 4
    kept = finished(folder)
    assert len(kept) == 4
    labelwise("sweep", study)
    assert finished(folder) == kept, "finished trials are not run again"
    assert results(tmp_path)["rows"] == rows


def test_a_failing_trial_is_told_and_the_others_go_on(tmp_path):
    plant(tmp_path / "data")
    missing = str(tmp_path / "nothing.tsv")
    groups = [
        {"name": "good", "vary": {"model.leaf_size": [2]}},
        {"name": "bad", "vary": {"model.tree": "hierarchy", "model.hierarchy": missing, "model.trees": 1}},
    ]
    study = write_study(tmp_path, vary={}, groups=groups)
    done = labelwise("sweep", study)
    good, bad = results(tmp_path)["rows"]
    assert (good["group"], good["status"]) == ("good", "finished")
    assert good["P@1"] > 0.9, "words give labels away"
    assert (bad["group"], bad["status"], bad["P@1"]) == ("bad", "failed", None)
    assert "nothing.tsv" in bad["message"]
    assert "nothing.tsv" in done.out
    with (tmp_path / "sweep" / "results.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["finished", "failed"]


def test_chosen_on_held_out_training_documents_with_seeds(tmp_path):
    plant(tmp_path / "data", documents=200, valid=False)
    study = write_study(
        tmp_path, vary={"model.leaf_size": [3]}, seeds=[0, 1], seed_field="model.seed", parallel=2, valid_fraction=0.25
    )
    done = labelwise("sweep", study)
    found = results(tmp_path)
    (row,) = found["rows"]
    values = [trial["value"] for trial in found["trials"].values()]
    assert len(values) == 2
    assert abs(row["P@1"] - sum(values) / 2) < 1e-12
    assert row["seeds"] == 2
    assert row["test P@1"] is not None
    for name in row["trials"]:
        folder = tmp_path / "sweep" / "trials" / name
        assert json.loads((folder / "valid.json").read_text())["n_documents"] == 50
        assert json.loads((folder / "results.json").read_text())["data"]["train"]["documents"] == 150
    assert "on the valid part" in done.out


def test_another_metric_is_scored_without_training_again(tmp_path):
    plant(tmp_path / "data")
    labelwise("sweep", write_study(tmp_path, vary={"model.leaf_size": [2]}))
    model = next((tmp_path / "sweep" / "trials").glob("*/model"))
    trained = model.stat().st_mtime_ns
    labelwise("sweep", write_study(tmp_path, vary={"model.leaf_size": [2]}, metric="R@2"))
    (row,) = results(tmp_path)["rows"]
    assert row["status"] == "finished"
    assert 0 < row["R@2"] <= 1
    assert model.stat().st_mtime_ns == trained
    labelwise("sweep", write_study(tmp_path, vary={"model.leaf_size": [2]}))
    assert results(tmp_path)["rows"][0]["status"] == "finished"


def test_mistakes_are_found_before_anything_is_trained(tmp_path):
    plant(tmp_path / "data")
    study = write_study(tmp_path, vary={"model.leaf_size": [2, "few"]})
    assert "study.yml:" in labelwise("sweep", study, code=2).err
    assert not (tmp_path / "sweep").exists()


def test_optuna_from_file_to_table(tmp_path):
    pytest.importorskip("optuna")
    plant(tmp_path / "data")
    search = {"kind": "optuna", "trials": 3}
    study = write_study(tmp_path, vary={"model.leaf_size": {"low": 2, "high": 100}}, search=search, parallel=2)
    labelwise("sweep", study)
    before = [row["model.leaf_size"] for row in results(tmp_path)["rows"]]
    assert len(before) == 3
    assert all(isinstance(size, int) and 2 <= size <= 100 for size in before)
    labelwise("sweep", study, "--set", "search.trials=4")
    after = [row["model.leaf_size"] for row in results(tmp_path)["rows"]]
    assert len(after) == 4
    assert set(before) <= set(after), "what was tried is not tried again"


def test_a_killed_trial_is_told(tmp_path):
    plant(tmp_path / "data")
    study = write_study(tmp_path, vary={"model.leaf_size": [2]})
    command = [sys.executable, "-m", "labelwise.cli.main", "sweep", str(study)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert b"started" in process.stderr.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        process.kill()
        process.communicate()
        pytest.skip("children are found through /proc")
    for child in children.read_text().split():
        os.kill(int(child), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 2, "no trial came to its end"
    (row,) = results(tmp_path)["rows"]
    assert row["status"] == "failed"
    assert "signal 9" in row["message"]
    labelwise("sweep", study)
    assert results(tmp_path)["rows"][0]["status"] == "finished"


STAND_IN = """
import json, pathlib, sys, time
folder, value = pathlib.Path(sys.argv[1]), float(sys.argv[2])
folder.mkdir(exist_ok=True)
with (folder / "metrics.jsonl").open("w") as file:
    for epoch in (1, 2, 3):
        file.write(json.dumps({"stage": "fit", "time": 1.0, "epoch": epoch, "step": epoch, "P@1": value}) + "\\n")
if value < 0.1:
    time.sleep(60)
(folder / "valid.json").write_text(json.dumps({"values": {"P@1": value}}))
(folder / "state.json").write_text(json.dumps({"status": "finished"}))
"""


def test_hopeless_trials_are_ended_and_stay_so(tmp_path, monkeypatch, caplog):
    """With a stand-in that writes learning curves: the higher leaf_size, the better, and 2 would take a minute."""
    plant(tmp_path / "data")
    path = write_study(
        tmp_path, vary={"model.leaf_size": [50, 60, 2]}, stop_hopeless={"after": 2, "unit": "epochs", "factor": 0.5}
    )

    def stand_in(trial, metric):
        return ["-c", STAND_IN, str(trial.folder), str(trial.config.model["leaf_size"] / 100)]

    monkeypatch.setattr(runner, "trial_command", stand_in)
    study = read_study(ConfigSource.from_file(path))
    begin = time.monotonic()
    rows = result_rows(study, runner.run_sweep(study))
    assert time.monotonic() - begin < 50, "the hopeless one was waited for"
    assert [(row["model.leaf_size"], row["status"]) for row in rows] == [
        (60, "finished"),
        (50, "finished"),
        (2, "stopped as hopeless"),
    ]
    assert rows[2]["P@1"] == 0.02
    assert "the median of 2 others had 0.5500" in rows[2]["message"]
    monkeypatch.setattr(runner, "trial_command", lambda *_: pytest.fail("nothing is left to run"))
    assert result_rows(study, runner.run_sweep(study)) == rows
    assert "stop_hopeless" not in caplog.text
    monkeypatch.setattr(runner, "trial_command", lambda *_: ["-c", ""])
    other = write_study(tmp_path, vary={"model.leaf_size": [5]}, metric="R@2", stop_hopeless={"after": 2})
    runner.run_sweep(read_study(ConfigSource.from_file(other)))
    assert "no trial logged R@2" in caplog.text
