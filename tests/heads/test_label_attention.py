"""Label-wise attention against a brute force over every document and label, in float64 by torch's own gradients."""

import numpy as np
import pytest
import torch

from labelwise.nn.heads import attention as module
from labelwise.nn.heads.attention import Attention, LabelOutput, SharedOutput
from labelwise.nn.heads.base import States, Targets
from labelwise.runtime.threads import using_threads

WIDTH, LABELS = 6, 11
LENGTHS = [9, 7, 7, 3, 1]


def made(output="shared", hidden=(5, 4)):
    layers = SharedOutput(WIDTH, hidden) if output == "shared" else LabelOutput(WIDTH, LABELS)
    head = Attention(WIDTH, LABELS, layers).initialise(np.full(LABELS, 2), 10, 3)
    with torch.no_grad():
        head.weight.mul_(2)
        for number, part in enumerate(layers.parameters()):
            part.add_(torch.randn(part.shape, generator=torch.Generator().manual_seed(number)) * 0.3)
    return head


def case(candidates=True):
    random = torch.Generator().manual_seed(0)
    states = torch.randn(len(LENGTHS), LENGTHS[0], WIDTH, generator=random)
    chosen = None
    if candidates:
        chosen = torch.stack([torch.randperm(LABELS, generator=random)[:5] for _ in LENGTHS])
        chosen[1, 3:] = -1
        chosen[3, 0] = -1
    places = 5 if candidates else LABELS
    wanted = (torch.rand(len(LENGTHS), places, generator=random) < 0.4).float()
    if chosen is not None:
        wanted[chosen < 0] = 0
    return states, torch.tensor(LENGTHS), chosen, wanted


def targets_of(wanted, chosen):
    """Values of candidates, or pairs of documents and labels."""
    if chosen is not None:
        return wanted
    labels, documents = torch.nonzero(wanted.T, as_tuple=True)
    return Targets(documents, labels)


def brute_force(head, states, chosen, wanted):
    """Scores and mean loss, one label of one document after the other, over the document's own words."""
    weight = head.weight
    scores, losses = {}, []
    for document, length in enumerate(LENGTHS):
        own = states[document, :length]
        for place in range(wanted.shape[1]):
            label = place if chosen is None else int(chosen[document, place])
            if label < 0:
                continue
            view = torch.softmax(own @ weight[label], 0) @ own
            if isinstance(head.output, SharedOutput):
                score = head.output(view)
            else:
                score = head.output(view, torch.tensor(label))
            scores[document, place] = score
            target = wanted[document, place]
            losses.append(torch.nn.functional.binary_cross_entropy_with_logits(score, target))
    return scores, torch.stack(losses).mean()


def gradients(head, states):
    return {
        "states": states.grad,
        **{name: p.grad.to_dense() if p.grad.is_sparse else p.grad for name, p in head.named_parameters()},
    }


CASES = [
    pytest.param("shared", True, (5, 4), id="candidates"),
    pytest.param("shared", True, (), id="candidates without hidden layers"),
    pytest.param("shared", False, (5,), id="all labels"),
    pytest.param("label", False, (), id="all labels with weights of their own"),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("at_once", [1, 60, 1 << 20])
@pytest.mark.parametrize(("output", "candidates", "hidden"), CASES)
def test_loss_scores_and_gradients_are_those_of_a_brute_force(
    output, candidates, hidden, at_once, threads, monkeypatch
):
    monkeypatch.setattr(module, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(module, "LABELS_AT_ONCE", 4)
    head = made(output, hidden=hidden)
    states, lengths, chosen, wanted = case(candidates)
    one = states.clone().requires_grad_()
    with using_threads(threads):
        loss = head.loss(States(one, lengths), targets_of(wanted, chosen), chosen)
        (3 * loss).backward()
        found = gradients(head, one)
        scores = head.scores(States(states, lengths), chosen)
    head.zero_grad()
    exact = head.double()
    other = states.double().requires_grad_()
    expected_scores, expected = brute_force(exact, other, chosen, wanted.double())
    (3 * expected).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, gradient in gradients(exact, other).items():
        torch.testing.assert_close(found[name].double(), gradient, atol=1e-6, rtol=1e-4, msg=name)
    for place, score in expected_scores.items():
        assert float(scores[place]) == pytest.approx(torch.sigmoid(score).item(), rel=1e-4, abs=1e-5)
    assert int(torch.isneginf(scores).sum()) == scores.numel() - len(expected_scores)


def test_what_stands_after_the_end_of_a_document_means_nothing():
    head = made()
    states, lengths, chosen, wanted = case()
    before = head.scores(States(states, lengths), chosen)
    changed = states.clone().requires_grad_()
    with torch.no_grad():
        for document, length in enumerate(LENGTHS):
            changed[document, length:] = 100.0
    torch.testing.assert_close(head.scores(States(changed.detach(), lengths), chosen), before)
    head.loss(States(changed, lengths), wanted, chosen).backward()
    for document, length in enumerate(LENGTHS):
        assert (changed.grad[document, length:] == 0).all()
        assert (changed.grad[document, :length] != 0).any()


def test_only_the_rows_of_candidates_have_a_gradient():
    head = made()
    states, lengths, _, _ = case()
    chosen = torch.tensor([[2, 7], [7, 2], [7, -1], [2, 7], [2, 7]])
    head.loss(States(states.requires_grad_(), lengths), torch.ones(5, 2), chosen).backward()
    assert head.weight.grad.is_sparse
    assert head.weight.grad._indices().tolist() == [[2, 7]]


def test_many_short_documents_take_no_more_memory_than_few_long_ones(monkeypatch):
    monkeypatch.setattr(module, "SCORES_AT_ONCE", 1 << 12)
    head = Attention(64, LABELS, SharedOutput(64, [16])).initialise(np.full(LABELS, 2), 10, 0)
    head.scores(States(torch.randn(1000, 1, 64), torch.ones(1000, dtype=torch.long)))
    held = [len(buffer) for buffers in head.pool._free for buffer in buffers._held.values()]
    assert 0 < max(held) <= module.VIEWS_PER_SCORE << 12


def test_weights_of_words_are_shares():
    head = made()
    states, *_ = case()
    weights = head.weights_of_words(states[3, :3], torch.tensor([1, 4]))
    torch.testing.assert_close(weights.sum(1), torch.ones(2))
    torch.testing.assert_close(weights[1], torch.softmax(states[3, :3] @ head.weight[4], 0).detach())


def test_weights_a_label_need_all_labels():
    states, lengths, chosen, _ = case()
    with pytest.raises(TypeError, match="all labels"):
        made("label").scores(States(states, lengths), chosen)
