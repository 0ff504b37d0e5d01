"""Combining the predictions of members against the definitions, label by label."""

import math

import numpy as np
import pytest

from labelwise.ensembles.combine import Combination, side_by_side
from labelwise.ensembles.learn import Held, fitted_calibrations, learned
from labelwise.metrics.names import parse_metric
from labelwise.model.calibration import Calibration
from labelwise.topk import NO_LABEL, TopK

WEIGHTS = np.array([0.5, 0.3, 0.2])


@pytest.fixture(scope="module")
def tops():
    """Three models' predictions for 40 documents, with rows of different lengths, some of them empty."""
    rng = np.random.default_rng(3)
    return [random_top(rng, 40, width, 15) for width in (6, 4, 5)]


def random_top(rng, n, width, n_labels):
    ids, scores = np.full((n, width), NO_LABEL, np.int32), np.full((n, width), -np.inf, np.float32)
    for row in range(n):
        count = int(rng.integers(0, width + 1)) if row % 4 == 0 else width
        ids[row, :count] = rng.choice(n_labels, count, replace=False)
        scores[row, :count] = np.sort(rng.normal(size=count))[::-1]
    return TopK(ids, scores)


def by_definition(rule, tops, row):
    """Score per label: each model's value, that of its last label where it does not rank one, times the weights."""
    lists = [[(int(i), float(s)) for i, s in zip(t.ids[row], t.scores[row], strict=True) if i >= 0] for t in tops]
    found = {}
    for label in {label for one in lists for label, _ in one}:
        values = []
        for one in lists:
            labels, scores = [i for i, _ in one], [s for _, s in one]
            place = labels.index(label) if label in labels else None
            score = scores[place] if place is not None else scores[-1] if one else 0.0
            if rule == "average":
                values.append(score)
            elif rule == "rank_average":
                values.append(1 / (1 + (len(one) if place is None else place)))
            elif rule == "sigmoid_average":
                values.append(1 / (1 + math.exp(-score)))
            else:
                values.append(math.exp(score) / sum(map(math.exp, scores)) if one else None)
        if None in values:
            return None
        found[label] = float(np.dot(values, WEIGHTS))
    return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize("rule", ["average", "rank_average", "softmax_average", "sigmoid_average"])
def test_equals_the_definition(rule, tops):
    top = Combination(rule, WEIGHTS).best(side_by_side(tops), 20)
    compared = 0
    for row in range(len(top)):
        expected = by_definition(rule, tops, row)
        if expected is None:
            continue
        count = len(expected)
        np.testing.assert_allclose(top.scores[row, :count], [score for _, score in expected], rtol=1e-5, atol=1e-6)
        assert (top.ids[row, count:] == NO_LABEL).all()
        scores = [score for _, score in expected]
        if len(set(np.round(scores, 6))) == count:
            assert top.ids[row, :count].tolist() == [label for label, _ in expected]
            compared += count > 3
    assert compared > 10


def held_out(good, noise, n=400, n_labels=12, seed=0):
    """Documents with one true label; a model that mostly knows it and one that does not."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, n_labels, n)
    tops = []
    for strength in (good, noise):
        scores = rng.normal(size=(n, n_labels)).astype(np.float32)
        scores[np.arange(n), truth] += strength
        ids = np.argsort(-scores, axis=1)[:, :8].astype(np.int32)
        tops.append(TopK(ids, np.take_along_axis(scores, ids, 1)))
    candidates = side_by_side(tops)
    return Held(candidates, candidates.labels == truth[:, None], np.ones(n, np.int64), np.full(n_labels, 30))


@pytest.mark.parametrize("rule", ["average", "rank_average", "softmax_average"])
def test_learned_weights_prefer_the_better_member(rule):
    held = held_out(3.0, 0.0)
    metric = parse_metric("nDCG@5")
    found = learned(held, Combination(rule, np.full(2, 0.5)), metric)
    assert found.weights[0] > 0.7
    assert found.weights.sum() == pytest.approx(1)
    again = learned(held, Combination(rule, np.full(2, 0.5)), metric)
    assert again.weights.tolist() == found.weights.tolist()


def test_the_logistic_combination_gives_probabilities():
    held = held_out(2.0, 1.5)
    start = Combination("logistic", np.full(2, 0.5), fitted_calibrations(held, [None, None]))
    found = learned(held, start, parse_metric("P@1"))
    assert found.weights[0] > found.weights[1] > 0, "the weaker member counts less, and counts"
    other = held_out(2.0, 1.5, seed=1)
    scores = found.scores(other.candidates, found.parts(other.candidates))[other.candidates.filled]
    right = other.right[other.candidates.filled]
    for low, high in ((0.0, 0.1), (0.1, 0.4), (0.4, 1.0)):
        inside = (scores >= low) & (scores < high)
        assert inside.sum() > 50
        assert right[inside].mean() == pytest.approx(scores[inside].mean(), abs=0.08)


def test_known_calibrations_are_kept():
    held = held_out(2.0, 1.0)
    own = Calibration(np.array([0.0, 1.0]), np.array([0.2, 0.7]))
    found = fitted_calibrations(held, [own, None])
    assert found[0] is own
    assert found[1] is not own


def test_the_logistic_combination_follows_the_frequency_of_labels():
    """One member is right about frequent labels, the other about rare ones."""
    rng = np.random.default_rng(0)
    n, n_labels, counts = 600, 12, np.array([500] * 6 + [2] * 6)
    truth = rng.integers(0, n_labels, n)
    tops = []
    for knows in (truth < 6, truth >= 6):
        scores = rng.normal(size=(n, n_labels)).astype(np.float32)
        scores[np.flatnonzero(knows), truth[knows]] += 4
        ids = np.argsort(-scores, axis=1).astype(np.int32)
        tops.append(TopK(ids, np.take_along_axis(scores, ids, 1)))
    candidates = side_by_side(tops)
    held = Held(candidates, candidates.labels == truth[:, None], np.ones(n, np.int64), counts)
    start = Combination("logistic", np.full(2, 0.5), fitted_calibrations(held, [None, None]))
    found = learned(held, start, parse_metric("P@1"))
    weights = found.weights_of(candidates.labels)[0, [0, 11]]
    assert weights[0, 0] > 2 * abs(weights[0, 1]), "a frequent label"
    assert weights[1, 1] > 2 * abs(weights[1, 0]), "a rare one"
