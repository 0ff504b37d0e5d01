"""`tsv`: labels and text in a line, with or without an id."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from data_cases import cut_into_small_blocks, plain, put
from scipy import sparse

from cli.commands import labelwise
from labelwise.data.dataset import Dataset
from labelwise.data.options import ReadOptions
from labelwise.data.read import read
from labelwise.data.write import write
from labelwise.errors import DataError


def test_two_columns(tmp_path):
    found = read(put(tmp_path / "a.tsv", "x y\tone\n\ttwo\nz\t\n"))
    assert plain(found) == [{"x": 1, "y": 1}, {}, {"z": 1}]
    assert list(found.texts) == ["one", "two", ""]
    assert found.ids is None


def test_three_columns_and_tabs_in_the_text(tmp_path):
    found = read(put(tmp_path / "a.tsv", "7\tx y\tone\ttwo\n\t\tthree\n9\tx\t\tfour\n"))
    assert list(found.ids) == ["7", "", "9"]
    assert plain(found) == [{"x": 1, "y": 1}, {}, {"x": 1}]
    assert list(found.texts) == ["one\ttwo", "three", "\tfour"]


def test_the_first_line_that_is_not_empty_decides(tmp_path):
    found = read(put(tmp_path / "a.tsv", "\n\r\nx\tone\nx y\ttwo\twith a tab\n\n"))
    assert list(found.texts) == ["one", "two\twith a tab"]
    assert found.ids is None


ANNIF = "without\t\none text\t<http://x.org/p1> <http://x.org/p2>\n\r\nwith <b>\t<http://x.org/p1>\t\n"


def test_a_corpus_of_annif_has_the_text_first(tmp_path):
    put(tmp_path / "corpus.tsv", ANNIF)
    labelwise("data", "convert", tmp_path / "corpus.tsv", tmp_path / "a.jsonl")
    for found in (read(tmp_path / "corpus.tsv"), read(tmp_path / "a.jsonl")):
        assert plain(found) == [{}, {"http://x.org/p1": 1, "http://x.org/p2": 1}, {"http://x.org/p1": 1}]
        assert list(found.texts) == ["without", "one text", "with <b>"]
    assert list(read(tmp_path / "corpus.tsv", labels=False).texts) == ["without", "one text", "with <b>"]


def test_a_first_text_of_brackets_is_not_written(tmp_path):
    data = Dataset(sparse.csr_array(np.eye(2, dtype=np.float32)), ["x", "y"], texts=["", "<b> <c>"])
    with pytest.raises(DataError, match="only words in angle brackets"):
        write(data, tmp_path / "a.tsv")
    write(replace(data, ids=["1", "2"]), tmp_path / "a.tsv")
    assert list(read(tmp_path / "a.tsv").texts) == ["", "<b> <c>"]


def test_texts_with_brackets_are_texts(tmp_path):
    found = read(put(tmp_path / "a.tsv", "x y\t<b> bold\nz\t<http://x.org/p1>\n"))
    assert plain(found) == [{"x": 1, "y": 1}, {"z": 1}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x\tone\nno tab here\n", r"a\.tsv:2: the line has no tab; labels<TAB>text is needed"),
        ("1\tx\tone\n\n2\ttwo\n", r"a\.tsv:3: the line has one tab; id<TAB>labels<TAB>text"),
        ("one\t<u:1>\n\ntwo\t<u:2> u:3\n", r"a\.tsv:3: the label 'u:3' is not in angle brackets; text<TAB><URI>"),
        ("one\t<u:1>\ntwo\t<>\n", r"a\.tsv:2: the label '<>' is not in angle brackets"),
        ("one\t<u:1>\ntwo\n", r"a\.tsv:2: the line has no tab; text<TAB><URI> <URI>, as"),
        ("1\tx\tone\nnothing\n", r"a\.tsv:2: the line has no tab"),
    ],
)
def test_a_line_with_too_few_tabs_is_an_error_there(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read(put(tmp_path / "a.tsv", content))


def test_the_line_of_an_error_is_right_in_a_later_block(tmp_path, monkeypatch):
    blocks = cut_into_small_blocks(monkeypatch, 64)
    content = "x\tsome text\n" * 40 + "\n" * 3 + "broken\n" + "x\tmore\n" * 10
    with pytest.raises(DataError, match=r"a\.tsv:44: the line has no tab"):
        read(put(tmp_path / "a.tsv", content))
    assert len(blocks) > 3


def test_another_separator_may_be_given(tmp_path):
    options = ReadOptions(label_separator=" / ")
    assert plain(read(put(tmp_path / "a.tsv", "a b / c\tx\n"), options=options)) == [{"a b": 1, "c": 1}]
