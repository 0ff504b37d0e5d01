"""Batch normalisation compared with torch's, alone and as two ranks that have half of the batch each."""

from __future__ import annotations

import os
import socket
import tempfile

import pytest
import torch
from torch import distributed, nn

from forking import Forked
from labelwise.nn.images.networks import BatchNorm


def prepared(norm):
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
        norm.bias.copy_(torch.tensor([1.0, 0.0, 3.0]))
    return norm.double().train()


def batch(maps):
    shape = (6, 3, 4, 4) if maps else (6, 3)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 + 5


def outcome(norm, values):
    values = values.clone().requires_grad_(True)
    result = norm(values)
    (result.square() * torch.arange(1.0, len(values) + 1).reshape(-1, *[1] * (values.ndim - 1))).sum().backward()
    return result.detach(), values.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var


@pytest.mark.parametrize("maps", [True, False])
def test_it_is_torchs_layer_on_one_process(maps):
    theirs = prepared(nn.BatchNorm2d(3) if maps else nn.BatchNorm1d(3))
    for mine, other in zip(outcome(prepared(BatchNorm(3)), batch(maps)), outcome(theirs, batch(maps)), strict=True):
        torch.testing.assert_close(mine, other)
    torch.testing.assert_close(theirs.eval()(batch(maps)), theirs(batch(maps)))


def test_a_batch_of_one_is_normalised_as_in_predictions():
    norm = prepared(BatchNorm(3))
    outcome(norm, batch(False))
    before = norm.running_var.clone()
    one = batch(False)[:1]
    torch.testing.assert_close(norm(one), norm.eval()(one))
    assert torch.equal(norm.running_var, before)


@pytest.mark.parametrize("maps", [True, False])
def test_two_ranks_normalise_as_one_process(maps, tmp_path):
    expected = outcome(prepared(BatchNorm(3)), batch(maps))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"

    def rank(number):
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", init_method=address, rank=number, world_size=2)
        rows = slice(0, 2) if number == 0 else slice(2, 6)  # parts of unequal size
        norm, values = prepared(BatchNorm(3)), batch(maps)[rows].clone().requires_grad_(True)
        result = norm(values)
        weights = torch.arange(1.0, 7.0)[rows].reshape(-1, *[1] * (values.ndim - 1))
        (result.square() * weights).sum().backward()
        for gradient in (norm.weight.grad, norm.bias.grad):
            distributed.all_reduce(gradient)
        found = result.detach(), values.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var
        torch.save(found, tmp_path / f"{number}.pt")
        distributed.destroy_process_group()

    with tempfile.TemporaryFile("w+b") as printed:
        ranks = [
            Forked(lambda n=n: rank(n), stdout=printed.fileno(), stderr=printed.fileno(), env=dict(os.environ))
            for n in range(2)
        ]
        codes = [one.wait() for one in ranks]
        printed.seek(0)
        assert codes == [0, 0], printed.read().decode()[-2000:]
    first, second = (torch.load(tmp_path / f"{n}.pt") for n in range(2))
    for place in range(2):
        joined = torch.cat([first[place], second[place]])
        torch.testing.assert_close(joined, expected[place], rtol=1e-5, atol=1e-5)
    for place in range(2, 6):
        torch.testing.assert_close(first[place], expected[place], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(second[place], expected[place], rtol=1e-5, atol=1e-5)
