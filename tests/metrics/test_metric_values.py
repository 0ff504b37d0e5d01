"""Every metric against its definition in plain Python, and against scikit-learn where that has it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.metrics import f1_score, ndcg_score

from labelwise.metrics.evaluate import Evaluator, evaluate
from labelwise.topk import TopK
from metrics import brute_force
from metrics.brute_force import big_case, cases

KINDS = list(brute_force.AT_K)


def assert_agrees(case, cuts):
    names = [f"{kind}@{k}" for kind in KINDS for k in cuts]
    result = evaluate(case.top, case.matrix, names, train=np.array(case.train), train_documents=case.n_train)
    assert list(result.values) == names
    for kind in KINDS:
        for k in cuts:
            assert result[f"{kind}@{k}"] == pytest.approx(brute_force.AT_K[kind](case, k), abs=1e-12), (
                kind,
                k,
            )


@settings(max_examples=60)
@given(cases())
def test_all_metrics_agree_with_their_definition(case):
    assert_agrees(case, range(1, case.k + 1))


def test_all_metrics_agree_on_more_documents_than_one_block():
    assert_agrees(big_case(seed=3, n_documents=5000), [1, 3, 6])


@settings(max_examples=50)
@given(cases(), st.sampled_from([0.0, 0.25, 0.5, 0.6, 1.0, 2.0]))
def test_f1_at_a_threshold_agrees_with_its_definition(case, threshold):
    result = evaluate(case.top, case.matrix, list(brute_force.AT_THRESHOLD), threshold=threshold)
    lists = case.lists(threshold=threshold)
    for kind, definition in brute_force.AT_THRESHOLD.items():
        assert result[kind] == pytest.approx(definition(case, lists), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_f1_agrees_with_scikit_learn(seed):
    case = big_case(seed, 300)
    true = case.matrix.toarray()
    chosen = np.zeros_like(true)
    for row, labels in enumerate(case.lists(4)):
        chosen[row, labels] = 1
    used = (true + chosen).sum(0) > 0
    result = evaluate(case.top, case.matrix, ["micro-F1@4", "macro-F1@4", "example-F1@4"])
    for ours, theirs in (("micro", "micro"), ("macro", "macro"), ("example", "samples")):
        expected = f1_score(true[:, used], chosen[:, used], average=theirs, zero_division=0)
        assert result[f"{ours}-F1@4"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_ndcg_agrees_with_scikit_learn(k):
    case = big_case(7, 300)
    has_labels = [row for row, labels in enumerate(case.truth) if labels]
    scores = case.top.to_csr(case.n_labels).toarray()
    # scikit-learn ranks labels without a score as well: only full lists or cuts within them compare.
    full = [row for row in has_labels if len(case.predicted[row]) >= k]
    expected = ndcg_score(case.matrix.toarray()[full], scores[full], k=k, ignore_ties=True)
    assert evaluate(case.top[full], case.matrix[full], [f"nDCG@{k}"])[f"nDCG@{k}"] == pytest.approx(expected)


def test_a_worked_example():
    """Two documents by hand: labels 0 and 2 of {0, 2, 3} result at places 1 and 3; nothing result of {1}."""
    top = TopK(np.array([[0, 1, 2], [0, 2, -1]]), np.array([[0.9, 0.8, 0.7], [0.6, 0.5, -np.inf]], np.float32))
    result = evaluate(top, [[0, 2, 3], [1]], ["P@1", "P@3", "R@3", "RP@3", "nDCG@3", "coverage@3", "micro-F1@3"])
    assert result["P@1"] == 1 / 2
    assert result["P@3"] == 2 / 6
    assert result["R@3"] == result["RP@3"] == pytest.approx((2 / 3) / 2)
    assert result["nDCG@3"] == pytest.approx((1 + 0.5) / (1 + 1 / np.log2(3) + 0.5) / 2)
    assert result["coverage@3"] == 2 / 4
    assert result["micro-F1@3"] == pytest.approx(2 * 2 / (5 + 4))


def test_documents_without_labels_count_as_zero():
    top = TopK(np.array([[0], [0]]), np.ones((2, 1), np.float32))
    result = evaluate(top, [[0], []], ["P@1", "nDCG@1", "R@1", "RP@1", "example-F1@1"])
    assert set(result.values.values()) == {0.5}
    assert (result.n_documents, result.n_without_labels) == (2, 1)


def test_nothing_in_the_truth_and_nothing_predicted_is_zero_everywhere():
    top = TopK(np.full((3, 2), -1), np.full((3, 2), -np.inf, np.float32))
    names = [f"{kind}@2" for kind in KINDS]
    evaluator = Evaluator(names, 2, train=np.array([5, 1]), train_documents=9)
    evaluator.update(top, sparse.csr_array((3, 2)))
    result = evaluator.result()
    assert set(result.values.values()) == {0.0}
    assert result.n_without_labels == 3


def test_a_perfect_ranking_reaches_one_where_one_can_be_reached():
    truth = [{0, 1, 2, 3}, {4, 5, 6}]
    top = TopK(np.array([[0, 1, 2], [4, 5, 6]]), np.array([[0.9, 0.8, 0.7]] * 2, np.float32))
    counts = np.array([1, 2, 3, 400, 1, 1, 1])
    names = ["P@3", "nDCG@3", "RP@3", "PSP@3", "PSnDCG@3", "PSP@1"]
    result = evaluate(top, truth, names, train=counts, train_documents=1000)
    assert all(value == pytest.approx(1, abs=1e-12) for value in result.values.values())


@settings(max_examples=40)
@given(cases(min_documents=2), st.randoms(use_true_random=False))
def test_the_order_of_documents_and_the_numbering_of_labels_do_not_matter(case, random):
    names = [f"{kind}@{case.k}" for kind in KINDS]
    counts = np.array(case.train)
    before = evaluate(case.top, case.matrix, names, train=counts, train_documents=case.n_train)
    rows = list(range(len(case.truth)))
    random.shuffle(rows)
    numbers = list(range(case.n_labels))
    random.shuffle(numbers)
    renamed = np.array(numbers)
    moved = brute_force.Case(
        [[(numbers[label], score) for label, score in case.predicted[row]] for row in rows],
        [{numbers[label] for label in case.truth[row]} for row in rows],
        case.n_labels,
        case.k,
        counts[np.argsort(renamed)].tolist(),
        case.n_train,
    )
    after = evaluate(moved.top, moved.matrix, names, train=np.array(moved.train), train_documents=case.n_train)
    assert after.values == pytest.approx(before.values, abs=1e-12)


def test_a_threshold_is_compared_as_in_the_list():
    """0.7 as float32 is a little below 0.7; a score of 0.7 still reaches a threshold of 0.7."""
    top = TopK(np.array([[0]]), np.array([[0.7]], np.float32))
    assert evaluate(top, [[0]], ["micro-F1"], threshold=0.7)["micro-F1"] == 1.0
    assert top.above(0.7).ids.tolist() == [[0]]
    assert evaluate(top, [[0]], ["micro-F1"], threshold=0.70001)["micro-F1"] == 0.0


def test_relevances_only_say_that_a_label_is_relevant():
    top = TopK(np.array([[0, 1]]), np.array([[0.9, 0.8]], np.float32))
    graded = np.array([[0.2, 3.0, 0.0]])
    plain = np.array([[1, 1, 0]])
    names = ["P@2", "nDCG@2", "R@2"]
    assert evaluate(top, graded, names).values == evaluate(top, plain, names).values
