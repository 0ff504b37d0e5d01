"""What predict shows and writes for people: tables on a terminal and in files, words that contributed."""

import csv
import dataclasses
import io
import json
import re

import pytest
from scipy import sparse

import labelwise as lw
from cli.commands import labelwise, on_terminal
from conformance.planted import planted_features, planted_texts
from labelwise.model.explanation import contributions_one_by_one, top_words
from labelwise.strings import Strings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`plain` is not calibrated; `model` is, and its labels have texts."""
    folder = tmp_path_factory.mktemp("predict")
    data = planted_texts(n_documents=300, n_labels=24)
    lw.LinearTree(trees=1).fit(data).save(folder / "plain")
    texts = Strings.of([f"meaning of {name}" for name in data.label_names])
    model = lw.LinearTree(trees=2).fit(dataclasses.replace(data, label_texts=texts))
    model.calibrate(planted_texts(n_documents=200, n_labels=24, seed=1))
    model.save(folder / "model")
    return folder


TABLE = (
    "\ufeffnr;title;abstract;note\r\n"
    'a1;word0x1;"group0; word0x2";"she said ""no"""\r\n'
    "\r\n"
    'a2;word3x0;"two\nlines",\r\n'.replace('",', '";')
)
COLUMNS = ("--set", "text_column=title+abstract", "--set", "id_column=nr")


def rows_of(path, delimiter=","):
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), delimiter=delimiter))


def test_csv_has_the_columns_of_the_input_and_reads_back(folder, tmp_path):
    (tmp_path / "in.csv").write_bytes(TABLE.encode())
    out = tmp_path / "out.csv"
    labelwise("predict", folder / "model", tmp_path / "in.csv", "-o", out, "-k", 2, "--explain", 2, *COLUMNS)
    assert out.read_bytes().startswith(b"\xef\xbb\xbfnr;title;")
    header, *rows = rows_of(out, ";")
    assert header == ["nr", "title", "abstract", "note", "labels", "label_texts", "probabilities", "words"]
    assert [row[:4] for row in rows] == [
        ["a1", "word0x1", "group0; word0x2", 'she said "no"'],
        ["a2", "word3x0", "two\nlines", ""],
    ]
    expected = lw.load(folder / "model").predict(["word0x1 group0; word0x2", "word3x0 two\nlines"], k=2)
    for row, pairs in zip(rows, expected, strict=True):
        labels, texts, probabilities, words = row[4:]
        assert labels.split("; ") == [label for label, _ in pairs]
        assert texts.split("; ") == [f"meaning of {label}" for label, _ in pairs]
        assert probabilities.split("; ") == [f"{score:.4f}" for _, score in pairs]
        assert len(words.split("; ")) == 2
    assert "word0x1" in rows[0][7]
    found = json.loads(labelwise("data", "stats", out, "--json", *COLUMNS, "--set", "label_column=labels").out)
    assert (found["overall"]["documents"], found["overall"]["mean_labels"]) == (2, 2.0)


def test_long_csv_and_tsv_have_a_header(folder, tmp_path):
    (tmp_path / "texts.txt").write_text("word0x1, group0\nword3x0\n")
    arguments = ("predict", folder / "model", tmp_path / "texts.txt", "-k", 2, "--explain", 1)
    labelwise(*arguments, "-o", tmp_path / "long.csv", "--layout", "long")
    header, *rows = rows_of(tmp_path / "long.csv")
    assert header == ["id", "rank", "label", "label_text", "probability", "words"]
    assert [row[:2] for row in rows] == [["0", "1"], ["0", "2"], ["1", "1"], ["1", "2"]]
    assert rows[0][2:4] == ["L0", "meaning of L0"]
    assert re.fullmatch(r"[01]\.\d{4}", rows[0][4])
    labelwise(*arguments, "-o", tmp_path / "out.tsv")
    header, *lines = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert header == ["id", "label", "label_text", "probability", "words"]
    assert [line[1:] for line in lines] == [row[2:] for row in rows]
    labelwise(*arguments, "-o", tmp_path / "wide.csv")
    assert [row[:2] for row in rows_of(tmp_path / "wide.csv")] == [
        ["id", "text"], ["0", "word0x1, group0"], ["1", "word3x0"]
    ]  # fmt: skip


