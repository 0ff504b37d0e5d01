"""Small pictures of documents that are images: for reports, and on a sheet with labels."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.atomic import replacing
from labelwise.data.dataset import Dataset
from labelwise.data.image_files import ImageError, is_image_name, open_image
from labelwise.errors import ConfigError, DataError, MissingDependencyError, import_required
from labelwise.formatting import cut, printable

if TYPE_CHECKING:
    from PIL.Image import Image

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
