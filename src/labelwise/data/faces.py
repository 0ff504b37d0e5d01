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

from labelwise.data.recordio import whole_numbers
from labelwise.data.stream import open_stream
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


# --- pairs ---
# Pairs of images to verify, with whether they show the same person: LFW's `pairs.txt`, tables, and `.bin` sets.
#
# - `pairs.txt` of LFW: the first line has the number of folds and of pairs of either type per fold (`10 300`), or only
# the number of pairs (`500`, one fold); then `name n1 n2` for two images of a person and `name1 n1 name2 n2` for two
# people. Image n of a person is `name/name_000n.jpg` in the folder of images, or another image format. - a table
# (`.tsv` or any other text): two paths, `1` or `0`, and a fold if wanted, separated by tabs. Paths are relative to the
# folder of images, or without one to the folder of the table. - `.bin`: a pickle of two lists, the encoded images and
# one answer per pair of images. It is read without running it. The pairs are in order, a tenth of them per fold, as the
# programs that use these files divide them.

SUFFIXES = (".jpg", ".png", ".jpeg", ".bmp", ".webp", ".pgm", ".ppm")
FOLDS = 10
"""Folds of a `.bin` set."""
ANSWERS = {"1": True, "0": False, "true": True, "false": False, "same": True, "different": False}
MAX_BYTES = 1 << 31
"""Bytes of a file of pairs; `.bin` sets have up to some hundred megabytes."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of images, as indices into a list of images."""

    images: list[str] | list[bytes]
    """Distinct paths, or encoded images."""
    first: np.ndarray
    second: np.ndarray
    same: np.ndarray
    folds: np.ndarray | None
    """The fold of each pair; None: there are none."""
    name: str = "pairs"

    def __len__(self) -> int:
        return len(self.same)


def read_pairs(path: str | Path, images: str | Path | None = None) -> Pairs:
    """Read a file of pairs; `images` is the folder of the images."""
    path = Path(path)
    content = _content(path)
    if path.suffix == ".bin":
        if images is not None:
            raise DataError("a .bin set holds its own images; leave the folder of images out", path)
        return _read_bin(content, path)
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError("is neither a .bin set nor a text of pairs in UTF-8", path) from None
    if not lines:
        raise DataError("the file is empty", path)
    header = lines[0].split()
    if 1 <= len(header) <= 2 and all(word.isdecimal() for word in header):
        if images is None:
            raise DataError(
                "the pairs name people and numbers; give the folder of their images (--images FOLDER)", path
            )
        return _read_lfw(lines, path, Path(images))
    return _read_table(lines, path, path.parent if images is None else Path(images))


def _content(path: Path) -> bytes:
    with open_stream(path) as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise DataError(f"has more than {MAX_BYTES:,} bytes, which is no file of pairs", path)
    return content


class _Images:
    """Numbers images in the order in which they appear."""

    def __init__(self) -> None:
        self.paths: dict[str, int] = {}

    def number(self, path: Path, source: Path, line: int) -> int:
        name = str(path)
        if name not in self.paths:
            if not path.is_file():
                raise DataError(f"there is no image {name}", source, line)
            self.paths[name] = len(self.paths)
        return self.paths[name]


# --- LFW ---


def _read_lfw(lines: list[str], path: Path, folder: Path) -> Pairs:
    header = [int(word) for word in lines[0].split()]
    n_folds, per_fold = header if len(header) == 2 else (1, header[0])
    rows = [(number, line.split("\t") if "\t" in line else line.split()) for number, line in enumerate(lines[1:], 2)]
    rows = [(number, fields) for number, fields in rows if fields != [""] and fields]
    if n_folds < 1 or per_fold < 1 or len(rows) != 2 * n_folds * per_fold:
        raise DataError(
            f"the first line promises {n_folds:,} folds of {per_fold:,} pairs of either type, which is "
            f"{2 * n_folds * per_fold:,} lines, but {len(rows):,} follow",
            path,
        )
    found, first, second = _Images(), [], []
    same = np.tile(np.repeat([True, False], per_fold), n_folds)
    known: dict[tuple[str, str], Path] = {}
    for (number, fields), is_same in zip(rows, same.tolist(), strict=True):
        if len(fields) != (3 if is_same else 4):
            wanted = "name, number, number" if is_same else "name, number, name, number"
            raise DataError(f"a pair of this part of the file is: {wanted}; got {len(fields)} fields", path, number)
        one, other = (fields[0], fields[1]), (fields[0], fields[2]) if is_same else (fields[2], fields[3])
        for name, index in (one, other):
            if (name, index) not in known:
                known[name, index] = _lfw_image(folder, name, index, path, number)
        first.append(found.number(known[one], path, number))
        second.append(found.number(known[other], path, number))
    folds = np.repeat(np.arange(n_folds), 2 * per_fold) if n_folds > 1 else None
    return Pairs(list(found.paths), np.array(first), np.array(second), same, folds, path.name)