def test_tables_keep_the_byte_order_mark(folder, tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["text"], ["word0x1"]):
        book.active.append(row)
    book.save(tmp_path / "book.xlsx")
    (tmp_path / "mark.csv").write_text("text\nword0x1\n", "utf-8-sig")
    (tmp_path / "latin.csv").write_text("text\nR\u00e9union\n", "latin-1")
    (tmp_path / "plain.csv").write_text("text\nword0x1\n")
    outputs = (("wide.csv",), ("long.csv", "--layout", "long"), ("out.tsv",), ("out.jsonl",))
    for name, marked in (("book.xlsx", True), ("mark.csv", True), ("latin.csv", True), ("plain.csv", False)):
        encoding = ("--set", "encoding=latin-1") if name == "latin.csv" else ()
        for output, *layout in outputs:
            target = tmp_path / output
            labelwise("predict", folder / "plain", tmp_path / name, "-o", target, "--force", *layout, *encoding)
            content = target.read_bytes()
            assert content.startswith(b"\xef\xbb\xbf") == (marked and output != "out.jsonl"), (name, output)
            assert content.count(b"\xef\xbb\xbf") <= 1


def test_a_threshold_that_nothing_reaches(folder, tmp_path):
    refused = labelwise("predict", folder / "model", "word0x1 group0", "--threshold", 5, code=2).err
    assert "--threshold 5: no label can reach it" in refused
    assert "between 0 and 1" in refused
    (tmp_path / "texts.txt").write_text("word0x1 group0\nword3x0\n")
    for model, threshold, words in (("model", 1, "between 0 and 1"), ("plain", 1e9, "not probabilities")):
        done = labelwise("predict", folder / model, tmp_path / "texts.txt", "--threshold", threshold)
        assert f"no document has a label that reaches the threshold {threshold:g}" in done.err
        assert words in done.err
    assert labelwise("predict", folder / "model", tmp_path / "texts.txt", "--threshold", 0.2).err == ""


def test_words_and_scores_of_a_model_that_is_not_calibrated(folder):
    done = labelwise("predict", folder / "plain", "word0x1 group0 word0x2", "-k", 1, "--explain", 2)
    found = json.loads(done.out)["labels"][0]
    assert found.keys() == {"label", "score", "words"}
    assert found["words"][0].startswith("word0")
    assert len(repr(found["score"])) <= 8
    header = labelwise("predict", folder / "plain", "word0x1 group0", "--to", "csv").out.splitlines()[0]
    assert header == "id,text,labels,scores"


def test_a_column_of_the_same_name_is_kept(folder, tmp_path):
    (tmp_path / "in.csv").write_text("text,labels\nword0x1,mine\n")
    done = labelwise("predict", folder / "plain", tmp_path / "in.csv", "-o", tmp_path / "out.csv", "-k", 1)
    assert "the new columns are predicted_labels, predicted_scores" in done.err
    assert rows_of(tmp_path / "out.csv")[1][:3] == ["word0x1", "mine", "L0"]
    (tmp_path / "both.csv").write_text("text,labels,predicted_labels\nword0x1,mine,x\n")
    done = labelwise("predict", folder / "plain", tmp_path / "both.csv", "-o", tmp_path / "no.csv", code=2)
    assert "rename one" in done.err
    assert not (tmp_path / "no.csv").exists()


def test_a_label_with_the_separator_is_refused(tmp_path):
    lw.Popularity().fit(["a", "b"], [["x; y"], ["z"]]).save(tmp_path / "model")
    done = labelwise("predict", tmp_path / "model", "one text", "-o", tmp_path / "o.csv", code=2)
    assert "'x; y' contains ';'" in done.err
    assert not (tmp_path / "o.csv").exists()
    labelwise("predict", tmp_path / "model", "one text", "-o", tmp_path / "o.csv", "--set", "label_separator=|")
    assert rows_of(tmp_path / "o.csv")[1][2] == "x; y|z"


def test_words_of_a_batch_are_those_of_single_explanations(folder):
    data = planted_texts(n_documents=40, n_labels=24, seed=2)
    for name, precision in (("model", "float32"), ("plain", "int8"), ("plain", "float16")):
        model = lw.load(folder / name)
        if precision != "float32":
            model = lw.LinearFlat(precision=precision).fit(planted_texts(n_documents=100, n_labels=24))
        top = model.predict(data, k=3, threshold=0.01)
        documents = lw.model.inputs.as_documents(data, "texts", None)
        fast, slow = (
            model.fitted_.contributions(documents, top.ids, 3),
            contributions_one_by_one(model, documents, top.ids, 3),
        )
        assert (fast[0] == slow[0]).all()
        assert abs(fast[1] - slow[1]).max() < 1e-12
        explained = model.explain(data.texts[0], labels=top.labels[0], terms=None)
        expected = [[term.name for term in one.terms if term.contribution > 0][:3] for one in explained]
        assert top_words(model, data, top, 3)[0] == expected


