"""Residual networks (He et al., CVPR 2016) for small and large images, as backbones of `ImageEncoder`.

Differences from torchvision's networks: a 3x3 first layer without pooling for small images, any number of channels, and
the last normalisation of each block starts at 0, so that blocks begin as the identity (Goyal et al. 2017).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from labelwise.encoders.backbone_config import RESNETS, BackboneConfig
from labelwise.encoders.batch_norm import BatchNorm

EXPANSION = 4
"""Channels of a bottleneck block's output as a multiple of its inner ones."""


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the positions."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """Two 3x3 convolutions, or a bottleneck of three, around which the input is added."""

    def __init__(self, inputs: int, channels: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.outputs = channels * EXPANSION if bottleneck else channels
        if bottleneck:
            layers = [(inputs, channels, 1, 1), (channels, channels, 3, stride), (channels, self.outputs, 1, 1)]
        else:
            layers = [(inputs, channels, 3, stride), (channels, channels, 3, 1)]
        self.convolutions = nn.ModuleList(convolution(*layer) for layer in layers)
        self.norms = nn.ModuleList(BatchNorm(layer[1]) for layer in layers)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != self.outputs:
            self.shortcut = nn.Sequential(convolution(inputs, self.outputs, 1, stride), BatchNorm(self.outputs))

    def forward(self, images: Tensor) -> Tensor:
        """The sum of the input and what the convolutions compute."""
        layer = images
        for index, (convolve, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            layer = norm(convolve(layer if index == 0 else functional.relu(layer)))
        return functional.relu(layer + self.shortcut(images))


class ResNet(nn.Module):
    """Images [documents, channels, height, width] to vectors.

    Parameters
    ----------
    config
        Depth, channels, first layers, pooling.
    channels
        1 for grey images, 3 for colour.
    size
        Width and height of the images.
    """

    def __init__(self, config: BackboneConfig, channels: int, size: int) -> None:
        super().__init__()
        counts, bottleneck = RESNETS[config.name]
        large, width = config.has_large_stem(size), config.channels
        # a fifth faster on CPUs; with other numbers of channels torch 2.13 writes beyond its arrays in this layout
        self.channels_last = width % 8 == 0
        self.first = convolution(channels, width, 7 if large else 3, 2 if large else 1)
        self.norm = BatchNorm(width)
        self.pool_first = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        side = math.ceil(math.ceil(size / 2) / 2) if large else size
        blocks: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(counts):
            for index in range(count):
                stride = 2 if stage and not index else 1
                block = Block(inputs, width << stage, stride, bottleneck)
                side, inputs = math.ceil(side / stride), block.outputs
                blocks.append(block)
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(config.dropout)
        self.flat = config.pool == "flatten"
        self.width = inputs * side * side if self.flat else inputs
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw the weights for ReLU (He et al. 2015) from torch's generator."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Block):
                module.norms[-1].weight.zero_()  # type: ignore[union-attr]

    def forward(self, images: Tensor) -> Tensor:
        """Vectors [documents, width]."""
        maps = self.feature_maps(images)
        return self.dropout(maps.flatten(1) if self.flat else maps.mean((2, 3)))

    def feature_maps(self, images: Tensor) -> Tensor:
        """The output of the last stage, [documents, channels, height, width]."""
        return self.blocks(self.pool_first(functional.relu(self.norm(self.first(images)))))