def _lfw_image(folder: Path, name: str, index: str, path: Path, line: int) -> Path:
    """The file of a person's image."""
    if not index.isdecimal() or len(index) > 6:
        raise DataError(f"'{index}' is no number of an image", path, line)
    if "/" in name or "\\" in name or name in (".", "..", ""):
        raise DataError(f"'{name}' is no name of a folder", path, line)
    stem = folder / name / f"{name}_{int(index):04d}"
    for suffix in SUFFIXES:
        image = stem.with_name(stem.name + suffix)
        if image.is_file():
            return image
    raise DataError(f"there is no image {stem}.jpg, nor with {', '.join(SUFFIXES[1:])}", path, line)


# --- tables ---


def _read_table(lines: list[str], path: Path, folder: Path) -> Pairs:
    found, first, second, same, folds = _Images(), [], [], [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) not in (3, 4) or fields[2].strip().lower() not in ANSWERS:
            raise DataError(
                "a pair is two paths, 1 or 0 for the same person or not, and a fold if wanted, separated by tabs",
                path,
                number,
            )
        if folds and (len(fields) == 4) != (folds[0] is not None):
            raise DataError("some pairs have a fold and others have none", path, number)
        first.append(found.number(folder / fields[0], path, number))
        second.append(found.number(folder / fields[1], path, number))
        same.append(ANSWERS[fields[2].strip().lower()])
        folds.append(fields[3].strip() if len(fields) == 4 else None)
    if not same:
        raise DataError("the file has no pairs", path)
    of_pairs = None if folds[0] is None else np.unique(np.array(folds), return_inverse=True)[1]
    return Pairs(list(found.paths), np.array(first), np.array(second), np.array(same), of_pairs, path.name)


# --- .bin sets ---


def _read_bin(content: bytes, path: Path) -> Pairs:
    from labelwise.data.formats.images import read_pickle

    value = read_pickle(content, path)
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise DataError("a .bin set is a pickle of two lists: encoded images, and an answer per pair of them", path)
    images = [_image_bytes(image, number, path) for number, image in enumerate(_as_list(value[0], path))]
    answers = [_answer(answer, number, path) for number, answer in enumerate(_as_list(value[1], path))]
    if not answers or len(images) != 2 * len(answers):
        raise DataError(f"{len(images):,} images for {len(answers):,} pairs; there must be two per pair", path)
    rows = np.arange(len(answers))
    folds = rows * FOLDS // len(answers) if len(answers) >= 2 * FOLDS else None
    return Pairs(images, 2 * rows, 2 * rows + 1, np.array(answers), folds, path.name)


def _as_list(value: object, path: Path) -> list:
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return value.tolist()
    if not isinstance(value, list | tuple):
        raise DataError(f"a .bin set has lists of images and of answers, got a {type(value).__name__}", path)
    return list(value)


def _image_bytes(image: object, number: int, path: Path) -> bytes:
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 1:
        return image.tobytes()
    if not isinstance(image, bytes):
        raise DataError(f"image {number:,} is a {type(image).__name__}, not the bytes of an encoded image", path)
    return image


def _answer(answer: object, number: int, path: Path) -> bool:
    if not isinstance(answer, bool | int) or answer not in (0, 1):
        raise DataError(f"answer {number:,} is {answer!r}, neither true nor false", path)
    return bool(answer)
