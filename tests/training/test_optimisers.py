"""Optimisers made from a config against torch's own, parameter groups, clipping."""

import pytest
import torch
from tiny_fitting import TinyModel, _one_thread  # noqa: F401
from torch import nn

from labelwise.errors import ConfigError
from labelwise.nn.config import OptimiserConfig
from labelwise.nn.train.optim import (
    RowOptimiser,
    clip_adaptively,
    clip_gradients,
    make_optimisers,
    rates,
)

# As in torch's documentation; the study this toolkit repeats had Adagrad's and Adadelta's swapped.
DEFAULTS = {
    "adagrad": (0.01, 0, {"eps": 1e-10, "lr_decay": 0}),
    "adadelta": (1.0, 0, {"rho": 0.9, "eps": 1e-6}),
    "adam": (1e-3, 0, {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False}),
    "amsgrad": (1e-3, 0, {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": True}),
    "adamw": (1e-3, 0.01, {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False}),
    "sgd": (1e-3, 0, {"momentum": 0, "nesterov": False}),
}
PLAIN = {
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adam": torch.optim.Adam,
    "amsgrad": lambda params, **settings: torch.optim.Adam(params, amsgrad=True, **settings),
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_torch_s(name):
    rate, decay, others = DEFAULTS[name]
    optimisers = make_optimisers(nn.Linear(3, 2), OptimiserConfig(name=name))
    (part,) = optimisers.parts
    matrix, vector = part.param_groups[0], part.param_groups[-1]  # one group where nothing is pulled
    assert matrix["lr"] == vector["lr"] == rate
    assert (matrix["weight_decay"], vector["weight_decay"]) == (decay, 0)
    assert {key: matrix[key] for key in others} == others


SETTINGS = {
    "adagrad": ({"rate_decay": 0.1, "initial_sum": 0.2, "eps": 1e-3}, {"lr_decay": 0.1, "initial_accumulator_value": 0.2, "eps": 1e-3}),
    "adadelta": ({"rho": 0.7, "eps": 1e-4}, {"rho": 0.7, "eps": 1e-4}),
    "adam": ({"betas": (0.8, 0.9), "eps": 1e-3}, {"betas": (0.8, 0.9), "eps": 1e-3}),
    "amsgrad": ({"betas": (0.8, 0.6)}, {"betas": (0.8, 0.6)}),
    "adamw": ({"betas": (0.5, 0.9)}, {"betas": (0.5, 0.9)}),
    "sgd": ({"momentum": 0.8, "nesterov": True}, {"momentum": 0.8, "nesterov": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_are_those_of_torch_s_plain_form(name):
    ours, theirs = SETTINGS[name]
    config = OptimiserConfig(name=name, rate=0.05, weight_decay=0.1, decay_on="all", **ours)
    torch.manual_seed(0)
    one, other = nn.Linear(5, 4), nn.Linear(5, 4)
    other.load_state_dict(one.state_dict())
    optimisers = make_optimisers(one, config)
    reference = PLAIN[name](other.parameters(), lr=0.05, weight_decay=0.1, foreach=False, **theirs)
    for _ in range(12):
        for module in (one, other):
            module.zero_grad()
        inputs = torch.randn(6, 5)
        for module in (one, other):
            module(inputs).square().sum().backward()
        optimisers.step()
        reference.step()
    torch.testing.assert_close(one.weight, other.weight, rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(one.bias, other.bias, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", SETTINGS)
def test_fused_kernels_only_where_there_are_some(name):
    for device, able in (("cpu", name != "adadelta"), ("meta", False)):
        (made,) = make_optimisers(nn.Linear(3, 2, device=device), OptimiserConfig(name=name)).parts
        assert {bool(group.get("fused")) for group in made.param_groups} == {able}


def groups_by_name(optimisers):
    return {
        optimisers.names[parameter]: (group["lr"], group["weight_decay"])
        for part in optimisers.parts
        for group in part.param_groups
        for parameter in group["params"]
    }


@pytest.mark.parametrize(
    ("decay_on", "decayed"),
    [
        ("all", "words.weight body.0.weight body.0.bias body.1.weight body.1.bias body.3.weight body.3.bias head.weight head.bias"),
        ("matrices", "words.weight body.0.weight head.weight"),
        ("matrices_but_embeddings", "body.0.weight head.weight"),
    ],
)  # fmt: skip
def test_who_is_pulled_towards_zero(decay_on, decayed):
    config = OptimiserConfig(weight_decay=0.1, decay_on=decay_on)
    groups = groups_by_name(make_optimisers(TinyModel(), config))
    assert len(groups) == 9
    assert {name for name, (_, decay) in groups.items() if decay} == set(decayed.split())


def test_the_head_has_a_rate_of_its_own():
    config = OptimiserConfig(rate=1e-3, rate_factor=10, head_factor=5)
    assert rates(config) == pytest.approx((1e-2, 5e-2))
    groups = groups_by_name(make_optimisers(TinyModel(), config, head=("head.",)))
    assert {name for name, (rate, _) in groups.items() if rate == pytest.approx(5e-2)} == {"head.weight", "head.bias"}
    assert rates(OptimiserConfig(name="adadelta", rate_factor=0.1, head_rate=2)) == pytest.approx((0.1, 0.2))


def test_frozen_parameters_and_unknown_names():
    model = TinyModel()
    model.body.requires_grad_(False)
    assert set(groups_by_name(make_optimisers(model, OptimiserConfig()))) == {
        "words.weight",
        "head.weight",
        "head.bias",
    }
    with pytest.raises(ConfigError, match=r"begins with 'body\.'"):
        make_optimisers(model, OptimiserConfig(), head=("body.",))
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing to train"):
        make_optimisers(model, OptimiserConfig())


def test_sparse_tables_are_found():
    optimisers = make_optimisers(TinyModel(sparse=True), OptimiserConfig(), head=("head.",))
    dense, rows = optimisers.parts
    assert isinstance(rows, RowOptimiser)
    assert [optimisers.names[p] for group in rows.param_groups for p in group["params"]] == ["words.weight"]
    assert "words.weight" not in [optimisers.names[p] for group in dense.param_groups for p in group["params"]]


@pytest.mark.parametrize("longest", [0.01, 1e3])
def test_clipping_is_torch_s_and_takes_sparse_gradients(longest):
    torch.manual_seed(1)
    sparse, dense = TinyModel(sparse=True, dropout=0), TinyModel(sparse=False, dropout=0)
    ids = torch.randint(0, 5, (6, 4))  # words that stand several times
    for model in (sparse, dense):
        model(ids, torch.ones(6, 4)).square().sum().backward()
    length = clip_gradients(sparse.parameters(), longest)
    expected = torch.nn.utils.clip_grad_norm_(dense.parameters(), longest)
    torch.testing.assert_close(length, expected)
    for one, other in zip(sparse.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(one.grad.to_dense(), other.grad, rtol=1e-5, atol=1e-8)


def test_adaptive_clipping_allows_five_times_the_longest_of_the_last_five():
    weight = torch.nn.Parameter(torch.zeros(2))
    lengths = []

    def clipped(length):
        weight.grad = torch.tensor([length, 0.0])
        clip_adaptively([weight], lengths)
        return float(weight.grad[0])

    assert [clipped(length) for length in (0.1, 0.2, 50.0, 0.1, 0.1)] == pytest.approx([0.1, 0.2, 50.0, 0.1, 0.1])
    assert lengths == pytest.approx([0.1, 0.2, 1.0, 0.1, 0.1])
    assert clipped(30.0) == pytest.approx(5.0, rel=1e-4)
    assert clipped(float("nan")) != 0, "what is no number is not remembered"
    assert lengths == pytest.approx([0.2, 1.0, 0.1, 0.1, 1.0])
    for _ in range(5):
        clipped(0.01)
    assert clipped(7.0) == pytest.approx(0.05, rel=1e-4)
    assert lengths[-1] == pytest.approx(0.02)
