"""The curve over thresholds against counts in plain Python, and its chart."""

import numpy as np
import pytest

import labelwise as lw
from labelwise.model.calibration import CURVE_STEPS, _threshold_curve
from labelwise.report.charts import threshold_chart
from labelwise.report.schema import Calibration
from labelwise.testing.subject import planted_texts


def test_figures_are_those_of_the_labels_that_reach_the_threshold():
    rng = np.random.default_rng(0)
    probabilities = np.round(rng.random(200), 2).astype(np.float32) * np.float32(0.9)
    right, n_true = rng.random(200) < probabilities, 150
    curve = _threshold_curve(probabilities, right, n_true)
    assert len(curve) == CURVE_STEPS - 1
    for point in curve:
        reached = probabilities >= np.float32(point.threshold)
        hits = int((right & reached).sum())
        assert point.recall == pytest.approx(hits / n_true)
        assert point.precision == (pytest.approx(hits / reached.sum()) if reached.any() else None)
        assert point.f1 == pytest.approx(2 * hits / (reached.sum() + n_true))
    assert curve[-1].precision is None, "no probability is above 0.9"


def test_a_calibration_has_a_curve_that_reports_draw():
    report = lw.Popularity().fit(planted_texts(60, 8)).calibrate(planted_texts(60, 8, seed=1), k=5)
    read = Calibration.model_validate(report.to_dict())
    assert [point.threshold for point in read.curve] == [point.threshold for point in report.curve]
    recalls = [point.recall for point in report.curve]
    assert recalls == sorted(recalls, reverse=True)
    chart = threshold_chart(read)
    assert chart is not None
    assert "precision" in chart.description
    assert threshold_chart(read.model_copy(update={"curve": ()})) is None, "of a run from before there was one"
