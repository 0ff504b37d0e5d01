"""Random crops and flips of batches of images, drawn from (seed, epoch, document): no generator has a state.

The draws are a counter hashed by splitmix64 (Steele, Lea and Flood 2014), the same on every machine and for every
order and size of batches.
"""

from __future__ import annotations

import math

import numpy as np

from labelwise.encoders.image_config import AugmentationConfig

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
FLIP, SHIFT, BOX = 0, 1, 3
"""First draw of each purpose."""


def uniform(documents: np.ndarray, epoch: int, seed: int, first: int, count: int) -> np.ndarray:
    """Numbers in [0, 1), [documents, count], that depend on these arguments alone."""
    with np.errstate(over="ignore"):
        state = _mixed(np.uint64(seed) + _GOLDEN)
        state = _mixed(state ^ (np.uint64(epoch) + _GOLDEN))
        states = _mixed(np.asarray(documents, np.uint64) ^ state)
        counters = np.arange(first + 1, first + count + 1, dtype=np.uint64) * _GOLDEN
        mixed = _mixed(states[:, None] + counters[None, :])
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(state: np.ndarray | np.uint64) -> np.ndarray:
    values = np.asarray(state, np.uint64)
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def augmented(
    pixels: np.ndarray, documents: np.ndarray, epoch: int, seed: int, config: AugmentationConfig
) -> np.ndarray:
    """Shifted and mirrored images [documents, channels, height, width]; the given ones are not changed."""
    flips = np.zeros(len(pixels), bool)
    if config.flip:
        flips = uniform(documents, epoch, seed, FLIP, 1)[:, 0] < 0.5
    if config.crop != "padded":
        return np.where(flips[:, None, None, None], pixels[..., ::-1], pixels) if flips.any() else pixels
    border = config.padding
    shifts = np.floor(uniform(documents, epoch, seed, SHIFT, 2) * (2 * border + 1)).astype(np.int64)
    height, width = pixels.shape[2:]
    padded = _padded(pixels, border, config.pad_with)
    out = np.empty_like(pixels)
    for index, ((top, left), flip) in enumerate(zip(shifts.tolist(), flips.tolist(), strict=True)):
        part = padded[index, :, top : top + height, left : left + width]
        out[index] = part[..., ::-1] if flip else part
    return out


def _padded(pixels: np.ndarray, border: int, content: str) -> np.ndarray:
    widths = ((0, 0), (0, 0), (border, border), (border, border))
    if content == "edge":
        return np.pad(pixels, widths, mode="edge")
    return np.pad(pixels, widths, constant_values=255 if content == "white" else 0)


def resized_crop_draws(documents: np.ndarray, epoch: int, seed: int) -> np.ndarray:
    """The random numbers of `resized_crop_box`, [documents, 4]."""
    return uniform(documents, epoch, seed, BOX, 4)


def resized_crop_box(
    draws: np.ndarray, width: int, height: int, config: AugmentationConfig
) -> tuple[float, float, float, float]:
    """The part of an image that is scaled to the full size: left, top, right, bottom.

    Area and ratio are drawn as by Szegedy et al. (2015). A part that is wider or higher than the image is cut, which
    happens for large areas only.
    """
    area, ratio, right, down = draws.tolist()
    pixels = width * height * (config.scale[0] + (config.scale[1] - config.scale[0]) * area)
    narrow, wide = config.ratio
    shape = math.exp(math.log(narrow) + math.log(wide / narrow) * ratio)
    w, h = min(math.sqrt(pixels * shape), width), min(math.sqrt(pixels / shape), height)
    left, top = (width - w) * right, (height - h) * down
    return left, top, min(left + w, width), min(top + h, height)
