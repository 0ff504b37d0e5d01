"""The commands end to end, as typed by a user."""

import json
import os
import signal
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from cli.commands import labelwise, labelwise_process
from conformance.planted import planted_texts
from labelwise.errors import DataError
from labelwise.registry import METHODS
from labelwise.runs import train as stages


@pytest.fixture
def corpus(tmp_path):
    """A folder with a train and a test part as line files."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, seed in (("train", 0), ("test", 1)):
        data = planted_texts(n_documents=200, n_labels=30, seed=seed)
        rows = [" ".join(row) for row in lw.TopK.from_csr(data.labels, 5, data.label_names).labels]
        (folder / f"{split}_texts.txt").write_text("\n".join(data.texts) + "\n")
        (folder / f"{split}_labels.txt").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def config(tmp_path, corpus):
    path = tmp_path / "first.yml"
    path.write_text(f"data:\n  path: {corpus}\nmodel:\n  method: popularity\n")
    return path


def test_train_evaluate_predict_compare_report(tmp_path, config, corpus):
    done = labelwise_process("train", config, "--set", "evaluate.bootstrap=50", cwd=tmp_path)
    run = tmp_path / "runs" / "first"
    assert "P@1" in done.out
    names = {p.name for p in run.iterdir()}
    assert {"config.yml", "state.json", "metrics.jsonl", "log.txt", "model", "results.json", "labels.tsv",
            "examples.jsonl", "machine.json", "report.html"} <= names  # fmt: skip
    results = json.loads((run / "results.json").read_text())
    train, test = lw.read(corpus, split="train"), lw.read(corpus, split="test")
    expected = lw.evaluate(lw.Popularity().fit(train).predict(test, k=5), test, metrics=["P@1", "P@5"])
    assert results["evaluation"]["values"]["P@1"] == pytest.approx(expected["P@1"])
    low, high = results["evaluation"]["intervals"]["P@5"]
    assert low <= expected["P@5"] <= high

    again = labelwise("evaluate", run, corpus, "--set", "metrics=[P@1]", "-o", tmp_path / "scores.json")
    assert f"{100 * expected['P@1']:.2f}" in again.out
    assert json.loads((tmp_path / "scores.json").read_text())["values"]["P@1"] == pytest.approx(expected["P@1"])

    second = labelwise("train", config, "--set", f"run.folder={tmp_path / 'second'}", "--set", "run.report=false")
    assert not (tmp_path / "second" / "report.html").exists()
    assert "P@1" in second.out
    table = labelwise("compare", run, tmp_path / "second", "-o", tmp_path / "both.html")
    assert "first" in table.out
    assert "second" in table.out
    assert "<html" in (tmp_path / "both.html").read_text()
    labelwise("report", run, "--plots", tmp_path / "plots")
    assert list((tmp_path / "plots").glob("*.svg"))


def test_predict_to_every_format(tmp_path, config):
    labelwise("train", config, "--set", f"run.folder={tmp_path / 'run'}", "--set", "run.report=false")
    model = lw.load(tmp_path / "run" / "model")
    expected = model.predict(["one", "two"], k=3)
    lines = labelwise("predict", tmp_path / "run", "-", "--k", "3", stdin="one\ntwo\n").out.splitlines()
    assert [[e["label"] for e in json.loads(line)["labels"]] for line in lines] == expected.labels
    (tmp_path / "texts.txt").write_text("one\r\ntwo")
    labelwise("predict", tmp_path / "run" / "model", tmp_path / "texts.txt", "-o", tmp_path / "p.tsv", "--k", "3")
    rows = [line.split("\t") for line in (tmp_path / "p.tsv").read_text().splitlines()]
    assert [r[1] for r in rows if r[0] == "1"] == expected.labels[1]
    labelwise("predict", tmp_path / "run", tmp_path / "texts.txt", "-o", tmp_path / "p.npz", "--k", "3")
    matrix = sparse.load_npz(tmp_path / "p.npz")
    np.testing.assert_allclose(matrix.toarray(), expected.to_csr().toarray(), rtol=1e-6)
    high = labelwise("predict", tmp_path / "run", "--threshold", "2", stdin="one\n").out
    assert json.loads(high)["labels"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "missing.yml"], "no such config file"),
        (["train", "first.yml", "--set", "model.method=populartiy"], "did you mean 'popularity'?"),
        (["train", "first.yml", "--set", "model.beam=3"], "model.beam: there is no such key"),
        (["train", "first.yml", "--set", "data.pth=x"], "did you mean 'path'?"),
        (["train", "first.yml", "--set", "data.path=nowhere"], "nowhere"),
        (["train", "first.yml", "--set", "evaluate.metrics=[Q@1]"], "Q@1"),
        (["predict", "nowhere"], "there is no such folder"),
        (["predict", "corpus"], "manifest.json is missing"),
        (["evaluate", "nowhere", "corpus"], "there is no such folder"),
        (["compare", "corpus"], "at least two"),
        (["compare", "corpus", "corpus"], "run folder"),
        (["report", "corpus"], "neither the folder of a run (with state.json) nor of a study"),
        (["models", "linear"], "there is no method 'linear'"),
        (["nonsense"], "No such command"),
        (["train"], "Missing argument"),
    ],
)
def test_user_errors_exit_with_2_and_a_sentence(tmp_path, config, arguments, message):
    done = labelwise(*arguments, cwd=tmp_path, code=2)
    assert message in done.err
    assert len(done.err.splitlines()) <= 6
    assert not list(tmp_path.glob("runs/*/model"))


def test_outputs_are_not_overwritten(tmp_path, config, corpus):
    labelwise("train", config, cwd=tmp_path)
    assert "is finished" in labelwise("train", config, cwd=tmp_path, code=2).err
    labelwise("train", config, "--force", cwd=tmp_path)
    (tmp_path / "out.jsonl").write_text("precious")
    done = labelwise("predict", tmp_path / "runs" / "first", "-o", tmp_path / "out.jsonl", stdin="x\n", code=2)
    assert "exists already" in done.err
    assert (tmp_path / "out.jsonl").read_text() == "precious"
    bad = labelwise("predict", tmp_path / "runs" / "first", "-o", tmp_path / "p.jsonl", stdin=b"ok\n\xff\n", code=2)
    assert "stdin:2" in bad.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["corpus", "first.yml", "out.jsonl", "runs"]


def test_config_show_and_schema(config):
    shown = labelwise("config", "show", config, "--set", "run.threads=1").out
    assert "bootstrap: 200" in shown
    assert labelwise("config", "show", "-", stdin=shown).out == shown
    schema = json.loads(labelwise("config", "schema").out)
    methods = [choice["properties"]["method"] for choice in schema["properties"]["model"]["anyOf"]]
    assert methods == [{"const": name} for name in METHODS]
    assert "popularity" in labelwise("models").out
    assert "frequent" in labelwise("models", "popularity").out
    assert lw.__version__ in labelwise("--version").out


SLOW = """
import sys, time
import labelwise.methods.popularity as popularity
fit = popularity.Popularity._fit
def slow(self, *args):
    print("fitting", flush=True)
    time.sleep(60)
