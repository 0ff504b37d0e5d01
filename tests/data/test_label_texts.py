"""What labels mean, from files beside the data."""

from __future__ import annotations

import logging

import pytest
from data_cases import put, small

from labelwise.data.label_texts import attach_label_texts, side_file_name
from labelwise.data.options import ReadOptions
from labelwise.data.read import read
from labelwise.errors import DataError


def attached(data, place):
    """With the texts of a given file, or of a file beside a part in a folder."""
    if place.is_dir():
        return attach_label_texts(data, place / "train.txt", ReadOptions())
    return attach_label_texts(data, place.parent / "train.txt", ReadOptions(label_names=str(place)))


def test_names_with_texts_in_a_file_or_its_folder(tmp_path):
    path = put(tmp_path / "label_names.tsv", "y\tWhy\n\nother\tignored\nx\tEx\twith tab\n")
    for place in (path, tmp_path):
        assert list(attached(small(), place).label_texts) == ["Ex\twith tab", "Why"]


def test_a_label_without_a_text_keeps_its_name(tmp_path):
    path = put(tmp_path / "label_names.tsv", "y\tWhy\n")
    assert list(attached(small(), path).label_texts) == ["x", "Why"]


@pytest.mark.parametrize("name", ["output-items.txt", "Yf.txt", "label_map.txt"])
def test_texts_in_the_order_of_columns(tmp_path, name):
    put(tmp_path / name, "zero\n\n")
    data = small(labels=(("0", "1"), (), ("0",)))
    assert list(attached(data, tmp_path).label_texts) == ["zero", ""]
    assert attached(small(), tmp_path).label_texts is None


def test_a_given_file_of_another_length_is_an_error_one_that_was_found_a_warning(tmp_path, caplog):
    path = put(tmp_path / "Yf.txt", "one\ntwo\nthree\n")
    with pytest.raises(DataError, match=r"Yf\.txt: 3 lines for 2 labels"):
        attached(small(), path)
    put(tmp_path / "a.tsv", "0 1\ttext\n")
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path / "a.tsv").label_texts is None
    assert "3 lines, but 2 labels" in caplog.text


def test_a_line_without_a_tab_and_two_texts_for_one_label_are_errors(tmp_path):
    with pytest.raises(DataError, match=r"label_names\.tsv:2: the line has no tab"):
        attached(small(), put(tmp_path / "label_names.tsv", "x\ta\noops\n"))
    with pytest.raises(DataError, match=r"label_names\.tsv:3: the label 'x' has a different text"):
        attached(small(), put(tmp_path / "label_names.tsv", "x\ta\ny\tb\nx\tc\n"))


def test_a_folder_without_such_a_file_changes_nothing(tmp_path):
    data = small()
    assert attached(data, tmp_path) is data
    with pytest.raises(DataError, match="no such file"):
        attached(data, tmp_path / "missing.tsv")


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("train.csv", "train_label_names.tsv"), ("train_texts.txt.xz", "train_label_names.tsv"),
        ("train_raw_texts.txt", "train_label_names.tsv"), ("texts.txt", "label_names.tsv"),
        ("a.b.jsonl", "a.b_label_names.tsv"),
    ],
)  # fmt: skip
def test_the_name_of_the_file_beside_a_part(tmp_path, part, expected):
    assert side_file_name(tmp_path / part) == expected
