"""`labelwise data ...`, called in this process; errors must come out as ours, not as tracebacks of others."""

import io
import json
import zipfile

import numpy as np
import pytest
from scipy import sparse
from typer.testing import CliRunner

import labelwise as lw
from cli.commands import on_terminal
from data.faulty_server import FaultyServer, ranged
from labelwise.cli.data import app
from labelwise.data.read import read_splits
from labelwise.errors import ConfigError, DataError, LabelwiseError

TRAIN = [("the red cat", "a b"), ("the blue dog", "b"), ("the red cat", "a b c"), ("fish", "c")]
TEST = [("the blue dog", "b d"), ("a bird", "a")]


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, rows in (("train", TRAIN), ("test", TEST)):
        (folder / f"{split}_texts.txt").write_text("".join(f"{text}\n" for text, _ in rows))
        (folder / f"{split}_labels.txt").write_text("".join(f"{labels}\n" for _, labels in rows))
    return folder


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def lines_of(result):
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.output.splitlines()]


def test_stats(corpus):
    result = run("stats", corpus)
    lines = lines_of(result)
    assert lines[1] == ["train", "test", "all"]
    assert ["documents", "4", "2", "6"] in lines
    assert ["labels", "that", "occur", "3", "3", "4"] in lines
    assert ["labels", "per", "document,", "mean", "1.75", "1.50", "1.67"] in lines
    assert ["duplicate", "texts", "1", "0", "2"] in lines
    assert ["labels", "not", "in", "train", "–", "1", "–"] in lines
    assert ["texts", "also", "in", "train", "–", "1", "–"] in lines
    assert "rank of the label" in result.output
    assert "features" not in result.output


def test_stats_as_json(corpus):
    printed = json.loads(run("stats", corpus, "--json").output)
    assert printed["parts"]["train"]["documents"] == 4
    assert printed["overall"]["labels_used"] == 4
    assert printed["frequency_curve"] == {"rank": [1, 2, 3, 4], "count": [4, 3, 2, 1]}


def test_stats_show_labels_records_and_suspects(tmp_path):
    rows = ["1,a b,Fish;fish;rare", "2,,fish", "3,a b,Fish", "4,a  b,Fish", "5,\x1b[31m,Fish"]
    (tmp_path / "a.csv").write_text("id,text,labels\n" + "\n".join(rows) + "\n")
    (tmp_path / "a_label_names.tsv").write_text("rare\ta rare thing\n")
    result = run("stats", tmp_path / "a.csv", "--show", "2")
    shown = result.output
    assert ["Fish", "4"] in lines_of(result)
    assert ["a", "rare", "thing", "(rare)", "1"] in lines_of(result)
    assert "differ only by case or blanks: 'Fish' (4), 'fish' (2)" in shown
    assert "most labels: document 1 has 3" in shown
    assert "texts without words: 1, the first is document 2" in shown
    assert "duplicate texts: 1 (20.0 %); most often, 2 times: document 1, 'a b'" in shown
    assert "document 1\n  a b\n  labels: Fish; fish; a rare thing (rare)\n" in shown
    assert "\x1b" not in shown
    found = json.loads(run("stats", tmp_path / "a.csv", "--show", "1", "--json").output)
    notes = found["highlights"]
    assert notes["most_frequent"][0] == {"label": "Fish", "text": "Fish", "documents": 4}
    assert [[one["label"] for one in group] for group in notes["alike"]] == [["Fish", "fish"]]
    assert notes["most_labels"] == {"part": "data", "document": "1", "amount": 3, "text": "a b"}
    assert notes["repeated_fraction"] == pytest.approx(0.2)
    assert [record["document"] for record in found["records"]] == ["1"]


def test_stats_fit_a_terminal(tmp_path):
    rows = [f"{n},{'some words ' * 30},label {n % 7};Label {n % 7}" for n in range(30)]
    (tmp_path / "a.csv").write_text("id,text,labels\n" + "\n".join(rows) + "\n")
    shown = on_terminal("data", "stats", tmp_path / "a.csv", "--show", "1")
    assert "rank of the label" in shown
    assert max(len(line) for line in shown.splitlines() if "│" not in line and "a.csv" not in line) <= 80


def test_stats_of_parts_count_labels_together(corpus):
    notes = json.loads(run("stats", corpus, "--json").output)["highlights"]
    assert [one["documents"] for one in notes["most_frequent"]] == [4, 3, 2, 1]
    assert notes["most_repeated"]["amount"] >= 2


def test_stats_of_a_name_that_is_nearly_known():
    with pytest.raises(DataError, match=r"eurlex: .*did you mean the data set 'eurlex-4k', .* or 'eurlex57k'\?"):
        run("stats", "eurlex")


