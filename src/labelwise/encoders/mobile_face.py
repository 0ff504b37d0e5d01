"""MobileFaceNet (Chen et al. 2018): a network of a million parameters for faces.

Inverted residual blocks with depthwise convolutions; at the end one depthwise convolution over the whole map weighs
each position of a face on its own, where other networks average over positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.encoders.batch_norm import BatchNorm
from labelwise.encoders.face_config import FaceNetworkConfig

# channels, expansion, blocks, stride of the first of them
STAGES = ((64, 2, 5, 2), (128, 4, 1, 2), (128, 2, 6, 1), (128, 4, 1, 2), (128, 2, 2, 1))
FIRST, LAST = 64, 512
"""Channels of the first layer and before the vector."""


class MobileFaceNet(nn.Module):
    """MobileFaceNet for images of one size; parameters as for `IResNet`."""

    def __init__(self, config: FaceNetworkConfig, channels: int, size: int) -> None:
        super().__init__()
        self.width = config.dimension
        first, last = config.channels(FIRST), config.channels(LAST)
        layers: list[nn.Module] = [
            convolution(channels, first, 3, stride=2),
            convolution(first, first, 3, groups=first),
        ]
        before = first
        for published, expansion, count, stride in STAGES:
            after = config.channels(published)
            for number in range(count):
                layers.append(_Bottleneck(before, after, expansion, stride if number == 0 else 1))
                before = after
        layers.append(convolution(before, last, 1))
        self.maps = nn.Sequential(*layers)
        side = after_halvings(size, 4)
        self.positions = nn.Sequential(
            nn.Conv2d(last, last, side, groups=last, bias=False), BatchNorm(last), nn.Flatten()
        )
        self.dropout = nn.Dropout(config.dropout)
        self.linear = nn.Linear(last, config.dimension, bias=False)
        self.vector_norm = norm_without_scale(config.dimension)

    def forward(self, images: Tensor) -> Tensor:
        """Vectors of normalised images [documents, channels, size, size]."""
        maps = self.dropout(self.positions(self.maps(images)))
        with torch.autocast(images.device.type, enabled=False):
            return self.vector_norm(self.linear(maps.float()))


class _Bottleneck(nn.Module):
    """Expand, convolve each channel, reduce; with a shortcut where the shape stays."""

    def __init__(self, before: int, after: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = before * expansion
        self.layers = nn.Sequential(
            convolution(before, inner, 1),
            convolution(inner, inner, 3, stride=stride, groups=inner),
            nn.Conv2d(inner, after, 1, bias=False),
            BatchNorm(after),
        )
        self.has_shortcut = stride == 1 and before == after

    def forward(self, maps: Tensor) -> Tensor:
        return maps + self.layers(maps) if self.has_shortcut else self.layers(maps)


def convolution(before: int, after: int, side: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, its normalisation and PReLU."""
    return nn.Sequential(
        nn.Conv2d(before, after, side, stride, side // 2, groups=groups, bias=False),
        BatchNorm(after),
        nn.PReLU(after),
    )


def norm_without_scale(width: int) -> BatchNorm:
    """Batch normalisation of vectors whose scale stays 1."""
    norm = BatchNorm(width)
    norm.weight.requires_grad_(False)
    return norm


def after_halvings(size: int, count: int) -> int:
    """Side of a map after `count` layers of stride 2."""
    for _ in range(count):
        size = -(-size // 2)
    return size
