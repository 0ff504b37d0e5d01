"""`fasttext`: one document per line; words that begin with `__label__` are its labels, all others its text.

Labels are usually at the beginning of the line: then the text is the rest of the line, unchanged, after one blank. In
lines with labels elsewhere, the remaining words are joined with single blanks.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.formats.lines import WRITE_ROWS
from labelwise.data.options import ReadOptions, split_files, stem_and_extension
from labelwise.data.stream import (
    ByteBlock,
    first_bytes,
    line_bounds,
    text_blocks,
    write_stream,
)
from labelwise.data.tables import (
    BLANKS,
    LINE_ENDS,
    LabelAccumulator,
    TextAccumulator,
    refuse_empty,
    refuse_label_names,
    refuse_line_ends,
    refuse_mark,
    texts_of,
    used_label_names,
)
from labelwise.errors import ConfigError, DataError
from labelwise.strings import Strings

NAME = "fasttext"
PREFIX = "__label__"
_EXTENSIONS = (".ft", ".fasttext")
_BLANK = re.compile(rb"[ \t]+")


def recognises(path: Path) -> bool:
    if not path.is_file():
        return False
    if stem_and_extension(path)[1] in _EXTENSIONS:
        return True
    lines = first_bytes(path).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return any(line.startswith(PREFIX.encode()) for line in lines)


def parts(folder: Path) -> dict[str, Path]:
    return split_files(folder, recognises, _EXTENSIONS)


def read(path: Path, options: ReadOptions, folder: Path | None = None) -> Dataset:
    from labelwise.kernels.fields import leading_fields

    prefix = options.label_prefix.encode()
    if not prefix or _BLANK.search(prefix):
        raise ConfigError(f"label_prefix: a word without blanks is needed, got {options.label_prefix!r}")
    labels, texts = LabelAccumulator(), TextAccumulator(folder=folder)
    for block in text_blocks(path, options.encoding, options.on_bad_bytes):
        data, (starts, ends) = block.data, line_bounds(block.data)
        word_starts, word_ends, first, rest, scattered = leading_fields(data, starts, ends, prefix)
        if scattered.any():
            data, starts, ends = _move_labels_to_front(data, starts, ends, np.flatnonzero(scattered), prefix)
            word_starts, word_ends, first, rest, _ = leading_fields(data, starts, ends, prefix)
        nameless = np.flatnonzero(word_ends == word_starts)
        if len(nameless):
            raise _nameless(path, block, int(np.searchsorted(first, nameless[0], "right")) - 1, options.label_prefix)
        labels.add_tokens(data, word_starts, word_ends, first)
        texts.add(data, (rest, ends))
    matrix, names = labels.matrix()
    refuse_empty(len(matrix.indptr) - 1, path)
    return Dataset(matrix, names, texts=texts.columns()[0], name=str(path))


def _move_labels_to_front(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, rows: np.ndarray, prefix: bytes
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewrite some lines so that their labels come first; the new lines are appended to the data."""
    starts, ends, end = starts.copy(), ends.copy(), len(data)
    written = []
    for row in rows.tolist():
        words = [word for word in _BLANK.split(data[starts[row] : ends[row]].tobytes()) if word]
        line = b" ".join(sorted(words, key=lambda word: not word.startswith(prefix)))
        starts[row], ends[row] = end, end + len(line)
        end += len(line)
        written.append(np.frombuffer(line, np.uint8))
    return np.concatenate([data, *written]), starts, ends


def _nameless(path: Path, block: ByteBlock, row: int, prefix: str) -> DataError:
    return DataError(f"'{prefix}' without a name; a label needs a name after the prefix", path, block.first_line + row)


def write(dataset: Dataset, path: Path) -> None:
    texts = texts_of(dataset, path, NAME)
    refuse_line_ends(texts, "text", path, NAME)
    refuse_label_names(used_label_names(dataset), BLANKS + LINE_ENDS, path, NAME)
    _refuse_prefix(texts, path)
    if len(texts) and dataset.labels.indptr[1] == 0:
        refuse_mark(texts[0], path, NAME)
    words = np.array([PREFIX + name for name in dataset.label_names], object)
    first = dataset.labels.indptr
    with write_stream(path) as file:
        for begin in range(0, len(texts), WRITE_ROWS):
            lines = []
            for row, text in enumerate(texts[begin : begin + WRITE_ROWS], begin):
                line = words[dataset.labels.indices[first[row] : first[row + 1]]].tolist()
                lines.append(" ".join([*line, text] if text or not line else line) + "\n")
            file.write("".join(lines).encode())


def _refuse_prefix(texts: Strings, path: Path) -> None:
    """Refuse texts with a word that would be read as a label."""
    marked = re.compile(rf"(?:^|[ \t]){PREFIX}")
    for row, text in enumerate(texts):
        if PREFIX in text and marked.search(text):
            raise DataError(
                f"text {row} has a word that begins with {PREFIX}, which the format {NAME} reads as a label",
                path,
            )


FORMAT = Format(
    name=NAME,
    about="one line per document: its labels as words that begin with __label__, then its text",
    recognises=recognises,
    read=read,
    write=write,
    parts=parts,
    extension=".ft",
    other_extensions=(".fasttext",),
    read_mapped=read,
)
