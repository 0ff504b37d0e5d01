"""Images as documents of an encoder: uint8 batches [documents, channels, height, width] from files or arrays.

Files are decoded in `batch`, which the training loop calls on worker threads (`load_ahead`): decoders release the GIL.
Decoded images stay in memory as far as the config allows. Augmentation is drawn from seed, epoch and document, so that
a resumed run reads the same pixels.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.images import ImageError, check_images, open_image, square
from labelwise.errors import DataError
from labelwise.nn.config import AugmentationConfig, ImageConfig
from labelwise.nn.inputs import Batch, Part
from labelwise.strings import Strings

log = logging.getLogger("labelwise")

# --- augmentation ---
# Random crops and flips of batches of images, drawn from (seed, epoch, document): no generator has a state.
#
# The draws are a counter hashed by splitmix64 (Steele, Lea and Flood 2014), the same on every machine and for every
# order and size of batches.

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
    widths = ((0, 0), (0, 0), (border, border), (border, border))
    content: Any = {"mode": "edge"}
    if config.pad_with != "edge":
        content = {"constant_values": 255 if config.pad_with == "white" else 0}
    padded = np.pad(pixels, widths, **content)
    out = np.empty_like(pixels)
    for index, ((top, left), flip) in enumerate(zip(shifts.tolist(), flips.tolist(), strict=True)):
        part = padded[index, :, top : top + height, left : left + width]
        out[index] = part[..., ::-1] if flip else part
    return out


def resized_crop_box(
    draws: np.ndarray, width: int, height: int, config: AugmentationConfig
) -> tuple[float, float, float, float]:
    """The part of an image that is scaled to the full size: left, top, right, bottom, from four random numbers.

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


PIXELS_PER_UNIT = 256
"""Pixels that count as one token where batches are cut by length."""
MEASURED = 4096
"""Images whose pixels are measured for mean and standard deviation."""
NAMES_SHOWN = 5
"""Files that a message about bad images names."""
MEAN_VALUES = 1 << 26
"""Most pixels of the mean images of all labels: 256 MB."""


