"""`csv`: a table with a header."""

from __future__ import annotations

import csv

import pytest
from data_cases import plain, put, small

from labelwise.data.options import ReadOptions
from labelwise.data.read import read
from labelwise.data.write import write
from labelwise.errors import ConfigError, DataError


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_header_shows_the_delimiter(tmp_path, delimiter):
    rows = [["id", "labels", "text"], ["7", '"x;y"', '"a, b; c\td"'], ["8", "", ""]]
    found = read(put(tmp_path / "a.csv", "".join(delimiter.join(row) + "\n" for row in rows)))
    assert list(found.ids) == ["7", "8"]
    assert list(found.texts) == ["a, b; c\td", ""]
    assert plain(found) == [{"x": 1, "y": 1}, {}]


def test_fields_in_quotes_may_hold_anything(tmp_path):
    text = 'a "quoted" word,\nand a\r\nline; \0 end'
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "labels"], [text, "x"], ["plain", " y ; z ;"]])
    found = read(tmp_path / "a.csv")
    assert list(found.texts) == [text, "plain"]
    assert plain(found) == [{"x": 1}, {"y": 1, "z": 1}]


def test_what_is_written_is_read_by_the_standard_library(tmp_path):
    texts = ['say "hi"', "a,b", "line\nend", "cr\rhere", "", "plain"]
    write(small(texts, [["x", "y"]] + [[]] * 5), tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [["text", "labels"], [texts[0], "x;y"], *([text, ""] for text in texts[1:])]


def test_columns_and_separators_may_be_named(tmp_path):
    path = put(tmp_path / "a.csv", "nr|title|body|tags\n1|A|b|x/y\n2|C||z\n")
    options = ReadOptions(
        delimiter="|", text_column="title+body", label_column="tags", label_separator="/", id_column="nr"
    )
    found = read(path, options=options)
    assert list(found.texts) == ["A b", "C "]
    assert plain(found) == [{"x": 1, "y": 1}, {"z": 1}]
    assert list(found.ids) == ["1", "2"]


def test_paths_need_no_text(tmp_path):
    found = read(put(tmp_path / "a.csv", "path,labels\nimg/1.png,x\n"))
    assert list(found.paths) == ["img/1.png"]
    assert found.texts is None


def test_a_table_without_labels_is_read_when_told_so(tmp_path):
    found = read(put(tmp_path / "a.csv", "text,other\na,b\n"), options=ReadOptions(label_column=""))
    assert plain(found) == [{}]


def test_blank_lines_are_passed_over(tmp_path):
    found = read(put(tmp_path / "a.csv", "\n\r\ntext,labels\n\na,x\n\n"))
    assert list(found.texts) == ["a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("title,labels\na,x\n", r"a\.csv:1: there is no column 'text' among title, labels; .* text_column"),
        ("text,tags\na,x\n", r"a\.csv:1: there is no column 'labels' among text, tags; .* label_column"),
        ("text,labels,text\na,x,b\n", "duplicate column 'text' in the header"),
        ("text,labels\na,x\n\nb\n", r"a\.csv:4: the row has 1 fields, but the header 2"),
        ('text,labels\n"a\nb",x\nc,d,e\n', r"a\.csv:4: the row has 3 fields"),
        ('text,labels\na,x\n"never closed,x\nmore\n', r"a\.csv:3: not valid CSV .*: unexpected end of data"),
        ('text,labels\n"a"b,x\n', r"a\.csv:2: not valid CSV"),
        ("text,labels\na\rb,x\n", r"a\.csv:2: not valid CSV"),
        ("", r"a\.csv: the file is empty: no documents; a header"),
        ("\n\n", r"a\.csv: the file is empty: no documents; a header"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read(put(tmp_path / "a.csv", content))


@pytest.mark.parametrize("option", ["text_column", "id_column", "path_column"])
def test_a_column_that_was_asked_for_must_be_there(tmp_path, option):
    path = put(tmp_path / "a.csv", "text,labels,path\na,x,p\n")
    with pytest.raises(DataError, match=f"no column 'missing'.*{option}"):
        read(path, options=ReadOptions(**{option: "missing"}))


@pytest.mark.parametrize("delimiter", ["", "ab", '"', "\n"])
def test_a_delimiter_is_one_character(tmp_path, delimiter):
    path = put(tmp_path / "a.csv", "text,labels\na,x\n")
    with pytest.raises(ConfigError, match="delimiter"):
        read(path, options=ReadOptions(delimiter=delimiter))


def test_long_fields_are_read(tmp_path):
    text = "word " * 100_000
    assert list(read(put(tmp_path / "a.csv", f"text,labels\n{text},x\n")).texts) == [text]