def test_a_terminal_shows_tables_and_asks(folder):
    shown = on_terminal("predict", folder / "model", "word0x1 group0", "-k", 2, "--explain", 1)
    lines = shown.splitlines()
    assert lines[0].split() == ["probability", "label", "text", "words"]
    assert re.match(r" +[01]\.\d{4}  L0 +meaning of L0  \w+", lines[1])
    shown = on_terminal(
        "predict", folder / "plain", "-k", 1, typed="word0x1 group0\n\nword3x0 \x1b[31m" + 90 * "x" + "\n"
    )
    assert shown.count("text> ") == 4
    assert "An empty line is skipped" in shown
    assert re.findall(r"  (L\d+) *$", shown, re.M) == ["L0", "L3"]
    assert "predicting" not in shown


def test_titles_are_cut_and_escaped(folder, tmp_path):
    (tmp_path / "texts.txt").write_text("word0x1 \x1b[31m " + 50 * "long " + "\nnothing\n")
    shown = on_terminal("predict", folder / "model", tmp_path / "texts.txt", "--threshold", "0.9", "-k", 1)
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b[31m" not in shown
    assert "\\x1b[31m" in shown
    assert "no label reaches the threshold" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["word0x1"], "no file, folder or known data set 'word0x1', and as a text it is not read"),
        (["word0x1"], "echo word0x1 | labelwise predict plain"),
        (["one text", "--threshold", "auto"], "`labelwise calibrate plain DATA`"),
        (["my new data.csv"], "it looks like the name of a file"),
        (["eurlex57"], "did you mean the data set"),
        ([""], "no text given"),
        (["one text", "-o", "."], ".: it is a folder"),
        (["one text", "--layout", "long"], "--layout is for CSV"),
        (["one text", "--to", "csv", "--layout", "tall"], "wide or long"),
        (["one text", "--explain", "0"], "1 word or more"),
        (["one text", "-o", "x.npz", "--explain", "1"], "npz has no words"),
    ],
)
def test_mistakes(folder, arguments, message):
    done = labelwise("predict", "plain", *arguments, cwd=folder, code=2)
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_features_of_any_name(tmp_path):
    data = planted_features(n_documents=100, n_labels=10)
    lw.LinearFlat().fit(data).save(tmp_path / "model")
    sparse.save_npz(tmp_path / "feat.npz", data.features[:3])
    labelwise("predict", tmp_path / "model", tmp_path / "feat.npz", "-o", tmp_path / "out.csv", "-k", 1, "--explain", 1)
    rows = rows_of(tmp_path / "out.csv")
    assert rows[0] == ["id", "labels", "scores", "words"]
    assert len(rows) == 4
    assert rows[1][3].startswith("feature ")
    done = labelwise("evaluate", tmp_path / "model", tmp_path / "feat.npz", code=2)
    assert "the labels are missing" in done.err
    sparse.save_npz(tmp_path / "X_new.npz", data.features[:3])
    sparse.save_npz(tmp_path / "Y_new.npz", data.labels[:3])
    found = json.loads(labelwise("data", "stats", tmp_path / "X_new.npz", "--json").out)
    assert found["overall"]["documents"] == 3


def test_nothing_to_predict_for(folder, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    done = labelwise("predict", folder / "plain", tmp_path / "empty.txt")
    assert done.out == ""
    assert "empty.txt: there are no documents, it is empty" in done.err
    assert "stdin: there are no documents" in labelwise("predict", folder / "plain", "-").err
    (tmp_path / "one.txt").write_text("\n")
    assert "no documents" not in labelwise("predict", folder / "plain", tmp_path / "one.txt").err


def test_popularity_cannot_explain(tmp_path):
    lw.Popularity().fit(["a", "b"], [["x"], ["z"]]).save(tmp_path / "model")
    assert "cannot explain" in labelwise("predict", tmp_path / "model", "one text", "--explain", 2, code=2).err
