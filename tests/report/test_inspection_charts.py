"""Points and attention are drawn as they stand in inspection.json, in a run's report too."""

from __future__ import annotations

import json

import numpy as np
import pytest
from drawn import figure_of
from made_up_run import make_run
from made_up_study import course, inspection
from reading_pages import Page

from labelwise.report.charts import layers_chart, points_chart, side_by_side_chart, study_inspection_charts
from labelwise.report.inspection import Inspection
from labelwise.report.plots import learning_charts, run_charts
from labelwise.report.run import write_report
from labelwise.report.run_files import read_run

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

HEALTHY, COLLAPSED = (Inspection.model_validate(inspection(verdict)) for verdict in ("healthy", "collapsed"))


def test_points_of_all_runs_stand_on_one_scale():
    chart = points_chart([("good", HEALTHY), ("bad", COLLAPSED)])
    assert chart is not None
    figure = figure_of(chart)
    good, bad = figure.axes
    assert good.get_xlim() == bad.get_xlim()
    assert good.get_title("left").splitlines() == ["good", "mean cosine 0.3100, 60 % of variance"]
    lines = {line.get_label(): line.get_data() for line in good.get_lines()}
    assert list(lines) == ["other labels", "fruit & <vegetable>", "import licence"]
    points = HEALTHY.points
    assert points is not None
    for label, colour in (("other labels", -1), ("fruit & <vegetable>", 0), ("import licence", 1)):
        x = [value for value, own in zip(points.x, points.colours, strict=True) if own == colour]
        np.testing.assert_array_equal(lines[label][0], x)
    assert len({line.get_marker() for line in good.get_lines()}) == 3
    assert max(abs(value) for line in bad.get_lines() for value in line.get_xdata()) < 0.01 * good.get_xlim()[1]


def test_a_collapsed_run_alone_is_one_point_to_see():
    chart = points_chart([("", COLLAPSED)])
    assert chart is not None
    assert figure_of(chart).axes[0].get_xlim() == (-0.3, 0.3)


def test_a_map_for_each_layer_with_its_tokens():
    one = HEALTHY.attention[0]
    figure = figure_of(layers_chart("attention-1", "", one))
    maps = [axes for axes in figure.axes if axes.images]
    assert len(maps) == 6
    for axes, weights in zip(maps, one.weights, strict=True):
        np.testing.assert_allclose(np.asarray(axes.images[0].get_array()), weights)
    assert [tick.get_text() for tick in maps[0].get_yticklabels()] == list(one.tokens)
    assert [tick.get_text() for tick in maps[3].get_xticklabels()] == list(one.tokens)
    assert [tick.get_text() for tick in maps[1].get_yticklabels()] == [""] * 12
    assert maps[0].get_title("left") == "layer 1, entropy 0.500"


def test_many_layers_are_thinned_and_few_are_enough():
    for layers, shown in ((1, [1]), (4, [1, 2, 3, 4]), (12, [1, 3, 5, 8, 10, 12])):
        one = Inspection.model_validate(inspection("healthy", 1, 5, layers)).attention[0]
        maps = [axes for axes in figure_of(layers_chart("a", "", one)).axes if axes.images]
        assert [int(axes.get_title("left").split()[1].rstrip(",")) for axes in maps] == shown


def test_runs_side_by_side_share_the_scale_of_colours():
    chart = side_by_side_chart("a", [("x (healthy)", HEALTHY.attention[0]), ("y (collapsed)", COLLAPSED.attention[0])])
    maps = [axes for axes in figure_of(chart).axes if axes.images]
    assert len(maps) == 6
    assert len({axes.images[0].get_clim() for axes in maps}) == 1
    np.testing.assert_allclose(np.asarray(maps[5].images[0].get_array()), COLLAPSED.attention[0].weights[-1])
    assert "y (collapsed): entropy by layer 0.500" in chart.description


def test_charts_of_a_study_and_what_is_not_there():
    charts = study_inspection_charts([("a", HEALTHY), ("b", COLLAPSED)])
    assert [chart.name for chart in charts] == ["points", "attention-1", "attention-2", "layers-1", "layers-2"]
    assert study_inspection_charts([]) == []
    assert study_inspection_charts([("a", Inspection())]) == []
    assert points_chart([("a", Inspection())]) is None


def test_a_run_that_was_looked_into_shows_it(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "inspection.json").write_text(json.dumps(inspection("healthy", 1, 8, 2)))
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "Inside the model" in page.text
    assert len(page.attributes("image")) == 3, "two maps and the scale of colours"
    assert all(one["href"].startswith("data:image/png;base64,") for one in page.attributes("image"))


def test_learning_curves_of_train_and_valid():
    charts = {chart.title: chart for chart in learning_charts(course("healthy"))}
    assert "epoch" not in charts
    lines = course("healthy")
    train = [entry["loss"] for entry in lines if "rate" in entry]
    valid = [entry["valid_loss"] for entry in lines if "valid_loss" in entry]
    drawn = {line.get_label(): list(line.get_ydata()) for line in figure_of(charts["loss"]).axes[0].get_lines()}
    assert drawn == {"train": train, "valid": valid}
    named = learning_charts(
        [{"stage": "fit", "part": "level 2", "step": k, "split": "valid", "x": 1.0} for k in (1, 2)]
    )
    assert named[0].description.startswith("level 2 valid: ")


@pytest.mark.usefixtures("quick")
def test_a_run_tells_what_the_monitor_saw(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in course("collapsed")))
    titles = [chart.title for chart in run_charts(read_run(run))]
    assert "Collapse monitor readings" in titles
    assert not {"cosine", "effective rank", "probe loss", "floor"} & set(titles), "drawn once is enough"
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "collapsed : the vectors of all documents are one point (mean cosine 1.0000)." in page.text
    once = [entry for entry in course("collapsed") if entry.get("epoch", 0) <= 1]
    (run / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in once))
    assert "collapse" not in [chart.name for chart in run_charts(read_run(run))]
