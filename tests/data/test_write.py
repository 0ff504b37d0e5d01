"""The front door for writing: all or nothing, nothing lost, nothing overwritten."""

from __future__ import annotations

import os

import numpy as np
import pytest
from data_cases import WRITTEN, plain, put, small
from scipy import sparse

import labelwise.data.write as front
from labelwise.data.dataset import Dataset
from labelwise.data.read import format_named, read, read_splits
from labelwise.data.write import HOLDS, write, write_splits
from labelwise.errors import ConfigError, DataError
from labelwise.strings import Strings


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def everything() -> Dataset:
    return Dataset(
        sparse.csr_array(np.array([[2, 0], [0, 1]], np.float32)),
        Strings.of(["x", "y"]),
        texts=Strings.of(["a", "b"]),
        features=sparse.csr_array(np.eye(2)),
        paths=Strings.of(["p", "q"]),
        ids=Strings.of(["1", "2"]),
    )


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.tsv", "tsv"), ("a.tsv.gz", "tsv"), ("a.csv", "csv"), ("a.jsonl", "jsonl"), ("a.ft", "fasttext"),
        ("a_texts.txt", "lines"), ("a", "native"),
    ],
)  # fmt: skip
def test_the_extension_chooses_the_format(tmp_path, name, format):
    write(small(), tmp_path / name)
    assert format_named(format).recognises(tmp_path / name)


def test_an_unknown_extension_is_an_error_that_lists_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"no format has this extension.*\.jsonl \(jsonl\)"):
        write(small(), tmp_path / "a.doc")
    with pytest.raises(ConfigError, match="did you mean 'csv'"):
        write(small(), tmp_path / "a.doc", "cvs")
    with pytest.raises(ConfigError, match="name of a new file"):
        write(small(), "..", "csv")


@pytest.mark.parametrize("format", [name for name in WRITTEN if name not in ("native", "jsonl")])
def test_what_has_no_place_is_named_and_may_be_left_out(tmp_path, format):
    lost = [part for part in ("texts", "features", "paths", "ids", "relevances") if part not in HOLDS[format]]
    lost += ["label_names"] if "label_names" not in HOLDS[format] else []
    path = (
        tmp_path
        / "out"
        / {"lines": "a_texts.txt", "pecos": "Y.trn.npz"}.get(format, f"a{format_named(format).extension}")
    )
    with pytest.raises(DataError, match=f"cannot store the {' and '.join(lost)} of data.*native.*--drop {lost[0]}"):
        write(everything(), path, format)
    assert not (tmp_path / "out").exists()
    write(everything(), path, format, drop=lost)
    rated = 2.0 if "relevances" in HOLDS[format] else 1.0
    assert [set(row.values()) for row in plain(read(path, format))] == [{rated}, {1.0}]


def test_a_format_needs_the_documents_it_is_made_of(tmp_path):
    data = Dataset(sparse.csr_array(np.eye(1)), features=sparse.csr_array(np.eye(1)))
    with pytest.raises(DataError, match="no texts, which the format tsv requires"):
        write(data, tmp_path / "a.tsv")
    with pytest.raises(DataError, match="no features, which the format xc requires"):
        write(small(), tmp_path / "a.txt", "xc")
    with pytest.raises(ConfigError, match="'text' is not a part that can be dropped; choose from texts, features"):
        write(small(), tmp_path / "a.tsv", drop=["text"])


def test_an_error_names_the_target_and_leaves_nothing(tmp_path):
    with pytest.raises(DataError) as caught:
        write(small(["a", "b\nc", "d"]), tmp_path / "new" / "a.tsv")
    assert str(caught.value).startswith(f"{tmp_path / 'new' / 'a.tsv'}: text 1 ('b\\nc') contains a line end")
    assert names(tmp_path) == []


def test_nothing_is_overwritten_unasked(tmp_path):
    put(tmp_path / "a_labels.txt", "mine\n")
    with pytest.raises(ConfigError, match=r"a_labels\.txt exists already"):
        write(small(), tmp_path / "a_texts.txt")
    assert names(tmp_path) == ["a_labels.txt"]
    write(small(), tmp_path / "a_texts.txt", force=True)
    with pytest.raises(ConfigError, match="exists already"):
        write(small(["x", "y", "z"]), tmp_path / "a_texts.txt")
    assert list(read(tmp_path / "a_texts.txt").texts) == ["one", "two", "three"]


def test_a_folder_is_not_replaced_by_a_file(tmp_path):
    (tmp_path / "a.tsv").mkdir()
    with pytest.raises(ConfigError, match="exists and is not a file of labelwise"):
        write(small(), tmp_path / "a.tsv", force=True)


def test_label_texts_go_to_a_file_beside_the_data(tmp_path):
    data = small(label_texts=Strings.of(["Ex", "Why\tnot"]))
    write(data, tmp_path / "a.csv")
    assert names(tmp_path) == ["a.csv", "a_label_names.tsv"]
    assert list(read(tmp_path / "a.csv").label_texts) == ["Ex", "Why\tnot"]
    with pytest.raises(DataError, match=r"label text 0 .* contains a line end"):
        write(small(label_texts=Strings.of(["a\nb", ""])), tmp_path / "b.csv")
    write(data, tmp_path / "b.csv", drop=["label_texts"])
    assert names(tmp_path) == ["a.csv", "a_label_names.tsv", "b.csv"]


@pytest.mark.parametrize(
    ("stop", "shown", "message"),
    [(OSError(28, "No space left on device"), DataError, "No space left"), (SystemExit(143), SystemExit, "143")],
)
@pytest.mark.parametrize("broken", range(4))
def test_a_move_that_fails_puts_everything_back(tmp_path, monkeypatch, broken, stop, shown, message):
    write(small(["old", "", ""]), tmp_path / "a_texts.txt")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    moves, replace, move = [], os.replace, front._Staging.move

    def failing(source, target):
        moves.append(target)
        if len(moves) == broken + 1:
            raise stop
        replace(source, target)

    def move_with_failure(staging):
        monkeypatch.setattr(os, "replace", failing)
        move(staging)

    monkeypatch.setattr(front._Staging, "move", move_with_failure)
    with pytest.raises(shown, match=message):
        write(small(["new", "", ""]), tmp_path / "a_texts.txt", force=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_splits_are_written_together_or_not_at_all(tmp_path):
    train = small(["a"], [["x"]], label_texts=Strings.of(["Ex"]))
    test = small(["b"], [["y"]], label_texts=Strings.of(["Why"]))
    with pytest.raises(DataError, match=r"test\.tsv: text 0 .* contains a line end"):
        write_splits({"train": train, "test": small(["b\n"], [["y"]])}, tmp_path / "out", "tsv")
    assert not (tmp_path / "out").exists()
    write_splits({"train": train, "test": test}, tmp_path / "out", "pecos", drop=["label_names"])
    assert names(tmp_path / "out") == ["X.trn.txt", "X.tst.txt", "Y.trn.npz", "Y.tst.npz", "output-items.txt"]
    again = read_splits(tmp_path / "out")
    assert list(again["train"].label_texts) == list(again["test"].label_texts) == ["Ex", "Why"]
    assert plain(again["test"]) == [{"1": 1}]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    put(tmp_path / "file", "x")
    with pytest.raises(DataError, match="cannot be written"):
        write(small(), tmp_path / "file" / "a.tsv")
