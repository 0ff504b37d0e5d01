"""What is written comes back equal, is recognised as its own format, or is refused for the reason the format states."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_cases import WRITTEN, assert_same, nasty_text, text_datasets
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.read import FORMATS, detect, read
from labelwise.data.write import CAN_BE_EMPTY, HOLDS, write
from labelwise.errors import DataError
from labelwise.strings import Strings

EXAMPLES = settings(deadline=None, max_examples=60)
FILES = {
    "native": "train", "lines": "train_texts.txt", "tsv": "train.tsv", "fasttext": "train.ft", "jsonl": "train.jsonl",
    "csv": "train.csv", "pecos": "Y.trn.npz", "xc": "train.txt", "vowpal": "train.vw",
    "tfrecord": "train.tfrecords",
}  # fmt: skip
COMPRESSED_SUFFIXES = ["lines", "tsv", "fasttext", "jsonl", "csv", "xc", "vowpal", "tfrecord"]


@contextmanager
def folder():
    place = Path(tempfile.mkdtemp())
    try:
        yield place
    finally:
        shutil.rmtree(place)


def used_names(data: Dataset) -> list[str]:
    return [data.label_names[column] for column in np.flatnonzero(data.label_counts()).tolist()]


def first_cell_has_mark(data: Dataset) -> bool:
    """A text at the very begin of a file must not look like a byte order mark."""
    return len(data) > 0 and data.texts[0].startswith("\ufeff")


def first_label_has_mark(data: Dataset) -> bool:
    return len(data) > 0 and data.labels.indptr[1] > 0 and data.label_names[data.labels.indices[0]].startswith("\ufeff")


def line_texts(data: Dataset) -> bool:
    return not any("\n" in text or text.endswith("\r") for text in data.texts)


def word_labels(data: Dataset) -> bool:
    return all(name and not set(name) & set(" \t\r\n") for name in used_names(data))


def lines_can(data: Dataset) -> bool:
    return line_texts(data) and word_labels(data) and not first_cell_has_mark(data) and not first_label_has_mark(data)


def tsv_can(data: Dataset) -> bool:
    if not (line_texts(data) and word_labels(data)):
        return False
    if data.ids is None:
        return not (len(data) and "\t" in data.texts[0]) and not first_label_has_mark(data)
    return not any(set(i) & set("\t\n") for i in data.ids) and not (len(data) and data.ids[0].startswith("\ufeff"))


def fasttext_can(data: Dataset) -> bool:
    words = [word for text in data.texts for word in text.replace("\t", " ").split(" ")]
    bare = len(data) > 0 and data.labels.indptr[1] == 0
    return (
        line_texts(data)
        and word_labels(data)
        and not any(word.startswith("__label__") for word in words)
        and not (bare and first_cell_has_mark(data))
    )


def csv_can(data: Dataset) -> bool:
    return all(name and ";" not in name and name == name.strip(" \t") for name in used_names(data))


CAN = {"lines": lines_can, "tsv": tsv_can, "fasttext": fasttext_can, "csv": csv_can, "jsonl": lambda data: True,
       "native": lambda data: True}  # fmt: skip
mild_text = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12)
mild_label = st.text("abcé-_:|017", min_size=1, max_size=3)


@pytest.mark.parametrize("format", CAN)
@EXAMPLES
@given(data=st.data())
def test_texts_come_back_equal_or_are_refused(format, data):
    nasty = data.draw(st.booleans())
    with_ids = st.booleans() if "ids" in HOLDS[format] else st.just(False)
    label, text = (nasty_text, nasty_text) if nasty else (mild_label, mild_text)
    dataset = data.draw(text_datasets(label, text, with_ids))
    with folder() as place:
        path = place / FILES[format]
        if not CAN[format](dataset) or not (len(dataset) or format in CAN_BE_EMPTY):
            with pytest.raises(DataError):
                write(dataset, path)
            assert list(place.iterdir()) == []
            return
        write(dataset, path)
        if len(dataset):
            assert_same(read(path, format), dataset)
            assert detect(path).name == format
        else:
            assert len(read(path, format)) == 0


@EXAMPLES
@given(text_datasets(with_ids=st.just(False)), st.booleans(), st.sampled_from([None, "sparse", "dense"]))
def test_pecos_comes_back_equal_or_is_refused(dataset, with_texts, features):
    values = np.arange(3 * len(dataset), dtype=np.float32).reshape(len(dataset), 3) % 5
    values[:, 2:] = 0
    dataset = replace(
        dataset,
        label_names=Strings.numbers(dataset.n_labels),
        features={"sparse": sparse.csr_array(values), "dense": values, None: None}[features],
        texts=dataset.texts if with_texts or features is None else None,
    )
    with folder() as place:
        path = place / "Y.trn.npz"
        legal = dataset.texts is None or (line_texts(dataset) and not first_cell_has_mark(dataset))
        if not legal:
            with pytest.raises(DataError):
                write(dataset, path)
            assert list(place.iterdir()) == []
            return
        write(dataset, path)
        for name in ("Y.trn.npz", "X.trn.txt" if dataset.texts is not None else "Y.trn.npz"):
            found = read(place / name)
            assert_same(found, dataset)
            assert found.n_labels == dataset.n_labels
        assert isinstance(found.features, np.ndarray) == (features == "dense")


@st.composite
def feature_datasets(draw, names):
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    cells = draw(st.lists(st.one_of(st.just(0.0), finite), min_size=rows * columns, max_size=rows * columns))
    features = np.array(cells, np.float32).reshape(rows, columns)
    marks = draw(st.lists(st.booleans(), min_size=rows * len(names), max_size=rows * len(names)))
    labels = np.array(marks, np.float32).reshape(rows, len(names))
    return Dataset(sparse.csr_array(labels), Strings.of(names), features=sparse.csr_array(features))


@EXAMPLES
@given(feature_datasets(["0", "1", "2"]), st.sampled_from(["xc", "native", "jsonl", "tfrecord"]))
def test_features_come_back_equal_with_their_width(dataset, format):
    with folder() as place:
        path = place / FILES[format]
        write(dataset, path, format)
        found = read(path, format)
        assert_same(found, dataset)
        if len(dataset):
            assert found.features.shape == dataset.features.shape
            assert detect(path).name == format


@EXAMPLES
@given(feature_datasets(["é", "b-1", "7"]))
def test_vowpal_comes_back_equal(dataset):
    with folder() as place:
        write(dataset, place / "a.vw")
        assert_same(read(place / "a.vw"), dataset)
        assert detect(place / "a.vw").name == "vowpal"


@EXAMPLES
@given(feature_datasets(["a", "\n"]), st.lists(st.floats(-5, 5, width=32), min_size=8, max_size=8))
def test_relevances_and_dense_features_come_back_exactly(dataset, relevances):
    labels = dataset.labels.copy()
    labels.data[:] = np.resize(np.array(relevances, np.float32), len(labels.data))
    dataset = replace(dataset, labels=labels, features=dataset.features.toarray())
    with folder() as place:
        for format in ("jsonl", "native"):
            write(dataset, place / FILES[format])
            found = read(place / FILES[format])
            assert_same(found, dataset)
            if len(dataset):
                assert isinstance(found.features, np.ndarray)


@pytest.mark.parametrize("format", COMPRESSED_SUFFIXES)
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
def test_packed_files_are_written_recognised_and_read(tmp_path, format, suffix):
    labels = sparse.csr_array(np.eye(3, dtype=np.float32))
    names = Strings.of(["0", "1", "2"])
    if "texts" in HOLDS[format]:
        dataset = Dataset(labels, names, texts=Strings.of(["a", "", "c d"]))
    else:
        dataset = Dataset(labels, names, features=sparse.csr_array(np.eye(3)))
    path = tmp_path / (FILES[format] + suffix)
    write(dataset, path)
    magic = {".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ", ".bz2": b"BZh"}[suffix]
    assert path.read_bytes().startswith(magic)
    assert detect(path).name == format
    assert_same(read(path), dataset)


def test_every_format_is_covered_here():
    assert set(FILES) == set(WRITTEN)
    assert set(HOLDS) == set(FORMATS)
