"""What people get wrong at first: each message says what to do, in the words of Python and of the command line."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from data_cases import plain, put, small
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.options import ReadOptions
from labelwise.data.read import parts_by_format, read, read_splits
from labelwise.data.write import CAN_BE_EMPTY, write, write_splits
from labelwise.errors import ConfigError, DataError
from labelwise.strings import Strings


def fails(path, *patterns, **how):
    """The error of reading, which must hold all patterns."""
    for pattern in patterns:
        with pytest.raises(DataError, match=pattern):
            read(path, **how)


# --- columns and fields -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", "|;\t,")
def test_a_header_in_one_piece_asks_for_the_delimiter(tmp_path, mark):
    other = "," if mark == "|" else "|"
    path = put(tmp_path / "a.csv", f"text{mark}labels\na{mark}x\n")
    shown = {"\t": r"\\t", "|": r"\|"}.get(mark, mark)
    fails(path, f"delimiter={shown}", r"data\.options\.delimiter", options=ReadOptions(delimiter=other))
    assert list(read(path, options={"delimiter": mark}).texts) == ["a"]


def test_what_the_message_on_delimiters_says_works(tmp_path):
    path = put(tmp_path / "a.csv", "text\tlabels\na\tx\n")
    assert plain(read(path, options={"delimiter": "\\t"})) == [{"x": 1}]


@pytest.mark.parametrize(
    ("header", "asked", "meant"),
    [("Text,labels", "text", "Text"), ("text,LABELS", "labels", "LABELS"), ("text,label", "labels", "label")],
)
def test_a_near_miss_is_asked_for(tmp_path, header, asked, meant):
    question = rf"no column '{asked}' among .*did you mean '{meant}'\? If not, set the option"
    fails(put(tmp_path / "a.csv", f"{header}\na,x\n"), question, r"--set (text|label)_column=\.\.\.")
    fields = ", ".join(f'"{name}": "a"' for name in header.split(","))
    fails(put(tmp_path / "a.jsonl", f"{{{fields}}}\n"), rf"did you mean '{meant}'\? If not, set the option")


def test_no_near_miss_no_question(tmp_path):
    with pytest.raises(DataError) as caught:
        read(put(tmp_path / "a.csv", "headline,labels\na,x\n"))
    assert "did you mean" not in str(caught.value)
    assert "data.options.text_column" in str(caught.value)


def test_null_and_missing_fields_of_json(tmp_path):
    path = tmp_path / "a.jsonl"
    fails(put(path, '{"text": null, "labels": []}\n'), r":1: .*the field 'text' is null$")
    later = '{"text": "a", "labels": []}\n\n{"labels": ["x"]}\n'
    fails(put(path, later), r":3: there is no field 'text', but the first document \(line 1\) has one")


@pytest.mark.parametrize("content", ['[\n{"text": "a"}\n]\n', '[{"text": "a"}]\n', '{\n "text": "a"\n}\n'])
def test_json_that_is_not_one_object_a_line(tmp_path, content):
    fails(put(tmp_path / "a.jsonl", content), r"a\.jsonl:1: .*one JSON object \{\.\.\.\} per line is needed")
    fails(put(tmp_path / "a.json", content), "looks like JSON; the format jsonl needs one object per line")


def test_a_table_called_tsv_without_tabs(tmp_path):
    fails(put(tmp_path / "a.tsv", "just words\n"), r"a\.tsv:1: the line has no tab; labels<TAB>text is needed")


# --- nothing in it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl", "a.ft", "a.txt", "a.tsv", "a.csv", "a.vw", "a", "a_texts.txt"])
@pytest.mark.parametrize("content", ["", "\n"])
def test_an_empty_file_is_an_error(tmp_path, name, content):
    put(tmp_path / "a_labels.txt", content)
    if content and name in ("a.ft", "a_texts.txt"):
        assert len(read(put(tmp_path / name, content))) == 1, "a blank line is a document here"
    elif content and name in ("a", "a.txt"):
        fails(put(tmp_path / name, content), r"not recognised; name it with format \(--format NAME\)")
    else:
        fails(put(tmp_path / name, content), rf"{name}: the file is empty: no documents")


@pytest.mark.parametrize("format", ["jsonl", "tsv", "fasttext", "vowpal", "xc", "csv"])
def test_an_empty_file_of_a_named_format(tmp_path, format):
    fails(put(tmp_path / "a", ""), "the file is empty: no documents", format=format)


def test_no_documents_where_the_file_says_so(tmp_path):
    for content, options in (("0 5 3\n", {}), ("0 5 3\n", {"header": "ignore"})):
        assert len(read(put(tmp_path / "a.txt", content), options=options)) == 0
    assert len(read(put(tmp_path / "a.csv", "text,labels\n"))) == 0


def test_nothing_is_written_that_would_not_be_read(tmp_path):
    files = {"native": "n", "csv": "a.csv", "pecos": "Y.trn.npz", "xc": "a.txt", "jsonl": "a.jsonl", "tsv": "a.tsv"}
    nothing = Dataset(sparse.csr_array((0, 2), dtype=np.float32), texts=Strings.of([]))
    for format, name in files.items():
        data = Dataset(nothing.labels) if format == "xc" else nothing
        if format in CAN_BE_EMPTY:
            write(data, tmp_path / name, format)
            assert len(read(tmp_path / name, format)) == 0
        else:
            with pytest.raises(DataError, match="has no documents"):
                write(data, tmp_path / name, format)


# --- labels that were not cut -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "mark"),
    [
        ("a.csv", 'text,labels\na,"x,y"\nb,"y,z"\nc,z\n', ","),
        ("a.csv", "text,labels\na,x|y\nb,y|z\nc,\n", "|"),
        ("a.tsv", "x;y\ta\ny;z\tb\n", ";"),
        ("a.jsonl", '{"text": "a", "labels": "x;y"}\n{"text": "b", "labels": "z;y"}\n', ";"),
    ],
)
def test_labels_that_look_uncut_are_told(tmp_path, caplog, name, content, mark):
    path = put(tmp_path / name, content)
    with caplog.at_level(logging.WARNING, "labelwise"):
        read(path)
        assert f"label_separator={mark}" in caplog.text
        caplog.clear()
        found = read(path, options={"label_separator": mark})
        assert {"x": 1, "y": 1} in plain(found)
        read(path, labels=False)
    assert caplog.text == ""


@pytest.mark.parametrize("content", ["x y\ta\ny\tb\nz\tc\n", "x,y q\ta\ny,z p\tb\n", "x,y\ta\ny\tb\nz\tc\n"])
def test_sound_labels_are_not_complained_of(tmp_path, caplog, content):
    read(put(tmp_path / "a.tsv", content))
    assert caplog.text == ""


# --- options ------------------------------------------------------------------------------------------------


def test_options_may_be_a_mapping(tmp_path):
    put(tmp_path / "train.csv", "title,labels\na,x\n")
    assert list(read(tmp_path / "train.csv", options={"text_column": "title"}).texts) == ["a"]
    assert list(read_splits(tmp_path, options={"text_column": "title"})["train"].texts) == ["a"]
    with pytest.raises(ConfigError, match=r"options\.text_colum: .*did you mean 'text_column'"):
        read(tmp_path, options={"text_colum": "title"})
    with pytest.raises(ConfigError, match="a mapping is needed, got a list"):
        read(tmp_path, options=["text_column"])
    with pytest.raises(ConfigError, match="label_separator"):
        read(tmp_path, options={"label_separator": ""})


# --- documents to predict for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text\nred\nblue\n"),
        ("a.csv", "text,labels\nred,x\nblue,\n"),
        ("a.jsonl", '{"text": "red"}\n{"text": "blue", "labels": [[1]]}\n'),
        ("a.tsv", "red\nblue\n"),
        ("a.tsv", "x\tred\n\tblue\n"),
        ("a.ft", "red\n__label__x blue\n"),
        ("new_texts.txt", "red\nblue\n"),
        ("X.tst.txt", "red\nblue\n"),
    ],
)
def test_documents_without_labels(tmp_path, name, content):
    found = read(put(tmp_path / name, content), labels=False)
    assert list(found.texts) == ["red", "blue"]
    assert plain(found) == [{}, {}]
    assert found.n_labels == len(found.label_names) == 0
    assert found.label_texts is None


def test_labels_and_their_texts_are_left_alone_when_not_wanted(tmp_path):
    data = small(label_texts=Strings.of(["Ex", "Why"]))
    write(data, tmp_path / "native")
    write(data, tmp_path / "a.csv")
    write(data, tmp_path / "a_texts.txt")
    put(tmp_path / "a_labels.txt", "one line too few\n")
    for name in ("native", "a.csv", "a_texts.txt"):
        found = read(tmp_path / name, labels=False)
        assert list(found.texts) == ["one", "two", "three"]
        assert found.labels.shape == (3, 0)
    assert read(tmp_path / "a.csv", options={"labels": False}).n_labels == 0


def test_features_alone(tmp_path):
    matrix = sparse.csr_array(np.eye(2, 3, dtype=np.float32))
    write(Dataset(sparse.csr_array(np.eye(2)), features=matrix), tmp_path / "Y.tst.npz")
    (tmp_path / "Y.tst.npz").unlink()
    np.testing.assert_array_equal(read(tmp_path / "X.tst.npz", labels=False).features.toarray(), matrix.toarray())
    put(tmp_path / "X.tst.txt", "only one\n")
    fails(tmp_path / "X.tst.npz", "1 texts, but 2 rows of features", labels=False)
    fails(tmp_path / "X.tst.npz", "the labels are missing", format="pecos")


def test_labels_are_wanted_unless_told(tmp_path):
    fails(put(tmp_path / "a.csv", "text\nred\n"), "no column 'labels'")
    fails(put(tmp_path / "new_texts.txt", "red\n"), "no labels file", format="lines")


# --- the same part in two formats ---------------------------------------------------------------------------


def parts():
    return {"train": small(), "test": small(["four"], [["x"]])}


def test_a_folder_with_parts_is_refused(tmp_path):
    write_splits(parts(), tmp_path, "csv")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for format in ("native", "csv", "jsonl", "lines"):
        with pytest.raises(ConfigError, match=r"has parts already: train\.csv, test\.csv \(csv\).*\(--force\)"):
            write_splits({"valid": small()}, tmp_path, format)
    for format in ("native", "jsonl", "lines"):
        with pytest.raises(ConfigError, match=r"does not replace: train\.csv, test\.csv \(csv\)"):
            write_splits(parts(), tmp_path, format, force=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    write_splits({"train": small(["new"], [["x"]])}, tmp_path, "csv", force=True)
    assert list(read(tmp_path, split="train").texts) == ["new"]


def test_a_native_folder_gets_no_parts_inside(tmp_path):
    write(small(), tmp_path / "data")
    with pytest.raises(ConfigError, match="does not replace: data"):
        write_splits(parts(), tmp_path / "data", "native", force=True)


def test_a_folder_with_other_files_is_fine(tmp_path):
    put(tmp_path / "README.md", "about\tthis\n")
    put(tmp_path / "label_names.tsv", "x\tEx\n")
    write_splits(parts(), tmp_path, "jsonl")
    assert list(parts_by_format(tmp_path)) == ["jsonl"]


@pytest.mark.parametrize("format", ["lines", "pecos", "tsv", "jsonl", "fasttext", "csv", "native"])
def test_the_files_of_one_format_count_once(tmp_path, caplog, format):
    data = small(["a\tb", "1 2 3", "{}"], [["1", "2"], ["3"], ["1"]])
    if format == "pecos":
        data = Dataset(data.labels, texts=data.texts)
    if format == "tsv":
        data = small(["plain", "1 2 3", "{}"], [["1", "2"], ["3"], ["1"]])
    write_splits({"train": data, "test": data}, tmp_path, format)
    assert {name: list(found) for name, found in parts_by_format(tmp_path).items()} == {format: ["train", "test"]}
    read_splits(tmp_path)
    assert caplog.text == ""


def test_reading_says_which_of_two_formats_is_taken(tmp_path, caplog):
    write(small(["native"], [["x"]]), tmp_path / "train")
    put(tmp_path / "train.csv", "text,labels\ncsv,x\n")
    put(tmp_path / "valid.csv", "text,labels\ncsv,x\n")
    assert list(read(tmp_path).texts) == ["native"]
    assert "train is there in two formats: native is read, csv is ignored" in caplog.text
    caplog.clear()
    assert list(read(tmp_path, "csv", "train").texts) == ["csv"]
    assert caplog.text == ""


# --- looking and writing ------------------------------------------------------------------------------------


def test_labels_of_a_document():
    data = small()
    assert [data.labels_of(row) for row in range(3)] == [["x", "y"], [], ["x"]]
    assert data.labels_of(-1) == ["x"]
    with pytest.raises(IndexError):
        data.labels_of(3)


def test_the_extension_that_misled_is_named(tmp_path):
    with pytest.raises(DataError, match=r"\.txt means xc; choose another format with format \(--to NAME\)"):
        write(small(), tmp_path / "out.txt")
    with pytest.raises(DataError) as caught:
        write(small(), tmp_path / "out.txt", "xc")
    assert "choose another format" not in str(caught.value)


def test_messages_speak_of_the_command_line_too(tmp_path):
    with pytest.raises(
        ConfigError, match="'labels' is not a part that can be dropped; choose from texts, features, paths"
    ):
        write(small(), tmp_path / "a.csv", drop=["labels"])
    with pytest.raises(DataError, match=r"with drop \(--drop ids --drop relevances\)"):
        data = small(labels=(["x"], ["x"], ["x"]), ids=Strings.of("abc"))
        data.labels.data[:] = 2
        write(data, tmp_path / "a_texts.txt")
    write(small(), tmp_path / "a.csv")
    with pytest.raises(ConfigError, match=r"replace it with force=True \(--force\)"):
        write(small(), tmp_path / "a.csv")
    for name in ("train", "test"):
        put(tmp_path / "parts" / f"{name}.tsv", "x\ty\n")
    fails(tmp_path / "parts", r"choose one with split \(--split train\)")


def test_options_without_effect_are_refused(tmp_path):
    (tmp_path / "train_texts.txt").write_text("one\n")
    (tmp_path / "train_labels.txt").write_text("a\n")
    with pytest.raises(ConfigError, match="read as lines, for which delimiter, hash_bits has no effect"):
        read(tmp_path, options={"delimiter": ";", "hash_bits": 3})
    assert len(read(tmp_path, options={"delimiter": None, "label_separator": " "})) == 1
