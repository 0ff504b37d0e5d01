"""The report's section on probabilities: table, sentences and chart."""

from __future__ import annotations

import json

import pytest
from made_up_run import make_run

from labelwise.errors import DataError
from labelwise.report.plots import reliability_chart, run_charts
from labelwise.report.run import write_report
from labelwise.report.run_files import read_run
from labelwise.report.schema import Calibration

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def a_calibration(**changes):
    bins = [
        {"low": b / 10, "high": (b + 1) / 10, "pairs": 50 * b, "mean": b / 10 + 0.05, "share": b / 10}
        for b in range(10)
    ]
    bins[0].update(mean=None, share=None)
    return {
        "n_documents": 6000, "n_pairs": 120_000, "n_true": 30_000, "k": 20, "wanted_precision": None, "reached": True,
        "threshold": 0.3746, "precision": 0.7615, "recall": 0.7135, "f1": 0.7367, "error_before": 0.0597,
        "error_after": 0.0009, "before": bins, "after": bins, **changes,
    }  # fmt: skip


def run_with(folder, **changes):
    run = make_run(folder)
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    results["calibration"] = a_calibration(**changes)
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return run


def test_the_page_tells_threshold_and_reliability(tmp_path):
    page = write_report(run_with(tmp_path / "run")).read_text(encoding="utf-8")
    assert 'id="calibration"' in page
    assert "for the best micro-F1 is 0.3746" in page
    assert "precision 76.15 %" in page
    assert "Calibration error 0.09 %, before 5.97 %" in page
    assert "Probabilities against the truth" in page


@pytest.mark.usefixtures("quick")
def test_a_wanted_precision_and_scores_that_were_none(tmp_path):
    run = run_with(tmp_path / "run", wanted_precision=0.9, reached=False, before=[], error_before=None)
    page = write_report(run).read_text(encoding="utf-8")
    assert "for a precision of 90.0 % (not reachable; the nearest was used)" in page
    assert "reliability" in [chart.name for chart in run_charts(read_run(run))]


@pytest.mark.usefixtures("quick")
def test_runs_without_it_have_no_section(tmp_path):
    assert 'id="calibration"' not in write_report(make_run(tmp_path / "run")).read_text(encoding="utf-8")
    assert reliability_chart(None) is None
    assert reliability_chart(Calibration(threshold=0.5)) is None


def test_a_damaged_calibration_is_named(tmp_path):
    with pytest.raises(DataError, match=r"calibration\.threshold"):
        read_run(run_with(tmp_path / "run", threshold="high"))
