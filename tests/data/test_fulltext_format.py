"""Folders with one text file per document and its labels beside it."""

import json

import pytest
from data_cases import put

import labelwise as lw
from cli.commands import labelwise
from labelwise.data.read import detect, find_parts
from labelwise.errors import ConfigError, DataError


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    put(folder / "doc2.txt", "Fish farming\r\nin cold water\n\n")
    put(folder / "doc2.tsv", "<http://ex.org/fish>\tfish farms\n<http://ex.org/water>\twater\n")
    put(folder / "doc10.txt", "\ufeffPainting")
    put(folder / "doc10.key", "painting in oil\n\nwater\n")
    put(folder / "doc1.txt", "nothing about it")
    put(folder / "notes.md", "not a document")
    return folder


def test_documents_labels_and_their_texts(corpus):
    assert detect(corpus).name == "fulltext"
    data = lw.read(corpus)
    assert data.ids == ["doc1", "doc2", "doc10"]
    assert data.texts == ["nothing about it", "Fish farming\nin cold water", "Painting"]
    labels = [set(data.labels_of(row)) for row in range(3)]
    assert labels == [set(), {"http://ex.org/fish", "http://ex.org/water"}, {"painting in oil", "water"}]
    assert data.label_texts[data.label_names.positions["http://ex.org/fish"]] == "fish farms"
    assert data.label_texts[data.label_names.positions["water"]] == "water"


def test_splits_are_sub_folders(corpus, tmp_path):
    for split in ("train", "test"):
        put(tmp_path / "set" / split / f"{split}a1.txt", f"a text for {split}")
        put(tmp_path / "set" / split / f"{split}a1.key", "x\n")
    found, parts = find_parts(tmp_path / "set")
    assert (found.name, list(parts)) == ("fulltext", ["train", "test"])
    assert lw.read(tmp_path / "set", split="test").texts == ["a text for test"]


def test_tables_are_not_taken_for_labels(tmp_path):
    put(tmp_path / "a" / "train.txt", "1 3 2\n0 1:1\n")
    put(tmp_path / "a" / "train.tsv", "x\ttext\n")
    assert detect(tmp_path / "a").name == "xc"
    put(tmp_path / "b" / "corpus.txt", "plain text")
    put(tmp_path / "b" / "corpus.tsv", "label\tsome text\n")
    assert detect(tmp_path / "b").name == "tsv"


def test_train_and_predict_on_folders_of_texts(corpus, tmp_path):
    labelwise("train", "corpus", "--method", "popularity", "--set", "run.report=false", cwd=tmp_path)
    assert lw.load(tmp_path / "runs" / "corpus" / "model").n_documents_ == 3
    put(tmp_path / "new" / "one.txt", "some text\nof two lines")
    put(tmp_path / "new" / "two.txt", "another")
    labelwise("predict", "runs/corpus", "new", "-o", "out.jsonl", cwd=tmp_path)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["one", "two"]
    with pytest.raises(DataError, match="no data in any format was found"):
        lw.read(tmp_path / "new")


def test_bad_bytes_are_named_by_file_and_line(corpus):
    put(corpus / "doc1.txt", b"fine\nbad \xff byte\n")
    with pytest.raises(DataError, match=r"doc1\.txt:2: byte 0xFF at column 5 is not utf-8"):
        lw.read(corpus)
    assert lw.read(corpus, options={"on_bad_bytes": "replace"}).texts[0] == "fine\nbad \ufffd byte"


def test_it_is_only_read(corpus, tmp_path):
    with pytest.raises((ConfigError, DataError), match="fulltext"):
        lw.write(lw.read(corpus), tmp_path / "out", "fulltext")
