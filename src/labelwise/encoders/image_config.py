"""How images become arrays of one size, and how they are augmented in training. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config
from labelwise.data.image_files import MAX_PIXELS, PIXEL_LIMIT
from labelwise.result_fields import Decides

CROP_FIELDS = {"padding": "padded", "pad_with": "padded", "scale": "resized", "ratio": "resized"}
"""Fields that belong to one kind of random crop."""


class AugmentationConfig(Config):
    """Random changes of training images; each depends on seed, epoch and document alone."""

    crop: Literal["none", "padded", "resized"] = "none"
    """Random crop: none; of the image with a border (`padded`, for CIFAR); or of a random part that is scaled to the
    full size (`resized`, for ImageNet)."""
    padding: Annotated[int, Field(ge=1, le=256)] = 4
    """Pixels of the border (padded)."""
    pad_with: Literal["black", "white", "edge"] = "black"
    """Content of the border (padded): `edge` repeats the outermost pixels."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest area of the part, as fractions of the image (resized)."""
    ratio: tuple[float, float] = (0.75, 4 / 3)
    """Smallest and largest width of the part as a multiple of its height (resized)."""
    flip: bool = False
    """Mirror half of the images, left to right."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field, crop in CROP_FIELDS.items():
            if crop != self.crop and getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"{field} is a setting of crop: {crop}, this is {self.crop}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError("scale needs two fractions above 0 and at most 1, the smaller one first")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError("ratio needs two numbers above 0, the smaller one first")
        return self


class ImageConfig(Config):
    """How images are read."""

    size: Annotated[int, Field(ge=4, le=2048)] = 32
    """Width and height of the images that the encoder reads, in pixels."""
    channels: Literal[1, 3] = 3
    """1 reads grey images, 3 colour; the others are converted."""
    fit: Literal["crop", "pad", "stretch"] = "crop"
    """How other sizes are made square: the middle is kept, the whole image with a black border, or the whole image
    distorted."""
    resize: Annotated[int, Field(ge=4, le=4096)] | None = None
    """With `fit: crop`, pixels of the shorter side before the middle is cut out, such as 256 for a size of 224; null
    is `size`."""
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    """How pixels are computed when an image is scaled."""
    mean: tuple[float, ...] | None = None
    """Mean per channel that is subtracted, for pixels from 0 to 1; null measures it on training images."""
    std: tuple[float, ...] | None = None
    """Standard deviation per channel that pixels are divided by; null measures it on training images."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Random changes of training images."""
    max_pixels: Annotated[int, Field(ge=16, le=PIXEL_LIMIT), Decides.NOTHING] = MAX_PIXELS
    """Larger images are refused before they are decoded."""
    bad_images: Literal["error", "skip"] = "error"
    """Training images that cannot be decoded: stop with the name of the file, or leave them out and report how many.
    `skip` decodes every file once before training. In predictions they are always an error."""
    memory: Annotated[int, Field(ge=0), Decides.NOTHING] = 1 << 30
    """Bytes of decoded training images that are kept in memory, so that files are decoded once; 0 keeps none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != self.channels:
                raise ValueError(f"{name} needs {self.channels} numbers, one per channel, got {len(values)}")
        if self.std is not None and not all(value > 0 for value in self.std):
            raise ValueError("std must be above 0")
        if (self.mean is None) != (self.std is None):
            raise ValueError("give mean and std, or neither of them")
        if self.resize is not None and (self.fit != "crop" or self.resize < self.size):
            raise ValueError("resize is for fit: crop and at least size")
        return self

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Merge with given settings; mean and std are not carried over to another number of channels."""
        merged = super().completed(given)
        if given.get("channels", self.channels) != self.channels and not given.keys() & {"mean", "std"}:
            merged.pop("mean", None)
            merged.pop("std", None)
        return merged

    @property
    def short_side(self) -> int:
        """The shorter side before the middle is cut out."""
        return self.resize or self.size

    @property
    def shrink_to(self) -> int | None:
        """The shorter side to which files may be shrunk while they are decoded; random parts need all pixels."""
        return None if self.augmentation.crop == "resized" else self.short_side
