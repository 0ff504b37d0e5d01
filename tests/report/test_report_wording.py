"""Numbers in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwise.formatting import (
    MISSING,
    cut,
    duration,
    number,
    percent,
    size,
)
from labelwise.report.wording import bar_percent, family_and_k, sorted_metrics


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (None, MISSING),
        (0, "0 ms"),
        (0.0001, "<1 ms"),
        (0.61, "610 ms"),
        (0.9996, "1.0 s"),
        (13.42, "13.4 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (252, "4 min 12 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations(seconds, written):
    assert duration(seconds) == written


@pytest.mark.parametrize(
    ("amount", "written"),
    [(None, MISSING), (0, "0 bytes"), (999, "999 bytes"), (999.6, "1.0 kB"), (88_412_000, "88.4 MB"),
     (412_300_000, "412 MB"), (999_999_999, "1.0 GB"), (1.31e9, "1.3 GB"), (5e18, "5,000 PB")],
)  # fmt: skip
def test_sizes(amount, written):
    assert size(amount) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, MISSING), (45000, "45,000"), (5.0662, "5.066"), (8.0, "8"), (1234.5, "1,234"), ("word", "word"),
     (True, "True"), (float("inf"), "inf"), (0.00001234, "1.234e-05")],
)  # fmt: skip
def test_numbers(value, written):
    assert number(value) == written


def test_percent():
    assert percent(0.91651) == "91.65"
    assert percent(0.5, 1) == "50.0"
    assert percent(None) == MISSING


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (0.0001, "<0.01"), (0.05, "0.05"), (0.17, "0.2"), (0.94, "0.9"), (0.96, "0.96"), (5.32, "5.3"),
     (9.96, "10"), (76.4, "76"), (100, "100")],
)  # fmt: skip
def test_bars_are_only_nothing_where_there_is_nothing(value, written):
    assert bar_percent(value) == written


@given(st.text(), st.integers(2, 40))
def test_cut_text_is_short_and_on_one_line(text, length):
    short = cut(text, length)
    assert len(short) <= length
    assert short.isprintable()


def test_metric_names():
    assert family_and_k("nDCG@5") == ("nDCG", 5)
    assert family_and_k("micro-F1") == ("micro-F1", None)
    given = ["R@5", "nDCG@10", "micro-F1", "P@10", "nDCG@3", "P@1", "PSP@1", "P@10"]
    assert sorted_metrics(given) == ["P@1", "P@10", "nDCG@3", "nDCG@10", "PSP@1", "R@5", "micro-F1"]