popularity.Popularity._fit = slow
from labelwise.cli.main import main
main(sys.argv[1:])
"""


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path, config):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "train", str(config)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"fitting\n"
    locked = labelwise("train", config, cwd=tmp_path, code=2)
    assert "another process" in locked.err
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"run the same command again to resume" in err
    assert b"Traceback" not in err
    # as a method leaves that has learned something
    (tmp_path / "runs" / "first" / "checkpoints" / "level0").mkdir(parents=True, exist_ok=True)
    changed = labelwise("train", config, "--set", "evaluate.k=20", cwd=tmp_path, code=2)
    assert "evaluate.k" in changed.err
    labelwise("train", config, cwd=tmp_path)
    assert json.loads((tmp_path / "runs" / "first" / "state.json").read_text())["status"] == "finished"


def test_a_killed_run_keeps_its_finished_stages(tmp_path, config):
    code = SLOW.replace(
        "popularity.Popularity._fit = slow", "import labelwise.runs.train as t; t.evaluate_model = slow"
    )
    process = subprocess.Popen([sys.executable, "-c", code, "train", str(config)], cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"fitting\n"
    process.kill()
    process.wait()
    model = tmp_path / "runs" / "first" / "model" / "state.safetensors"
    before = model.stat().st_mtime_ns
    done = labelwise("train", config, cwd=tmp_path)
    assert "already trained" in done.err
    assert model.stat().st_mtime_ns == before
    assert "P@1" in done.out


def test_help_is_quick_and_pipes_may_close(config, tmp_path):
    begin = time.perf_counter()
    assert "python -m labelwise [OPTIONS] COMMAND" in labelwise_process("--help").out
    assert time.perf_counter() - begin < 20  # a hang, not a speed test
    for command in ("train", "evaluate", "predict", "explain", "calibrate", "compare", "report", "models", "demo"):
        assert "Usage" in labelwise(command, "--help").out
    process = subprocess.Popen(
        [sys.executable, "-m", "labelwise.cli.main", "config", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.close(process.stdout.fileno())
    process.stdout = None
    assert b"Traceback" not in process.communicate(timeout=60)[1]


def test_a_run_is_evaluated_as_its_config_says_and_unknown_labels_are_told(tmp_path, config, corpus):
    labelwise("train", config, "--set", "evaluate.metrics=[P@2]", "--set", "evaluate.bootstrap=0", cwd=tmp_path)
    run = tmp_path / "runs" / "first"
    labels = corpus / "test_labels.txt"
    rows = labels.read_text().splitlines()
    labels.write_text("\n".join(["never_seen also_new", "never_seen", *rows[2:]]) + "\n")
    share = 3 / len(" ".join(labels.read_text().splitlines()).split())
    done = labelwise("evaluate", run, corpus, "-o", tmp_path / "scores.json")
    assert set(json.loads((tmp_path / "scores.json").read_text())["values"]) == {"P@2"}
    assert f"2 labels are unknown to the model; they are {share:.1%} of true labels" in done.out
    other = labelwise("evaluate", run, corpus, "--set", "metrics=[P@1]")
    assert "P@1" in other.out
    assert "P@2" not in other.out


def test_a_failed_run_says_so_until_it_goes_on(tmp_path, config, corpus):
    with mock.patch.object(stages, "evaluate_model", side_effect=DataError("the disk is full")):
        failed = labelwise("train", config, cwd=tmp_path, code=2)
    state = tmp_path / "runs" / "first" / "state.json"
    assert json.loads(state.read_text())["status"] == "failed"
    assert json.loads(state.read_text())["error"] in failed.err.replace("\n", " ")
    labelwise("report", tmp_path / "runs" / "first")
    assert "This run has failed: " in (tmp_path / "runs" / "first" / "report.html").read_text()
    labelwise("train", config, cwd=tmp_path)
    assert json.loads(state.read_text())["status"] == "finished"
    assert "error" not in json.loads(state.read_text())