def test_stats_of_one_file_with_options(tmp_path):
    (tmp_path / "books.csv").write_text('title,subjects\n"a, b",x;y\nc,y\n')
    settings = ("--set", "text_column=title", "--set", "label_column=subjects")
    lines = lines_of(run("stats", tmp_path / "books.csv", *settings))
    assert ["documents", "2"] in lines
    assert ["labels", "that", "occur", "2"] in lines
    with pytest.raises(ConfigError, match=r"--set text_colum=x: text_colum: .*did you mean 'text_column'\?"):
        run("stats", tmp_path / "books.csv", "--set", "text_colum=x")


def test_long_paths_and_numbers_are_not_cut(tmp_path, corpus):
    folder = tmp_path / ("long" * 40)
    corpus.rename(folder)
    assert str(folder) in run("stats", folder).output.replace("\n", "", 1)


def test_list(monkeypatch, tmp_path):
    monkeypatch.setenv("LABELWISE_DATA", str(tmp_path))
    (tmp_path / "odp").mkdir()
    lines = lines_of(run("list"))
    assert ["eurlex-4k", "15,449", "3,865", "3,956", "pecos", "not", "known", "no"] in lines
    assert ["odp", "1,084,404", "–", "105,033", "vowpal", "not", "known", "yes"] in lines
    one = run("list", "wiki-500k").output
    assert "https://archive.org/download/pecos-dataset/xmc-base/wiki-500k.tar.gz" in one
    assert "SHA-256 not known" in one
    assert "783,743" in one
    assert "A=0.5, B=0.4" in one
    assert json.loads(run("list", "--json").output)["eurlex57k"]["published"]["valid"] == 6000
    with pytest.raises(DataError, match="did you mean 'wiki-500k'"):
        run("list", "wiki-50k")


def test_convert_a_folder_and_back(corpus, tmp_path):
    assert "6 documents" in run("convert", corpus, tmp_path / "native").output
    run("convert", tmp_path / "native", tmp_path / "again", "--to", "jsonl")
    run("convert", tmp_path / "again", tmp_path / "lines", "--to", "lines")
    for name in ("train_texts.txt", "train_labels.txt", "test_texts.txt", "test_labels.txt"):
        assert (tmp_path / "lines" / name).read_bytes() == (corpus / name).read_bytes()


def test_convert_one_part_and_a_file(corpus, tmp_path):
    run("convert", corpus, tmp_path / "test.tsv", "--split", "test")
    assert (tmp_path / "test.tsv").read_text() == "b d\tthe blue dog\na\ta bird\n"
    run("convert", tmp_path / "test.tsv", tmp_path / "test.jsonl", "--from", "tsv")
    assert list(lw.read(tmp_path / "test.jsonl").texts) == ["the blue dog", "a bird"]


def test_nothing_is_overwritten_unasked(corpus, tmp_path):
    target = tmp_path / "out.tsv"
    target.write_text("precious")
    with pytest.raises(LabelwiseError, match="exists already"):
        run("convert", corpus, target, "--split", "test")
    assert target.read_text() == "precious"
    run("convert", corpus, target, "--split", "test", "--force")
    assert target.read_text() != "precious"


def test_parts_in_two_formats_are_refused(corpus, tmp_path):
    run("convert", corpus, tmp_path / "out")
    for command in (("convert", corpus), ("split", corpus, "--split", "train", "--fraction", 0.5)):
        with pytest.raises(ConfigError, match=r"has parts already: train, test \(native\).*--force"):
            run(*command, tmp_path / "out", "--to", "jsonl")
        with pytest.raises(ConfigError, match=r"does not replace: train, test \(native\)"):
            run(*command, tmp_path / "out", "--to", "jsonl", "--force")
    run("convert", corpus, tmp_path / "out", "--force")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["test", "train"]


def test_messages_name_options_of_the_command_line(tmp_path):
    (tmp_path / "in.dat").write_text("no format\n")
    with pytest.raises(DataError, match=r"\(--format NAME\)"):
        run("convert", tmp_path / "in.dat", tmp_path / "out.csv")
    (tmp_path / "in.dat").write_text("text,tags\na,x\n")
    with pytest.raises(DataError, match=r"--set label_column=tags"):
        run("convert", tmp_path / "in.dat", tmp_path / "out.csv", "--format", "csv")
    run("convert", tmp_path / "in.dat", tmp_path / "out.csv", "--format", "csv", "--set", "label_column=tags")
    with pytest.raises(DataError, match=r"\.txt means xc; choose another format with format \(--to NAME\)"):
        run("convert", tmp_path / "out.csv", tmp_path / "out.txt")
    with pytest.raises(ConfigError, match=r"choose from texts, .*label_texts"):
        run("convert", tmp_path / "out.csv", tmp_path / "out.jsonl", "--drop", "labels")


