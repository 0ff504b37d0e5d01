"""Metric names: read in any case, written in one, and refused with a hint."""

from __future__ import annotations

import subprocess
import sys

import pytest

from labelwise.errors import ConfigError
from labelwise.metrics.names import (
    Metric,
    check_depth,
    default_metrics,
    parse_metric,
    parse_metrics,
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("p@5", "P@5"),
        ("NDCG@3", "nDCG@3"),
        ("r@10", "R@10"),
        ("rp@5", "RP@5"),
        ("psp@1", "PSP@1"),
        ("PSNDCG@5", "PSnDCG@5"),
        ("Coverage@5", "coverage@5"),
        ("MACRO-f1", "macro-F1"),
        ("micro_f1@5", "micro-F1@5"),
        (" example-F1 @ 7 ", "example-F1@7"),
        ("P@05", "P@5"),
    ],
)
def test_names_are_written_in_one_way(text, name):
    assert parse_metric(text).name == name
    assert parse_metric(name) == parse_metric(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("nDGC@5", "did you mean 'nDCG@5'"),
        ("PSPP@3", "did you mean 'PSP@3'"),
        ("makro-F1", "did you mean 'macro-F1'"),
        ("accuracy", "accepted: P@5"),
        ("P", "'P@5'"),
        ("coverage", "'coverage@5'"),
        ("P@0", "starts at 1"),
        ("P@-1", "no metric"),
        ("P@five", "no metric"),
        ("P@5@5", "no metric"),
        ("P@٣", "no metric"),
        ("", "no metric"),
        (5, "a metric is a name"),
    ],
)
def test_unknown_names_are_refused_with_a_hint(text, hint):
    with pytest.raises(ConfigError, match=hint):
        parse_metric(text)


def test_lists_keep_their_order_and_name_each_metric_once():
    assert [m.name for m in parse_metrics(["r@5", "P@1", "R@5", "p@1"])] == ["R@5", "P@1"]
    assert parse_metrics("P@1") == [Metric("P", 1)]
    with pytest.raises(ConfigError, match="at least one"):
        parse_metrics([])


def test_defaults_fit_the_lists():
    assert default_metrics(5) == ["P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "R@5"]
    assert default_metrics(3, propensity=True) == ["P@1", "P@3", "nDCG@3", "PSP@1", "PSP@3"]
    assert default_metrics(1, threshold=True) == ["P@1", "micro-F1", "macro-F1", "example-F1"]
    check_depth(parse_metrics(default_metrics(3, True, True)), 3)


def test_a_metric_beyond_the_list_says_to_predict_more():
    with pytest.raises(ConfigError, match=r"P@10 .* there are 5; .* k=10"):
        check_depth(parse_metrics(["P@5", "P@10"]), 5)


def test_names_and_results_load_without_the_compiler():
    code = "import sys, labelwise.metrics.names, labelwise.metrics.result; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
