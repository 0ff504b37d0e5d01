"""Folders: numbered files of one split are one part, and files of predictions are not documents."""

import pytest
from data_cases import put

import labelwise as lw
from cli.commands import labelwise
from labelwise.data.read import find_parts, is_prediction_file, read, read_splits

ROWS = "text,labels\n{},a\n"


def names(folder):
    return {split: path.name for split, path in find_parts(folder)[1].items()}


def test_numbered_files_of_one_split_are_joined_in_the_order_of_their_numbers(tmp_path):
    for number in (1, 2, 10):
        put(tmp_path / f"train-{number}.csv", ROWS.format(f"text {number}"))
    put(tmp_path / "test.csv", ROWS.format("judged"))
    assert names(tmp_path) == {"train": "train-[0-9]*.csv", "test": "test.csv"}
    assert list(read(tmp_path, split="train").texts) == ["text 1", "text 2", "text 10"]
    assert list(read_splits(tmp_path)["test"].texts) == ["judged"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["train_1.tsv", "train_2.tsv", "test_1.tsv", "test_2.tsv"], {"train_1", "train_2", "test_1", "test_2"}),
        (["train.tsv", "train_1.tsv", "train_2.tsv"], {"train", "train_1", "train_2"}),
        (["train_1.tsv", "train_extra.tsv", "train_2.tsv"], {"train_1", "train_2", "train_extra"}),
        (["train_1.tsv", "test.tsv"], {"train", "test"}),
    ],
)
def test_what_may_be_something_else_is_left_as_it_is(tmp_path, files, expected):
    for file in files:
        put(tmp_path / file, "a\ttext\n")
    assert set(names(tmp_path)) == expected


def test_a_file_that_is_named_like_a_split_wins_over_one_of_another_format(tmp_path):
    put(tmp_path / "train.tsv", "a\tone\n")
    put(tmp_path / "notes.jsonl", '{"text": "x", "labels": ["y"]}\n')
    assert find_parts(tmp_path)[0].name == "tsv"


@pytest.mark.parametrize(
    ("extra", "predicted"),
    [
        (("out.jsonl",), True), (("test.jsonl",), True), (("out.tsv",), True), (("test.csv",), True),
        (("valid.csv", "--layout", "long"), True),
    ],
)  # fmt: skip
def test_predictions_beside_the_data_are_not_read_as_data(tmp_path, extra, predicted):
    folder = tmp_path / "set"
    rows = [("1", "b", "one two"), ("2", "c", "three four"), ("3", "b c", "five")]
    put(folder / "train.tsv", "".join("\t".join(row) + "\n" for row in rows))
    lw.Popularity().fit(lw.read(folder / "train.tsv")).save(tmp_path / "model")
    labelwise("predict", tmp_path / "model", folder / "train.tsv", "-o", folder / extra[0], *extra[1:])
    assert is_prediction_file(folder / extra[0]) is predicted
    assert names(folder) == {"train": "train.tsv"}
    assert len(lw.read(folder)) == 3


def test_tables_with_another_delimiter_and_damaged_headers(tmp_path):
    assert is_prediction_file(put(tmp_path / "a.csv", "id;title;labels;probabilities\n1;x;y;0.5\n"))
    assert is_prediction_file(put(tmp_path / "b.csv", "id,labels,predicted_labels,predicted_scores\n1,x,y,0.5\n"))
    assert not is_prediction_file(put(tmp_path / "c.csv", b'labels,\r"x,scores\n'))


def test_documents_are_not_taken_for_predictions(tmp_path):
    assert not is_prediction_file(put(tmp_path / "a.jsonl", '{"text": "x", "labels": {"label": 1, "score": 0.5}}\n'))
    assert not is_prediction_file(put(tmp_path / "b.jsonl", '{"text": "x", "labels": ["label", "score"]}\n'))
    assert not is_prediction_file(put(tmp_path / "c.csv", "text,labels\nscore,label\n"))
    assert not is_prediction_file(put(tmp_path / "d.tsv", "label\tsome text about a score\n"))
