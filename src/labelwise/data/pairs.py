"""Pairs of images to verify, with whether they show the same person: LFW's `pairs.txt`, tables, and `.bin` sets.

- `pairs.txt` of LFW: the first line has the number of folds and of pairs of either type per fold (`10 300`), or only
  the number of pairs (`500`, one fold); then `name n1 n2` for two images of a person and `name1 n1 name2 n2` for two
  people. Image n of a person is `name/name_000n.jpg` in the folder of images, or another image format.
- a table (`.tsv` or any other text): two paths, `1` or `0`, and a fold if wanted, separated by tabs. Paths are relative
  to the folder of images, or without one to the folder of the table.
- `.bin`: a pickle of two lists, the encoded images and one answer per pair of images. It is read without running it.
  The pairs are in order, a tenth of them per fold, as the programs that use these files divide them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise.data.files import open_stream
from labelwise.errors import DataError

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
    from labelwise.data.restricted_pickle import read_pickle

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
