"""What is found out before the first trial, and when trials are given up."""

import json
import sys

import pytest

from cli.commands import labelwise
from labelwise.config import ConfigSource
from labelwise.errors import ConfigError, DataError, MissingDependencyError
from labelwise.runs.config import RunConfig
from labelwise.runs.train import train
from labelwise.tuning import preflight, runner
from labelwise.tuning.results import result_rows
from labelwise.tuning.study import read_study
from sweep.planted import plant, write_study


def study_of(tmp_path, model, **changes):
    run = {"data": {"path": str(tmp_path / "data")}, "model": model, "calibrate": {"enabled": False}}
    return read_study(ConfigSource.from_file(write_study(tmp_path, run=run, **changes)))


@pytest.mark.parametrize(
    ("model", "vary", "error", "message"),
    [
        ("text_encoder", {"model.encoder.model": ["tiny", "./nowhere"]}, ConfigError, "nowhere is not a folder"),
        ("text_encoder", {"model.encoder.model": ["data"]}, ConfigError, r"data has no config\.json"),
        ("bigru", {"model.words.vectors": ["nowhere.txt"]}, DataError, "there is no such file of vectors"),
    ],
)
def test_missing_files_are_found_before_the_first_trial(tmp_path, monkeypatch, model, vary, error, message):
    pytest.importorskip("torch")
    plant(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        runner.run_sweep(study_of(tmp_path, {"method": model}, vary=vary))
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("method", ["text_encoder", "attention_xml", "bigru"])
def test_missing_packages_leave_no_run_folder(tmp_path, monkeypatch, method):
    """The data is not there either: it is not looked for."""
    monkeypatch.setitem(sys.modules, "torch", None)
    run = {"folder": str(tmp_path / "run")}
    config = RunConfig(data={"path": "nowhere"}, model={"method": method}, run=run)
    with pytest.raises(MissingDependencyError, match="torch"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_gpus_that_are_not_there(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    plant(tmp_path / "data")
    study = study_of(tmp_path, {"method": "linear_tree"}, gpus=[0, 2])
    monkeypatch.setattr(preflight, "count_gpus", lambda: 2)
    with pytest.raises(ConfigError, match=r"study\.yml:\d+: gpus: there is no GPU 2; there are 2, counted from 0"):
        preflight.check_study(study)
    monkeypatch.setattr(preflight, "count_gpus", lambda: 0)
    with pytest.raises(ConfigError, match="no GPU 0; torch sees none"):
        preflight.check_study(study)
    monkeypatch.setattr(preflight, "count_gpus", lambda: 3)
    preflight.check_study(study)


def test_gpus_are_counted():
    torch = pytest.importorskip("torch")
    assert preflight.count_gpus() == torch.cuda.device_count()


FAILING = "import sys; sys.stderr.write('labelwise: {}\\n'); sys.exit({})"


@pytest.mark.parametrize(
    ("say", "code", "tried"),
    [
        (lambda trial: f"{trial.folder}: no such model", 2, 3),
        (lambda trial: f"leaf size {trial.config.model['leaf_size']}", 2, 5),
        (lambda trial: "a bug", 1, 5),
    ],
)
def test_trials_that_all_make_the_same_mistake_end_the_sweep(tmp_path, monkeypatch, caplog, say, code, tried):
    plant(tmp_path / "data")
    study = study_of(tmp_path, {"method": "linear_tree"}, vary={"model.leaf_size": [2, 3, 4, 5, 6]})
    started = []

    def command(trial, metric):
        started.append(trial.name)
        return ["-c", FAILING.format(say(trial), code)]

    monkeypatch.setattr(runner, "trial_command", command)
    rows = result_rows(study, runner.run_sweep(study))
    assert len(started) == len(rows) == tried
    assert {row["status"] for row in rows} == {"failed"}
    assert ("the first 3 trials failed with the same error" in caplog.text) is (tried == 3)


def test_an_encoder_that_is_not_there_from_the_command_line(tmp_path):
    pytest.importorskip("torch")
    plant(tmp_path / "data")
    model = {"method": "text_encoder", "encoder": {"model": "/no/such/folder"}}
    path = write_study(tmp_path, run={"data": {"path": str(tmp_path / "data")}, "model": model})
    values = ["--set", "vary={model.training.seed: [0, 1, 2]}"]
    said = labelwise("sweep", path, *values, code=2).err
    assert "/no/such/folder is not a folder" in said
    assert len(said.splitlines()) == 1
    config = tmp_path / "run.yml"
    config.write_text(json.dumps({"data": {"path": str(tmp_path / "data")}, "model": model}))
    assert "is not a folder" in labelwise("train", config, cwd=tmp_path, code=2).err
    assert not (tmp_path / "runs").exists()
