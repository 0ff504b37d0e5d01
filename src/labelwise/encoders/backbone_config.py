"""Settings of image networks. Does not import torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config

RESNETS: dict[str, tuple[tuple[int, ...], bool]] = {
    "tiny": ((1, 1), False),
    "resnet10": ((1, 1, 1, 1), False),
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
}
"""Blocks per stage, and whether they are bottlenecks."""
OWN_FIELDS = ("channels", "stem", "pool")
"""Fields of our own networks, which models of transformers do not have."""


class BackboneConfig(Config):
    """The network from images to vectors."""

    name: Literal["tiny", "resnet10", "resnet18", "resnet34", "resnet50", "transformers"] = "resnet18"
    """A residual network (He et al. 2016), or a model of the package transformers. `tiny` has two blocks, for tests and
    first attempts."""
    channels: Annotated[int, Field(ge=4, le=512)] = 64
    """Channels of the first stage, which double from stage to stage; the paper's networks have 64. Time and memory grow
    with its square."""
    stem: Literal["auto", "small", "large"] = "auto"
    """First layers: a 3x3 convolution for small images, or a 7x7 convolution with stride 2 and a pooling layer. `auto`:
    large from 96 pixels on."""
    pool: Literal["mean", "flatten"] = "mean"
    """The vector of an image: the mean over all positions of the last stage, or its values at all positions, to keep
    where something is."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate of the vector."""
    model: str | None = None
    """transformers: a local folder, or the name of a model on the hub, with its weights."""
    architecture: dict[str, Any] | None = None
    """transformers: settings of a network with random weights instead, such as {model_type: vit, hidden_size: 192}."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        foreign = self.name == "transformers"
        for field in OWN_FIELDS if foreign else ("model", "architecture"):
            if getattr(self, field) != type(self).model_fields[field].default:
                owner = "the residual networks" if foreign else "name: transformers"
                raise ValueError(f"{field} is a setting of {owner}, this is {self.name}")
        if foreign and (self.model is None) == (self.architecture is None):
            raise ValueError("name: transformers needs model (weights) or architecture (random weights), one of both")
        if self.architecture is not None and not isinstance(self.architecture.get("model_type"), str):
            raise ValueError("architecture needs a model_type, for example {model_type: vit, hidden_size: 192}")
        return self

    def has_large_stem(self, size: int) -> bool:
        """Whether images of this size are shrunk by the first layers."""
        return size >= 96 if self.stem == "auto" else self.stem == "large"
