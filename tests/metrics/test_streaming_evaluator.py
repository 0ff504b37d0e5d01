"""Documents in pieces, on any number of threads; bootstrap intervals."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError
from labelwise.metrics.evaluate import Evaluator, evaluate
from labelwise.metrics.result import ResamplingSums
from labelwise.runtime.threads import using_threads
from labelwise.strings import Strings
from labelwise.topk import TopK
from metrics import brute_force
from metrics.brute_force import Case, big_case

NAMES = [f"{kind}@{k}" for kind in brute_force.AT_K for k in (1, 4)] + list(brute_force.AT_THRESHOLD)


def evaluator(case: Case, names: list[str] = NAMES) -> Evaluator:
    return Evaluator(
        names,
        case.n_labels,
        train=np.array(case.train),
        train_documents=case.n_train,
        threshold=0.5,
        bootstrap=50,
    )


def large() -> Case:
    """More documents than two blocks hold, the same object each time."""
    return big_case(seed=11, n_documents=10_000)


@cache
def large_at_once() -> dict:
    return in_pieces(large(), [])


def in_pieces(case: Case, edges: list[int]) -> dict:
    running = evaluator(case)
    top, truth = case.top, case.matrix
    for start, stop in zip([0, *edges], [*edges, len(top)], strict=True):
        running.update(top[start:stop], truth[start:stop])
    return running.result().to_dict()


@settings(max_examples=8)
@given(st.lists(st.integers(0, 10_000), max_size=5))
def test_pieces_give_the_same_as_all_at_once_to_the_last_digit(edges):
    assert in_pieces(large(), sorted(edges)) == large_at_once()


def test_evaluate_gives_the_same_as_an_evaluator():
    whole = evaluate(
        large().top,
        large().matrix,
        NAMES,
        train=np.array(large().train),
        train_documents=large().n_train,
        threshold=0.5,
        bootstrap=50,
    )
    assert whole.to_dict() == large_at_once()


def test_the_number_of_threads_changes_nothing():
    result = []
    for count in (1, 3):
        with using_threads(count):
            result.append(in_pieces(large(), [100]))
    assert result[0] == result[1]


def test_pieces_can_have_lists_of_different_length():
    case = big_case(5, 40)
    longer = TopK(np.pad(case.top.ids, ((0, 0), (0, 3)), constant_values=-1), np.pad(case.top.scores, ((0, 0), (0, 3)), constant_values=-np.inf))  # fmt: skip
    running = evaluator(case)
    running.update(case.top[:20], case.matrix[:20])
    running.update(longer[20:], case.matrix[20:])
    once = evaluator(case)
    once.update(case.top, case.matrix)
    assert running.result().values == once.result().values


def test_labels_only_the_truth_has_are_further_columns():
    names = Strings.of(["a", "b"])
    truth = sparse.csr_array(np.array([[1, 0, 1], [0, 1, 0]]))
    test = Dataset(truth, Strings.of(["a", "b", "new"]), texts=["x", "y"])
    train = Dataset(truth[:, :2], names, texts=["x", "y"])
    top = TopK(np.array([[0], [0]]), np.ones((2, 1), np.float32), names)
    running = Evaluator(["P@1", "PSP@1"], 3, train=train, n_known=2)
    running.update(top[:1], test.take(slice(0, 1)))
    running.update(top[1:], test.take(slice(1, 2)))
    assert running.result() == evaluate(top, test, ["P@1", "PSP@1"], train=train)
    with pytest.raises(DataError, match="label id 2 is out of range"):
        running.update(TopK(np.array([[2]]), np.ones((1, 1), np.float32)), test.take(slice(0, 1)))


def test_faulty_pieces_are_refused():
    case = big_case(5, 30)
    running = evaluator(case)
    with pytest.raises(DataError, match="30 documents for 29"):
        running.update(case.top, case.matrix[:29])
    with pytest.raises(DataError, match="49 columns"):
        running.update(case.top, case.matrix[:, :49])
    with pytest.raises(ConfigError, match="predict with k=4"):
        running.update(case.top.head(2), case.matrix)
    with pytest.raises(DataError, match="no documents"):
        running.result()
    running.update(case.top, case.matrix)
    assert running.result().n_documents == 30


def test_after_a_fault_within_the_predictions_there_is_no_result():
    case = big_case(5, 30)
    ids = case.top.ids.copy()
    ids[17, 0] = 99
    running = evaluator(case)
    running.update(case.top, case.matrix)
    with pytest.raises(DataError, match="document 47, position 1: label id 99 is out of range"):
        running.update(TopK(ids, np.where(ids == -1, -np.inf, 1).astype(np.float32)), case.matrix)
    with pytest.raises(DataError, match="start again with a new Evaluator"):
        running.result()


# --- intervals -------------------------------------------------------------------------------------------------------


def test_intervals_are_those_of_resampled_documents():
    """With fewer documents than groups the interval is the percentile interval over documents."""
    case = big_case(2, 150)
    result = evaluate(case.top, case.matrix, ["P@1", "PSP@3"], train=np.array(case.train), train_documents=1000, bootstrap=4000, seed=1)  # fmt: skip
    random = np.random.default_rng(99)
    drawn = {"P@1": [], "PSP@3": []}
    for _ in range(1500):
        rows = random.integers(0, 150, 150)
        sample = Case([case.predicted[r] for r in rows], [case.truth[r] for r in rows], 50, 6, case.train, 1000)
        drawn["P@1"].append(brute_force.precision(sample, 1))
        drawn["PSP@3"].append(brute_force.ps_precision(sample, 3))
    for name, values in drawn.items():
        width = np.ptp(result.intervals[name])
        assert result.intervals[name] == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.12 * width)


def test_intervals_hold_the_figure_and_shrink_with_more_documents():
    widths = []
    for count in (300, 8000):
        case = big_case(4, count)
        result = evaluate(case.top, case.matrix, NAMES, train=np.array(case.train), train_documents=1000, threshold=0.5, bootstrap=200)  # fmt: skip
        assert set(result.intervals) == {n for n in NAMES if not n.startswith(("coverage", "macro"))}
        for name, (low, high) in result.intervals.items():
            assert 0 <= low < result[name] < high <= 1, name
        widths.append(np.diff(result.intervals["P@1"])[0])
    # The width falls with the square root of the number of documents: sqrt(8000 / 300) is 5.2.
    assert 3.5 < widths[0] / widths[1] < 7.5


def test_intervals_over_groups_are_as_wide_as_over_documents():
    """The 10,000 documents of the large case share 4096 groups; P@1 is a proportion, whose error is known."""
    result = evaluate(large().top, large().matrix, ["P@1"], bootstrap=1000)
    low, high = result.intervals["P@1"]
    p = result["P@1"]
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(p * (1 - p) / 10_000), rel=0.12)


def test_intervals_depend_on_the_seed_only():
    case = big_case(4, 100)
    result = [evaluate(case.top, case.matrix, ["P@1"], bootstrap=30, seed=seed).intervals for seed in (1, 1, 2)]
    assert result[0] == result[1] != result[2]
    assert evaluate(case.top, case.matrix, ["P@1"]).intervals == {}


def test_numerator_and_denominator_are_drawn_together():
    """If one is always twice the other, every resampled ratio is 2."""
    below = np.random.default_rng(0).random((1, 4096))
    sums = ResamplingSums(("P@1",), 2 * below, below, 9999, 0)
    assert sums.intervals(300, 0)["P@1"] == pytest.approx((2, 2))


@pytest.mark.parametrize("repeats", [-1, 1.5, True, "many"])
def test_faulty_repeats_are_refused(repeats):
    case = big_case(4, 10)
    with pytest.raises(ConfigError, match="bootstrap"):
        evaluate(case.top, case.matrix, ["P@1"], bootstrap=repeats)


def test_truth_in_another_label_space_of_the_same_size_is_refused():
    labels = sparse.csr_array(np.eye(3, dtype=np.float32))
    test = Dataset(labels, ["b", "c", "d"], texts=["x", "y", "z"])
    top = TopK(np.array([[0], [1], [2]]), np.ones((3, 1)), Strings.of(["a", "b", "c"]))
    with pytest.raises(DataError, match="align"):
        Evaluator(["P@1"], n_labels=3).update(top, test)
    aligned = test.align(top.label_names)
    evaluator = Evaluator(["P@1"], n_labels=aligned.n_labels, n_known=3)
    evaluator.update(top, aligned)
    assert evaluator.result()["P@1"] == 0
