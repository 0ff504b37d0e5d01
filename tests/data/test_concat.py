"""Data sets joined: documents one after another, labels by name, as one file with the lines of both would be."""

from dataclasses import replace

import numpy as np
import pytest
from data_cases import assert_same
from scipy import sparse

import labelwise as lw
from cli.commands import labelwise
from labelwise.data.csr import Blocks
from labelwise.errors import DataError


def write_csv(path, rows, header="id,text,labels"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.fixture
def files(tmp_path):
    first, second = ["1,one fish,b;c", "2,two,a"], ["3,three,d;a", "4,four,"]
    both = write_csv(tmp_path / "both.csv", first + second)
    return write_csv(tmp_path / "p1.csv", first), write_csv(tmp_path / "p2.csv", second), both


def same(one, other):
    assert_same(one, replace(other, name=one.name))


def test_two_files_give_what_one_file_with_the_lines_of_both_gives(files, tmp_path):
    first, second, both = files
    expected = lw.read(both)
    same(lw.concat([lw.read(first), lw.read(second)]), expected)
    same(lw.read([first, second]), expected)
    same(lw.read(str(tmp_path / "p?.csv")), expected)
    assert lw.read([first, second]).name == f"{first} + {second}"


def test_errors_name_the_file(files, tmp_path):
    first = files[0]
    with pytest.raises(DataError, match=r"p\*\.tsv: no file or folder matches"):
        lw.read(tmp_path / "p*.tsv")
    with pytest.raises(DataError, match=r"p1\.csv: is given more than once"):
        lw.read([first, tmp_path / "*1.csv"])
    without = write_csv(tmp_path / "w.csv", ["x,a"], "text,labels")
    with pytest.raises(DataError, match=r"p1\.csv and .*w\.csv are to be joined, but only one of them has ids"):
        lw.read([first, without])
    broken = write_csv(tmp_path / "broken.csv", ["1,x"])
    with pytest.raises(DataError, match=r"broken\.csv:2: the row has 2 fields"):
        lw.read([first, broken])
    with pytest.raises(DataError, match="at least one data set"):
        lw.concat([])
    with pytest.raises(DataError, match="item 0 is a str"):
        lw.concat("ab")


def test_rows_of_one_data_set_share_its_texts(files):
    data = lw.read(files[2])
    joined = lw.concat([data.take([2, 3]), data.take([0])])
    assert joined.texts.buffer is data.texts.buffer
    assert list(joined.texts) == ["three", "four", "one fish"]
    assert joined.ids == ["3", "4", "1"]
    assert [joined.labels_of(row) for row in range(3)] == [["a", "d"], [], ["b", "c"]]


def test_features_and_label_texts():
    labels = sparse.csr_array(np.eye(2, dtype=np.float32))
    narrow, wide = sparse.csr_array(np.eye(2, 3, dtype=np.float32)), sparse.csr_array(np.eye(2, 5, dtype=np.float32))
    dense = np.arange(4, dtype=np.float32).reshape(2, 2)
    one = lw.Dataset(labels, ["x", "y"], features=Blocks(narrow, dense), label_texts=["the x", "the y"])
    two = lw.Dataset(labels, ["y", "a"], features=Blocks(wide, dense + 4), label_texts=["another y", "the a"])
    joined = lw.concat([one, two])
    assert joined.label_names == ["a", "x", "y"]
    assert joined.label_texts == ["the a", "the x", "the y"]
    assert joined.labels.toarray().tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1], [1, 0, 0]]
    expected = np.hstack([np.vstack([np.eye(2, 5), np.eye(2, 5)]), np.arange(8).reshape(4, 2)])
    assert joined.features.to_csr().toarray().tolist() == expected.tolist()
    images = [lw.Dataset(labels, arrays=np.full((2, 3, size), 7, np.uint8)) for size in (4, 4, 5)]
    assert lw.concat(images[:2]).arrays.shape == (4, 3, 4)
    with pytest.raises(DataError, match=r"the shape \(3, 4\) in the first and \(3, 5\)"):
        lw.concat(images[1:])
    with pytest.raises(DataError, match="only one of them has dense features"):
        lw.concat([lw.Dataset(labels, features=narrow), lw.Dataset(labels, features=dense)])


def test_a_split_by_hash_stays_when_the_data_grows():
    texts = [f"text {number % 150}" for number in range(200)]  # 50 duplicates
    data = lw.Dataset(sparse.csr_array((200, 1)), texts=lw.Strings.of(texts))
    rest, held_out = data.split(0.2, 3, by="hash")
    assert 20 <= len(held_out) <= 60
    assert not set(rest.texts) & set(held_out.texts)
    some = data.take(np.arange(0, 200, 3))
    assert set(some.split(0.2, 3, by="hash")[1].texts) == set(some.texts) & set(held_out.texts)
    assert set(data.split(0.2, 4, by="hash")[1].texts) != set(held_out.texts)


def test_several_files_are_converted_into_one(files, tmp_path):
    first, second, both = files
    labelwise("data", "convert", first, second, tmp_path / "joined.jsonl")
    same(lw.read(tmp_path / "joined.jsonl"), lw.read(both))
    labelwise("data", "convert", tmp_path / "p?.csv", tmp_path / "joined")
    same(lw.read(tmp_path / "joined"), lw.read(both))
