"""Heads of digits: losses, gradients and best labels of plain torch over all labels, with surplus codes."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.nn import functional

from labelwise.errors import ModelFormatError
from labelwise.labelspace.digits import DigitCode
from labelwise.nn.config import DigitHeadConfig
from labelwise.nn.heads.base import Targets
from labelwise.nn.heads.make_head import head_state, make_head, restored_head
from labelwise.nn.heads.sampled import GroupSampler

DOCUMENTS, WIDTH, LABELS = 7, 5, 29
RADICES = [(6, 5), (3, 2, 5), (2, 4, 2, 2)]
COUNTS = np.arange(LABELS) % 4 + 1


def one_label():
    rng = np.random.default_rng(0)
    return sparse.csr_array(np.eye(LABELS, dtype=np.float32)[rng.integers(LABELS, size=DOCUMENTS)])


def several_labels():
    dense = (np.random.default_rng(1).random((DOCUMENTS, LABELS)) < 0.12).astype(np.float32)
    dense[3] = 0  # a document without labels
    return sparse.csr_array(dense)


def built(seed=0, **settings):
    config = DigitHeadConfig.model_validate(settings)
    head = make_head(WIDTH, LABELS, config, COUNTS, seed).initialise(COUNTS, 50, seed).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.5
    return head


def vectors_of(seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(DOCUMENTS, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()


def shared(labels):
    dense = torch.tensor(labels.toarray(), dtype=torch.float64)
    return dense / dense.sum(1, keepdim=True).clamp_min(1)


def compare(head, labels, expected_loss):
    """Loss and all gradients of a head against autograd through the same parameters."""
    vectors, targets = vectors_of(), Targets.of_rows(labels, np.arange(DOCUMENTS))
    loss = head.loss(vectors, targets)
    (1.5 * loss).backward()
    found = {name: p.grad.to_dense() if p.grad.is_sparse else p.grad for name, p in head.named_parameters()}
    found["vectors"], vectors.grad = vectors.grad, None
    sparse_names = {name for name, p in head.named_parameters() if p.grad.is_sparse}
    assert sparse_names == set(head.row_tables())
    head.zero_grad()
    expected = expected_loss(head, vectors)
    (1.5 * expected).backward()
    torch.testing.assert_close(loss, expected)
    for name, parameter in [*head.named_parameters(), ("vectors", vectors)]:
        torch.testing.assert_close(found[name], parameter.grad, msg=lambda text, name=name: f"{name}: {text}")


def label_scores(head, vectors):
    """The sum of the digits' outputs for each label."""
    parts = (vectors @ head.weight.T + head.bias).split(head.code.sizes, 1)
    digits = head.code.encode(np.arange(LABELS))
    return torch.stack([part[:, digits[:, digit]] for digit, part in enumerate(parts)]).sum(0)


