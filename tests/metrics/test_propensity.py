"""Propensities: the constants, the formula, labels training has never seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwise.errors import ConfigError, DataError
from labelwise.metrics.evaluate import evaluate
from labelwise.metrics.formulas import Propensity, propensity_constants
from labelwise.topk import TopK
from metrics import brute_force
from metrics.brute_force import cases


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        (None, (0.55, 1.5)),
        ("default", (0.55, 1.5)),
        ("WikiLSHTC-325K", (0.5, 0.4)),
        ("lf-wikipedia-500k", (0.5, 0.4)),
        ("wikipedia", (0.5, 0.4)),
        ("Amazon-670K", (0.6, 2.6)),
        ("amazon_3m", (0.6, 2.6)),
        ("LF-AmazonTitles-1.3M", (0.6, 2.6)),
        ("AmazonCat-13K", (0.55, 1.5)),
        ("Wiki10-31K", (0.55, 1.5)),
        ("LF-WikiSeeAlso-320K", (0.55, 1.5)),
        ("lf-wikiseealsotitles-320k", (0.55, 1.5)),
        ("EURLex-4K", (0.55, 1.5)),
        ((0.7, 3), (0.7, 3.0)),
        ([0.7, 3], (0.7, 3.0)),
    ],
)
def test_constants_are_those_of_the_data_sets(name, constants):
    assert propensity_constants(name) == constants


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("amazon-607k", "Amazon-670K"),
        ("my data", r"\(A, B\)"),
        ((0.5,), "pair"),
        ((0.5, 1, 2), "pair"),
        (("a", "b"), "pair"),
        (0.5, "pair"),
        ((0.5, 0.0), "B > 0"),
        ((math.nan, 1.0), "A >= 0"),
        ((-1.0, 1.0), "A >= 0"),
    ],
)
def test_unknown_constants_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        propensity_constants(given)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5), st.integers(3, 10**7))
def test_weights_follow_the_formula(counts, n):
    weights = Propensity(0.6, 2.6, n).weights(np.array(counts))
    assert weights == pytest.approx([brute_force.inverse_propensity(c, n, 0.6, 2.6) for c in counts])
    assert (weights >= 1).all()


def test_tiny_training_sets_do_not_turn_the_weights_round():
    assert Propensity(0.55, 1.5, 1).weights(np.array([0, 1])).tolist() == [1.0, 1.0]
    assert Propensity(0.55, 1.5, 2).weights(np.array([0, 1])).tolist() == [1.0, 1.0]


@given(cases(), st.sampled_from([(0.5, 0.4), (0.6, 2.6)]))
def test_given_constants_are_used(case, pair):
    result = evaluate(
        case.top,
        case.matrix,
        ["PSP@1", "PSnDCG@1"],
        train=np.array(case.train),
        train_documents=case.n_train,
        propensity=pair,
    )
    assert result["PSP@1"] == pytest.approx(brute_force.ps_precision(case, 1, *pair))
    assert result["PSnDCG@1"] == pytest.approx(brute_force.ps_ndcg(case, 1, *pair))
    assert result.propensity == Propensity(*pair, case.n_train)


def test_a_label_training_has_never_seen_is_in_the_best_list():
    """One document with a frequent label that is a hit and an unseen one that is not."""
    top = TopK(np.array([[0]]), np.ones((1, 1), np.float32))
    result = evaluate(top, [[0, 1]], ["PSP@1"], train=np.array([90, 0]), train_documents=100)
    seen, unseen = (brute_force.inverse_propensity(count, 100, 0.55, 1.5) for count in (90, 0))
    assert result["PSP@1"] == pytest.approx(seen / unseen)
    assert result.n_unseen_labels == 1


def test_psp_says_what_it_needs():
    top, truth = TopK(np.array([[0]]), np.ones((1, 1), np.float32)), [[0]]
    with pytest.raises(ConfigError, match=r"PSP@1 weights .* pass train="):
        evaluate(top, truth, ["PSP@1"])
    with pytest.raises(ConfigError, match="train_documents="):
        evaluate(top, truth, ["PSP@1"], train=np.array([3]))
    with pytest.raises(DataError, match="4 training documents"):
        evaluate(top, truth, ["PSP@1"], train=np.array([4]), train_documents=3)
