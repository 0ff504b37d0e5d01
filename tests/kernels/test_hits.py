"""The kernels of the metrics against reference implementations, and what they refuse."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference_kernels as reference
from labelwise.kernels import metrics as kernels
from metrics.brute_force import Case, cases


def run_find_hits(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[int, int, int]]:
    top, truth = case.top, case.matrix
    found = np.full(top.ids.shape, 7, np.uint8)
    filled = np.full(len(top), 7, np.int64)
    indptr, indices = truth.indptr.astype(np.int64), truth.indices.astype(np.int32)
    problem = kernels.find_hits(top.ids, top.scores, indptr, indices, case.n_labels, found, filled)
    return found, filled, indptr, indices, problem


@given(cases())
def test_hits_are_those_of_the_reference(case):
    found, filled, _, _, problem = run_find_hits(case)
    hits, count = reference.find_hits(case.top.ids.tolist(), case.truth)
    assert problem[0] == kernels.FINE
    assert found.tolist() == hits
    assert filled.tolist() == count


@given(cases(), st.integers(1, 6), st.data())
def test_best_weights_are_those_of_the_reference(case, n_ranks, data):
    weights = data.draw(st.lists(st.integers(1, 5), min_size=case.n_labels, max_size=case.n_labels))
    truth = case.matrix
    best = np.full((len(case.truth), n_ranks), -1.0)
    kernels.best_weights(truth.indptr.astype(np.int64), truth.indices.astype(np.int32), np.array(weights, float), best)
    assert best.tolist() == reference.best_weights(case.truth, weights, n_ranks)


@given(cases())
def test_tie_ranges_are_those_of_all_orders(case):
    """The reference is checked against every order of the predictions as well."""
    found, filled, _, _, _ = run_find_hits(case)
    cuts = np.arange(1, case.k + 1)
    lowest, highest, cut_off = totals = np.zeros((3, len(cuts)), np.int64)
    kernels.tie_range(case.top.scores, found, filled, cuts, lowest, highest, cut_off)
    expected = np.zeros_like(totals)
    for row, pairs in enumerate(case.predicted):
        scores = [score for _, score in pairs]
        marks = found[row, : filled[row]].tolist()
        for which, cut in enumerate(cuts):
            low, high = reference.tie_range(scores, marks, cut)
            if len(pairs) <= 5:
                orders = [
                    sum(marks[i] for i in order[:cut])
                    for order in permutations(range(len(pairs)))
                    if [scores[i] for i in order] == scores
                ]
                assert (low, high) == (min(orders), max(orders))
            expected[:2, which] += low, high
            ends_with = scores[cut - 1 :] if len(pairs) == case.k else []
            expected[2, which] += bool(ends_with) and ends_with[0] == ends_with[-1] and scores.count(ends_with[0]) > 1
    assert totals.tolist() == expected.tolist()


@given(cases(), st.data())
def test_label_counts_are_those_of_the_reference(case, data):
    found, filled, _, _, _ = run_find_hits(case)
    lengths = [data.draw(st.integers(0, int(count))) for count in filled]
    predicted, correct = np.zeros((2, case.n_labels), np.int64)
    kernels.count_labels(case.top.ids, found, np.array(lengths), predicted, correct)
    expected = reference.count_labels(case.top.ids.tolist(), found.tolist(), lengths, case.n_labels)
    assert (predicted.tolist(), correct.tolist()) == expected


@given(cases())
def test_first_ranks_are_those_of_the_reference(case):
    found, _, _, _, _ = run_find_hits(case)
    best = np.full(case.n_labels, 99, np.int32)
    kernels.first_ranks(case.top.ids, found, case.k, best)
    expected = reference.first_ranks(case.top.ids.tolist(), found.tolist(), case.k)
    assert {label: rank for label, rank in enumerate(best.tolist()) if rank != 99} == expected


@pytest.mark.parametrize(
    ("ids", "scores", "problem", "rank"),
    [
        ([3, 5], [0.5, 0.4], kernels.OUT_OF_RANGE, 1),
        ([-2, 1], [0.5, 0.4], kernels.OUT_OF_RANGE, 0),
        ([3, 3], [0.5, 0.4], kernels.DUPLICATE, 1),
        ([3, 1], [np.nan, 0.4], kernels.SCORE_IS_NAN, 0),
        ([3, 1], [0.4, 0.5], kernels.UNSORTED, 1),
        ([-1, 1], [-np.inf, -np.inf], kernels.AFTER_PADDING, 1),
        ([-1, -1], [np.nan, np.nan], kernels.FINE, 0),
        ([3, 1], [0.5, 0.5], kernels.FINE, 0),
        ([3, 1], [np.inf, -np.inf], kernels.FINE, 0),
    ],
)
def test_faulty_predictions_are_named(ids, scores, problem, rank):
    """The fault is in the second row; the first is fine."""
    rows = np.array([[0, 1], ids], np.int32)
    values = np.array([[0.9, 0.1], scores], np.float32)
    found, filled = np.zeros((2, 2), np.uint8), np.zeros(2, np.int64)
    answer = kernels.find_hits(rows, values, np.array([0, 1, 2]), np.array([1, 3], np.int32), 5, found, filled)
    assert answer == (problem, 0 if problem == kernels.FINE else 1, rank)
