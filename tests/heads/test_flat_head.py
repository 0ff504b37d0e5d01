"""The flat head: losses and gradients of torch's own, whatever the blocks; the best labels of a full sort."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.nn import functional

from labelwise.nn.config import HeadConfig, LossConfig
from labelwise.nn.heads.base import Targets, exact_topk
from labelwise.nn.heads.linear import Outputs

DOCUMENTS, WIDTH, LABELS = 9, 6, 29


@pytest.fixture
def labels():
    rng = np.random.default_rng(0)
    dense = (rng.random((DOCUMENTS, LABELS)) < 0.15).astype(np.float32)
    dense[3] = 0  # a document without labels
    return sparse.csr_array(dense)


def make_head(labels, seed=0, **settings):
    head = Outputs(WIDTH, labels.shape[1], HeadConfig(**{"dropout": 0.0, **settings}))
    head.initialise(np.asarray(labels.sum(0)).ravel(), labels.shape[0], seed)
    with torch.no_grad():
        head.weight *= 30
    return head


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("block", [1, 4, 29, 100])
def test_loss_and_gradients_are_those_of_torch(labels, reduction, block):
    head = make_head(labels, loss=LossConfig(reduction=reduction), block=block)
    vectors = torch.randn(DOCUMENTS, WIDTH, generator=torch.Generator().manual_seed(1), requires_grad=True)
    loss = head.loss(vectors, Targets.of_rows(labels, np.arange(DOCUMENTS)))
    (2.5 * loss).backward()
    mine = [vectors.grad, head.weight.grad, head.bias.grad]

    plain = [part.detach().clone().requires_grad_() for part in (vectors, head.weight, head.bias)]
    scores = plain[0] @ plain[1].T + plain[2]
    each = functional.binary_cross_entropy_with_logits(scores, torch.tensor(labels.toarray()), reduction="none")
    expected = each.mean() if reduction == "mean" else each.sum(1).mean()
    (2.5 * expected).backward()
    torch.testing.assert_close(loss, expected)
    for found, part in zip(mine, plain, strict=True):
        torch.testing.assert_close(found, part.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["squared_hinge", "focal", "asymmetric"])
def test_gradients_of_other_losses_by_differences(labels, name):
    head = make_head(labels, loss=LossConfig(name=name), block=7).double()
    targets = Targets.of_rows(labels, np.arange(DOCUMENTS))
    vectors = torch.randn(DOCUMENTS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    loss = head.loss(vectors.requires_grad_(), targets)
    loss.backward()
    rng = np.random.default_rng(3)
    for part, gradient in ((head.weight, head.weight.grad), (head.bias, head.bias.grad), (vectors, vectors.grad)):
        direction = torch.from_numpy(rng.normal(size=part.shape))
        with torch.no_grad():
            moved = []
            for step in (1e-3, -2e-3):
                part += step * direction
                moved.append(float(head.loss(vectors, targets)))
            part += 1e-3 * direction
        assert (moved[0] - moved[1]) / 2e-3 == pytest.approx(float((gradient * direction).sum()), rel=2e-3)


def test_gradients_add_up_over_batches(labels):
    head = make_head(labels, block=5)
    vectors = torch.randn(DOCUMENTS, WIDTH)
    whole = torch.autograd.grad(head.loss(vectors, Targets.of_rows(labels, np.arange(DOCUMENTS))), head.weight)[0]
    for rows in (np.arange(4), np.arange(4, DOCUMENTS)):
        (head.loss(vectors[rows], Targets.of_rows(labels, rows)) * len(rows) / DOCUMENTS).backward()
    torch.testing.assert_close(head.weight.grad, whole, rtol=1e-4, atol=1e-6)


def test_nothing_is_worked_out_for_a_frozen_head(labels):
    head = make_head(labels).requires_grad_(False)
    vectors = torch.randn(DOCUMENTS, WIDTH, requires_grad=True)
    head.loss(vectors, Targets.of_rows(labels, np.arange(DOCUMENTS))).backward()
    assert vectors.grad is not None
    assert head.weight.grad is None


def test_bfloat16_autocast_gives_nearly_the_same(labels):
    head, targets = make_head(labels), Targets.of_rows(labels, np.arange(DOCUMENTS))
    vectors = torch.randn(DOCUMENTS, WIDTH, requires_grad=True)
    exact = head.loss(vectors, targets)
    with torch.autocast("cpu", torch.bfloat16):
        rough = head.loss(vectors, targets)
    rough.backward()
    assert rough.item() == pytest.approx(exact.item(), rel=0.02)
    assert vectors.grad.dtype == head.weight.grad.dtype == torch.float32


def test_the_best_labels_are_the_same_inside_autocast():
    rare = sparse.csr_array(np.ones((1, 3000), np.float32))
    head = make_head(rare)
    vectors = torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(1))
    ids, scores = head.best(vectors, 5)
    with torch.autocast("cpu", torch.bfloat16):
        inside = head.best(vectors.bfloat16().float(), 5), head.best(vectors, 5)
    assert torch.equal(inside[1][0], ids)
    torch.testing.assert_close(inside[1][1], scores, rtol=0, atol=0)
    assert inside[0][1].dtype == torch.float32


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_gradient_is_worked_out_where_none_is_wanted(labels, mode, monkeypatch):
    head, targets = make_head(labels), Targets.of_rows(labels, np.arange(DOCUMENTS))
    vectors = torch.randn(DOCUMENTS, WIDTH)
    expected = head.loss(vectors, targets).item()
    made = []
    plain = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: made.append(a[0].shape) or plain(*a, **k))
    head.loss(vectors, targets)
    assert made == [head.weight.shape, head.bias.shape]  # where gradients go
    with mode():
        assert head.loss(vectors, targets).item() == expected
    assert len(made) == 2


def test_biases_start_at_the_log_odds():
    counts = np.array([0, 3, 40])
    head = Outputs(WIDTH, 3, HeadConfig()).initialise(counts, 100, seed=0)
    shares = (counts + 0.5) / 101
    np.testing.assert_allclose(head.bias.detach().numpy(), np.log(shares / (1 - shares)), rtol=1e-5)
    zero = Outputs(WIDTH, 3, HeadConfig(bias="zero")).initialise(counts, 100, seed=0)
    assert (zero.bias == 0).all()
    torch.testing.assert_close(zero.weight, head.weight)


@pytest.mark.parametrize("block", [1, 3, 10, 29, 50])
@pytest.mark.parametrize("k", [1, 5, 29])
def test_the_best_labels_are_those_of_a_full_sort(labels, block, k):
    head = make_head(labels, block=block)
    with torch.no_grad():
        head.weight.round_()  # many equal scores
        head.bias.zero_()
    vectors = torch.randint(-1, 2, (40, WIDTH), generator=torch.Generator().manual_seed(4)).float()
    ids, scores = head.best(vectors, k)
    full = (vectors @ head.weight.T + head.bias).detach()
    for row, mine, best in zip(full.tolist(), ids.tolist(), scores.tolist(), strict=True):
        order = sorted(range(LABELS), key=lambda label: (-row[label], label))[:k]
        assert mine == order
        assert best == [row[label] for label in order]


def test_exact_topk_keeps_the_lower_place_of_equals():
    best, places = exact_topk(torch.tensor([[1.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]]), 2)
    assert places.tolist() == [[1, 2], [0, 1]]
    assert best.tolist() == [[2.0, 2.0], [0.0, 0.0]]


def test_a_head_that_has_diverged_leaves_its_places_empty(labels):
    head = make_head(labels, block=10)
    vectors = torch.randn(3, WIDTH)
    vectors[1] = torch.nan
    ids, scores = head.best(vectors, 4)
    assert (ids[1] == -1).all()
    assert torch.isneginf(scores[1]).all()
    assert (ids[[0, 2]] >= 0).all()


@pytest.mark.parametrize("block", [4, 29])
@pytest.mark.parametrize("kept", [0, 1 << 24])
def test_softmax_and_its_gradients_are_those_of_torch(labels, block, kept, monkeypatch):
    monkeypatch.setattr("labelwise.nn.heads.linear.KEPT_SCORES", kept)
    head = make_head(labels, loss=LossConfig(name="softmax"), block=block)
    vectors = torch.randn(DOCUMENTS, WIDTH, generator=torch.Generator().manual_seed(1), requires_grad=True)
    loss = head.loss(vectors, Targets.of_rows(labels, np.arange(DOCUMENTS)))
    (2.5 * loss).backward()
    mine = [vectors.grad, head.weight.grad, head.bias.grad]

    plain = [part.detach().clone().requires_grad_() for part in (vectors, head.weight, head.bias)]
    dense = torch.tensor(labels.toarray())
    shared = dense / dense.sum(1, keepdim=True).clamp_min(1)
    expected = -(shared * functional.log_softmax(plain[0] @ plain[1].T + plain[2], 1)).sum(1).mean()
    (2.5 * expected).backward()
    torch.testing.assert_close(loss, expected)
    for found, part in zip(mine, plain, strict=True):
        torch.testing.assert_close(found, part.grad, rtol=1e-4, atol=1e-6)


def test_softmax_scores_are_log_probabilities(labels):
    head = make_head(labels, loss=LossConfig(name="softmax"), block=4)
    vectors = torch.randn(DOCUMENTS, WIDTH)
    ids, scores = head.best(vectors, 5)
    expected = functional.log_softmax(vectors @ head.weight.T + head.bias, 1).topk(5)
    torch.testing.assert_close(scores, expected.values)
    torch.testing.assert_close(ids, expected.indices)
    torch.testing.assert_close(head.probabilities(scores), expected.values.exp())
    with torch.no_grad():
        head.weight.zero_()
    floor = head.constant_loss(labels, np.arange(DOCUMENTS))
    constant = float(head.loss(vectors, Targets.of_rows(labels, np.arange(DOCUMENTS))).detach())
    assert floor == pytest.approx(constant, rel=1e-5)  # the initial biases are the best constants