class ImageInputs:
    """Images of one size, from paths, arrays or anything that opens them.

    Parameters
    ----------
    paths, arrays, images
        One of them: files; or numbers [documents, height, width], with the channels as last or second axis, uint8 or
        floats from 0 to 1; or what decodes an image of the config's channels when it is asked for it.
    config
        How images are read.
    seed
        Of the augmentation.
    keep
        Whether decoded files may stay in memory, for images that are read again and again.
    """

    def __init__(
        self,
        config: ImageConfig,
        *,
        paths: Strings | None = None,
        arrays: np.ndarray | None = None,
        images: Any = None,
        seed: int = 0,
        keep: bool = False,
    ) -> None:
        self.config, self.seed, self.paths, self.images = config, seed, paths, images
        self.pixels = None if arrays is None else as_pixels(arrays, config.channels)
        given = [source for source in (paths, arrays, images) if source is not None]
        if len(given) != 1:
            raise DataError("images are given in one way: as paths, as arrays or as images")
        self._count = len(given[0])
        shape = (self._count, config.channels, config.size, config.size)
        self._kept = np.empty(shape, np.uint8) if keep and math.prod(shape) <= config.memory else None
        self._decoded = np.zeros(self._count, bool)

    def __len__(self) -> int:
        return self._count

    @property
    def lengths(self) -> np.ndarray:
        """The same for all images: their pixels, in units of 256."""
        return np.full(self._count, max(1, self.config.size**2 // PIXELS_PER_UNIT), np.int64)

    def batch(self, documents: np.ndarray, epoch: int | None = None) -> Batch:
        """Pixels, uint8 [documents, channels, height, width], of the given images in that order.

        With the random changes of an epoch of training, or as they are predicted.
        """
        settings = self.config.augmentation
        if epoch is None:
            return Batch(documents, (self._plain(documents),))
        if settings.crop == "resized":
            draws = uniform(documents, epoch, self.seed, BOX, 4)
            pixels = self._each(documents, lambda image, index: self._part(image, draws[index]))
        else:
            pixels = self._plain(documents)
        return Batch(documents, (augmented(pixels, documents, epoch, self.seed, settings),))

    # --- decoding ---

    def _plain(self, documents: np.ndarray) -> np.ndarray:
        """Images of the config's size, without random changes."""
        size = self.config.size
        if self.pixels is not None and self.pixels.shape[2:] == (size, size) and self.config.short_side == size:
            return self.pixels[documents]
        if self._kept is None:
            return self._each(documents, self._square)
        missing = documents[~self._decoded[documents]]
        if len(missing):
            self._kept[missing] = self._each(missing, self._square)
            self._decoded[missing] = True
        return self._kept[documents]

    def _each(self, documents: np.ndarray, change: Any) -> np.ndarray:
        """Decode and change one image after the other; a batch is the work of one thread."""
        config = self.config
        pixels = np.empty((len(documents), config.channels, config.size, config.size), np.uint8)
        for index, document in enumerate(documents.tolist()):
            image = np.asarray(change(self._image(document), index))
            pixels[index] = image if config.channels == 1 else image.transpose(2, 0, 1)
        return pixels

    def _image(self, document: int) -> Any:
        config = self.config
        if self.paths is not None:
            return open_image(self.paths[document], config.channels, config.max_pixels, config.shrink_to)
        if self.pixels is None:
            return self.images[document]
        from PIL import Image

        pixels = self.pixels[document]
        return Image.fromarray(np.ascontiguousarray(pixels[0] if config.channels == 1 else pixels.transpose(1, 2, 0)))

    def _square(self, image: Any, index: int) -> Any:
        config = self.config
        return square(image, config.size, config.fit, config.short_side, _resampling(config.interpolation))

    def _part(self, image: Any, draws: np.ndarray) -> Any:
        """A random part of the image at full size."""
        width, height = image.size
        box = resized_crop_box(draws, width, height, self.config.augmentation)
        size = self.config.size
        return image.resize((size, size), _resampling(self.config.interpolation), box=box)


def _resampling(name: str) -> Any:
    from PIL import Image

    return Image.Resampling[name.upper()]


def as_pixels(arrays: np.ndarray, channels: int) -> np.ndarray:
    """Arrays of images as uint8 [documents, channels, height, width]; a view where possible."""
    if arrays.ndim == 3:
        arrays = arrays[:, None]
    elif arrays.ndim == 4 and arrays.shape[3] in (1, 3):
        arrays = arrays.transpose(0, 3, 1, 2)
    elif arrays.ndim != 4 or arrays.shape[1] not in (1, 3):
        if len(arrays):
            raise DataError(
                "images as arrays need the shape [documents, height, width], [documents, height, width, channels] or "
                f"[documents, channels, height, width] with 1 or 3 channels, got {list(arrays.shape)}"
            )
        return np.empty((0, channels, 1, 1), np.uint8)
    if len(arrays) and 0 in arrays.shape:
        raise DataError(f"images without pixels: the arrays have the shape {list(arrays.shape)}")
    pixels = _as_bytes(arrays)
    if pixels.shape[1] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=1)
    # the weights of ITU-R 601, as Pillow converts colour to grey
    red, green, blue = (pixels[:, channel].astype(np.uint32) for channel in range(3))
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).astype(np.uint8)[:, None]


def _as_bytes(arrays: np.ndarray) -> np.ndarray:
    if arrays.dtype == np.uint8:
        return arrays
    if arrays.dtype == np.bool_:
        return arrays.astype(np.uint8) * np.uint8(255)
    if not arrays.size:
        return arrays.astype(np.uint8)
    low, high = float(arrays.min()), float(arrays.max())
    if arrays.dtype.kind == "f":
        if not (low >= 0 and high <= 1):  # NaN is neither
            raise DataError(f"pixels as floats must be from 0 to 1, these are from {low:.4g} to {high:.4g}")
        return np.rint(arrays * 255).astype(np.uint8)
    if low < 0 or high > 255:
        raise DataError(f"pixels must be from 0 to 255, these are from {low:.0f} to {high:.0f}")
    return arrays.astype(np.uint8)


def image_inputs(data: Any, config: ImageConfig, seed: int = 0, keep: bool = False) -> ImageInputs:
    """The images of a `Dataset` or of `Documents`: its arrays, or files."""
    paths = data.paths or Strings.of(()) if data.arrays is None else None
    return ImageInputs(config, paths=paths, arrays=data.arrays, seed=seed, keep=keep)


