"""The candidate head compared with plain torch over a dense array of scores."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from labelwise.nn.config import HeadConfig, LossConfig
from labelwise.nn.heads import linear as module
from labelwise.nn.heads.base import Targets, exact_topk
from labelwise.nn.heads.linear import Outputs

WIDTH, LABELS = 5, 23
LOSSES = {
    "bce": lambda scores, sign: functional.softplus(-sign * scores),
    "hinge": lambda scores, sign: (1 - sign * scores).clamp_min(0),
    "squared_hinge": lambda scores, sign: (1 - sign * scores).clamp_min(0) ** 2,
}


def batch(seed, documents, count):
    """Candidates with padding at the end of each row, weights of the true ones, and vectors."""
    rng = np.random.default_rng(seed)
    candidates = np.full((documents, count), -1)
    for row in candidates:
        some = rng.choice(LABELS, rng.integers(0, count + 1), replace=False)
        row[: len(some)] = some
    targets = rng.integers(0, 4, candidates.shape) * (rng.random(candidates.shape) < 0.4)
    vectors = torch.from_numpy(rng.normal(size=(documents, WIDTH)))
    return vectors, torch.from_numpy(candidates), torch.from_numpy(targets.astype(np.float64))


def make_head(name="bce", reduction="sum", seed=0):
    config = HeadConfig(loss=LossConfig(name=name, reduction=reduction), bias="zero", dropout=0.0)
    head = Outputs(WIDTH, LABELS, config).initialise(np.ones(LABELS), 10, seed).double()
    with torch.no_grad():
        head.weight *= 50
        head.bias.copy_(torch.linspace(-1, 1, LABELS))
    return head


def dense_loss(vectors, weight, bias, candidates, targets, name, reduction):
    """The same by torch's autograd, over all labels."""
    scores = vectors @ weight.T + bias
    total, count = torch.zeros((), dtype=torch.float64), 0
    for document, row in enumerate(candidates.tolist()):
        for column, label in enumerate(row):
            if label >= 0:
                has = float(targets[document, column])
                value = LOSSES[name](scores[document, label], 1.0 if has else -1.0)
                total, count = total + value * (has or 1.0), count + 1
    return total / max(1, len(candidates) if reduction == "sum" else count)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**16), st.integers(1, 6), st.integers(1, 9), st.sampled_from(sorted(LOSSES)),
    st.sampled_from(["sum", "mean"]), st.sampled_from([1, 40, 1 << 22]),
)  # fmt: skip
def test_loss_and_gradients_are_those_of_torch(seed, documents, count, name, reduction, at_once):
    vectors, candidates, targets = batch(seed, documents, count)
    head = make_head(name, reduction, seed)
    vectors.requires_grad_()
    before, module.CANDIDATES_SCORES_AT_ONCE = module.CANDIDATES_SCORES_AT_ONCE, at_once
    try:
        loss = head.loss(vectors, targets, candidates)
        (2.5 * loss).backward()
    finally:
        module.CANDIDATES_SCORES_AT_ONCE = before
    plain = [part.detach().clone().requires_grad_() for part in (vectors, head.weight, head.bias)]
    expected = dense_loss(*plain, candidates, targets, name, reduction)
    torch.testing.assert_close(loss, expected)
    if expected.requires_grad:
        (2.5 * expected).backward()
    for mine, part in zip((vectors, head.weight, head.bias), plain, strict=True):
        whole = torch.zeros_like(part) if part.grad is None else part.grad
        torch.testing.assert_close(mine.grad.to_dense() if mine.grad.is_sparse else mine.grad, whole)


def test_gradients_have_the_rows_of_the_candidates_only_and_add_up():
    head = make_head()
    candidates = torch.tensor([[3, 7, -1], [7, 11, 2]])
    targets = torch.tensor([[1.0, 0, 0], [2.0, 0, 0]], dtype=torch.float64)
    vectors = torch.ones(2, WIDTH, dtype=torch.float64)
    head.loss(vectors, targets, candidates).backward()
    for table in (head.weight, head.bias):
        assert table.grad.is_sparse
        assert table.grad.coalesce().indices()[0].tolist() == [2, 3, 7, 11]
    once = head.weight.grad.to_dense()
    head.loss(vectors, targets, candidates).backward()
    torch.testing.assert_close(head.weight.grad.to_dense(), 2 * once)


def test_a_frozen_head_passes_gradients_to_the_vectors():
    head = make_head().requires_grad_(False)
    vectors, candidates, targets = batch(4, 3, 6)
    head.loss(vectors.requires_grad_(), targets, candidates).backward()
    assert head.weight.grad is None
    assert vectors.grad.abs().sum() > 0


def test_best_candidates_are_those_of_a_full_sort():
    head = make_head()
    vectors, candidates, _ = batch(1, 8, 9)
    scores, columns = exact_topk(head.scores(vectors, candidates), 4)
    ids = candidates.gather(1, columns)
    dense = (vectors @ head.weight.T + head.bias).detach()
    for document, row in enumerate(candidates.tolist()):
        own = sorted((label for label in row if label >= 0), key=lambda label: -dense[document, label])[:4]
        assert ids[document, : len(own)].tolist() == own
        torch.testing.assert_close(scores[document, : len(own)], dense[document, own])
        assert torch.isneginf(scores[document, len(own) :]).all()


def test_bf16_vectors_get_float32_gradients_of_weights():
    head = make_head().float()
    vectors, candidates, targets = batch(2, 4, 5)
    half = vectors.to(torch.bfloat16).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = head.loss(half, targets.float(), candidates)
    loss.backward()
    assert loss.dtype == head.weight.grad.dtype == torch.float32
    assert half.grad.dtype == torch.bfloat16


def test_given_weights_are_copied():
    weight, bias = np.arange(LABELS * WIDTH, dtype=np.float32).reshape(LABELS, WIDTH), np.ones(LABELS, np.float32)
    head = Outputs(WIDTH, LABELS, HeadConfig(dropout=0.0)).load(weight, bias)
    weight[:] = 0
    assert head.scores(torch.ones(1, WIDTH), torch.tensor([[0, 2]])).tolist() == [[11.0, 61.0]]


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_flat_targets_may_have_weights(name):
    rng = np.random.default_rng(3)
    head = Outputs(WIDTH, LABELS, HeadConfig(loss=LossConfig(name=name), dropout=0.0, block=4))
    head.initialise(np.ones(LABELS), 10, 0).double()
    values = rng.integers(0, 3, (6, LABELS)).astype(np.float64)
    labels, documents = torch.nonzero(torch.from_numpy(values).T, as_tuple=True)
    vectors = torch.from_numpy(rng.normal(size=(6, WIDTH)))
    loss = head.loss(vectors, Targets(documents, labels, torch.from_numpy(values)[documents, labels]))
    loss.backward()
    everything = torch.arange(LABELS).expand(6, -1)
    plain = [head.weight.detach().clone().requires_grad_(), head.bias.detach().clone().requires_grad_()]
    expected = dense_loss(vectors, *plain, everything, torch.from_numpy(values), name, "sum")
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(head.weight.grad, plain[0].grad)
