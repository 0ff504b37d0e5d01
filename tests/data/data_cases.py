"""What the tests of formats share: comparing data sets, and texts that formats like to get wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.read import FORMATS, format_named
from labelwise.strings import Strings

WRITTEN = [name for name in FORMATS if format_named(name).write is not None]
"""Formats that are not only read."""

NASTY = [
    "\t", "\n", "\r", "\r\n", '"', "'", ",", ";", " ", "  ", "\u2028", "\x0b", "\x0c", "\x85", "\0", "\ufeff", "é",
    "\U0001f600", "__label__", "__label__x", "|", ":", "{", "\\", "#", "a", "b", "0", "17",
]  # fmt: skip

nasty_text = st.lists(
    st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=["Cs"]), max_size=3)), max_size=6
).map("".join)


maybe = st.booleans()


def reader_of_content(read, path: Path, default):
    """A function that writes a content to the file and reads it."""

    def read_content(content: str | bytes, options=default) -> Dataset:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read(path, options)

    return read_content


def rows_of(dataset: Dataset) -> list[tuple[list[int], dict[int, float]]]:
    """For each document its label columns and its features by column, as plain Python."""
    rows = []
    for row in range(len(dataset)):
        features = dataset.features[[row]]
        values = dict(zip(features.indices.tolist(), features.data.tolist(), strict=True))
        rows.append((dataset.labels[[row]].indices.tolist(), values))
    return rows


def plain(dataset: Dataset) -> list[dict[str, float]]:
    """For each document its labels by name with their relevances: what must survive, whatever the column order."""
    names = list(dataset.label_names)
    rows = []
    for row in range(len(dataset)):
        here = slice(dataset.labels.indptr[row], dataset.labels.indptr[row + 1])
        pairs = zip(dataset.labels.indices[here].tolist(), dataset.labels.data[here].tolist(), strict=True)
        rows.append({names[column]: value for column, value in pairs})
    return rows


def assert_same(found: Dataset, expected: Dataset, parts: tuple[str, ...] = ("texts", "ids", "paths")) -> None:
    """Equal documents with equal labels; label columns that no document uses do not count."""
    assert len(found) == len(expected)
    assert plain(found) == plain(expected)
    if not len(expected):
        return  # a file without documents cannot tell which parts they would have had
    for part in parts:
        mine, theirs = getattr(found, part), getattr(expected, part)
        assert (mine is None) == (theirs is None), part
        if mine is not None:
            assert list(mine) == list(theirs), part
    assert_same_features(found.features, expected.features)


def assert_same_features(found, expected) -> None:
    """Equal values; columns at the end that are all empty do not count."""
    assert (found is None) == (expected is None)
    if found is None:
        return
    one, two = (f if isinstance(f, np.ndarray) else f.toarray() for f in (found, expected))
    width = max(one.shape[1], two.shape[1])
    one, two = (np.pad(f, ((0, 0), (0, width - f.shape[1]))) for f in (one, two))
    np.testing.assert_array_equal(one, two)


@st.composite
def text_datasets(draw, label=nasty_text, text=nasty_text, with_ids=maybe):
    """Data sets of texts with labels of any name."""
    names = draw(st.lists(label, min_size=1, max_size=4, unique=True))
    rows = draw(st.lists(st.tuples(text, st.sets(st.integers(0, len(names) - 1))), max_size=5))
    labels = sparse.lil_array((len(rows), len(names)), dtype=np.float32)
    for row, (_, chosen) in enumerate(rows):
        for column in chosen:
            labels[row, column] = 1
    ids = [draw(nasty_text) for _ in rows] if draw(with_ids) else None
    texts = Strings.of(text for text, _ in rows)
    return Dataset(labels.tocsr(), Strings.of(names), texts=texts, ids=None if ids is None else Strings.of(ids))


def small(texts=("one", "two", "three"), labels=(("x", "y"), (), ("x",)), **further) -> Dataset:
    """A small data set with texts."""
    from labelwise.data.csr import labels_from_lists

    matrix, names = labels_from_lists([list(row) for row in labels])
    return Dataset(matrix, names, texts=None if texts is None else Strings.of(texts), **further)


def put(path: Path, content: bytes | str) -> Path:
    """Write a file with this content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def cut_into_small_blocks(monkeypatch, size: int) -> list[int]:
    """Make readers get their files in blocks of about this many bytes; gives the list their line counts go to."""
    import labelwise.data.stream as stream

    whole, lines = stream.line_blocks, []

    def small_blocks(path, block_bytes=None):
        for block in whole(path, size):
            lines.append(block.lines)
            yield block

    monkeypatch.setattr(stream, "line_blocks", small_blocks)
    return lines
