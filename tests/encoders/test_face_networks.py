"""Networks for faces: sizes known from the literature, any image size, widths, and the frozen scale."""

from __future__ import annotations

import pytest
import torch

from labelwise.nn.config import FaceNetworkConfig
from labelwise.nn.images.faces import make_face_network


def weights_of(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "dimension", "millions"),
    [("r18", 512, 24.03), ("r34", 512, 34.14), ("r50", 512, 43.59), ("r100", 512, 65.16), ("mobile", 128, 1.00)],
)
def test_the_networks_have_the_published_sizes(name, dimension, millions):
    with torch.device("meta"):
        network = make_face_network(FaceNetworkConfig(network=name, dimension=dimension), 3, 112)
    assert round(weights_of(network) / 1e6, 2) == millions


@pytest.mark.parametrize("name", ["r18", "mobile"])
@pytest.mark.parametrize("size", [112, 90, 33])
def test_any_image_size(name, size):
    config = FaceNetworkConfig(network=name, width_factor=0.125, dimension=16)
    network = make_face_network(config, 1, size).eval()
    images = torch.rand(3, 1, size, size, generator=torch.Generator().manual_seed(0))
    vectors = network(images)
    assert vectors.shape == (3, network.width) == (3, 16)
    torch.testing.assert_close(network(images[1:2]), vectors[1:2], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["r18", "mobile"])
def test_the_last_normalisation_keeps_its_scale(name):
    network = make_face_network(FaceNetworkConfig(network=name, width_factor=0.125, dimension=8), 3, 32)
    vectors = network(torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(vectors.mean(0), torch.zeros(8), atol=1e-4, rtol=0)
    torch.testing.assert_close(vectors.std(0, correction=0), torch.ones(8), atol=1e-2, rtol=0)
    vectors.square().sum().backward()
    assert network.vector_norm.weight.grad is None
    assert network.vector_norm.bias.grad is not None
    assert all(p.grad is not None for name, p in network.named_parameters() if name != "vector_norm.weight")


def test_initial_weights_depend_on_the_seed_alone():
    config = FaceNetworkConfig(network="r18", width_factor=0.125, dimension=8)
    state = torch.get_rng_state()
    first, second, other = (make_face_network(config, 3, 16, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.linear.weight, other.linear.weight)


def test_widths_are_multiples_of_eight():
    assert FaceNetworkConfig(width_factor=0.3).channels(64) == 16
    assert FaceNetworkConfig(width_factor=0.01).channels(64) == 8