def test_what_a_format_cannot_hold(tmp_path):
    lines = [json.dumps({"id": f"d{n}", "text": f"text {n}", "labels": ["x"]}) for n in range(3)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(LabelwiseError, match="ids"):
        run("convert", tmp_path / "in.jsonl", tmp_path / "out_texts.txt", "--to", "lines")
    run("convert", tmp_path / "in.jsonl", tmp_path / "out_texts.txt", "--to", "lines", "--drop", "ids")
    assert (tmp_path / "out_labels.txt").read_text() == "x\nx\nx\n"


def test_split(tmp_path):
    rows = np.eye(200, 40, dtype=np.float32)
    data = lw.Dataset(sparse.csr_array(rows), texts=[f"text {n}" for n in range(200)])
    lw.write(data, tmp_path / "all.tsv")
    result = run("split", tmp_path / "all.tsv", tmp_path / "parts", "--fraction", 0.25, "--seed", 3)
    assert "150 documents in train, 50 in test" in result.output
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["test.tsv", "train.tsv"]
    expected = lw.read(tmp_path / "all.tsv").split(0.25, 3)
    for name, part in zip(("train", "test"), expected, strict=True):
        assert list(lw.read(tmp_path / "parts" / f"{name}.tsv").texts) == list(part.texts)
    run("split", tmp_path / "all.tsv", tmp_path / "native", "--to", "native")
    assert {name: len(part) for name, part in read_splits(tmp_path / "native").items()} == {
        "train": 180, "test": 20,
    }  # fmt: skip
    with pytest.raises(LabelwiseError, match="between 0 and 1"):
        run("split", tmp_path / "all.tsv", tmp_path / "none", "--fraction", 1.5)
    assert not (tmp_path / "none").exists()


def test_split_of_a_folder_with_parts(corpus, tmp_path):
    with pytest.raises(DataError, match="choose one with split"):
        run("split", corpus, tmp_path / "parts")
    run("split", corpus, tmp_path / "parts", "--split", "train", "--fraction", 0.5)
    assert (tmp_path / "parts" / "test_texts.txt").read_text().count("\n") == 2


def test_what_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELWISE_DATA", str(tmp_path))
    for command in ("stats", "convert", "split"):
        rest = [] if command == "stats" else [tmp_path / "out"]
        with pytest.raises(DataError, match="no such file or folder"):
            run(command, tmp_path / "nowhere", *rest)
        with pytest.raises(DataError, match="labelwise data download odp"):
            run(command, "odp", *rest)


def test_known_sets_by_name(monkeypatch, tmp_path, corpus):
    monkeypatch.setenv("LABELWISE_DATA", str(tmp_path))
    corpus.rename(tmp_path / "eurlex57k")
    assert ["documents", "4", "2", "6"] in lines_of(run("stats", "eurlex57k"))
    run("convert", "eurlex57k", tmp_path / "train.jsonl", "--split", "train")
    assert len(lw.read(tmp_path / "train.jsonl")) == 4


def test_build(tmp_path):
    result = run("build", "pydocs", tmp_path / "docs", "--package", "typer", "--limit", "50")
    train = lw.read(tmp_path / "docs", split="train")
    assert f"{len(train)} documents in train" in result.output
    with pytest.raises(DataError, match="exists already"):
        run("build", "pydocs", tmp_path / "docs", "--package", "typer")
    run("build", "pydocs", tmp_path / "docs", "--package", "typer", "--force", "--min-label-count", "3")
    assert run("build", "nothing", tmp_path / "x").exit_code == 2


def test_download(tmp_path, corpus):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for split in ("train", "test"):
            document = {"title": f"law of {split}", "eurovoc_concepts": ["1", "2"]}
            packed.writestr(f"{split}.jsonl", json.dumps(document))
    with FaultyServer() as server:
        server.answers["/dataset.zip"] = ranged(buffer.getvalue())
        arguments = ("download", "eurlex57k", "--folder", tmp_path / "home", "--mirror", server.url)
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert isinstance(result.exception, DataError)
        assert "differs from the published data set" in str(result.exception)
        lines = [line.split() for line in result.output.splitlines()]
        assert ["train", "documents", "45,000", "1", "differs"] in lines
        assert ["labels", "4,271", "2", "differs"] in lines
        assert any(line[0] == "dataset.zip:" for line in lines)
        # the data is kept and the next call has nothing to complain of
        assert list(lw.dataset("eurlex57k", "train", tmp_path / "home").texts) == ["law of train"]
        assert "already downloaded" in run(*arguments).output
        assert "ready" in run(*arguments, "--force", "--no-check").output
    with pytest.raises(DataError, match="did you mean 'eurlex57k'"):
        run("download", "eurlex57")
