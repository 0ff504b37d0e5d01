"""Charts: as files, from curves, and what is left out."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from drawn import leave_out_drawing
from made_up_run import make_run

from labelwise.errors import ConfigError, DataError
from labelwise.report.charts import SERIES, thinned
from labelwise.report.plots import (
    families,
    frequency_chart,
    learning_charts,
    recall_chart,
    run_charts,
    save_plots,
)
from labelwise.report.run_files import read_run
from labelwise.report.schema import Curve, LabelGroup

pytest.importorskip("matplotlib")


def test_plots_are_saved_in_every_kind(tmp_path):
    run = make_run(tmp_path / "run", curves=True)
    written = save_plots(run, tmp_path / "plots" / "deep", kinds=("svg", "png", "pdf"))
    names = ["scores", "groups", "contribution", "label-scores", "frequencies", "learning-1", "learning-2"]
    assert [path.name for path in written] == [f"{name}.{kind}" for name in names for kind in ("svg", "png", "pdf")]
    assert sorted(path.name for path in (tmp_path / "plots" / "deep").iterdir()) == sorted(p.name for p in written)
    begins = {".png": b"\x89PNG\r\n", ".pdf": b"%PDF-", ".svg": b"<?xml"}
    for path in written:
        assert path.read_bytes().startswith(begins[path.suffix])


def test_saved_plots_are_the_same_each_time(tmp_path):
    run = make_run(tmp_path / "run")
    first = [path.read_bytes() for path in save_plots(run, tmp_path / "one", ["svg"])]
    assert [path.read_bytes() for path in save_plots(run, tmp_path / "two", ["svg"])] == first


def test_an_unknown_kind_is_refused_before_anything_is_written(tmp_path):
    run = make_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="did you mean 'svg'"):
        save_plots(run, tmp_path / "plots", kinds=("png", "svgg"))
    assert not (tmp_path / "plots").exists()


def test_plots_replace_files_only_when_forced(tmp_path, monkeypatch):
    leave_out_drawing(monkeypatch)
    run = make_run(tmp_path / "run")
    (tmp_path / "plots").mkdir()
    mine = tmp_path / "plots" / "groups.svg"
    mine.write_text("mine", encoding="utf-8")
    with pytest.raises(DataError, match=r"groups\.svg exists already"):
        save_plots(run, tmp_path / "plots", ["svg"])
    assert [path.read_text(encoding="utf-8") for path in (tmp_path / "plots").iterdir()] == ["mine"]
    assert mine in save_plots(run, tmp_path / "plots", ["svg"], force=True)
    assert mine.read_bytes().startswith(b"<?xml")


def test_small_bars_are_not_called_nothing():
    groups = [LabelGroup(name="tail", occurrences=9, recall={1: 0.0, 5: 0.0005, 10: None})]
    chart = recall_chart(groups)
    assert chart is not None
    text = [e.text for e in ElementTree.fromstring(chart.file("svg")).iter() if e.tag.endswith("text")]
    assert "0.05" in text
    assert chart.description == "In per cent, tail: 0.00 in the top 1, 0.05 in the top 5, – in the top 10."


def test_a_chart_shows_the_figures_it_is_given(tmp_path):
    charts = {chart.name: chart for chart in run_charts(read_run(make_run(tmp_path / "run")))}
    text = [e.text for e in ElementTree.fromstring(charts["groups"].file("svg")).iter() if e.tag.endswith("text")]
    for shown in ("76", "55", "21", "in the top 3", "recall, %"):
        assert shown in text
    inline = charts["groups"].inline_svg()
    assert "var(--series-1)" in inline
    assert not any(colour in inline for colour in SERIES)
    assert "http" not in inline


def test_families_need_two_cut_offs():
    values = {"P@1": 0.9, "R@5": 0.7, "P@3": 0.8, "micro-F1": 0.5, "nDCG@3": None, "nDCG@5": 0.6}
    assert families(values) == {"P": [(1, 0.9), (3, 0.8)]}


def test_learning_curves_take_numbers_with_two_steps_and_the_later_figure():
    entries = [
        {"time": 0, "stage": "fit", "step": 1, "loss": 5.0, "once": 1.0, "word": "x", "flag": True},
        {"time": 1, "stage": "fit", "step": 2, "loss": 4.0, "gone": None},
        {"time": 2, "stage": "fit", "step": 2, "loss": 3.0},
        {"time": 3, "stage": "fit", "step": None, "seconds": 9.0},
        {"time": 4, "stage": "fit", "step": 3, "split": "valid", "P@1": 0.5},
        {"time": 5, "stage": "fit", "step": 4, "split": "valid", "P@1": 0.75, "loss": 9.0},
        {"time": 6, "step": 5, "loss": float("inf")},
    ]
    charts = learning_charts(entries)
    assert [(chart.name, chart.title) for chart in charts] == [("learning-1", "loss"), ("learning-2", "P@1")]
    assert charts[0].description == "fit: from 5 at step 1 to 3 at step 2."
    assert charts[1].description == "fit valid: from 0.5 at step 3 to 0.75 at step 4."
    assert all(chart.inline_svg().startswith("<svg") for chart in charts)


def test_nothing_to_draw_is_no_chart():
    assert learning_charts([]) == []
    assert recall_chart([]) is None
    assert recall_chart([LabelGroup(name="head", occurrences=0, recall={1: 0.0})]) is None
    assert frequency_chart(None) is None
    assert frequency_chart(Curve(rank=(1,), count=(5,))) is None
    assert frequency_chart(Curve(rank=(1, 2), count=(0, 0))) is None


def test_thinning_keeps_both_ends_and_order():
    assert thinned([1, 2, 3], 5) == [1, 2, 3]
    some = thinned(list(range(1000)), 7)
    assert len(some) == 7
    assert (some[0], some[-1]) == (0, 999)
    assert some == sorted(set(some))
