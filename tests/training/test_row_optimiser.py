"""Row-sparse updates: equal to torch's dense and sparse optimisers wherever they must be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_fitting import _one_thread  # noqa: F401

from labelwise.errors import ConfigError
from labelwise.nn.config import OptimiserConfig
from labelwise.nn.train.optim import CLASSES, RowOptimiser, make_optimisers
from labelwise.runtime.ranks import add_row_gradient

ROWS, WIDTH = 9, 3
SETTINGS = {
    "adam": {},
    "adamw": {},
    "adagrad": {"lr_decay": 0.05, "initial_accumulator_value": 0.1},
    "sgd": {"momentum": 0.9, "nesterov": True},
}


def tables(count=2, seed=0):
    torch.manual_seed(seed)
    start = torch.randn(ROWS, WIDTH)
    return [torch.nn.Parameter(start.clone()) for _ in range(count)]


def sparse_gradient(rows, values):
    return torch.sparse_coo_tensor(torch.as_tensor(rows)[None], values, (ROWS, WIDTH), check_invariants=True)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", SETTINGS)
def test_dense_form_when_every_row_is_touched(name, decay):
    one, other = tables()
    settings = SETTINGS[name]
    ours = RowOptimiser([one], name, {"lr": 0.05, "weight_decay": decay, **settings})
    theirs = CLASSES[name]([other], lr=0.05, weight_decay=decay, foreach=False, **settings)
    for step in range(10):
        values = torch.randn(ROWS, WIDTH)
        order = torch.randperm(ROWS)
        one.grad = values if step % 3 == 0 else sparse_gradient(order, values[order])
        other.grad = values
        ours.step()
        theirs.step()
    torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


@given(st.lists(st.lists(st.integers(0, ROWS - 1), max_size=6), min_size=1, max_size=8))
def test_torch_s_sparse_adam(touched):
    one, other = tables()
    # SparseAdam adds eps before the correction of the second moment, so that it must be small to be no difference
    ours = RowOptimiser([one], "adam", {"lr": 0.05, "eps": 1e-15})
    theirs = torch.optim.SparseAdam([other], lr=0.05, eps=1e-15)
    for rows in touched:
        values = torch.randn(len(rows), WIDTH)
        one.grad = sparse_gradient(torch.tensor(rows, dtype=torch.int64), values)
        other.grad = one.grad.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@given(st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=6), min_size=1, max_size=8))
def test_rows_without_gradient_stay_under_adagrad_and_sgd(touched):
    """Where a zero gradient moves nothing, the dense optimiser gives the same with any rows."""
    for name in ("adagrad", "sgd"):
        one, other = tables()
        ours, theirs = RowOptimiser([one], name, {"lr": 0.1}), CLASSES[name]([other], lr=0.1)
        for rows in touched:
            one.grad = sparse_gradient(rows, torch.randn(len(rows), WIDTH))
            other.grad = one.grad.to_dense()
            ours.step()
            theirs.step()
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_decay_that_was_put_off_is_not_lost():
    """SGD on a few rows per step, with decay of all rows under a schedule, is the dense training."""
    one, other = tables()
    ours = RowOptimiser([one], "sgd", {"lr": 0.1, "weight_decay": 0.2})
    theirs = torch.optim.SGD([other], lr=0.1, weight_decay=0.2)
    draw = torch.Generator().manual_seed(3)
    for step in range(30):
        rows = torch.randperm(ROWS, generator=draw)[:3]
        for group in (*ours.param_groups, *theirs.param_groups):
            group["lr"] = 0.1 / (1 + step)  # under a schedule
        values = torch.randn(3, WIDTH, generator=draw)
        one.grad = sparse_gradient(rows, values)
        dense = torch.zeros(ROWS, WIDTH)
        dense[rows] = values
        other.grad = dense
        ours.step()
        theirs.step()
    assert not torch.allclose(one, other, rtol=1e-3)
    ours.catch_up()
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    before = one.detach().clone()
    ours.catch_up()
    assert torch.equal(one, before)


def test_adamw_pulls_resting_rows_too():
    (one,) = tables(1)
    start = one.detach().clone()
    ours = RowOptimiser([one], "adamw", {"lr": 0.1, "weight_decay": 0.5})
    for _ in range(7):
        one.grad = sparse_gradient([2], torch.randn(1, WIDTH))
        ours.step()
    resting = [row for row in range(ROWS) if row != 2]
    assert torch.equal(one[resting], start[resting])
    ours.catch_up()
    torch.testing.assert_close(one.detach()[resting], start[resting] * 0.95**7)


def test_untouched_rows_are_not_written():
    (one,) = tables(1)
    start = one.detach().clone()
    ours = RowOptimiser([one], "adam")
    one.grad = torch.sparse_coo_tensor(
        torch.tensor([[4, 1, 4]]), torch.ones(3, WIDTH), one.shape, check_invariants=True
    )
    ours.step()
    changed = (one.detach() != start).any(1)
    assert changed.nonzero().flatten().tolist() == [1, 4]
    assert ours.state[one]["exp_avg"].any(1).nonzero().flatten().tolist() == [1, 4]
    torch.testing.assert_close(ours.state[one]["exp_avg"][4], torch.full((WIDTH,), 0.2))


def test_explicit_rows_are_the_gradient_of_a_sparse_embedding():
    one, other = tables()
    rows = torch.tensor([3, 0, 3])
    torch.nn.functional.embedding(rows, other, sparse=True).square().sum().backward()
    first = rows[:2].sort().values
    add_row_gradient(one, first, 2 * one.detach()[first])
    add_row_gradient(one, rows[2:], 2 * one.detach()[rows[2:]])  # as gradient accumulation does
    torch.testing.assert_close(one.grad.to_dense(), other.grad.to_dense())


def test_a_table_of_single_numbers():
    bias = torch.nn.Parameter(torch.zeros(ROWS))
    ours = RowOptimiser([bias], "adamw", {"lr": 0.1, "weight_decay": 0.1})
    add_row_gradient(bias, torch.tensor([5]), torch.tensor([1.0]))
    ours.step()
    assert bias.nonzero().flatten().tolist() == [5]
    assert bias[5].item() == pytest.approx(-0.1)


@pytest.mark.parametrize("name", ["amsgrad", "adadelta"])
def test_optimisers_without_a_form_for_rows_are_refused(name):
    table = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
    with pytest.raises(ConfigError, match=f"{name} updates whole tables only.*choose adam, adamw, adagrad, sgd"):
        make_optimisers(table, OptimiserConfig(name=name))
    table.sparse = False
    make_optimisers(table, OptimiserConfig(name=name))
