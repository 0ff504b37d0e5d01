"""Losses of scores against their textbook formulas, their gradients against autograd."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from labelwise.nn.config import LossConfig
from labelwise.nn.heads.base import label_priors
from labelwise.nn.heads.losses import best_constants, constant_loss, make_loss

CONFIGS = [
    LossConfig(name="bce"),
    LossConfig(name="hinge"),
    LossConfig(name="squared_hinge"),
    LossConfig(name="focal", focus=2.0),
    LossConfig(name="focal", focus=0.0),
    LossConfig(name="asymmetric"),
    LossConfig(name="asymmetric", focus_positive=1.0, focus_negative=0.0, shift=0.2),
    LossConfig(name="asymmetric", shift=0.0),
]


def textbook(config, scores, target):
    """The loss of each score, as the papers write it."""
    p = torch.sigmoid(scores)
    if config.name == "bce":
        return functional.binary_cross_entropy_with_logits(scores, target, reduction="none")
    if config.name == "hinge":
        return (1 - (2 * target - 1) * scores).clamp_min(0)
    if config.name == "squared_hinge":
        return (1 - (2 * target - 1) * scores).clamp_min(0) ** 2
    if config.name == "focal":
        right = torch.where(target > 0, p, 1 - p)
        return -((1 - right) ** config.focus) * right.log()
    lowered = (p - config.shift).clamp_min(0)
    present = -((1 - p) ** config.focus_positive) * p.log()
    absent = -(lowered**config.focus_negative) * (1 - lowered).log()
    return torch.where(target > 0, present, absent)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.name}-{c.focus}-{c.focus_negative}-{c.shift}")
def test_values_and_slopes(config):
    loss = make_loss(config)
    for target, part in ((1.0, loss.positive), (0.0, loss.negative)):
        scores = torch.linspace(-12, 12, 301, dtype=torch.float64, requires_grad=True)
        expected = textbook(config, scores, torch.full_like(scores, target))
        (gradient,) = torch.autograd.grad(expected.sum(), scores)
        value, found = part(scores.detach())
        torch.testing.assert_close(value, expected.detach(), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("config", CONFIGS[:5], ids=lambda c: f"{c.name}-{c.focus}")
def test_large_scores_stay_finite(config):
    loss = make_loss(config)
    for part in (loss.positive, loss.negative):
        for found in part(torch.tensor([-200.0, -50.0, 50.0, 200.0])):
            assert torch.isfinite(found).all()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.name}-{c.focus}-{c.focus_negative}-{c.shift}")
def test_best_constants_are_best(config):
    loss, shares = make_loss(config), np.array([0.001, 0.05, 0.3, 0.7])
    best = torch.from_numpy(best_constants(loss, shares))
    share = torch.from_numpy(shares)

    def cost(scores):
        return share * loss.positive(scores)[0] + (1 - share) * loss.negative(scores)[0]

    for other in torch.linspace(-9, 9, 181, dtype=torch.float64):
        assert (cost(best) <= cost(torch.full_like(best, float(other))) + 1e-9).all()


def test_best_constants_of_cross_entropy_are_log_odds():
    shares = np.array([1e-6, 0.01, 0.5, 0.99])
    np.testing.assert_allclose(
        best_constants(make_loss(LossConfig()), shares), np.log(shares / (1 - shares)), rtol=1e-9, atol=1e-9
    )


def test_the_floor_of_cross_entropy_is_the_entropy_of_the_marginals():
    counts = np.array([3, 50, 200, 0])
    shares = counts / 400
    labels = np.repeat(np.arange(4), counts)
    loss = make_loss(LossConfig())
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(shares * np.log(shares)) - np.sum((1 - shares) * np.log1p(-shares))
    floor = constant_loss(loss, best_constants(loss, label_priors(counts, 400)), labels, 400)
    assert floor == pytest.approx(entropy, rel=5e-3)
    assert constant_loss(loss, np.zeros(4), labels, 400) == pytest.approx(4 * np.log(2))
