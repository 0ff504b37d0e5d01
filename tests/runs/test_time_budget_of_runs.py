"""The time budget of a run, on a clock that the tests move."""

import json

import pytest

import labelwise as lw
from cli.commands import labelwise
from common import Clock
from conformance.planted import planted
from labelwise.linear.model import LinearModel
from labelwise.runs.run_time import RunTime


@pytest.fixture
def clock(monkeypatch):
    moved = Clock()
    monkeypatch.setattr("time.monotonic", moved)
    return moved


@pytest.fixture
def config(tmp_path):
    data = planted("texts", n_documents=600, n_labels=20)
    lw.write(data, tmp_path / "data.jsonl")
    lines = (tmp_path / "data.jsonl").read_text().splitlines()
    rare = [{**json.loads(line), "labels": [f"only {number}"]} for number, line in enumerate(lines[::6])]
    with (tmp_path / "data.jsonl").open("a") as file:  # labels of single documents, most of them not evaluated
        file.writelines(json.dumps({**one, "text": f"{one['text']} again"}) + "\n" for one in rare)
    values = {
        "data": {"train": str(tmp_path / "data.jsonl"), "test_fraction": 0.5, "valid_fraction": 0.4},
        "model": {"method": "linear_tree", "trees": 1},
        "run": {"folder": str(tmp_path / "run"), "time_budget": 100.0, "report": False},
    }
    (tmp_path / "run.yml").write_text(json.dumps(values))
    return tmp_path / "run.yml"


def test_stages_have_their_parts(clock, tmp_path):
    times = RunTime(300.0, tmp_path / "time.json")
    clock.now += 20
    assert times.for_fit(refit=False).remaining() == 280 - 70
    clock.now += 200
    assert times.for_evaluation().remaining() == 80 - 18
    assert times.for_calibration(has_test=True).remaining() == pytest.approx(62 / 3)
    assert times.for_calibration(has_test=False).remaining() == pytest.approx(62)
    assert (times.allows("report", 79.0), times.allows("report", 81.0)) == (True, False)
    times.interrupted()
    again = RunTime(300.0, tmp_path / "time.json")
    assert again.budget.remaining() == 80, "what was spent before is not given again"
    assert again.for_fit(refit=False).remaining() == 40, "never more than half is reserved"
    twice = RunTime(300.0, tmp_path / "other.json")
    assert twice.for_fit(refit=True).remaining() == 115
    clock.now += 115
    assert twice.for_evaluation().remaining() == 300 - 115 - 18 - 115
    unlimited = RunTime(None, tmp_path / "none.json")
    assert not unlimited.for_fit(refit=False).is_limited
    assert unlimited.allows("report", 1e9)


def test_scores_are_those_of_the_documents_there_was_time_for(clock, config, monkeypatch):
    best = LinearModel.top

    def slow(self, documents, k, config):
        clock.now += 0.5 * len(documents)
        return best(self, documents, k, config)

    monkeypatch.setattr(LinearModel, "top", slow)
    done = labelwise("train", config)
    run = config.parent / "run"
    results = json.loads((run / "results.json").read_text())
    assert 32 <= results["n_documents"] < results["n_available"] == 350
    assert results["n_documents"] == results["evaluation"]["n_documents"]
    calibration = json.loads((run / "calibration.json").read_text())
    assert 32 <= calibration["n_documents"] < 120
    assert clock.now - 1000 <= 100.0
    assert "calibrating: ended by the time budget" in done.err
    assert any("the time budget ended the prediction" in remark for remark in results["remarks"])
    fitted = f"calibration: fitted on {calibration['n_documents']} of {calibration['n_available']} documents: the time"
    assert any(remark.startswith(fitted) for remark in results["remarks"])
    assert not (run / "time.json").exists()
    limited = labelwise("train", config, "--set", "run.folder=" + str(config.parent / "other"), "--set",
                        "run.time_budget=null", "--set", f"evaluate.limit={results['n_documents']}", "--set",
                        "calibrate.enabled=false")  # fmt: skip
    other = json.loads((config.parent / "other" / "results.json").read_text())
    assert other["evaluation"]["values"]["P@1"] == results["evaluation"]["values"]["P@1"], "the same sample"
    assert "time budget" not in limited.err


def test_a_run_that_was_stopped_does_not_get_its_time_again(clock, config, monkeypatch):
    class Killed(Exception):
        pass

    def stopped(*_arguments):
        clock.now += 30
        raise Killed

    run = config.parent / "run"
    with monkeypatch.context() as patch:
        patch.setattr("labelwise.runs.train._load_or_fit", stopped)
        with pytest.raises(Killed):
            labelwise("train", config)
    assert json.loads((run / "time.json").read_text()) == {"seconds": 30.0}
    budgets = []
    fit = lw.LinearTree._fit

    def noted(self, train, valid, job):
        budgets.append(job.budget.remaining())
        return fit(self, train, valid, job)

    monkeypatch.setattr(lw.LinearTree, "_fit", noted)
    labelwise("train", config)
    assert budgets == [100 - 30 - 30]