def training_images(train: Dataset, valid: Dataset | None, config: ImageConfig, seed: int) -> list[Part]:
    """Images to train on, and held-out ones if there are any."""
    given = [part for part in (train, valid) if part is not None]
    return [Part(image_inputs(part, config, seed, keep=True), part.labels) for part in given]


def decodable(data: Dataset | None, config: ImageConfig, what: str) -> Any:
    """The data without images that cannot be decoded, if the config says so; with their number in the log."""
    if data is None or data.kind != "paths" or config.bad_images == "error":
        return data
    errors = check_images(list(data.paths or ()), config.max_pixels)
    bad = {index: error for index, error in enumerate(errors) if error is not None}
    if not bad:
        return data
    if len(bad) == len(data):
        raise DataError(f"{data.name}: none of the {len(data):,} images can be decoded: {next(iter(bad.values()))}")
    shown = "; ".join(str(error) for error in list(bad.values())[:NAMES_SHOWN])
    log.warning(
        "%s of %s %s images cannot be decoded and are left out: %s%s", f"{len(bad):,}", f"{len(data):,}", what,
        shown, " ..." if len(bad) > NAMES_SHOWN else "",
    )  # fmt: skip
    return data.take(np.delete(np.arange(len(data)), list(bad)))


@contextmanager
def advice_on_bad_images() -> Iterator[None]:
    """The error of a file that cannot be decoded says what to do about it."""
    try:
        yield
    except ImageError as error:
        advice = "; `image.bad_images: skip` leaves such files out of training" if error.path is not None else ""
        raise ImageError(error.what + advice, error.path) from None


def normalisation(inputs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel: those of the config, or of these images.

    They are measured on pixels from 0 to 1, of at most 4,096 evenly spaced images.
    """
    if inputs.config.mean is not None:
        return np.asarray(inputs.config.mean), np.asarray(inputs.config.std)
    chosen = np.unique(np.linspace(0, len(inputs) - 1, min(len(inputs), MEASURED)).astype(np.int64))
    count, total, squares = 0, np.zeros(inputs.config.channels), np.zeros(inputs.config.channels)
    for begin in range(0, len(chosen), 256):
        pixels = inputs.batch(chosen[begin : begin + 256]).arrays[0].astype(np.float64) / 255
        count += pixels[:, 0].size
        total += pixels.sum((0, 2, 3))
        squares += (pixels**2).sum((0, 2, 3))
    mean = total / max(count, 1)
    std = np.sqrt(np.maximum(squares / max(count, 1) - mean**2, 0))
    return mean.astype(np.float32), np.where(std > 1e-3, std, 1.0).astype(np.float32)


def label_means(inputs: Any, labels: Any) -> np.ndarray:
    """The mean image of each label, small, centred and of norm 1, float32 [labels, features]; 0 for none.

    8 x 8 pixels, or fewer if there are very many labels.
    """
    n_labels, channels, cells = labels.shape[1], inputs.config.channels, 8
    while cells > 1 and n_labels * channels * cells**2 > MEAN_VALUES:
        cells //= 2
    edges = np.linspace(0, inputs.config.size, min(cells, inputs.config.size) + 1).astype(np.int64)
    areas = np.outer(np.diff(edges), np.diff(edges)).astype(np.float32)
    means = np.zeros((n_labels, channels * areas.size), np.float32)
    for begin in range(0, len(inputs), 512):
        rows = np.arange(begin, min(begin + 512, len(inputs)))
        pixels = inputs.batch(rows).arrays[0].astype(np.float32)
        small = np.add.reduceat(np.add.reduceat(pixels, edges[:-1], axis=2), edges[:-1], axis=3) / areas
        some = labels[rows]
        used, columns = np.unique(some.indices, return_inverse=True)
        own = sparse.csr_array((some.data, columns, some.indptr), shape=(len(rows), len(used)))
        means[used] += own.T @ small.reshape(len(rows), -1)
    counts = np.bincount(labels.indices, minlength=n_labels)
    means /= np.maximum(counts, 1)[:, None]
    means -= np.einsum("lf,l->f", means, counts > 0, dtype=np.float64) / max(np.count_nonzero(counts), 1)
    means[counts == 0] = 0
    norms = np.sqrt(np.einsum("lf,lf->l", means, means))
    means /= np.where(norms > 0, norms, 1)[:, None]
    return means
