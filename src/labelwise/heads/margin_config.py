"""Settings of heads with margins. Does not import torch, so that configs need none."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config
from labelwise.heads.digit_config import DigitHeadConfig

USUAL_MARGINS = {"arcface": 0.5, "cosface": 0.4}
Count = Annotated[int, Field(ge=1)]

# Fields that belong to one type of sampling. Setting one for another is an error.
ONLY_FOR = {
    "sample_rate": "classes",
    "radices": "groups",
    "order": "groups",
    "negatives": "groups",
    "sampled_groups": "groups",
    "sampled_fraction": "groups",
}


class MarginConfig(Config):
    """Cosines of vectors with one vector per class, and a margin that training has to keep."""

    kind: Literal["arcface", "cosface"] = "arcface"
    """arcface: the margin is an angle (Deng et al. 2019). cosface: it is subtracted from the cosine (Wang et al.
    2018)."""
    margin: Annotated[float, Field(ge=0, lt=1.5)] | None = None
    """The margin; null is 0.5 for arcface and 0.4 for cosface. 0 is a softmax of cosines without margin."""
    scale: Annotated[float, Field(gt=0, le=1000)] = 64.0
    """Cosines are multiplied by it before the softmax. Smaller ones are easier to train on few classes."""
    sampling: Literal["all", "classes", "groups"] = "all"
    """Classes that a step is trained against: all; those of the batch and random ones (Partial FC, An et al. 2022); or
    groups of classes (MHS, Liang et al. 2025), those of the batch and random ones."""
    sample_rate: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Fraction of all classes of a step (classes); at least those of the batch."""
    radices: tuple[Count, Count] | None = None
    """Number of groups and classes per group; their product is at least the number of classes (groups). null: near
    equal."""
    order: Literal["index", "frequency", "random"] = "random"
    """Which classes form a group (groups): neighbours by index, classes dealt by frequency, or random ones."""
    negatives: Literal["batch", "document", "V0", "V2", "B1"] = "batch"
    """batch: the groups of the batch's classes and random ones, the same for all images. document: those of an image's
    class and random ones, drawn for each image. V0, V2, B1: the original's variants, with the image's group alone, one
    random group more, or the batch's groups alone (groups)."""
    sampled_groups: Count | None = None
    """Groups per batch, or per image, with those of the classes (groups); null is 10, or `sampled_fraction`."""
    sampled_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    """Instead of `sampled_groups`: the fraction of all groups."""
    block: Count = 8192
    """Classes per block: memory beside the weights is bounded by batch x block."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field, sampling in ONLY_FOR.items():
            if sampling != self.sampling and getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"{field} is a setting of sampling: {sampling}, this is {self.sampling}")
        if self.sampling == "groups":
            self.group_settings()
        return self

    @property
    def size(self) -> float:
        """The margin."""
        return USUAL_MARGINS[self.kind] if self.margin is None else self.margin

    def group_settings(self) -> DigitHeadConfig:
        """The settings of groups, as a head of multi-head encoding has them."""
        names = ("radices", "order", "negatives", "sampled_groups", "sampled_fraction", "block")
        return DigitHeadConfig(kind="sampling", **{name: getattr(self, name) for name in names})
