"""Which labels hits come from, and what equal scores can move."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given

from labelwise.errors import ConfigError
from labelwise.metrics.evaluate import evaluate
from labelwise.topk import TopK
from metrics.brute_force import big_case, cases


@given(cases())
def test_contributions_add_up_and_recalls_are_those_of_the_group(case):
    cuts = sorted({1, case.k})
    result = evaluate(case.top, case.matrix, [f"P@{k}" for k in cuts], train=np.array(case.train), groups=(3, 30, 300))
    assert [row.name for row in result.groups] == ["300+", "30-299", "3-29", "1-2", "unseen"]
    assert sum(row.n_labels for row in result.groups) == case.n_labels
    assert sum(row.occurrences for row in result.groups) == sum(map(len, case.truth))
    for k in cuts:
        assert sum(row.contribution[k] for row in result.groups) == pytest.approx(result[f"P@{k}"], abs=1e-12)
    for row in result.groups:
        high = float("inf") if row.high is None else row.high
        members = {label for label, count in enumerate(case.train) if row.low <= count <= high}
        assert row.n_labels == len(members)
        assert row.n_test_labels == len(members & set().union(*case.truth))
        occurrences = sum(len(labels & members) for labels in case.truth)
        assert row.occurrences == occurrences
        for k in cuts:
            pairs = zip(case.lists(k), case.truth, strict=True)
            hits = sum(len(set(labels) & true & members) for labels, true in pairs)
            assert row.recall[k] == pytest.approx(hits / occurrences if occurrences else 0.0)


def test_the_usual_groups_have_names_and_shares():
    top = TopK(np.array([[0, 3]]), np.array([[0.9, 0.1]], np.float32))
    result = evaluate(top, [[0, 1, 2, 3]], ["P@2"], train=np.array([100, 99, 9, 0]), train_documents=200)
    assert [(row.name, row.low, row.high) for row in result.groups] == [
        ("head", 100, None),
        ("torso", 10, 99),
        ("tail", 1, 9),
        ("unseen", 0, 0),
    ]
    assert [row.share for row in result.groups] == [0.25] * 4
    assert [row.contribution[2] for row in result.groups] == [0.5, 0.0, 0.0, 0.5]
    assert [row.recall[2] for row in result.groups] == [1.0, 0.0, 0.0, 1.0]


def test_groups_can_be_left_out_and_need_training_counts():
    case = big_case(0, 50)
    assert evaluate(case.top, case.matrix, ["P@1"]).groups == []
    assert evaluate(case.top, case.matrix, ["P@1"], train=np.array(case.train), groups=()).groups == []
    assert evaluate(case.top, case.matrix, ["P@1"], train=np.array(case.train), groups=None).groups == []


@pytest.mark.parametrize("groups", [(100, 10), (1, 10), (10, 10), (0.5, 7), ("a",), 10])
def test_faulty_group_boundaries_are_refused(groups):
    case = big_case(0, 10)
    with pytest.raises(ConfigError, match=r"\(10, 100\)"):
        evaluate(case.top, case.matrix, ["P@1"], train=np.array(case.train), groups=groups)


@given(cases())
def test_precision_lies_in_its_tie_range(case):
    names = [f"P@{k}" for k in range(1, case.k + 1)]
    result = evaluate(case.top, case.matrix, names)
    assert list(result.ties) == names
    for name, (low, high) in result.ties.items():
        assert low - 1e-12 <= result[name] <= high + 1e-12
    distinct = all(len({score for _, score in row}) == len(row) for row in case.predicted)
    if distinct:
        assert all(low == high for low, high in result.ties.values())
        assert set(result.ties_cut_off.values()) == {0}


def test_ties_that_matter_are_warned_of(caplog):
    top = TopK(np.array([[0, 1, 2, 3]]), np.array([[0.9, 0.5, 0.5, 0.1]], np.float32))
    with caplog.at_level(logging.WARNING):
        result = evaluate(top, [[0, 1]], ["P@1", "P@2"])
    assert result.ties == {"P@1": (1.0, 1.0), "P@2": (0.5, 1.0)}
    assert result.ties_cut_off == {"P@1": 0, "P@2": 0}
    assert [record.getMessage() for record in caplog.records] == [
        "some labels of a document have equal scores: in another order P@2 could be 50.00 to 100.00"
    ]


def test_a_tie_that_the_list_cuts_off_is_told(caplog):
    top = TopK(np.array([[0, 1, 2]]), np.array([[0.5, 0.5, 0.5]], np.float32))
    with caplog.at_level(logging.WARNING):
        result = evaluate(top, [[1]], ["P@1"])
    assert (result.ties, result.ties_cut_off) == ({"P@1": (0.0, 1.0)}, {"P@1": 1})
    assert "or more" in caplog.text


def test_without_ties_nothing_is_warned_of(caplog):
    case = big_case(1, 200)
    with caplog.at_level(logging.WARNING):
        evaluate(case.top, case.matrix)
    assert not caplog.records


def test_lists_that_all_reach_the_threshold_are_warned_of(caplog):
    top = TopK(np.array([[0, 1], [0, 1]]), np.array([[0.9, 0.8], [0.9, 0.1]], np.float32))
    with caplog.at_level(logging.WARNING):
        evaluate(top, [[0], [1]], ["micro-F1"], threshold=0.5)
    assert "in 1 documents every listed prediction reaches the threshold" in caplog.text
