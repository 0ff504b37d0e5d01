"""`fasttext`: words with a prefix are labels."""

from __future__ import annotations

import pytest
from data_cases import plain, put

from labelwise.data.options import ReadOptions
from labelwise.data.read import read
from labelwise.errors import ConfigError, DataError

LABELLED = "__label__"


def test_labels_in_front_leave_the_text_as_it_stands(tmp_path):
    found = read(put(tmp_path / "a.ft", "__label__x  __label__y  two  blanks \n__label__z\n no label\n\n"))
    assert plain(found) == [{"x": 1, "y": 1}, {"z": 1}, {}, {}]
    assert list(found.texts) == [" two  blanks ", "", " no label", ""]


def test_labels_anywhere_are_taken_out_of_the_text(tmp_path):
    content = "__label__a one __label__b  two\t__label__a\n__label__z plain\nthree __label__c\n"
    found = read(put(tmp_path / "a.ft", content))
    assert plain(found) == [{"a": 1, "b": 1}, {"z": 1}, {"c": 1}]
    assert list(found.texts) == ["one two", "plain", "three"]


def test_the_prefix_counts_only_at_the_begin_of_a_word(tmp_path):
    found = read(put(tmp_path / "a.ft", "__label__x not__label__y a__label__\n"))
    assert plain(found) == [{"x": 1}]
    assert list(found.texts) == ["not__label__y a__label__"]


def test_another_prefix(tmp_path):
    found = read(put(tmp_path / "a.ft", "#é __label__x #y text\n"), options=ReadOptions(label_prefix="#"))
    assert plain(found) == [{"é": 1, "y": 1}]
    assert list(found.texts) == ["__label__x text"]


@pytest.mark.parametrize("line", ["__label__ text", "__label__x __label__", "text __label__ more"])
def test_a_label_without_a_name_is_an_error_at_its_line(tmp_path, line):
    with pytest.raises(DataError, match=r"a\.ft:2: '__label__' without a name"):
        read(put(tmp_path / "a.ft", f"__label__x one\n{line}\n"))


@pytest.mark.parametrize("prefix", ["", "a b", "\t"])
def test_a_prefix_must_be_a_word(tmp_path, prefix):
    with pytest.raises(ConfigError, match="label_prefix"):
        read(put(tmp_path / "a.ft", "x\n"), options=ReadOptions(label_prefix=prefix))


def test_a_file_is_recognised_though_its_first_lines_have_no_labels(tmp_path):
    found = read(put(tmp_path / "train.txt", "no label here\n__label__x one\n"))
    assert plain(found) == [{}, {"x": 1}]
