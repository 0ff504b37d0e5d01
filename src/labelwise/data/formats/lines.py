"""`lines`: one text per line in `train_texts.txt`, the labels of each line in `train_labels.txt`.

The format of AttentionXML. If a folder has both raw and tokenised texts of a part, `train_raw_texts.txt` is used.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.options import ReadOptions, files_in, named_parts, plain_name
from labelwise.data.stream import line_bounds, text_blocks, write_stream
from labelwise.data.tables import (
    BLANKS,
    LINE_ENDS,
    LabelAccumulator,
    TextAccumulator,
    no_labels,
    refuse_empty,
    refuse_label_names,
    refuse_line_ends,
    refuse_mark,
    texts_of,
    used_label_names,
)
from labelwise.errors import DataError
from labelwise.strings import Strings

NAME = "lines"
_TEXTS = re.compile(r"(?P<stem>.*?)(?P<raw>raw_)?texts(?P<extension>\.[a-z]+)?")
WRITE_ROWS = 1 << 14


def recognises(path: Path) -> bool:
    return path.is_file() and _labels_of(path) is not None


def _labels_of(texts: Path) -> Path | None:
    """The labels file that belongs to a texts file: compressed in the same way, else in any other way."""
    expected = siblings(texts)
    matches = [path for path in files_in(texts.parent) if expected and plain_name(path) == plain_name(expected[0])]
    return expected[0] if expected and expected[0] in matches else matches[0] if matches else None


def siblings(texts: Path) -> list[Path]:
    """The labels file that is written with a texts file; none if it is not named like a texts file."""
    match = _TEXTS.fullmatch(plain_name(texts))
    if match is None:
        return []
    suffix = texts.name.removeprefix(plain_name(texts))
    return [texts.with_name(f"{match['stem']}labels{match['extension'] or ''}{suffix}")]


def parts(folder: Path) -> dict[str, Path]:
    chosen: dict[str, tuple[bool, Path]] = {}
    for path in files_in(folder):
        match = _TEXTS.fullmatch(plain_name(path))
        if match is None or _labels_of(path) is None:
            continue
        stem, raw = match["stem"].strip("_.-") or "data", match["raw"] is not None
        if stem not in chosen or (raw and not chosen[stem][0]):
            chosen[stem] = raw, path
    return named_parts({path: stem for stem, (_, path) in chosen.items()})


def recognises_unlabelled(path: Path) -> bool:
    return path.is_file() and _TEXTS.fullmatch(plain_name(path)) is not None


def read(path: Path, options: ReadOptions, folder: Path | None = None) -> Dataset:
    if not options.labels:
        texts = read_lines(path, options, folder)
        refuse_empty(len(texts), path)
        return Dataset(no_labels(len(texts)), texts=texts, name=str(path))
    labels_path = _labels_of(path)
    if labels_path is None:
        raise DataError(
            "there is no labels file for it: the texts of a part are in NAME_texts.txt and its labels beside "
            "them in NAME_labels.txt, both plain, .gz, .xz or .bz2",
            path,
        )
    separator = (options.label_separator or "").encode()
    accumulator = LabelAccumulator()
    for block in text_blocks(labels_path, options.encoding, options.on_bad_bytes):
        accumulator.add_fields(block.data, *line_bounds(block.data), separator)
    labels, names = accumulator.matrix()
    texts = read_lines(path, options, folder)
    rows = len(labels.indptr) - 1
    if len(texts) != rows:
        raise DataError(f"{len(texts):,} lines of texts, but {rows:,} lines of labels in {labels_path}", path)
    refuse_empty(rows, path)
    return Dataset(labels, names, texts=texts, name=str(path))


def read_lines(path: Path, options: ReadOptions, folder: Path | None = None) -> Strings:
    """Read the lines of a file as texts; with a folder, they are written to a file in it and mapped."""
    texts = TextAccumulator(folder=folder)
    for block in text_blocks(path, options.encoding, options.on_bad_bytes):
        texts.add(block.data, line_bounds(block.data))
    return texts.columns()[0]


def write_lines(texts: Strings, path: Path) -> None:
    """Write texts as the lines of a file; they must not contain line ends."""
    with write_stream(path) as file:
        for begin in range(0, len(texts), WRITE_ROWS):
            file.write("".join(f"{text}\n" for text in texts[begin : begin + WRITE_ROWS]).encode())


def label_lines(dataset: Dataset, separator: str = " ") -> list[str]:
    """The label names of each document, joined by the separator."""
    names = np.array(list(dataset.label_names), object)[dataset.labels.indices].tolist()
    first = dataset.labels.indptr.tolist()
    return [separator.join(names[a:b]) for a, b in pairwise(first)]


def write(dataset: Dataset, path: Path) -> None:
    labels_paths = siblings(path)
    if not labels_paths:
        raise DataError("the format lines writes to a file named like train_texts.txt or train_texts.txt.xz", path)
    texts = texts_of(dataset, path, NAME)
    refuse_line_ends(texts, "text", path, NAME)
    refuse_label_names(used_label_names(dataset), BLANKS + LINE_ENDS, path, NAME)
    lines = Strings.of(label_lines(dataset))
    for first in (texts[0], lines[0]) if len(dataset) else ():
        refuse_mark(first, path, NAME)
    write_lines(lines, labels_paths[0])
    write_lines(texts, path)


FORMAT = Format(
    name=NAME,
    about="NAME_texts.txt with one text per line, NAME_labels.txt with blank-separated labels",
    recognises=recognises,
    read=read,
    write=write,
    parts=parts,
    extension="_texts.txt",
    siblings=siblings,
    recognises_unlabelled=recognises_unlabelled,
    read_mapped=read,
)