@pytest.mark.parametrize(("radices", "order"), list(zip(RADICES, ["index", "random", "frequency"], strict=True)))
@pytest.mark.parametrize("labels", [one_label(), several_labels()], ids=["one", "several"])
def test_product_is_a_softmax_over_all_labels(radices, order, labels):
    head = built(kind="product", radices=radices, order=order)
    compare(head, labels, lambda h, v: -(shared(labels) * label_scores(h, v).log_softmax(1)).sum(1).mean())
    vectors = vectors_of().detach()
    expected = label_scores(head, vectors).log_softmax(1).topk(9)
    ids, scores = head.best(vectors, 9)
    assert ids.tolist() == expected.indices.tolist()
    torch.testing.assert_close(scores, expected.values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("radices", RADICES)
def test_ties_of_a_product_are_in_the_order_of_labels(radices):
    head = built(kind="product", radices=radices, order="random").float()
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_((head.bias * 2).round())
    ids, scores = head.best(vectors_of().detach().float(), LABELS)
    every = torch.empty_like(scores).scatter_(1, ids, scores)
    for k in (1, 3, 10):
        found, best = head.best(vectors_of().detach().float(), k)
        expected = every.sort(dim=1, descending=True, stable=True)
        assert found.tolist() == expected.indices[:, :k].tolist()
        assert torch.equal(best, expected.values[:, :k])


def test_losses_of_the_original_product_head():
    labels = several_labels()
    dense = torch.tensor(labels.toarray())
    for loss, reduction in (("joint_softmax", "sum"), ("bce", "sum"), ("bce", "mean")):
        head = built(kind="product", radices=(3, 2, 5), loss=loss, reduction=reduction)

        def expected(head, vectors, loss=loss, reduction=reduction):
            outputs = vectors @ head.weight.T + head.bias
            digits = head.code.encode(np.arange(LABELS)) + np.array([0, 3, 5])
            if loss == "joint_softmax":
                own = outputs.log_softmax(1)[:, digits].sum(2)
                return -(shared(labels) * own).sum(1).mean()
            hot = torch.zeros_like(outputs)
            for document, label in torch.nonzero(dense).tolist():
                hot[document, digits[label]] = 1.0
            each = functional.binary_cross_entropy_with_logits(outputs, hot, reduction="none")
            return each.mean() if reduction == "mean" else each.sum(1).mean()

        compare(head, labels, expected)


def level_scores(head, vectors):
    """Scores of all nodes of each level; labels at the last one in the order of codes."""
    scores = [vectors @ head.groups.weight.T + head.groups.bias]
    for digit in range(1, head.code.depth):
        bottleneck, level = head.bottlenecks[digit - 1], head.levels[digit - 1]
        part = bottleneck(vectors) @ level.weight.T + level.bias
        last = digit == head.code.depth - 1
        scores.append(part[:, head.code.labels(np.arange(LABELS))] if last else part)
    return scores


def conditional(head, vectors):
    """Log-probabilities of all labels: the sum over levels of a softmax among siblings."""
    total = 0.0
    for digit, scores in enumerate(level_scores(head, vectors)):
        parents = np.arange(scores.shape[1]) // (head.code.radices[digit] if digit else scores.shape[1])
        parts = [scores[:, parents == parent].log_softmax(1) for parent in np.unique(parents)]
        total = total + torch.cat(parts, 1)[:, head.code.node_of(digit)]
    return total


@pytest.mark.parametrize(("radices", "order"), list(zip(RADICES, ["index", "random", "frequency"], strict=True)))
@pytest.mark.parametrize("labels", [one_label(), several_labels()], ids=["one", "several"])
def test_cascade_of_true_nodes_is_a_hierarchical_softmax(radices, order, labels):
    head = built(kind="cascade", radices=radices, order=order, bottleneck=4, beam=100)
    compare(head, labels, lambda h, v: -(shared(labels) * conditional(h, v)).sum(1).mean())
    vectors = vectors_of().detach()
    expected = conditional(head, vectors).topk(8)
    ids, scores = head.best(vectors, 8)
    assert ids.tolist() == expected.indices.tolist()
    torch.testing.assert_close(scores, expected.values)


def node_targets(head, labels, digit):
    nodes = head.code.node_of(digit)
    dense = np.zeros((DOCUMENTS, head.code.n_nodes(digit)))
    for document, label in zip(*labels.nonzero(), strict=True):
        dense[document, nodes[label]] = 1.0
    return torch.tensor(dense)


@pytest.mark.parametrize("radices", RADICES)
@pytest.mark.parametrize("groups", [2, 100])
def test_cascade_with_bce_scores_true_and_best_nodes(radices, groups):
    labels = several_labels()
    head = built(kind="cascade", loss="bce", radices=radices, order="random", bottleneck=4, groups=groups, beam=2)

    def expected(head, vectors):
        total, above, best, visited = 0.0, None, None, None
        for digit, scores in enumerate(level_scores(head, vectors)):
            true = node_targets(head, labels, digit)
            each = functional.binary_cross_entropy_with_logits(scores, true, reduction="none")
            paths = functional.logsigmoid(scores.detach())
            if digit:
                parents = np.arange(scores.shape[1]) // radices[digit]
                each = each * visited[:, parents]
                paths = torch.where(best[:, parents] > 0, paths + above[:, parents], -torch.inf)
            total = total + each.sum(1).mean()
            # the model's own beam, and the true nodes, filled up to `groups`
            best, visited = torch.zeros_like(true), true.clone()
            for document in range(DOCUMENTS):
                ranked = paths[document].argsort(descending=True).tolist()[:groups]
                best[document, [node for node in ranked if paths[document, node] > -np.inf]] = 1.0
                for node in ranked:
                    if visited[document].sum() < groups and best[document, node]:
                        visited[document, node] = 1.0
            above = paths
        return total

    compare(head, labels, expected)


def test_cascade_scores_are_products_of_probabilities_and_the_beam_widens_for_k():
    head = built(kind="cascade", loss="bce", radices=(6, 5), order="random", bottleneck=4, beam=1)
    vectors = vectors_of().detach()
    logs = [functional.logsigmoid(part) for part in level_scores(head, vectors)]
    every = (logs[0][:, np.arange(LABELS) // 5] + logs[1])[:, head.code.code_of]
    ids, scores = head.best(vectors, LABELS)
    expected = every.sort(descending=True)
    assert ids.tolist() == expected.indices.tolist()
    torch.testing.assert_close(head.probabilities(scores), expected.values.exp())
    ids, _ = head.best(vectors, 4)  # one group is enough for four labels, unless it is the last: two are searched
    groups = logs[0].topk(2).indices
    searched = (torch.from_numpy(head.code.node_of(0))[None, None] == groups[:, :, None]).any(1)
    allowed = every.masked_fill(~searched, -torch.inf)
    assert ids.tolist() == allowed.topk(4).indices.tolist()


@pytest.mark.parametrize("loss", ["bce", "softmax"])
def test_a_cascade_begins_with_the_frequencies_of_labels(loss):
    config = DigitHeadConfig.model_validate({"kind": "cascade", "loss": loss, "radices": (3, 2, 5), "order": "random"})
    counts = np.random.default_rng(0).permutation(LABELS) + 1
    head = make_head(WIDTH, LABELS, config, counts, 0).initialise(counts, 60, 0)
    ids, scores = head.best(torch.zeros(1, WIDTH), LABELS)
    assert ids[0].tolist() == np.argsort(-counts).tolist()
    priors = (counts[ids[0]] + 0.5) / 61
    expected = priors / priors.sum() if loss == "softmax" else priors
    np.testing.assert_allclose(head.probabilities(scores)[0], expected, rtol=0.02)


def test_cascade_softmax_with_negatives_is_over_all_visited_nodes():
    labels = one_label()
    head = built(kind="cascade", radices=(6, 5), bottleneck=4, groups=100, beam=100)

    def expected(head, vectors):
        groups, below = level_scores(head, vectors)
        return -(
            (node_targets(head, labels, 0) * groups.log_softmax(1)).sum(1)
            + (node_targets(head, labels, 1) * below.log_softmax(1)).sum(1)
        ).mean()

    compare(head, labels, expected)


@pytest.mark.parametrize("order", ["index", "random"])
def test_scores_of_a_cascade_with_negatives_are_group_and_label_among_all_visited(order):
    head = built(kind="cascade", radices=(6, 5), order=order, bottleneck=4, groups=3, beam=100)
    vectors = vectors_of().detach()
    groups = (vectors @ head.groups.weight.T + head.groups.bias).log_softmax(1)
    labels = torch.arange(LABELS).expand(DOCUMENTS, -1)
    among_all = head.levels[0].scores(head.bottlenecks[0](vectors), labels).log_softmax(1)
    every = groups[:, torch.from_numpy(head.code.node_of(0))] + among_all
    ids, scores = head.best(vectors, LABELS)
    assert ids.tolist() == every.sort(descending=True).indices.tolist()
    torch.testing.assert_close(scores, every.gather(1, ids))
    for beam in (1, 2):  # fewer labels are visited: their order and differences stay
        head.config = head.config.model_copy(update={"beam": beam})
        ids, scores = head.best(vectors, 4)
        torch.testing.assert_close(scores - scores[:, :1], every.gather(1, ids) - every.gather(1, ids[:, :1]))


def softmax_over_all(labels):
    return lambda h, v: -(shared(labels) * (v @ h.weight.T + h.bias).log_softmax(1)).sum(1).mean()


@pytest.mark.parametrize(("negatives", "log_q"), list(product(["batch", "document"], [False, True])))
def test_sampling_all_groups_is_the_full_softmax(negatives, log_q):
    labels = several_labels()
    settings = {"kind": "sampling", "radices": (6, 5), "order": "random", "block": 8}
    head = built(**settings, negatives=negatives, sampled_fraction=1.0, log_q=log_q)
    compare(head, labels, softmax_over_all(labels))
    few = built(**settings, negatives=negatives, sampled_groups=2).eval()  # evaluation is over all labels
    targets = Targets.of_rows(labels, np.arange(DOCUMENTS))
    vectors = vectors_of()
    torch.testing.assert_close(few.loss(vectors, targets), softmax_over_all(labels)(few, vectors))
    expected = (vectors @ few.weight.T + few.bias).log_softmax(1).topk(6)
    ids, scores = few.best(vectors, 6)
    assert ids.tolist() == expected.indices.tolist()
    torch.testing.assert_close(scores, expected.values)


@pytest.mark.parametrize("negatives", ["batch", "document", "V0", "V2", "B1"])
@pytest.mark.parametrize("labels", [one_label(), several_labels()], ids=["one", "several"])
def test_sampled_softmax_is_that_of_the_drawn_labels(negatives, labels):
    number = {"sampled_groups": 3} if negatives in ("batch", "document") else {}
    log_q = negatives not in ("V0", "B1")
    head = built(kind="sampling", radices=(6, 5), order="random", negatives=negatives, log_q=log_q, **number)
    drawn = []
    sample = head.sampler.sample
    head.sampler.sample = lambda *arguments: drawn.append(sample(*arguments)) or drawn[-1]

    def expected(head, vectors):
        (one,) = drawn
        scores = vectors @ head.weight[one.rows].T + head.bias[one.rows]
        if one.offsets is not None:
            scores = scores + one.offsets[:, one.groups]
        masses = shared(labels)[:, one.rows]
        return -torch.where(masses > 0, masses * scores.log_softmax(1), 0.0).sum(1).mean()

    compare(head, labels, expected)
    rows = drawn[0].rows.numpy()
    assert (np.diff(rows) > 0).all()
    groups = set(head.code.node_of(0)[rows])
    own = set(head.code.node_of(0)[labels.nonzero()[1]])
    assert own <= groups
    assert len(rows) == sum(int((head.code.node_of(0) == group).sum()) for group in groups)
    if negatives in ("V0", "B1"):
        assert groups == own


@pytest.mark.parametrize("negatives", ["batch", "document"])
def test_offsets_make_the_normaliser_unbiased(negatives):
    torch.manual_seed(0)
    documents, groups = torch.tensor([0, 1, 1]), torch.tensor([2, 0, 2])
    values = torch.arange(1.0, 8.0)  # the sum of exponentials of each group
    sums, counts = torch.zeros(2), torch.zeros(2)
    config = DigitHeadConfig(kind="sampling", negatives=negatives, sampled_groups=4, log_q=True)
    sampler = GroupSampler(DigitCode((7, 1), 7), config)
    for _ in range(1000):
        chosen, offsets = sampler.draw(documents, groups, 2)
        offsets = offsets.expand(2, -1)
        sums += (offsets.exp() * values[chosen]).sum(1) / 1000
        counts += (offsets > -torch.inf).sum(1) / 1000
    torch.testing.assert_close(sums, torch.full((2,), float(values.sum())), rtol=0.04, atol=0)
    torch.testing.assert_close(counts, torch.full((2,), 4.0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", ["one_hot", "product", "cascade", "sampling"])
def test_a_saved_head_is_restored_and_a_damaged_one_refused(kind):
    settings = {} if kind == "one_hot" else {"radices": (6, 5), "order": "random"}
    config = DigitHeadConfig.model_validate({"kind": kind, **settings})
    head = make_head(WIDTH, LABELS, config, COUNTS, 3).initialise(COUNTS, 50, 3).eval()
    state = head_state(head)
    again = restored_head(WIDTH, LABELS, config, state, Path("x")).eval()
    vectors = vectors_of().detach().float()
    for mine, its in zip(head.best(vectors, 5), again.best(vectors, 5), strict=True):
        assert torch.equal(mine, its)
    name = next(iter(state))
    for damaged in ({**state, name: state[name][:-1]}, {key: value for key, value in state.items() if key != name}):
        with pytest.raises(ModelFormatError, match="x"):
            restored_head(WIDTH, LABELS, config, damaged, Path("x"))
    if kind != "one_hot":
        for order in (np.zeros(LABELS, np.int32), np.full(LABELS, -1, np.int32), np.arange(LABELS)):
            with pytest.raises(ModelFormatError, match="permutation"):
                restored_head(WIDTH, LABELS, config, {**state, "label_at": order}, Path("x"))


def test_a_group_of_one_label_does_not_begin_with_certainty():
    """Groups are visited as negatives too; a bias of 30 would take tens of thousands of steps to fall."""
    counts = np.full(13, 5)
    config = DigitHeadConfig(kind="cascade", loss="bce", radices=(4, 4))
    head = make_head(WIDTH, 13, config, counts, 0).initialise(counts, 50, 0)
    assert head.levels[0].bias.abs().max() < 5


def test_the_constant_loss_of_a_cascade():
    labels = one_label()
    counts = np.bincount(labels.indices, minlength=LABELS)
    head = built(kind="cascade", radices=(3, 2, 5), order="random", bottleneck=4)
    priors = (counts + 0.5) / (DOCUMENTS + 1)
    expected = -np.log(priors / priors.sum())[labels.indices].mean()
    assert head.constant_loss(labels, np.arange(DOCUMENTS)) == pytest.approx(expected, rel=0.01)
    head = built(kind="cascade", loss="bce", radices=(6, 5), bottleneck=4, groups=2)
    floor = head.constant_loss(several_labels(), np.arange(DOCUMENTS))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        zero = head.loss(vectors_of(), Targets.of_rows(several_labels(), np.arange(DOCUMENTS)))
    assert 0 < floor < float(zero)


@pytest.mark.parametrize("kind", ["one_hot", "product", "cascade", "sampling"])
def test_ranks_beyond_the_labels_are_empty(kind):
    head = built(kind=kind, **({} if kind == "one_hot" else {"radices": (6, 5)}))
    ids, scores = head.best(vectors_of().detach(), LABELS + 3)
    assert ids.shape == scores.shape == (DOCUMENTS, LABELS + 3)
    assert (ids[:, :LABELS].sort(1).values == torch.arange(LABELS)).all()
    assert (ids[:, LABELS:] == -1).all()
    assert (scores[:, LABELS:] == -torch.inf).all()


@pytest.mark.parametrize("negatives", ["V0", "B1"])
def test_a_correction_of_random_groups_needs_some(negatives):
    with pytest.raises(ValueError, match="no random groups"):
        DigitHeadConfig(kind="sampling", negatives=negatives, log_q=True)


def test_a_diverged_head_returns_no_labels():
    for kind in ("product", "cascade", "sampling"):
        head = built(kind=kind, radices=(6, 5)).float()
        ids, _ = head.best(torch.full((2, WIDTH), torch.nan), 3)
        assert (ids == -1).all(), kind
