"""Decodes image files from strangers: the size in the header is checked before any pixel is decoded.

Pillow reads the common formats only: others start external programs (EPS) or are rarely tested decoders.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.data.recordio import member_image, split_member
from labelwise.errors import DataError, import_required

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".pbm", ".tif", ".tiff")
"""Names of image files, in lower case."""
MAX_PIXELS = 1 << 26
"""Most pixels of an image (8192 x 8192) unless a config says otherwise: 200 MB when decoded."""
PIXEL_LIMIT = 1 << 27
"""What `max_pixels` may be at most: Pillow itself refuses images of 179 million pixels."""
MODES = {1: "L", 3: "RGB"}
"""Pillow's name of grey and colour images."""


class ImageError(DataError):
    """An image that cannot be decoded, or is refused; it names its file."""


def is_image_name(name: str) -> bool:
    """Whether a file is called like an image."""
    return name.lower().endswith(EXTENSIONS)


def open_image(
    source: str | Path | bytes,
    channels: int,
    max_pixels: int = MAX_PIXELS,
    at_least: int | None = None,
    name: str | None = None,
) -> Image:
    """Decode a file as a grey or colour image.

    Parameters
    ----------
    source
        The file, or its content; an image inside a record file is `train.rec#OFFSET`.
    channels
        1 or 3.
    max_pixels
        Larger images are refused by their header, before memory is allocated.
    at_least
        JPEGs may be decoded at half, a quarter or an eighth of their size, as long as the shorter side has this many
        pixels: many times faster for large photographs.
    name
        What messages call the image; None: the file.
    """
    import_required("reading images", "vision", "pillow")
    from PIL import Image

    called = name or ("an image" if isinstance(source, bytes) else str(source))
    try:
        with Image.open(_file(source), formats=FORMATS) as image:
            check_size(image.size, max_pixels, called)
            if at_least is not None:
                _shrink_on_load(image, MODES[channels], at_least)
            return as_mode(image, MODES[channels])
    except ImageError:
        raise
    except DataError as error:  # of a record file
        raise ImageError(error.what, called) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"is refused: {error}", called) from None
    except FileNotFoundError:
        raise ImageError("there is no such image", called) from None
    except IsADirectoryError:
        raise ImageError("is a folder, an image is needed here", called) from None
    except Image.UnidentifiedImageError:
        raise ImageError(f"is not an image in one of the formats {', '.join(FORMATS)}", called) from None
    except MemoryError:
        raise ImageError("there is not enough memory to decode this image", called) from None
    except Exception as error:  # decoders of damaged files raise whatever they meet
        raise ImageError(
            f"the image is damaged ({error or type(error).__name__}); copy or make it again", called
        ) from None


def _file(source: str | Path | bytes) -> str | Path | io.BytesIO:
    """What Pillow opens: a path, or the content of an image."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    member = split_member(str(source))
    return source if member is None else io.BytesIO(member_image(*member))


def check_size(size: tuple[int, int], max_pixels: int, source: object) -> None:
    """Refuse an empty image and one with too many pixels."""
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"the image has {width} x {height} pixels", str(source))
    if width * height > max_pixels:
        raise ImageError(
            f"the image has {width:,} x {height:,} pixels, more than the {max_pixels:,} that are decoded; "
            "shrink it, or set max_pixels",
            str(source),
        )


def _shrink_on_load(image: Image, mode: str, at_least: int) -> None:
    short = min(image.size)
    if image.format == "JPEG" and short >= 2 * at_least:
        scale = at_least / short
        image.draft(mode, (max(1, int(image.width * scale)), max(1, int(image.height * scale))))


def as_mode(image: Image, mode: str) -> Image:
    """The image in grey or colour; transparent pixels are shown on white, and 16 bits become 8."""
    if image.mode in ("P", "LA", "PA", "RGBA", "RGBa", "La") and (image.mode != "P" or "transparency" in image.info):
        from PIL import Image as pillow

        solid = image.convert("RGBA")
        white = pillow.new("RGBA", solid.size, (255, 255, 255, 255))
        return pillow.alpha_composite(white, solid).convert(mode)
    if image.mode.startswith("I") or image.mode == "F":
        return _from_wide(image, mode)
    image.load()
    return image.convert(mode) if image.mode != mode else image.copy()


def _from_wide(image: Image, mode: str) -> Image:
    """8 bits of an image of 16 or more: by its depth if integers of 16 bits, else between its extremes."""
    from PIL import Image as pillow

    values = np.asarray(image)
    if image.mode.startswith("I;16"):
        values = values >> 8
    else:
        low, high = float(values.min()), float(values.max())
        if not math.isfinite(high - low):
            raise ValueError("its pixels are not finite numbers")
        values = (values - low) * (255.0 / (high - low) if high > low else 0.0)
    return pillow.fromarray(np.ascontiguousarray(values, np.uint8)).convert(mode)


def check_images(paths: Iterable[str], max_pixels: int = MAX_PIXELS) -> list[ImageError | None]:
    """The error of each file that cannot be decoded whole, None for the others; on all threads."""
    from labelwise.parallel import run_all

    def error(path: str) -> ImageError | None:
        try:
            open_image(path, 3, max_pixels)
        except ImageError as problem:
            return problem
        return None

    return run_all(error, paths)


def square(image: Image, size: int, fit: str, resize: int, resample: Any, fill: int = 0) -> Image:
    """An image of `size` x `size` pixels.

    `crop` scales the shorter side to `resize` pixels and takes the middle, `pad` scales the longer side to `size` and
    fills the rest, `stretch` scales both sides.
    """
    width, height = image.size
    if (width, height) == (size, size) and resize == size:
        return image
    if fit == "stretch":
        return image.resize((size, size), resample)
    if fit == "pad":
        scale = size / max(width, height)
        small = image.resize((max(1, round(width * scale)), max(1, round(height * scale))), resample)
        from PIL import Image as pillow

        whole = pillow.new(image.mode, (size, size), fill if image.mode == "L" else (fill,) * 3)
        whole.paste(small, ((size - small.width) // 2, (size - small.height) // 2))
        return whole
    # one resampling of the part that is kept, in the coordinates of the original
    side = min(width, height) * size / resize
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((size, size), resample, box=(left, top, left + side, top + side))
