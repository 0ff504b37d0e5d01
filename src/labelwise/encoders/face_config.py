"""Networks for faces. Does not import torch, so that configs need none."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from labelwise.config import Config

BLOCKS = {
    "r10": (1, 1, 1, 1),
    "r18": (2, 2, 2, 2),
    "r34": (3, 4, 6, 3),
    "r50": (3, 4, 14, 3),
    "r100": (3, 13, 30, 3),
}
"""Blocks per stage of the IResNets."""


class FaceNetworkConfig(Config):
    """The network from an aligned face to its vector."""

    network: Literal["r10", "r18", "r34", "r50", "r100", "mobile"] = "r50"
    """IResNet-18, -34, -50 or -100 (Deng et al. 2019), one with a block per stage for small images, or MobileFaceNet
    (Chen et al. 2018)."""
    width_factor: Annotated[float, Field(gt=0, le=4)] = 1.0
    """Channels of every layer as a multiple of the published ones, rounded to multiples of 8."""
    dimension: Annotated[int, Field(ge=2, le=4096)] = 512
    """Dimension of the vectors."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate before the last layer of an IResNet."""

    def channels(self, published: int) -> int:
        """Channels of a layer that has `published` ones at factor 1."""
        return max(8, round(published * self.width_factor / 8) * 8)
