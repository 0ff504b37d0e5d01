"""Mixed-radix codes: digits against plain division, orders of labels, and the best labels against all sums."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.errors import ConfigError
from labelwise.labelspace import digits as digit_search
from labelwise.labelspace.digits import (
    DigitCode,
    balanced_radices,
    best_labels_of_digits,
    group_radices,
    make_code,
)

radices_and_labels = st.lists(st.integers(1, 5), min_size=1, max_size=4).flatmap(
    lambda radices: st.tuples(st.just(tuple(radices)), st.integers(max(radices), prod(radices)))
)


@given(radices_and_labels, st.sampled_from(["index", "random", "frequency"]))
@settings(max_examples=60, deadline=None)
def test_digits_are_those_of_a_counter(case, order):
    radices, n_labels = case
    code = make_code(radices, n_labels, order, np.arange(n_labels), 0)
    counter = np.array(list(product(*map(range, radices))))
    labels = code.labels(np.arange(prod(radices)))
    assert (labels[n_labels:] == -1).all()
    assert code.surplus == prod(radices) - n_labels
    assert sorted(labels[:n_labels]) == list(range(n_labels))
    np.testing.assert_array_equal(code.encode(labels[:n_labels]), counter[:n_labels])
    np.testing.assert_array_equal(code.labels((counter * np.array(code.places)).sum(-1)), labels)
    for digit, radix in enumerate(radices):
        assert code.sizes[digit] == len(np.unique(counter[:n_labels, digit])) <= radix
        prefixes = np.unique(counter[:n_labels, : digit + 1], axis=0)
        assert code.n_nodes(digit) == len(prefixes)


@given(
    radices_and_labels, st.integers(1, 6), st.integers(0, 10**6), st.booleans(), st.sampled_from(["index", "random"])
)
@settings(max_examples=120, deadline=None)
def test_the_best_labels_are_those_of_all_sums(case, k, seed, tied, order):
    radices, n_labels = case
    k = min(k, n_labels)
    rng = np.random.default_rng(seed)
    code = make_code(radices, n_labels, order, np.ones(n_labels), seed)
    scores = rng.normal(size=(3, sum(code.sizes))).astype(np.float32)
    if tied:
        scores = np.round(scores)
    starts = np.concatenate([[0], np.cumsum(code.sizes)[:-1]])
    digits = code.encode(np.arange(n_labels)) + starts
    sums = np.zeros((3, n_labels), np.float32)
    for column in digits.T:
        sums += scores[:, column]
    expected = np.argsort(-sums, axis=1, kind="stable")[:, :k]
    ids, best = best_labels_of_digits(scores, code, k)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(best, np.take_along_axis(sums, expected, 1))


@pytest.mark.parametrize("k", [40, 57, 60])
def test_many_best_labels_are_sorted_not_inserted(k, monkeypatch):
    """Inserting every label into a list of all labels takes their square; both ways find the same."""
    code = make_code((3, 4, 5), 57, "random", np.ones(57), 0)
    scores = np.round(np.random.default_rng(k).normal(size=(4, 12)), 1).astype(np.float32)
    scores[2, 3], scores[3, 1] = -np.inf, np.nan
    monkeypatch.setattr(digit_search, "best_codes", None)
    found = best_labels_of_digits(scores, code, k)
    monkeypatch.undo()
    monkeypatch.setattr(digit_search, "INSERTIONS_PER_LABEL", 10**9)
    for one, other in zip(found, best_labels_of_digits(scores, code, k), strict=True):
        np.testing.assert_array_equal(one, other)


def test_nothing_is_found_by_scores_that_are_no_numbers():
    code = DigitCode((3, 4), 10)
    ids, best = best_labels_of_digits(np.full((2, 7), np.nan, np.float32), code, 3)
    assert (ids == -1).all()
    assert (best == -np.inf).all()
    with pytest.raises(ValueError, match="7 values of digits"):
        best_labels_of_digits(np.zeros((2, 8), np.float32), code, 3)


def test_equal_groups_by_frequency():
    counts = np.array([100, 1, 1, 90, 1, 1, 80, 1, 1, 70, 1])
    code = make_code((4, 3), len(counts), "frequency", counts, 0)
    sums = np.bincount(code.node_of(0), counts)
    assert sorted(sums.tolist()) == [71, 82, 92, 102]


def test_similar_labels_share_a_prefix():
    rng = np.random.default_rng(0)
    topic = rng.permutation(np.arange(64) % 8)
    features = np.eye(8, dtype=np.float32)[topic] + 0.05 * rng.random((64, 8)).astype(np.float32)
    code = make_code((8, 8), 64, "clustered", np.ones(64), 0, features)
    groups = code.node_of(0)
    assert all(len(set(topic[groups == group])) == 1 for group in range(8))
    with pytest.raises(ConfigError, match="features"):
        make_code((8, 8), 64, "clustered", np.ones(64), 0)


@pytest.mark.parametrize("n_labels", [1, 2, 7, 100, 1623, 3956, 670_091, 2_812_281])
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_balanced_radices_are_enough_and_near_equal(n_labels, depth):
    radices = balanced_radices(n_labels, depth)
    root = n_labels ** (1 / depth)
    assert n_labels <= prod(radices) <= n_labels * (1 + 2 / root) ** depth
    assert max(radices) <= root + 1
    assert DigitCode(radices, n_labels).surplus == prod(radices) - n_labels


def test_groups_are_never_empty():
    assert group_radices(670_091, 8400) == (8377, 80)
    assert group_radices(3956, 172) == (172, 23)
    assert group_radices(2_812_281, 8761) == (8761, 321)
    for n_labels, n_groups in product((5, 17, 100), range(1, 6)):
        groups, size = group_radices(n_labels, n_groups)
        assert (groups - 1) * size < n_labels <= groups * size
    with pytest.raises(ConfigError, match="more than"):
        group_radices(3, 4)


def test_radices_that_labels_cannot_use_are_refused():
    with pytest.raises(ConfigError, match="1,000,000,000 values of a digit are more than the 29 labels"):
        DigitCode((2, 10**9), 29)
    with pytest.raises(ConfigError, match="fewer digits"):
        DigitCode((10**5,) * 8, 10**6)


def test_too_few_codes_are_refused():
    with pytest.raises(ConfigError, match="10 x 10 = 100 codes are too few for 101 labels"):
        DigitCode((10, 10), 101)
