"""`tsv`: one document per line, `id<TAB>labels<TAB>text` or `labels<TAB>text`, the format of LibMultiLabel.

The first line that is not empty determines which: with two tabs or more there is an id. Further tabs belong to the
text. Empty lines are skipped. If labels are not read and the first line has no tab, each line is a text.

Annif's corpora of short texts have the text first, then URIs: `text<TAB><http://...> <http://...>`. The first line
whose second of two columns is not empty determines that; labels are the URIs without the brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.formats.lines import WRITE_ROWS, label_lines
from labelwise.data.options import LABEL_NAMES, ReadOptions, split_files, stem_and_extension
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
    refuse_bytes,
    refuse_empty,
    refuse_label_names,
    refuse_line_ends,
    refuse_mark,
    texts_of,
    used_label_names,
)
from labelwise.errors import DataError
from labelwise.strings import Strings

NAME = "tsv"
TAB, LESS, GREATER = b"\t<>"
_URIS = re.compile(rb"\s*<[^<>\s]+>(\s+<[^<>\s]+>)*\s*")
_HEADERS = ({"text", "labels"}, {"path", "labels"})


def recognises(path: Path) -> bool:
    stem, extension = stem_and_extension(path)
    if not path.is_file() or stem.endswith(LABEL_NAMES):
        return False
    lines = first_bytes(path).removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").split(b"\n")
    first = next(filter(None, lines), None)
    if first is None:
        return extension == ".tsv"
    columns = first.decode("latin-1").split("\t")
    return len(columns) > 1 and not any(set(columns) >= header for header in _HEADERS)


def parts(folder: Path) -> dict[str, Path]:
    return split_files(folder, recognises, (".tsv",))


def read(path: Path, options: ReadOptions, folder: Path | None = None) -> Dataset:
    separator = (options.label_separator or "").encode()
    labels = LabelAccumulator()
    texts: TextAccumulator | None = None
    tabs, text_first = 0, False
    for block, starts, ends, positions in _tabbed_lines(path, options):
        if texts is None:
            tabs = int(np.count_nonzero(positions[0] >= 0)) or int(options.labels)
            texts = TextAccumulator(max(1, tabs), folder)
            text_first = tabs == 1 and _has_uris(block, positions[:, 0], ends)
        if tabs == 0:
            texts.add(block.data, (starts, ends))
            labels.add_fields(block.data, starts, starts, separator)
            continue
        short = np.flatnonzero(positions[:, tabs - 1] < 0)
        if len(short):
            raise _short_line(path, block, int(starts[short[0]]), positions[short[0]], tabs, text_first)
        if text_first:
            _add_uris(labels, path, block, positions[:, 0] + 1, ends)
            texts.add(block.data, (starts, positions[:, 0]))
            continue
        fields_start = starts if tabs == 1 else positions[:, 0] + 1
        labels.add_fields(block.data, fields_start, positions[:, tabs - 1], separator)
        columns = [(positions[:, tabs - 1] + 1, ends)] + [(starts, positions[:, 0])] * (tabs - 1)
        texts.add(block.data, *columns)
    matrix, names = labels.matrix()
    refuse_empty(len(matrix.indptr) - 1, path)
    columns = texts.columns() if texts is not None else [Strings.of([])]
    ids = columns[1] if len(columns) == 2 else None
    return Dataset(matrix, names, texts=columns[0], ids=ids, name=str(path))


def _tabbed_lines(path: Path, options: ReadOptions) -> Iterator[tuple[ByteBlock, np.ndarray, np.ndarray, np.ndarray]]:
    """Blocks with the bounds of their lines that are not empty, and the positions of the first two tabs."""
    from labelwise.kernels.fields import find_byte

    for block in text_blocks(path, options.encoding, options.on_bad_bytes):
        starts, ends = line_bounds(block.data)
        filled = ends > starts
        if not filled.all():
            starts, ends = starts[filled], ends[filled]
        if len(starts):
            yield block, starts, ends, find_byte(block.data, starts, ends, TAB, 2)


def _has_uris(block: ByteBlock, tabs: np.ndarray, ends: np.ndarray) -> bool:
    """Whether the first second column that is not empty has only labels in angle brackets."""
    filled = np.flatnonzero((tabs >= 0) & (ends > tabs + 1))
    return len(filled) > 0 and bool(_URIS.fullmatch(block.data[tabs[filled[0]] + 1 : ends[filled[0]]].tobytes()))


def _add_uris(labels: LabelAccumulator, path: Path, block: ByteBlock, starts: np.ndarray, ends: np.ndarray) -> None:
    """Add rows of labels in angle brackets, without these."""
    from labelwise.kernels.fields import split_fields

    begins, stops, first = split_fields(block.data, starts, ends, b"")
    wrong = np.flatnonzero((block.data[begins] != LESS) | (block.data[stops - 1] != GREATER) | (stops - begins < 3))
    if len(wrong):
        row = int(np.searchsorted(first, wrong[0], "right")) - 1
        given = block.data[begins[wrong[0]] : stops[wrong[0]]].tobytes().decode("utf-8", "replace")
        raise DataError(
            f"the label '{given}' is not in angle brackets; text<TAB><URI> <URI> is needed, as in the first line",
            path,
            block.line_at(int(starts[row])),
        )
    labels.add_tokens(block.data, begins + 1, stops - 1, first)


def _short_line(
    path: Path, block: ByteBlock, start: int, positions: np.ndarray, tabs: int, text_first: bool
) -> DataError:
    n_tabs = int(np.count_nonzero(positions >= 0))
    count = "one tab" if n_tabs else "no tab"
    form = "id<TAB>labels<TAB>text, as in the first line," if tabs == 2 else "labels<TAB>text"
    form = "text<TAB><URI> <URI>, as in the first line," if text_first else form
    return DataError(f"the line has {count}; {form} is needed", path, block.line_at(start))


def write(dataset: Dataset, path: Path) -> None:
    texts = texts_of(dataset, path, NAME)
    refuse_line_ends(texts, "text", path, NAME)
    refuse_label_names(used_label_names(dataset), BLANKS + LINE_ENDS, path, NAME)
    columns = [label_lines(dataset), texts]
    if dataset.ids is not None:
        refuse_bytes(dataset.ids, b"\t\n", "id", path, NAME)
        columns.insert(0, dataset.ids)
    elif len(texts) and "\t" in texts[0]:
        raise DataError(
            "the first text contains a tab, so its line would be read as id, labels and text; give the documents "
            "ids, or write jsonl or native",
            path,
        )
    if dataset.ids is None and _URIS.fullmatch(next(filter(None, texts), "").encode()):
        raise DataError(
            "the first text has only words in angle brackets, so it would be read as Annif's labels; give the "
            "documents ids, or write jsonl or native",
            path,
        )
    if len(texts):
        refuse_mark(columns[0][0], path, NAME)
    with write_stream(path) as file:
        for begin in range(0, len(texts), WRITE_ROWS):
            rows = zip(*(column[begin : begin + WRITE_ROWS] for column in columns), strict=True)
            file.write("".join("\t".join(row) + "\n" for row in rows).encode())


FORMAT = Format(
    name=NAME,
    about="one line per document: id<TAB>labels<TAB>text or labels<TAB>text, labels separated by blanks",
    recognises=recognises,
    read=read,
    write=write,
    parts=parts,
    extension=".tsv",
    read_mapped=read,
)
