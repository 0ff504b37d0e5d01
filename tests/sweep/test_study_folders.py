"""Whose folder a study's is: taken up by the same study, kept from any other."""

import json
import os

import pytest

from cli.commands import labelwise
from labelwise.config import ConfigSource
from labelwise.errors import ConfigError, ModelFormatError
from labelwise.io.atomic import lock_folder
from labelwise.tuning.study import check_folder, claim, read_study
from sweep.planted import plant, write_study


def study_of(tmp_path, *overrides, **changes):
    return read_study(ConfigSource.from_file(write_study(tmp_path, **changes)).override(overrides))


@pytest.fixture
def claimed(tmp_path):
    """A folder with a mark, and what a sweep and a user have put there."""
    study = study_of(tmp_path)
    study.folder.mkdir()
    claim(study, force=False)
    (study.folder / "trials" / "abc").mkdir(parents=True)
    (study.folder / "results.json").write_text("{}")
    (study.folder / "notes.txt").write_text("mine")
    return study.folder


MORE = [
    {"vary": {"model.leaf_size": [2, 4, 8]}},
    {"vary": {"model.leaf_size": [8], "model.trees": [1, 2]}},
    {"seeds": [0, 1], "seed_field": "model.seed"},
    {"parallel": 3, "threads": 1, "report": True, "gpus": [0], "inspect": "none", "metric": "R@2"},
    {"stop_hopeless": {"after": 2}},
]


@pytest.mark.parametrize("changes", MORE)
def test_more_of_the_same_study_goes_on(tmp_path, claimed, changes):
    assert check_folder(study_of(tmp_path, **changes), force=False)


def test_defaults_written_out_are_no_difference(tmp_path, claimed):
    assert check_folder(study_of(tmp_path, "run.model.solver.loss=squared_hinge", "run.run.threads=1"), force=False)


@pytest.mark.parametrize("mapped", ["true", "false"])
def test_rows_in_files_are_no_other_study(tmp_path, claimed, mapped):
    assert check_folder(study_of(tmp_path, f"run.data.mapped={mapped}"), force=False)
    assert "mapped" not in (claimed / "study.json").read_text()


@pytest.mark.parametrize(
    ("overrides", "changes", "message"),
    [
        (["run.model.trees=3"], {}, r"run\.model\.trees \(1, now 3\)"),
        (["run.data.limit=50"], {}, r"run\.data\.limit \(null, now 50\)"),
        (["run.model={method: popularity}"], {"vary": {"data.limit": [20]}}, r"model\.leaf_size no longer varies"),
        ([], {"vary": {"model.branching": [2]}}, r"vary \(model\.leaf_size no longer varies\)"),
        ([], {"groups": [{"name": "a", "vary": {"model.trees": [1]}}]}, r"groups \(there were none\)"),
        ([], {"search": {"kind": "random", "trials": 3}}, r'search\.kind \("grid", now "random"\)'),
        ([], {"valid_fraction": 0.2}, r"valid_fraction \(0\.1, now 0\.2\)"),
    ],
)
def test_another_study_is_told_apart(tmp_path, claimed, overrides, changes, message):
    other = study_of(tmp_path, *overrides, **changes)
    with pytest.raises(ConfigError, match=message + r".*--force replaces it, --set folder=\.\.\. keeps both"):
        check_folder(other, force=False)
    before = {path: path.stat().st_mtime_ns for path in claimed.rglob("*")}
    with pytest.raises(ConfigError, match="holds another study"):
        claim(other, force=False)
    assert {path: path.stat().st_mtime_ns for path in claimed.rglob("*")} == before
    claim(other, force=True)
    assert sorted(path.name for path in claimed.iterdir()) == ["notes.txt", "study.json"]
    assert check_folder(other, force=False)


def test_folders_that_are_no_study_s_are_kept_whatever_is_said(tmp_path):
    study = study_of(tmp_path)
    study.folder.mkdir()
    (study.folder / "thesis.txt").write_text("years of work")
    for force in (False, True):
        with pytest.raises(ConfigError, match="is not a study's folder"):
            claim(study, force)
    (study.folder / "state.json").write_text(json.dumps({"format": "labelwise-run", "status": "finished"}))
    for force in (False, True):
        with pytest.raises(ConfigError, match="is the folder of a run"):
            claim(study, force)
    assert sorted(path.name for path in study.folder.iterdir()) == ["state.json", "thesis.txt"]
    (study.folder / "state.json").unlink()
    (study.folder / "study.json").write_text("[]")
    with pytest.raises(ModelFormatError, match=r"study\.json: damaged"):
        claim(study, force=True)


def test_a_symlink_among_the_results_is_not_followed(tmp_path, claimed):
    if not hasattr(os, "symlink"):
        pytest.skip("no symlinks here")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("")
    (claimed / "plots").symlink_to(elsewhere)
    claim(study_of(tmp_path), force=True)
    assert (elsewhere / "kept").exists()
    assert not (claimed / "plots").exists()


def test_from_the_command_line(tmp_path):
    plant(tmp_path / "data")
    study = write_study(tmp_path, vary={"model.leaf_size": [2]})
    labelwise("sweep", study)
    (trial,) = (tmp_path / "sweep").glob("trials/*/valid.json")
    name, trained = trial.parent.name, trial.stat().st_mtime_ns
    run = trial.parent
    assert "is the folder of a run" in labelwise("sweep", study, "--set", f"folder={run}", "--force", code=2).err
    said = labelwise("sweep", study, "--set", "run.data.limit=60", code=2).err
    assert "run.data.limit (null, now 60)" in said
    assert trial.stat().st_mtime_ns == trained
    labelwise("sweep", study, "--set", "run.data.limit=60", "--force")
    assert not trial.exists()
    (other,) = (tmp_path / "sweep").glob("trials/*/valid.json")
    assert other.parent.name != name


def test_a_sweep_waits_for_trials_of_an_earlier_one_that_still_run(tmp_path, monkeypatch):
    """As those on a cluster, which do not inherit the lock of the study."""
    plant(tmp_path / "data")
    monkeypatch.setattr("labelwise.tuning.runner.LOCK_WAIT", 0.1)
    study = write_study(tmp_path)
    folder = study_of(tmp_path).folder
    folder.mkdir()
    claim(study_of(tmp_path), force=False)
    trial = folder / "trials" / "abc"
    trial.mkdir(parents=True)
    with lock_folder(trial, ConfigError("busy")):
        for options in ((), ("--force",)):
            assert f"{trial}: a trial of an earlier sweep still runs" in labelwise("sweep", study, *options, code=2).err
        assert trial.exists()
