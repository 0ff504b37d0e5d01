"""The recurrent passes against torch's own packed layers: values, gradients, and independence of the batch."""

import copy
import pickle

import numpy as np
import pytest
import torch

from labelwise.nn.config import OptimiserConfig, RecurrentConfig
from labelwise.nn.train.optim import make_optimisers
from labelwise.nn.words.recurrent import RecurrentEncoder, Steps
from labelwise.runtime.threads import using_threads

LENGTHS = ([5], [7, 7, 7], [9, 4, 4, 1], [6, 5, 4, 3, 2, 1])


def encoder(cell, *, frozen=False, learned=False, width=10, **dropout):
    config = RecurrentConfig(
        cell=cell, width=width, learned_start=learned, **{"word_dropout": 0, "dropout": 0, **dropout}
    )
    made = RecurrentEncoder(torch.randn(30, 7, generator=torch.Generator().manual_seed(1)), frozen, config, seed=2)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "bias" in name or "start" in name:
                weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(len(name)))
    return made


def packed(lengths, seed=0):
    """Random words, step by step, and the lengths."""
    rows = [np.random.default_rng([seed, number]).integers(0, 30, length) for number, length in enumerate(lengths)]
    steps = [[row[step] for row in rows if len(row) > step] for step in range(lengths[0])]
    return torch.tensor(np.concatenate(steps)), torch.tensor(lengths), rows


def gradients_of(module, states):
    module.zero_grad()
    weights = torch.sin(torch.arange(states.numel(), dtype=torch.float32)).view_as(states)
    (states * weights).sum().backward()
    return {
        name: (p.grad.to_dense() if p.grad.is_sparse else p.grad).clone()
        for name, p in module.named_parameters()
        if p.grad is not None
    }


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_values_and_gradients_are_those_of_torch(cell, learned, lengths, threads):
    module = encoder(cell, learned=learned)
    ids, sizes, _ = packed(lengths)
    with using_threads(threads):
        states = module.states(ids, sizes)
        expected = module.by_torch(ids, sizes)
        torch.testing.assert_close(states.clone(), expected, atol=2e-6, rtol=1e-5)
        gradients = gradients_of(module, states)
    wanted = gradients_of(module, module.by_torch(ids, sizes))
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_document_does_not_depend_on_the_batch(cell):
    module = encoder(cell).eval()
    ids, sizes, rows = packed([9, 4, 4, 1])
    with torch.no_grad():
        together = module.states(ids, sizes)
        for number, row in enumerate(rows):
            alone = module.states(torch.tensor(row), torch.tensor([len(row)]))[0]
            torch.testing.assert_close(together[number, : len(row)], alone, atol=1e-6, rtol=1e-5)
            assert (together[number, len(row) :] == 0).all()


def test_the_next_batch_does_not_change_what_was_predicted():
    module = encoder("lstm").eval()
    with torch.no_grad():
        first = module.states(*packed([6, 3])[:2])
        kept = first.clone()
        module.states(*packed([8, 8], seed=5)[:2])
    assert torch.equal(first, kept)


def test_copies_go_without_what_was_calculated_in():
    module = encoder("lstm").eval()
    fresh = len(pickle.dumps(module))
    with torch.no_grad():
        module.states(*packed([60] * 20)[:2])
    assert module.pool._free
    assert len(pickle.dumps(module)) == fresh
    assert not copy.deepcopy(module).pool._free


def test_two_batches_may_be_on_their_way_at_once():
    module = encoder("gru")
    one, two = packed([6, 3])[:2], packed([5, 5], seed=3)[:2]
    states = [module.states(*one), module.states(*two)]
    module.zero_grad()
    (states[0].sin().sum() + states[1].sum()).backward()
    found = module.layer.weight_hh_l0.grad.clone()
    module.zero_grad()
    (module.by_torch(*one).sin().sum() + module.by_torch(*two).sum()).backward()
    torch.testing.assert_close(found, module.layer.weight_hh_l0.grad, atol=1e-5, rtol=1e-4)


def test_a_frozen_table_gets_no_gradient():
    module = encoder("lstm", frozen=True)
    gradients = gradients_of(module, module.states(*packed([4, 2])[:2]))
    assert "words" not in gradients
    assert "layer.weight_ih_l0" in gradients


def test_dropout_scales_and_its_gradient_has_the_same_holes():
    module = encoder("lstm", width=64, dropout=0.4, word_dropout=0.3)
    ids, sizes, _ = packed([50, 40, 30])
    torch.manual_seed(0)
    states = module.states(ids, sizes)
    kept = torch.cat([states[number, : int(size)] for number, size in enumerate(sizes)])
    assert 0.37 < float((kept == 0).float().mean()) < 0.43
    table = gradients_of(module, states)["words"]
    # a finite difference of the same dropout says the same
    step, place = 1e-2, (int(ids[0]), 3)
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            module.words[place] += sign * step
        torch.manual_seed(0)
        with torch.no_grad():
            again = module.states(ids, sizes)
        values.append(float((again * torch.sin(torch.arange(again.numel())).view_as(again)).double().sum()))
        with torch.no_grad():
            module.words[place] -= sign * step
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(table[place]), abs=2e-3, rel=0.05)


def test_gradients_of_words_stand_once_a_row():
    module = encoder("lstm")
    module.states(torch.tensor([3, 3, 5, 3]), torch.tensor([2, 2])).sum().backward()
    assert module.words.grad._indices().tolist() == [[3, 5]]


@pytest.mark.parametrize(("decay_on", "decayed"), [("matrices", True), ("matrices_but_embeddings", False)])
def test_the_table_of_words_is_an_embedding_to_weight_decay(decay_on, decayed):
    module = encoder("lstm")
    config = OptimiserConfig(name="adamw", weight_decay=0.1, decay_on=decay_on)
    groups = [group for part in make_optimisers(module, config, rows=["words"]).parts for group in part.param_groups]
    pulled = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert (id(module.words) in pulled) == decayed
    assert id(module.layer.weight_hh_l0) in pulled


def test_steps_of_lengths():
    steps = Steps.of(np.array([4, 2, 2, 1]))
    assert steps.counts == (4, 3, 1, 1)
    assert steps.begins == (0, 4, 7, 8)
    assert steps.tokens == 9


def test_directions_leave_every_thread_with_the_same_number_of_threads():
    import threading

    from labelwise.nn.words.recurrent import _each_direction
    from labelwise.runtime.device import torch_threads
    from labelwise.runtime.threads import run_all, using_threads

    both = threading.Barrier(2, timeout=30)

    def count(_):
        both.wait()
        return torch.get_num_threads()

    with using_threads(2), torch_threads():
        for _ in range(3):
            assert _each_direction(count, (0, 1)) == [1, 1]
            assert run_all(count, (0, 1)) == [2, 2]
        assert torch.get_num_threads() == 2
