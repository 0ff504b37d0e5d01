"""Metrics of pairs and templates, compared with brute force, scikit-learn and answers known by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc

import labelwise as lw
from labelwise.errors import ConfigError, DataError
from labelwise.metrics.verification import (
    best_threshold,
    fold_accuracy,
    pool_templates,
    roc_curve,
    tar_at_far,
    verify,
)


def random_pairs(seed, count=300, ties=True):
    rng = np.random.default_rng(seed)
    same = rng.random(count) < 0.4
    scores = rng.normal(same * 1.0, 1.0)
    return (np.round(scores, 1) if ties else scores), same


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ties", [False, True])
def test_the_curve_and_its_area_are_those_of_scikit_learn(seed, ties):
    scores, same = random_pairs(seed, ties=ties)
    roc = roc_curve(scores, same)
    far, tar, thresholds = sklearn_roc(same, scores, drop_intermediate=False)
    np.testing.assert_allclose(roc.far, far, atol=1e-15)
    np.testing.assert_allclose(roc.tar, tar, atol=1e-15)
    np.testing.assert_array_equal(roc.thresholds, thresholds)
    assert roc.auc() == pytest.approx(roc_auc_score(same, scores))
    corners = roc.corners()
    assert corners.auc() == pytest.approx(roc.auc())
    assert len(corners.far) <= len(roc.far)
    assert corners.equal_error_rate() == pytest.approx(roc.equal_error_rate())


@pytest.mark.parametrize("seed", range(5))
def test_tar_at_far_is_the_best_threshold_that_keeps_the_rate(seed):
    scores, same = random_pairs(seed)
    roc = roc_curve(scores, same)
    for rate in (0.3, 0.1, 0.02, 1.0):
        candidates = [np.inf, *scores]
        allowed = [t for t in candidates if np.mean(scores[~same] >= t) <= rate]
        found = tar_at_far(roc, rate)
        assert found.tar == pytest.approx(max(np.mean(scores[same] >= t) for t in allowed))
        assert found.threshold in allowed


def test_a_rate_below_one_pair_has_no_value_but_a_reason():
    scores = np.arange(12.0)
    same = np.arange(12) >= 2  # two pairs of different classes, with the lowest scores
    roc = roc_curve(scores, same)
    assert tar_at_far(roc, 0.5).tar == 1.0
    found = tar_at_far(roc, 0.49)
    assert found.tar is None
    assert found.threshold is None
    assert found.reason == "needs at least 3 pairs of different classes, there are 2"
    assert "10,000 pairs" in tar_at_far(roc, 1e-4).reason
    with pytest.raises(ConfigError, match="false accept rate"):
        tar_at_far(roc, 0.0)


def test_rounding_does_not_take_a_pair_away():
    scores = np.concatenate([np.linspace(0, 0.5, 3000), np.ones(10)])
    same = scores == 1
    scores[:3] = 2.0  # three of 3,000 different pairs are above all others
    assert tar_at_far(roc_curve(scores, same), 1e-3).tar == 1.0
    assert tar_at_far(roc_curve(scores, same), 9.9e-4).tar == 0.0


def test_a_tie_above_the_rate_accepts_nothing():
    found = tar_at_far(roc_curve(np.ones(20), np.arange(20) < 10), 0.1)
    assert found.tar == 0.0
    assert math.isinf(found.threshold)
    assert verify(np.ones(20), np.arange(20) < 10, rates=[0.1]).to_dict()["rates"][0]["threshold"] is None


def test_known_answers():
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.2, 0.1])
    same = np.array([1, 1, 0, 1, 0, 1, 0, 0])
    roc = roc_curve(scores, same)
    assert roc.auc() == pytest.approx(13 / 16)
    assert roc.equal_error_rate() == pytest.approx(0.25)
    assert tar_at_far(roc, 0.25).tar == 0.75
    perfect = roc_curve([3, 2, 1, 0], [1, 1, 0, 0])
    assert (perfect.auc(), perfect.equal_error_rate()) == (1.0, 0.0)
    wrong = roc_curve([0, 1, 2, 3], [1, 1, 0, 0])
    assert (wrong.auc(), wrong.equal_error_rate()) == (0.0, 1.0)
    assert roc_curve([1, 1, 1, 1], [1, 1, 0, 0]).equal_error_rate() == pytest.approx(0.5)


def test_fold_accuracy_of_folds_with_a_known_answer():
    # thresholds are chosen elsewhere: fold 1 is shifted by 1, so that the threshold of the others accepts all of it
    scores = np.array([0.2, 0.8] * 3)
    scores[2:4] += 1
    same = np.array([0, 1] * 3)
    found = fold_accuracy(scores, same, [0, 0, 1, 1, 2, 2])
    assert found.accuracies == (1.0, 0.5, 1.0)
    assert found.thresholds == pytest.approx((0.5, 0.5, 0.5))
    assert found.standard_error == pytest.approx(np.std(found.accuracies, ddof=1) / math.sqrt(3))
    clean = fold_accuracy([0.1, 0.9] * 10, [0, 1] * 10, np.repeat(np.arange(10), 2))
    assert (clean.mean, clean.standard_error) == (1.0, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_fold_accuracy_against_brute_force(seed):
    scores, same = random_pairs(seed, 120)
    folds = np.random.default_rng(seed).integers(0, 4, 120)
    found = fold_accuracy(scores, same, folds)
    for fold, accuracy, threshold in zip(range(4), found.accuracies, found.thresholds, strict=True):
        other = folds != fold
        candidates = [-np.inf, np.inf, *scores[other]]
        best = max(np.mean((scores[other] >= t) == same[other]) for t in candidates)
        assert np.mean((scores[other] >= threshold) == same[other]) == best
        assert accuracy == np.mean((scores[~other] >= threshold) == same[~other])


def test_the_best_threshold_at_the_ends_and_between_neighbouring_floats():
    assert best_threshold([1.0, 2.0], [1, 1]) == -np.inf
    assert best_threshold([1.0, 2.0], [0, 0]) == np.inf
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2))
    threshold = best_threshold(np.array([low, high]), [0, 1])
    assert float(low) < threshold <= float(high)


def test_what_is_refused():
    with pytest.raises(DataError, match="none of the 3 pairs is of one class"):
        verify([1, 2, 3], [0, 0, 0])
    with pytest.raises(DataError, match="score of pair 1 is nan"):
        verify([1, np.nan, 3], [0, 1, 0])
    with pytest.raises(DataError, match="shapes"):
        verify([1, 2, 3], [0, 1])
    with pytest.raises(DataError, match="true and false"):
        verify([1, 2], [0, 2])
    with pytest.raises(DataError, match="one fold"):
        verify([1, 2], [0, 1], folds=[0, 0])
    with pytest.raises(DataError, match="need a fold each"):
        verify([1, 2], [0, 1], folds=[0])
    with pytest.raises(DataError, match="numbers"):
        verify(["a", "b"], [0, 1])


def test_the_public_function_writes_json():
    scores, same = random_pairs(0)
    found = lw.verify(scores, same, folds=np.arange(300) % 10)
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["n_same"] + plain["n_different"] == 300
    assert len(plain["accuracy"]["accuracies"]) == 10
    assert plain["rates"][-1]["tar"] is None
    assert "pairs" in plain["rates"][-1]["reason"]
    endless = lw.verify([0.1, 0.2, 0.3, 0.4], [True, True, False, True], folds=[0, 0, 1, 1])
    assert endless.accuracy.thresholds[1] == -np.inf
    assert json.loads(json.dumps(endless.to_dict(), allow_nan=False))["accuracy"]["thresholds"][1] is None


# --- templates ---


def test_templates_against_plain_loops():
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(60, 5)).astype(np.float32)
    templates, media, weights = rng.integers(3, 9, 60) * 7, rng.integers(0, 4, 60), rng.random(60)
    pooled = pool_templates(vectors, templates, media, weights)
    assert pooled.ids.tolist() == sorted(set(templates.tolist()))
    for template, vector in zip(pooled.ids, pooled.vectors, strict=True):
        total = np.zeros(5)
        for medium in set(media[templates == template]):
            rows = (templates == template) & (media == medium)
            total += np.mean([w * v for w, v in zip(weights[rows], vectors[rows], strict=True)], axis=0)
        np.testing.assert_allclose(vector, total / np.linalg.norm(total), atol=1e-6)
    first, second = pooled.ids[[0, 1, 2]], pooled.ids[[3, 1, 0]]
    scores = pooled.scores(first, second)
    assert scores[1] == pytest.approx(1.0, abs=1e-6)
    assert scores[0] == pytest.approx(float(pooled.vectors[0] @ pooled.vectors[3]), abs=1e-6)


def test_a_video_counts_as_much_as_a_photograph():
    video, photograph = [1.0, 0.0], [0.0, 1.0]
    pooled = pool_templates([video] * 9 + [photograph], [1] * 10, [5] * 9 + [6])
    np.testing.assert_allclose(pooled.vectors, [[math.sqrt(0.5)] * 2], atol=1e-6)


def test_templates_that_are_refused():
    with pytest.raises(DataError, match="names template 4"):
        pool_templates([[1.0, 0]], [3], [0]).scores([3], [4])
    with pytest.raises(DataError, match="template 3 has the vector 0"):
        pool_templates([[1.0, 0], [-1.0, 0]], [3, 3], [0, 1])
    with pytest.raises(DataError, match="image 1 is not finite"):
        pool_templates([[1.0, 0], [np.inf, 0]], [3, 3], [0, 1])
    with pytest.raises(DataError, match="weight each"):
        pool_templates([[1.0, 0]], [3], [0], [1, 2])
    with pytest.raises(DataError, match="shapes"):
        pool_templates([[1.0, 0]], [3, 4], [0])
