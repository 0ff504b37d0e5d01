"""Decodes image files from strangers: the size in the header is checked before any pixel is decoded.

Pillow reads the common formats only: others start external programs (EPS) or are rarely tested decoders.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.data.recordio import member_image, split_member
from labelwise.errors import ConfigError, DataError, MissingDependencyError, import_required
from labelwise.formatting import cut, printable
from labelwise.io.atomic import replacing

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
    from labelwise.runtime.threads import run_all

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


# --- thumbnails ---
# Small pictures of documents that are images: for reports, and on a sheet with labels.

SIDE, COLUMNS, ROWS = 96, 10, 4
"""Pixels of a thumbnail, thumbnails per line of a sheet, and lines per part."""
CAPTION, GAP, TITLE = 14, 6, 20
"""Heights of a label, of the space between thumbnails, and of the name of a part, in pixels."""
CHARACTERS = 16
"""Characters of a label under a thumbnail."""


def thumbnail(data: Dataset, row: int, side: int = SIDE) -> Image | None:
    """A document's image, at most `side` pixels wide and high; None if it is no image or cannot be decoded."""
    try:
        image = _image(data, row)
    except (ImageError, MissingDependencyError):
        return None
    if image is None:
        return None
    from PIL.Image import Resampling

    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Resampling.NEAREST if scale > 1 else Resampling.BILINEAR)


def has_images(data: Dataset) -> bool:
    """Whether documents are arrays that look like images, or files that are called like images."""
    if data.paths is not None:
        return len(data) > 0 and is_image_name(data.paths[0])
    return data.arrays is not None and data.arrays.ndim in (3, 4)


def _image(data: Dataset, row: int) -> Image | None:
    if data.paths is not None:
        return open_image(data.paths[row], 3) if is_image_name(data.paths[row]) else None
    pixels = None if data.arrays is None else _pixels(np.asarray(data.arrays[row]))
    if pixels is None:
        return None
    import_required("drawing images", "vision", "pillow")
    from PIL import Image

    return Image.fromarray(pixels).convert("RGB")


def _pixels(array: np.ndarray) -> np.ndarray | None:
    """An array as uint8 [height, width] or [height, width, 3]; None if it is no image."""
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)) or not array.size:
        return None
    if array.dtype != np.uint8:
        array = np.clip(array.astype(np.float64) * (255 if array.dtype.kind in "fb" else 1), 0, 255)
    return np.ascontiguousarray(array, np.uint8)


def data_uri(data: Dataset, row: int) -> str | None:
    """A document's image as the address of an HTML image."""
    image = thumbnail(data, row) if has_images(data) else None
    if image is None:
        return None
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def write_sheet(parts: Mapping[str, Dataset], path: str | Path) -> None:
    """Write a PNG with some images of each part, evenly spread, and their labels."""
    shown = {name: part for name, part in parts.items() if has_images(part)}
    if not shown:
        raise DataError("there are no images to draw: the documents are neither image files nor arrays of images")
    if Path(path).suffix.lower() != ".png":
        raise ConfigError(f"{path}: the sheet is a PNG file; give a name that ends in .png")
    from PIL import Image, ImageDraw, ImageFont

    width = COLUMNS * (SIDE + GAP) + GAP
    heights = {name: TITLE + -(-_count(part) // COLUMNS) * (SIDE + CAPTION + GAP) for name, part in shown.items()}
    sheet = Image.new("RGB", (width, sum(heights.values()) + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    top = 0
    for name, part in shown.items():
        draw.text(
            (GAP, top + 4),
            cut(printable(f"{name}: {len(part):,} images, {part.n_labels:,} labels"), 100),
            "black",
            font,
        )
        for index, row in enumerate(_spread(part).tolist()):
            down, right = divmod(index, COLUMNS)
            corner = (GAP + right * (SIDE + GAP), top + TITLE + down * (SIDE + CAPTION + GAP))
            _draw_one(sheet, draw, font, part, row, corner)
        top += heights[name]
    with replacing(Path(path), binary=True) as file:
        sheet.save(file, "PNG")


def _count(part: Dataset) -> int:
    return min(len(part), COLUMNS * ROWS)


def _spread(part: Dataset) -> np.ndarray:
    return (
        np.unique(np.linspace(0, len(part) - 1, _count(part)).astype(np.int64)) if len(part) else np.zeros(0, np.int64)
    )


def _draw_one(sheet: Any, draw: Any, font: Any, part: Dataset, row: int, corner: tuple[int, int]) -> None:
    left, top = corner
    image = thumbnail(part, row)
    if image is None:
        draw.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), outline="red")
        draw.text((left + 4, top + 4), "damaged", "red", font)
    else:
        sheet.paste(image, (left + (SIDE - image.width) // 2, top + (SIDE - image.height) // 2))
    labels = cut(printable(", ".join(part.labels_of(row))), CHARACTERS)
    draw.text((left, top + SIDE + 1), labels, "black", font)
