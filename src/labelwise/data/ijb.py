"""The files of the IJB-B and IJB-C protocols: images in templates, pairs of templates, landmarks and detector scores.

A folder holds three texts: `ijbc_face_tid_mid.txt` (image, template and media), `ijbc_template_pair_label.txt` (two
templates, and 1 or 0) and `ijbc_name_5pts_score.txt` (image, five points, and the score of the face detector); those of
IJB-B begin with `ijbb`. Faces are cut out of the images by the five points.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.data.files import open_stream
from labelwise.data.recordio import whole_numbers
from labelwise.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MEDIA, PAIRS, POINTS = "_face_tid_mid.txt", "_template_pair_label.txt", "_name_5pts_score.txt"
MEAN_FACE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
"""Where eyes, nose and corners of the mouth are in an aligned face of 112 pixels."""
MEAN_SIZE = 112
BLOCK = 1 << 22
"""Bytes of a text whose columns are counted at a time."""


@dataclass(frozen=True)
class TemplateProtocol:
    """Images in templates, and pairs of templates."""

    names: list[str]
    """Names of the images."""
    templates: np.ndarray
    media: np.ndarray
    points: np.ndarray
    """Five points per image [images, 5, 2], x and y."""
    scores: np.ndarray
    """Detector scores."""
    first: np.ndarray
    second: np.ndarray
    same: np.ndarray
    points_file: Path
    lines: np.ndarray
    """The line of each image in the file of points."""
    name: str = "templates"

    def face(self, image: Image, row: int, size: int) -> Image:
        """The face of an image, `size` x `size` pixels, cut out by its points."""
        try:
            return align_face(image, self.points[row], size)
        except DataError as error:
            raise DataError(error.what, self.points_file, int(self.lines[row])) from None


def is_protocol(path: str | Path) -> bool:
    """Whether this is a folder with the files of a template protocol."""
    return Path(path).is_dir() and any(Path(path).glob(f"*{PAIRS}"))


def read_protocol(folder: str | Path) -> TemplateProtocol:
    """Read the three files."""
    folder = Path(folder)
    media_file, pair_file, point_file = (_only(folder, suffix) for suffix in (MEDIA, PAIRS, POINTS))
    names, numbers, _ = _named_rows(media_file, 2, whole=True)
    templates, media = numbers.T.astype(np.int64)
    point_names, numbers, lines = _named_rows(point_file, 11)
    if point_names != names:
        _refuse_other_images(names, point_names, point_file, lines)
    first, second, same = _numbers(pair_file, 3)
    neither = ~np.isin(same, (0, 1))
    if neither.any():
        raise DataError("the third column of a pair of templates is 1 or 0", pair_file, int(neither.argmax()) + 1)
    points, scores = numbers[:, :10].reshape(-1, 5, 2), numbers[:, 10]
    return TemplateProtocol(
        names, templates, media, points, scores, first, second, same == 1, point_file, lines, folder.name
    )


def _only(folder: Path, suffix: str) -> Path:
    found = sorted(folder.glob(f"*{suffix}"))
    if len(found) != 1:
        raise DataError(f"needs exactly one file *{suffix}, there are {len(found)}", folder)
    return found[0]


def _named_rows(path: Path, count: int, whole: bool = False) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names, `count` numbers each and the lines of a text with columns separated by blanks."""
    names: list[str] = []
    values: list[float] = []
    at: list[int] = []
    with open_stream(path) as stream:
        lines = stream.read().decode("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        name, *fields = line.split() or [""]
        if not name:
            continue
        if len(fields) != count:
            raise DataError(f"{count + 1} columns are needed, got {len(fields) + 1}", path, number)
        try:
            values.extend(map(float, fields))
        except ValueError:
            raise DataError("a column that should be a number is none", path, number) from None
        names.append(name)
        at.append(number)
    if not names:
        raise DataError("the file is empty", path)
    numbers = np.array(values).reshape(-1, count)
    bad = ~(np.abs(numbers) <= 2**53).all(1)  # NaN is not
    if bad.any():
        raise DataError("a number is not finite or too large", path, at[bad.argmax()])
    broken = whole & (numbers % 1 != 0).any(1)
    if broken.any():
        raise DataError("templates and media are whole numbers", path, at[broken.argmax()])
    return names, numbers, np.array(at)


def _numbers(path: Path, count: int) -> np.ndarray:
    """Columns [count, rows] of whole numbers; IJB-C has 15 million rows."""
    with open_stream(path) as stream:
        text = stream.read().rstrip()
    if not text:
        raise DataError("the file is empty", path)
    numbers, uneven = whole_numbers(text, count), _uneven_line(text, count)
    if numbers is None or uneven is not None:
        line = _first_line_without_numbers(text, count) if numbers is None else uneven
        raise DataError(f"{count} whole numbers per line are needed", path, line)
    return numbers.T


def _uneven_line(text: bytes, count: int) -> int | None:
    """The first line, from 1, that does not have `count` columns."""
    begin = lines = 0
    while begin < len(text):
        end = text.find(b"\n", begin + BLOCK) + 1 or len(text)
        characters = np.frombuffer(text, np.uint8, end - begin, begin)
        blank = characters <= 32
        starts = ~blank
        starts[1:] &= blank[:-1]
        newlines = np.flatnonzero(characters == 10)
        ends = newlines if characters[-1] == 10 else np.append(newlines, len(characters) - 1)
        uneven = np.diff(np.cumsum(starts)[ends], prepend=0) != count
        if uneven.any():
            return lines + int(uneven.argmax()) + 1
        begin, lines = end, lines + len(ends)
    return None


def _first_line_without_numbers(text: bytes, count: int) -> int | None:
    """The first line, from 1, that is not `count` whole numbers."""
    for number, line in enumerate(text.split(b"\n"), 1):
        if whole_numbers(line, count) is None or not line.strip():
            return number
    return None


def _refuse_other_images(names: list[str], others: list[str], path: Path, lines: np.ndarray) -> None:
    pairs = enumerate(zip(names, others, strict=False))
    row = next((row for row, (one, other) in pairs if one != other), None)
    if row is None:
        raise DataError(f"has {len(others):,} images, the file of templates {len(names):,}", path)
    raise DataError(f"image {row:,} is {others[row]}, in the file of templates {names[row]}", path, int(lines[row]))


# --- alignment ---


def similarity(points: Any, targets: Any) -> np.ndarray:
    """Rotation, scale and shift [2, 3] that map points onto targets with the least squared error (Umeyama 1991)."""
    points, targets = np.asarray(points, float), np.asarray(targets, float)
    centre, goal = points.mean(0), targets.mean(0)
    spread = ((points - centre) ** 2).sum()
    if spread <= 1e-12:
        raise DataError("the points of a face are all the same")
    left, values, right = np.linalg.svd((targets - goal).T @ (points - centre))
    signs = np.array([1.0, np.sign(np.linalg.det(left @ right)) or 1.0])  # a face is turned, never mirrored
    turn = (left * signs) @ right
    scale = (values * signs).sum() / spread
    if scale <= 1e-9:
        raise DataError("the points of a face are not arranged like those of any face")
    return np.column_stack([scale * turn, goal - scale * turn @ centre])


def align_face(image: Image, points: Any, size: int) -> Image:
    """A face of `size` x `size` pixels, cut out so that its five points are where those of the mean face are."""
    from PIL import Image as pillow

    forward = similarity(points, MEAN_FACE * (size / MEAN_SIZE))
    inverse = np.linalg.inv(np.vstack([forward, [0.0, 0.0, 1.0]]))[:2]
    return image.transform((size, size), pillow.Transform.AFFINE, inverse.ravel().tolist(), pillow.Resampling.BILINEAR)
