"""Heads with margins against autograd over all classes at once; sampling everything is the full softmax."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import sparse
from torch.nn import functional

from labelwise.errors import ModelFormatError
from labelwise.nn.config import MarginConfig
from labelwise.nn.heads.base import Targets
from labelwise.nn.heads.sampled import Margin, arcface

WIDTH, CLASSES, IMAGES = 6, 11, 7


def built(dtype=torch.float64, **settings):
    head = Margin(WIDTH, CLASSES, MarginConfig(**settings))
    head.initialise(np.arange(1, CLASSES + 1), 100, seed=3)
    return head.to(dtype).train()


def batch(seed=0, dtype=torch.float64, classes=None):
    rng = np.random.default_rng(seed)
    columns = rng.integers(0, CLASSES, IMAGES) if classes is None else np.asarray(classes)
    labels = sparse.csr_array((np.ones(IMAGES), columns, np.arange(IMAGES + 1)), (IMAGES, CLASSES))
    vectors = torch.tensor(rng.normal(size=(IMAGES, WIDTH)), dtype=dtype, requires_grad=True)
    return vectors, Targets.of_rows(labels, np.arange(IMAGES)), torch.from_numpy(columns)


def brute_force(vectors, weight, classes, config, takes_part=None):
    """The definition, with angles."""
    cosines = functional.normalize(vectors) @ functional.normalize(weight).T
    own = cosines.gather(1, classes[:, None]).squeeze(1)
    if config.kind == "cosface":
        changed = own - config.size
    else:
        m = config.size
        angle = torch.acos(own)
        changed = torch.where(angle + m < math.pi, torch.cos(angle + m), own - m * math.sin(m))
    scores = config.scale * cosines.scatter(1, classes[:, None], changed[:, None])
    if takes_part is not None:
        scores = scores.masked_fill(~takes_part, -torch.inf)
    return functional.cross_entropy(scores, classes)


def assert_equal_gradients(head, vectors, targets, expected):
    wanted = torch.autograd.grad(expected, [vectors, head.weight])
    loss = head.loss(vectors, targets)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    (2 * loss).backward()
    gradient = head.weight.grad.to_dense() if head.weight.grad.is_sparse else head.weight.grad
    torch.testing.assert_close(vectors.grad, 2 * wanted[0], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(gradient, 2 * wanted[1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"kind": "cosface"}, {"margin": 0.0}, {"margin": 1.2, "scale": 8.0}])
@pytest.mark.parametrize("block", [1, 4, 100])
def test_full_softmax_against_autograd(settings, block):
    head = built(**settings, block=block)
    vectors, targets, classes = batch()
    assert head.row_tables() == ()
    assert_equal_gradients(head, vectors, targets, brute_force(vectors, head.weight, classes, head.config))


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling": "classes", "sample_rate": 1.0},
        {"sampling": "groups", "radices": (4, 3), "sampled_groups": 4},
        {"sampling": "groups", "radices": (4, 3), "sampled_groups": 4, "negatives": "document", "order": "frequency"},
        {"sampling": "groups", "radices": (3, 4), "sampled_fraction": 1.0, "order": "index"},
    ],
)
def test_sampling_everything_is_the_full_softmax(settings):
    head = built(**settings, block=4)
    vectors, targets, classes = batch()
    assert head.row_tables() == ("weight",)
    assert_equal_gradients(head, vectors, targets, brute_force(vectors, head.weight, classes, head.config))
    assert head.weight.grad.is_sparse


@pytest.mark.parametrize("kind", ["arcface", "cosface"])
@pytest.mark.parametrize(
    "settings",
    [
        {"sampling": "classes", "sample_rate": 0.5},
        {"sampling": "groups", "radices": (6, 2), "sampled_groups": 5},
        {"sampling": "groups", "radices": (6, 2), "negatives": "B1"},
        {"sampling": "groups", "radices": (6, 2), "negatives": "V0"},
        {"sampling": "groups", "radices": (6, 2), "negatives": "V2"},
    ],
)
def test_sampled_classes_against_autograd(kind, settings):
    head = built(kind=kind, **settings)
    vectors, targets, classes = batch(classes=[0, 0, 3, 3, 8, 8, 10])
    state = torch.get_rng_state()
    sample = head.sampler.sample(targets, IMAGES)
    torch.set_rng_state(state)
    takes_part = torch.zeros(IMAGES, CLASSES, dtype=torch.bool)
    offsets = torch.zeros(IMAGES, len(sample.rows))
    if sample.offsets is not None:
        offsets = sample.offsets[:, sample.groups].expand(IMAGES, -1)
    takes_part[:, sample.rows] = offsets == 0
    assert takes_part.gather(1, classes[:, None]).all()
    assert not takes_part.all()
    expected = brute_force(vectors, head.weight, classes, head.config, takes_part)
    assert_equal_gradients(head, vectors, targets, expected)
    touched = head.weight.grad.coalesce().indices()[0]
    assert touched.tolist() == sample.rows.tolist()


def test_partial_fc_has_the_classes_of_the_batch_and_random_ones():
    head = built(sampling="classes", sample_rate=0.6)
    _, targets, classes = batch(classes=[0, 0, 3, 3, 8, 8, 10])
    torch.manual_seed(0)
    seen = set()
    for _ in range(40):
        rows = head.sampler.sample(targets, IMAGES).rows.tolist()
        assert len(rows) == 7
        assert set(classes.tolist()) <= set(rows)
        seen |= set(rows)
    assert seen == set(range(CLASSES))


def test_evaluation_is_over_all_classes_with_the_margin():
    few, full = built(sampling="classes", sample_rate=0.1).eval(), built()
    vectors, targets, _ = batch()
    with torch.no_grad():
        torch.testing.assert_close(few.loss(vectors, targets), full.loss(vectors, targets))


def test_an_exact_match_and_its_opposite_have_finite_gradients():
    head = built(dtype=torch.float32)
    vectors, targets, classes = batch(dtype=torch.float32)
    with torch.no_grad():
        vectors.copy_(head.weight[classes] * torch.tensor([1.0, -1.0] * 3 + [1.0])[:, None] * 1000)
    head.loss(vectors, targets).backward()
    assert torch.isfinite(vectors.grad).all()
    assert torch.isfinite(head.weight.grad).all()
    values, derivatives = arcface(torch.tensor([1.0 + 1e-6, -1.0 - 1e-6, 1.0]), 0.5)
    assert torch.isfinite(values).all()
    assert torch.isfinite(derivatives).all()


def test_the_margin_falls_with_the_angle():
    cosines = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    values, derivatives = arcface(cosines, 0.5)
    assert (values <= cosines + 1e-12).all()
    numeric = (values[2:] - values[:-2]) / 0.002
    smooth = (cosines[1:-1] > math.cos(math.pi - 0.5) + 0.01) & (cosines[1:-1] < 0.99)  # there is a jump below
    torch.testing.assert_close(derivatives[1:-1][smooth], numeric[smooth], rtol=1e-3, atol=0)
    assert (derivatives > 0).all()


def test_bfloat16_is_not_used():
    head = built(dtype=torch.float32)
    vectors, targets, _ = batch(dtype=torch.float32)
    plain = head.loss(vectors, targets)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = head.loss(vectors, targets)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(plain, mixed, rtol=0, atol=0)


def test_the_best_classes_are_those_with_the_highest_cosines():
    head = built(block=3).eval()
    vectors, _, _ = batch(5)
    ids, scores = head.best(vectors, 4)
    cosines = (functional.normalize(vectors) @ functional.normalize(head.weight).T).detach()
    expected, order = cosines.sort(1, descending=True)
    assert torch.equal(ids, order[:, :4])
    torch.testing.assert_close(scores, expected[:, :4])
    probabilities = head.probabilities(scores)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()


def test_saving_and_what_is_refused(tmp_path):
    head = built(dtype=torch.float32, sampling="groups", radices=(6, 2)).eval()
    vectors, _, _ = batch(5, torch.float32)
    with torch.device("meta"):
        other = Margin(WIDTH, CLASSES, head.config)
    other.restore(head.state(), tmp_path).eval()
    assert torch.equal(other.best(vectors, 3)[1], head.best(vectors, 3)[1])
    with pytest.raises(ModelFormatError, match="does not fit"):
        Margin(WIDTH + 1, CLASSES, head.config).restore(head.state(), tmp_path)
    with pytest.raises(ValidationError, match="setting of sampling: classes"):
        MarginConfig(sample_rate=0.5)
    with pytest.raises(ValidationError, match="not both"):
        MarginConfig(sampling="groups", sampled_groups=3, sampled_fraction=0.5)
