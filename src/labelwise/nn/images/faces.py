"""IResNet: the residual network of face recognition (Han et al. 2017, Deng et al. 2019), from faces to vectors.

Against a ResNet: no max-pooling and a first layer of stride 1, so that a face of 112 pixels keeps 7 x 7 positions to
the end; blocks BN-conv-BN-PReLU-conv-BN; and all positions enter one linear layer, since faces are aligned and a
position means a part of the face. The last normalisation has no scale of its own (it stays 1): heads with margins
normalise vectors anyway. The linear layer is as wide as the image size makes it, so one network reads one size: images
are resized to it.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from labelwise.nn.config import BLOCKS, FaceNetworkConfig
from labelwise.nn.images.networks import BatchNorm
from labelwise.runtime.device import seeded

# --- mobile face ---
# MobileFaceNet (Chen et al. 2018): a network of a million parameters for faces.
#
# Inverted residual blocks with depthwise convolutions; at the end one depthwise convolution over the whole map weighs
# each position of a face on its own, where other networks average over positions.

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
        side = -(-size // 16)  # after four layers of stride 2
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


STAGE_CHANNELS = (64, 64, 128, 256, 512)
"""Channels of the first layer and of the four stages."""
EPS = 1e-5


class IResNet(nn.Module):
    """An IResNet for images of one size.

    Parameters
    ----------
    config
        Depth, width and dimension of the vectors.
    channels, size
        Channels, and width and height, of the images.
    """

    def __init__(self, config: FaceNetworkConfig, channels: int, size: int) -> None:
        super().__init__()
        self.width = config.dimension
        widths = [config.channels(published) for published in STAGE_CHANNELS]
        self.first = nn.Sequential(
            nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
            BatchNorm(widths[0], EPS),
            nn.PReLU(widths[0]),
        )
        stages = []
        for count, (before, after) in zip(BLOCKS[config.network], pairwise(widths), strict=True):
            others = (_Block(after, after, 1) for _ in range(count - 1))
            stages.append(nn.Sequential(_Block(before, after, 2), *others))
        self.stages = nn.Sequential(*stages)
        side = -(-size // 16)  # after four layers of stride 2
        self.norm = BatchNorm(widths[-1], EPS)
        self.dropout = nn.Dropout(config.dropout)
        self.linear = nn.Linear(widths[-1] * side**2, config.dimension)
        self.vector_norm = norm_without_scale(config.dimension)

    def forward(self, images: Tensor) -> Tensor:
        """Vectors of normalised images [documents, channels, size, size]."""
        maps = self.dropout(self.norm(self.stages(self.first(images))))
        with torch.autocast(images.device.type, enabled=False):  # a sum over 25,088 numbers
            return self.vector_norm(self.linear(maps.float().flatten(1)))


class _Block(nn.Module):
    """BN-conv-BN-PReLU-conv-BN next to a shortcut; the second convolution has the stride."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            BatchNorm(before, EPS),
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            BatchNorm(after, EPS),
            nn.PReLU(after),
            nn.Conv2d(after, after, 3, stride, padding=1, bias=False),
            BatchNorm(after, EPS),
        )
        self.shortcut = (
            nn.Identity()
            if stride == 1
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), BatchNorm(after, EPS))
        )

    def forward(self, maps: Tensor) -> Tensor:
        return self.layers(maps) + self.shortcut(maps)


def make_face_network(config: FaceNetworkConfig, channels: int, size: int, seed: int = 0) -> IResNet | MobileFaceNet:
    """A network with initial weights; any state of torch's random numbers is left as it was."""
    with seeded(seed):
        network = (
            MobileFaceNet(config, channels, size) if config.network == "mobile" else IResNet(config, channels, size)
        )
        for part in network.modules():
            if isinstance(part, nn.Conv2d) and part.weight.device.type != "meta":
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    return network
