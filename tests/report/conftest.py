"""Fixtures of the tests of reports."""

import pytest

from labelwise.report.charts import Chart


@pytest.fixture
def quick(monkeypatch) -> None:
    """Leave out the drawing where a test is about something else: it takes most of the time."""
    monkeypatch.setattr(Chart, "inline_svg", lambda chart: f"<svg>{chart.name}</svg>")
