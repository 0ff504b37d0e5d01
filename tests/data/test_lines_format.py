"""`lines`: texts in one file, labels in the other."""

from __future__ import annotations

import pytest
from data_cases import cut_into_small_blocks, plain, put

from labelwise.data.options import ReadOptions
from labelwise.data.read import find_parts, read
from labelwise.errors import DataError


def pair(folder, texts, labels, stem="train_"):
    put(folder / f"{stem}labels.txt", labels)
    return put(folder / f"{stem}texts.txt", texts)


def test_blanks_of_any_number_stand_between_labels(tmp_path):
    found = read(pair(tmp_path, "one\ntwo\nthree\n", " b  a\t\tc \n \t \na\n"))
    assert plain(found) == [{"a": 1, "b": 1, "c": 1}, {}, {"a": 1}]
    assert list(found.texts) == ["one", "two", "three"]


def test_a_label_that_stands_twice_counts_once(tmp_path):
    assert plain(read(pair(tmp_path, "one\n", "a b a\n"))) == [{"a": 1, "b": 1}]


def test_labels_that_are_all_numbers_are_in_the_order_of_numbers(tmp_path):
    assert list(read(pair(tmp_path, "x\n", "10 9 100\n")).label_names) == ["9", "10", "100"]
    assert list(read(pair(tmp_path, "x\n", "10 9 x\n")).label_names) == ["10", "9", "x"]


def test_empty_lines_are_documents(tmp_path):
    found = read(pair(tmp_path, "\none\n\n", "a\n\n\n"))
    assert list(found.texts) == ["", "one", ""]
    assert plain(found) == [{"a": 1}, {}, {}]


def test_a_missing_last_newline_and_crlf_change_nothing(tmp_path):
    found = read(pair(tmp_path, "one\r\ntwo", "a\r\nb"))
    assert list(found.texts) == ["one", "two"]
    assert plain(found) == [{"a": 1}, {"b": 1}]


def test_a_byte_order_mark_is_dropped_in_both_files(tmp_path):
    found = read(pair(tmp_path, "\ufeffone\n", "\ufeffa\n"))
    assert list(found.texts) == ["one"]
    assert plain(found) == [{"a": 1}]


def test_only_line_feeds_end_a_line(tmp_path):
    text = "a\u2028b\x0bc\x85d\x0ce\x1cf\0g\rh"
    found = read(pair(tmp_path, text + "\n", "x\u2028y z\x0b\n"))
    assert list(found.texts) == [text]
    assert plain(found) == [{"x\u2028y": 1, "z\x0b": 1}]


def test_different_numbers_of_lines_are_an_error_with_both(tmp_path):
    with pytest.raises(DataError, match=r"train_texts\.txt: 3 lines of texts, but 2 lines of labels in .*train_labels"):
        read(pair(tmp_path, "a\nb\nc\n", "x\ny\n"))


def test_a_texts_file_without_labels_is_an_error_that_says_how_to_name_them(tmp_path):
    path = put(tmp_path / "train_texts.txt", "a\n")
    with pytest.raises(DataError, match=r"NAME_labels\.txt"):
        read(path, "lines")
    with pytest.raises(DataError, match="not recognised"):
        read(path)


def test_raw_texts_are_preferred_in_a_folder_and_a_named_file_is_taken_as_it_is(tmp_path):
    pair(tmp_path, "tokenised\n", "a\n")
    put(tmp_path / "train_raw_texts.txt", "Raw\n")
    assert list(read(tmp_path).texts) == ["Raw"]
    assert list(read(tmp_path / "train_texts.txt").texts) == ["tokenised"]
    assert list(read(tmp_path / "train_raw_texts.txt").texts) == ["Raw"]


def test_the_labels_file_that_is_packed_alike_goes_first(tmp_path):
    import gzip

    put(tmp_path / "train_texts.txt.gz", gzip.compress(b"one\n"))
    put(tmp_path / "train_labels.txt", "plain\n")
    assert plain(read(tmp_path / "train_texts.txt.gz")) == [{"plain": 1}]
    put(tmp_path / "train_labels.txt.gz", gzip.compress(b"packed\n"))
    assert plain(read(tmp_path / "train_texts.txt.gz")) == [{"packed": 1}]


def test_files_without_a_split_in_their_name_are_one_part(tmp_path):
    pair(tmp_path, "one\n", "a\n", stem="")
    assert list(find_parts(tmp_path)[1]) == ["data"]
    assert len(read(tmp_path)) == 1


def test_label_names_give_label_texts(tmp_path):
    path = pair(tmp_path, "one\n", "b a c\n")
    put(tmp_path / "label_names.tsv", "a\tthe first\nzz\tunknown\nb\tthe\tsecond\n")
    assert list(read(path).label_texts) == ["the first", "the\tsecond", "c"]


def test_another_separator_may_be_given(tmp_path):
    found = read(pair(tmp_path, "one\n", "two words; x ;;\n"), options=ReadOptions(label_separator=";"))
    assert plain(found) == [{"two words": 1, "x": 1}]


@pytest.mark.parametrize("where", ["texts", "labels"])
def test_bad_bytes_are_an_error_at_their_line(tmp_path, where):
    path = pair(tmp_path, "a\nb\n", "x\ny\n")
    put(tmp_path / f"train_{where}.txt", b"a\n\xe9\n")
    with pytest.raises(DataError, match=rf"train_{where}\.txt:2: byte 0xE9"):
        read(path)


def test_many_blocks_give_the_same_as_one(tmp_path, monkeypatch):
    rows = [(f"text {i} é" * (i % 7), f"l{i % 11} l{i % 3}") for i in range(500)]
    path = pair(tmp_path, "".join(f"{t}\n" for t, _ in rows), "".join(f"{b}\n" for _, b in rows))
    whole = read(path)
    blocks = cut_into_small_blocks(monkeypatch, 256)
    cut = read(path)
    assert len(blocks) > 20
    assert list(cut.texts) == list(whole.texts) == [t for t, _ in rows]
    assert plain(cut) == plain(whole) == [dict.fromkeys(b.split(), 1.0) for _, b in rows]
