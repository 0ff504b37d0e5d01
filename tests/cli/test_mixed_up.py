"""One command given what another one is for, and what help says."""

import pytest

from cli.commands import labelwise
from labelwise.cli.main import main
from sweep.planted import plant, write_study


def said(capsys, monkeypatch, *arguments, code=2):
    """What the command says, in this process."""
    monkeypatch.setattr("os.dup2", lambda *_: None)  # the command closes standard output at its end
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments)])
    assert stop.value.code in ((0, None) if code == 0 else (code,))
    told = capsys.readouterr()
    return told.out + told.err


def test_studies_and_run_configs(tmp_path, capsys, monkeypatch):
    study, run = write_study(tmp_path), tmp_path / "run.yml"
    run.write_text("data: {path: corpus}\nmodel: {method: popularity}\nrun: {threads: 1}\n")
    assert "this is a study, not the config of a run; labelwise sweep" in said(capsys, monkeypatch, "train", study)
    assert "this is the config of a run, not a study; labelwise train" in said(capsys, monkeypatch, "sweep", run)
    assert not (tmp_path / "sweep").exists()


def test_a_folder_of_neither_kind_names_what_is_inside(tmp_path, capsys, monkeypatch):
    for name, content in (("a", "trials/x"), ("b", "other"), ("c", "trials")):
        (tmp_path / name / content).mkdir(parents=True)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "state.json").write_text("{}")
    told = said(capsys, monkeypatch, "report", tmp_path)
    assert "neither the folder of a run, with state.json, nor of a study, with trials/; inside are a, c, d" in told
    assert "that of a run or of a study" in said(capsys, monkeypatch, "report", tmp_path / "nowhere")


def test_help_has_examples_that_fit(capsys, monkeypatch):
    for command, example in (("sweep", "parallel=2"), ("encode", "encoder.max_length=512"), ("train", "model.beam=20")):
        told = said(capsys, monkeypatch, command, "--help", code=0)
        assert example in told
        assert ("model.beam=20" in told) is (command == "train")
    told = " ".join(said(capsys, monkeypatch, "report", "--help", code=0).split())
    assert "into its own plots/ if no other folder is named, where older ones are replaced as well" in told


def test_what_help_says_of_charts_is_so(tmp_path):
    plant(tmp_path / "data")
    labelwise("sweep", write_study(tmp_path, report=True))
    chart, folder = tmp_path / "sweep" / "plots" / "settings.svg", tmp_path / "sweep"
    chart.write_text("old")
    labelwise("report", folder)
    assert chart.read_text() != "old"
    labelwise("report", folder, "--plots", tmp_path / "elsewhere")
    assert "--force" in labelwise("report", folder, "--plots", tmp_path / "elsewhere", code=2).err
    labelwise("report", folder, "--plots", tmp_path / "elsewhere", "--force")
