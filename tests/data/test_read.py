"""The front door for reading: formats recognised, folders and their parts, label spaces, and errors that say enough."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from data_cases import WRITTEN, plain, put, small
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.options import ReadOptions, split_files, split_of
from labelwise.data.read import (
    FORMATS,
    detect,
    find_parts,
    format_named,
    read,
    read_splits,
)
from labelwise.data.write import write, write_splits
from labelwise.errors import ConfigError, DataError
from labelwise.strings import Strings

CONTENT = {
    "tsv": "x y\tsome text\n",
    "csv": "text,labels\nsome text,x;y\n",
    "jsonl": '{"text": "some text", "labels": ["x", "y"]}\n',
    "fasttext": "__label__x __label__y some text\n",
    "xc": "1 3 2\n0,1 0:1.5 2:1\n",
    "vowpal": "1,2 | 0:1.5 2:1\n",
}


# --- telling formats apart ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTENT)
def test_content_alone_tells_the_format(tmp_path, name):
    assert detect(put(tmp_path / "file.dat", CONTENT[name])).name == name


@pytest.mark.parametrize("name", CONTENT)
def test_a_byte_order_mark_and_crlf_change_nothing(tmp_path, name):
    content = b"\xef\xbb\xbf" + CONTENT[name].replace("\n", "\r\n").encode()
    path = put(tmp_path / "file.dat", content)
    assert detect(path).name == name
    assert plain(read(path)) == plain(read(put(tmp_path / "other.dat", CONTENT[name])))


def test_a_table_with_a_header_is_csv_even_if_it_is_called_tsv(tmp_path):
    found = read(put(tmp_path / "train.tsv", "id\tlabels\ttext\n7\tx;y\tsome text\n"))
    assert plain(found) == [{"x": 1, "y": 1}]
    assert list(found.ids) == ["7"]
    assert detect(tmp_path / "train.tsv").name == "csv"


def test_the_named_format_goes_before_what_the_file_looks_like(tmp_path):
    path = put(tmp_path / "a.txt", "__label__x\tsome text\n")
    assert detect(path).name == "fasttext"
    assert plain(read(path, "tsv")) == [{"__label__x": 1}]


@pytest.mark.parametrize("content", [b"just a sentence\n", b"\x00\x01\x02", b"PK\x03\x04zip", b"\xff\xfea\0b\0"])
def test_what_is_not_recognised_is_an_error_that_lists_the_formats(tmp_path, content):
    with pytest.raises(DataError, match=r"name it with format.*native.*jsonl"):
        read(put(tmp_path / "a.bin", content))


def test_an_unknown_format_is_an_error_with_the_nearest_name(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'jsonl'"):
        read(put(tmp_path / "a", "x"), "jsonk")


def test_there_is_no_such_file(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        read(tmp_path / "missing.tsv")
    with pytest.raises(DataError, match="cannot be used"):
        read("a" * 5000)


def test_formats_are_listed_without_being_imported():
    code = (
        "import sys, labelwise.data.read as r; r.FORMATS;"
        "print([m for m in ('numba', 'scipy', 'labelwise.data.formats.tsv') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_names_itself(name):
    assert format_named(name).name == name
    assert format_named(name).about


# --- folders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stem", "split"),
    [
        ("train", "train"), ("trn", "train"), ("dev", "valid"), ("val", "valid"), ("tst", "test"), ("Test", "test"),
        ("eurlex_train", "train"), ("a.b-tst", "test"), ("train_dev", None), ("trainer", None), ("data", None),
    ],
)  # fmt: skip
def test_file_names_tell_the_split(stem, split):
    assert split_of(stem) == split


def test_a_folder_with_several_parts_needs_a_split(tmp_path):
    for name in ("train", "dev", "test"):
        put(tmp_path / f"{name}.tsv", f"x\ttext of {name}\n")
    with pytest.raises(DataError, match="parts train, valid, test; choose one"):
        read(tmp_path)
    for asked in ("valid", "val", "dev"):
        assert list(read(tmp_path, split=asked).texts) == ["text of dev"]
    assert list(read(tmp_path, split="trn").texts) == ["text of train"]


def test_a_part_that_is_not_there_is_an_error_that_lists_those_that_are(tmp_path):
    put(tmp_path / "train.tsv", "x\ty\n")
    with pytest.raises(DataError, match="no part 'test'; it has train"):
        read(tmp_path, split="test")


def test_a_folder_with_one_part_needs_no_split(tmp_path):
    put(tmp_path / "corpus.jsonl", CONTENT["jsonl"])
    put(tmp_path / "README.md", "about\tthis\n")
    assert len(read(tmp_path)) == 1
    assert find_parts(tmp_path)[1] == {"corpus": tmp_path / "corpus.jsonl"}


def test_two_files_of_one_split_go_by_their_names(tmp_path):
    for name in ("a_train.tsv", "b_train.tsv", "test.tsv"):
        put(tmp_path / name, "x\ty\n")
    assert list(find_parts(tmp_path)[1]) == ["test", "a_train", "b_train"]
    assert len(read(tmp_path, split="a_train")) == 1


def test_the_plain_file_is_taken_before_the_packed_one(tmp_path):
    write(small(), tmp_path / "train.tsv.gz")
    put(tmp_path / "train.tsv", "z\tplain\n")
    assert list(read(tmp_path).texts) == ["plain"]


def test_label_names_and_hidden_files_are_no_parts(tmp_path):
    put(tmp_path / "train.tsv", "x\ty\n")
    put(tmp_path / "train_label_names.tsv", "x\tthe letter\n")
    put(tmp_path / "label_names.tsv", "x\tother\n")
    put(tmp_path / ".test.tsv", "x\ty\n")
    assert list(find_parts(tmp_path)[1]) == ["train"]
    assert list(read(tmp_path).label_texts) == ["the letter"]


def test_an_empty_folder_and_a_folder_of_another_format_are_errors(tmp_path):
    with pytest.raises(DataError, match="no data in any format was found"):
        read(tmp_path)
    put(tmp_path / "train.tsv", "x\ty\n")
    with pytest.raises(DataError, match="no data in the format jsonl"):
        read(tmp_path, "jsonl")


def test_split_is_for_folders_and_read_splits_too(tmp_path):
    path = put(tmp_path / "train.tsv", "x\ty\n")
    with pytest.raises(ConfigError, match="is a file"):
        read(path, split="train")
    with pytest.raises(DataError, match="not a folder"):
        read_splits(path)


def test_a_folder_that_cannot_be_listed_has_no_parts(tmp_path):
    assert split_files(tmp_path / "missing", lambda path: True) == {}


def test_read_splits_gives_all_parts_the_columns_of_train_first(tmp_path):
    put(tmp_path / "label_names.tsv", "b\tBee\nc\tSea\na\tEh\n")
    put(tmp_path / "train.tsv", "b c\tone\n")
    put(tmp_path / "test.tsv", "a c\ttwo\n")
    parts = read_splits(tmp_path)
    assert list(parts) == ["train", "test"]
    assert list(parts["train"].label_names) == ["b", "c"]
    assert list(parts["test"].label_names) == ["b", "c", "a"]
    assert list(parts["test"].label_texts) == ["Bee", "Sea", "Eh"]
    assert plain(parts["test"]) == [{"a": 1, "c": 1}]


def test_read_splits_without_train_takes_the_first_part_for_it(tmp_path):
    put(tmp_path / "valid.tsv", "b\tone\n")
    put(tmp_path / "test.tsv", "a\ttwo\n")
    assert list(read_splits(tmp_path)["test"].label_names) == ["b", "a"]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_folder_is_found_again_in_every_format(tmp_path, name):
    texts = {"train": ["a", "b"], "valid": ["c"], "test": ["d", "e"]}
    parts = {}
    for split, words in texts.items():
        rows = len(words)
        features = sparse.csr_array(np.eye(rows, 3)) if name in ("xc", "vowpal", "pecos", "tfrecord") else None
        labels = sparse.csr_array(np.eye(rows, 3, 1))
        held = None if name in ("xc", "vowpal", "tfrecord") else Strings.of(words)
        parts[split] = Dataset(labels, texts=held, features=features)
    write_splits(parts, tmp_path / "out", name)
    found, paths = find_parts(tmp_path / "out")
    assert found.name == name
    assert list(paths) == ["train", "valid", "test"]
    again = read_splits(tmp_path / "out")
    for split, part in parts.items():
        assert plain(again[split]) == plain(part)


# --- options ------------------------------------------------------------------------------------------------


def test_bytes_that_are_not_utf8_stop_at_their_line_or_are_replaced(tmp_path):
    path = put(tmp_path / "a.tsv", b"x\tfine\ny\tbad \xff byte\n")
    with pytest.raises(DataError, match=r"a\.tsv:2: byte 0xFF at column 7 is not utf-8"):
        read(path)
    found = read(path, options=ReadOptions(on_bad_bytes="replace"))
    assert list(found.texts) == ["fine", "bad � byte"]
    assert list(read(path, options=ReadOptions(encoding="latin-1")).texts) == ["fine", "bad ÿ byte"]


def test_label_names_of_the_options_go_before_files_beside_the_data(tmp_path):
    path = put(tmp_path / "a.tsv", "x\ty\n")
    put(tmp_path / "label_names.tsv", "x\tbeside\n")
    named = put(tmp_path / "elsewhere" / "words.tsv", "x\tnamed\n")
    assert list(read(path).label_texts) == ["beside"]
    assert list(read(path, options=ReadOptions(label_names=str(named))).label_texts) == ["named"]
