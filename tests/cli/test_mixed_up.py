"""One command given what another one is for, and what help says."""

import pytest

from cli.commands import labelwise
from labelwise.runtime.ranks import launch_id
from labelwise.runtime.threads import threads
from sweep.planted import fork_trials, plant, write_study


def said(*arguments, code=2):
    """All that the command says."""
    done = labelwise(*arguments, code=code)
    return done.out + done.err


def test_studies_and_run_configs(tmp_path):
    study, run = write_study(tmp_path), tmp_path / "run.yml"
    run.write_text("data: {path: corpus}\nmodel: {method: popularity}\nrun: {threads: 1}\n")
    assert "this is a study, not the config of a run; use labelwise sweep" in said("train", study)
    assert "this is the config of a run, not a study; use labelwise train" in said("sweep", run)
    assert not (tmp_path / "sweep").exists()


def test_a_folder_of_neither_kind_names_what_is_inside(tmp_path):
    for name, content in (("a", "trials/x"), ("b", "other"), ("c", "trials")):
        (tmp_path / name / content).mkdir(parents=True)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "state.json").write_text("{}")
    printed = said("report", tmp_path)
    assert "neither the folder of a run (with state.json) nor of a study (with trials/); it contains a, c, d" in printed
    assert "give the folder of a run or of a study" in said("report", tmp_path / "nowhere")


def test_help_has_examples_that_fit():
    for command, example in (("sweep", "parallel=2"), ("encode", "encoder.max_length=512"), ("train", "model.beam=20")):
        printed = said(command, "--help", code=0)
        assert example in printed
        assert ("model.beam=20" in printed) is (command == "train")
    printed = " ".join(said("report", "--help", code=0).split())
    assert "to its own plots/, where older ones are replaced" in printed


def test_what_help_says_of_charts_is_so(tmp_path, monkeypatch):
    fork_trials(monkeypatch)
    plant(tmp_path / "data")
    labelwise("sweep", write_study(tmp_path, report=True))
    chart, folder = tmp_path / "sweep" / "plots" / "settings.svg", tmp_path / "sweep"
    chart.write_text("old")
    labelwise("report", folder)
    assert chart.read_text() != "old"
    labelwise("report", folder, "--plots", tmp_path / "elsewhere")
    assert "--force" in labelwise("report", folder, "--plots", tmp_path / "elsewhere", code=2).err
    labelwise("report", folder, "--plots", tmp_path / "elsewhere", "--force")


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "model", "text"),
        ("encode", "model", "x.txt", "-o", "x.npy"),
        ("sweep", "study.yml"),
        ("data", "list"),
    ],
)
def test_commands_of_one_process_are_refused_under_torchrun(command, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    refused = labelwise(*command, code=2).err
    assert f"labelwise {command[0]} is for one process, and torchrun has started 2 (WORLD_SIZE)" in refused
    assert "Usage" in labelwise(command[0], "--help").out


@pytest.mark.parametrize(
    "set_by_others", [{"WORLD_SIZE": "", "RANK": "0"}, {"WORLD_SIZE": "4"}, {"LOCAL_WORLD_SIZE": ""}]
)
def test_variables_of_clusters_are_not_torchrun(set_by_others, monkeypatch):
    for name, value in set_by_others.items():
        monkeypatch.setenv(name, value)
    labelwise("data", "list")
    assert threads() >= 1


def test_a_launch_of_several_nodes_is_that_of_all_of_them(monkeypatch):
    """After a restart rank 0 may be on another node, whose folder of logs has another name."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    launches = []
    for identity in ("none", "job-7"):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", identity)
        for host in ("one", "other"):
            monkeypatch.setattr("socket.gethostname", lambda host=host: host)
            monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", f"/tmp/torchelastic_{host}/x/attempt_1/0/error.json")
            launches.append(launch_id())
    assert launches[0] != launches[1]
    assert launches[2] == launches[3] == "rendezvous job-7"
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")  # a fixed id of one node may be used again
    assert launch_id() == "other:/tmp/torchelastic_other/x"
