"""Explanations of images: which parts of the image a label's score depends on."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.atomic import replacing
from labelwise.errors import ConfigError
from labelwise.formatting import printable

if TYPE_CHECKING:
    from PIL.Image import Image

SHADES = " .:-=+*#%@"
SIDE = 256
"""Pixels of the side of a drawn map."""


@dataclass(frozen=True, repr=False, eq=False)
class PixelMap:
    """How much a label's score falls when each part of the image is covered."""

    label: str
    text: str | None
    """The label's text, if the model has one."""
    score: float
    """As in `predict`: a probability if the model is calibrated."""
    predicted: bool
    """Whether the label is among the predicted ones."""
    falls: np.ndarray
    """Fall of the logarithm of the score, [rows, columns]; negative where the score rises."""
    pixels: np.ndarray
    """The image as the network reads it, uint8 [height, width, channels]."""
    calibrated: bool = False
    """Whether `score` is a probability; `falls` are those of the score before calibration."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        about = {"label": self.label, "text": self.text, "score": self.score, "predicted": self.predicted}
        about["calibrated"] = self.calibrated
        return {**about, "falls": [[round(float(fall), 5) for fall in row] for row in self.falls]}

    def __repr__(self) -> str:
        return f"<PixelMap: {self.label} {self.score:.3g}>"

    def __str__(self) -> str:
        """The label, and the map in characters: the darker, the more the score depends on the part."""
        title = f"{self.text} ({self.label})" if self.text and self.text != self.label else self.label
        kind, strength = "probability" if self.calibrated else "score", self.strength()
        shown = ["".join(2 * SHADES[round(9 * value)] for value in row) for row in strength.tolist()]
        row, column = np.unravel_index(int(np.argmax(self.falls)), self.falls.shape)
        where = f"row {row + 1}, column {column + 1} of {self.falls.shape[0]} x {self.falls.shape[1]}"
        before = " before calibration" if self.calibrated else ""
        largest = f"without {where} the score{before} is multiplied by {np.exp(-self.falls.max()):.2g}"
        return "\n".join(
            [printable(f"{title}  {kind} {self.score:.3g}"), *(f"  |{line}|" for line in shown), f"  {largest}"]
        )

    def strength(self) -> np.ndarray:
        """Falls from 0 to 1; parts whose cover raises the score count as 0."""
        positive = np.maximum(self.falls, 0)
        return positive / positive.max() if positive.max() > 0 else positive

    def image(self, side: int = SIDE) -> Image:
        """The image in grey with the map over it in red."""
        from PIL import Image

        strength = Image.fromarray(np.rint(255 * self.strength()).astype(np.uint8))
        mask = strength.resize((side, side), Image.Resampling.BICUBIC).point(lambda value: round(value * 0.6))
        pixels = self.pixels if self.pixels.shape[2] == 3 else self.pixels[:, :, 0]
        grey = Image.fromarray(np.ascontiguousarray(pixels)).convert("L").convert("RGB")
        shown = grey.resize((side, side), Image.Resampling.NEAREST if side > grey.width else Image.Resampling.BILINEAR)
        shown.paste((220, 0, 0), (0, 0), mask)
        return shown

    def data_uri(self, side: int = 96) -> str:
        """The drawn map as the address of an HTML image."""
        content = io.BytesIO()
        self.image(side).save(content, "PNG", optimize=True)
        return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


class PixelMaps(list[PixelMap]):
    """The maps of one image; `print` shows them in characters."""

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))


def write_maps(maps: Sequence[Any], path: str | Path) -> None:
    """Write a PNG: the image, and next to it the map of each label with its name."""
    if not maps or not all(isinstance(one, PixelMap) for one in maps):
        raise ConfigError(f"{path}: only explanations of images are written as a picture; use --json for words")
    if Path(path).suffix.lower() != ".png":
        raise ConfigError(f"{path}: the map is a PNG file; give a name that ends in .png")
    from PIL import Image, ImageDraw, ImageFont

    caption = 18
    whole = Image.new("RGB", ((len(maps) + 1) * (SIDE + 4), SIDE + caption), "white")
    first = maps[0].pixels
    plain = Image.fromarray(np.ascontiguousarray(first if first.shape[2] == 3 else first[:, :, 0])).convert("RGB")
    whole.paste(plain.resize((SIDE, SIDE), Image.Resampling.NEAREST), (0, 0))
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default()
    for index, one in enumerate(maps, 1):
        left = index * (SIDE + 4)
        whole.paste(one.image(), (left, 0))
        draw.text((left, SIDE + 3), printable(f"{one.text or one.label} {one.score:.3g}")[:40], "black", font)
    with replacing(Path(path), binary=True) as file:
        whole.save(file, "PNG")
