"""What people do wrong or in an unusual order, and what happens then."""

import json
import re
import signal
import subprocess
import sys
from unittest import mock

import pytest

import labelwise as lw
from cli.commands import labelwise
from common import Stop
from labelwise.cli.main import app
from labelwise.config import ConfigSource
from labelwise.runs import train as stages

CSV = "isbn,title,subjects\n1,Fish and chips,cooking|fish\n2,Deep sea fish,fish\n3,Knitting socks,socks\n"


@pytest.fixture
def books(tmp_path):
    (tmp_path / "books.csv").write_text(CSV)
    (tmp_path / "books.yml").write_text(
        "data: {train: books.csv, test: books.csv, options: {text_column: title, label_column: subjects, "
        "label_separator: '|', id_column: isbn}}\nmodel: {method: popularity}\nrun: {report: false}\n"
    )
    return tmp_path


def test_a_run_remembers_how_its_data_was_read(books):
    labelwise("train", "books.yml", cwd=books)
    (books / "new.csv").write_text("isbn,title\n7,A book about fish\n")
    (books / "other.csv").write_text("isbn,name\n7,A book about fish\n")
    done = labelwise("predict", "runs/books", "new.csv", "--k", "1", cwd=books)
    assert json.loads(done.out) == {"id": "7", "labels": [{"label": "fish", "score": pytest.approx(2 / 3)}]}
    named = labelwise("predict", "runs/books", "other.csv", "--k", "1", "--set", "text_column=name", cwd=books)
    assert json.loads(named.out)["labels"] == json.loads(done.out)["labels"]
    scores = json.loads(
        labelwise("evaluate", "runs/books", "books.csv", "-o", "-", "--set", "metrics=P@1", cwd=books).out
    )
    assert scores["values"] == {"P@1": pytest.approx(2 / 3)}
    assert not (books / "-").exists()


def test_a_corrected_typo_starts_over_and_is_in_the_log(books):
    text = (books / "books.yml").read_text()
    (books / "books.yml").write_text(text.replace("train: books.csv", "train: boks.csv"))
    with mock.patch.object(stages, "load_run_data", side_effect=Stop), pytest.raises(Stop):
        labelwise("train", "books.yml", cwd=books)
    assert "boks.csv" in labelwise("train", "books.yml", cwd=books, code=2).err
    assert "boks.csv" in (books / "runs" / "books" / "log.txt").read_text()
    (books / "books.yml").write_text(text)
    assert "P@1" in labelwise("train", "books.yml", cwd=books).out


@pytest.mark.parametrize(
    "wrong", ["label_column=nothing", "text_column=name", "label_names=nowhere.tsv", "encoding=klingon"]
)
def test_data_that_cannot_be_read_leaves_no_folder(books, wrong):
    before = sorted(books.rglob("*"))
    labelwise("train", "books.yml", "--set", f"data.options.{wrong}", cwd=books, code=2)
    assert sorted(books.rglob("*")) == before
    (books / "mine").mkdir()
    labelwise("train", "books.yml", "-o", "mine", "--set", f"data.options.{wrong}", cwd=books, code=2)
    assert [path.name for path in (books / "mine").iterdir()] == [".lock"]


def test_an_existing_run_stays_when_its_data_cannot_be_read(books):
    labelwise("train", "books.yml", cwd=books)
    run = books / "runs" / "books"
    state = json.loads((run / "state.json").read_text())
    (run / "state.json").write_text(json.dumps({**state, "status": "running"}))
    (books / "books.csv").write_text("isbn\n")
    labelwise("train", "books.yml", cwd=books, code=2)
    assert json.loads((run / "state.json").read_text())["status"] == "failed"
    assert (run / "model").is_dir()


def test_an_empty_value_is_an_empty_string(books):
    (books / "plain.csv").write_text("title\nFish\n")
    stats = ("data", "stats", "plain.csv", "--json", "--set", "text_column=title", "--set", "label_column=")
    assert json.loads(labelwise(*stats, cwd=books).out)["overall"]["documents"] == 1
    (books / "empty.yml").write_text("data: {path: x, options: {label_column: }}\nmodel: {method: popularity}\n")
    assert "valid string" in labelwise("train", "empty.yml", cwd=books, code=2).err


def test_windows_quotes_propose_the_encoding_of_windows(books):
    for content, encoding in ((b"a \x93quote\x94", "cp1252"), (b"caf\xe9", "latin-1"), (b"\x81\xe9", "latin-1")):
        (books / "bad.csv").write_bytes(b"title,subjects\n" + content + b",x\n")
        columns = ("--set", "text_column=title", "--set", "label_column=subjects")
        assert f"--set encoding={encoding};" in labelwise("data", "stats", "bad.csv", *columns, cwd=books, code=2).err


def test_a_column_of_unique_values_is_doubted(tmp_path):
    rows = "".join(f"text {row},title {row},{row % 30}\n" for row in range(120))
    (tmp_path / "a.csv").write_text("text,title,subject\n" + rows)
    quick = ("--method", "popularity", "--set", "run.report=false", "--set", "evaluate.bootstrap=0")
    question = "100.0 % of the 120 labels of 120 documents occur in one document only: is 'title' the column"
    for column in ("title", "subject"):
        trained = labelwise("train", "a.csv", "--labels", column, *quick, "-o", column, cwd=tmp_path)
        stats = labelwise("data", "stats", "a.csv", "--set", f"label_column={column}", cwd=tmp_path)
        assert (question in trained.err) == (column == "title")
        assert (question in " ".join(stats.out.split())) == (column == "title")


@pytest.mark.parametrize("arguments", [("-q", "train", "books.yml"), ("train", "-q", "books.yml")])
def test_quiet_is_quiet(books, arguments):
    assert labelwise(*arguments, cwd=books).err == ""


def test_every_command_accepts_quiet():
    words = [[command.name] for command in app.registered_commands]
    for group in app.registered_groups:
        words += [[group.name, command.name] for command in group.typer_instance.registered_commands]
    assert len(words) > 20
    for command in words:
        assert "-q, --quiet" in labelwise(*command, "--help").out


def test_psp_is_explained_after_the_table(tmp_path):
    (tmp_path / "a.csv").write_text("text,labels\none,a\ntwo,b\nthree,c\n")
    lw.Popularity().fit(lw.read(tmp_path / "a.csv")).save(tmp_path / "model")
    done = labelwise("evaluate", "model", "a.csv", "--set", "metrics=[PSP@1]", "--set", "bootstrap=0", cwd=tmp_path)
    assert re.search(r"^PSP@1 .*\nPSP counts a correct label more the rarer it is", done.out, re.M)


def test_a_changed_method_with_old_parameters(tmp_path):
    (tmp_path / "a.yml").write_text("data: {train: a.csv}\nmodel: {method: linear_tree, trees: 1, branching: 4}\n")
    full = labelwise("config", "show", "a.yml", cwd=tmp_path).out
    (tmp_path / "full.yml").write_text(full)
    done = labelwise("config", "show", "full.yml", "--set", "model.method=mach", cwd=tmp_path, code=2)
    assert len(done.err.splitlines()) == 1
    assert re.search(r"model: mach does not have .*trees.*, parameters of linear_tree; remove them", done.err)
    (tmp_path / "study.yml").write_text("base: a.yml\nvary: {model.method: [linear_tree, linear_flat]}\nmetric: P@1\n")
    done = labelwise("sweep", "study.yml", cwd=tmp_path, code=2)
    assert "linear_flat does not have trees, branching" in done.err
    typo = labelwise("config", "show", "a.yml", "--set", "model.tres=3", cwd=tmp_path, code=2).err
    assert "model.tres: there is no such key in linear_tree; did you mean 'trees'" in typo


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("|", "|"), ("#", "#"), (">", ">"), ("'|'", "|"), ("", None), ("null", None), ("1e-4", 1e-4), ("[a, b]", ["a", "b"]),
        ("no", "no"), ("true", True), ("- ", [None]), ("&", "&"), ("*x", "*x"), ("{", "{"),
    ],
)  # fmt: skip
def test_what_is_typed_after_set(typed, value):
    assert ConfigSource({}).override([f"a={typed}"]).values == {"a": value}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("data: {path: x, text_column: t}\nmodel: {method: popularity}", "it belongs to the section options"),
        (
            "data: x\nmodel: {method: popularity}",
            "a section with keys is needed, got 'x'; for example {path: 'x'} or {train: 'x'}",
        ),
        (
            "data: {path: x}\nmodel: {method: text_encoder, training: {checkpoint_every: 5}}",
            "a section with keys is needed, got 5; for example {seconds: 5} or {steps: 5}",
        ),
        ("data: {path: x}\nmodel: {method: linear_tree, solver: []}", "got []; its keys are loss, cost_positive, "),
        ("data: {path: x}\nmodel: {meth: popularity}", "`method` is missing (given: meth)"),
        ("data: {path: x}\nmodel: {method: popularity}\nevaluate: {metrics: [P@50], k: 20}", "set evaluate.k to that"),
        ("data: {path: eurlex57}\nmodel: {method: popularity}", "did you mean the data set 'eurlex57k'?"),
        ("data: {train: books.csv}\nmodel: {method: popularity}\nrun: {folder: books.csv/x}", "cannot be used"),
    ],
)
def test_faults_of_configs(books, config, message):
    (books / "bad.yml").write_text(config)
    assert message in labelwise("train", "bad.yml", cwd=books, code=2).err


def test_run_folders_and_models_are_told_apart(books):
    (books / "runs" / "empty").mkdir(parents=True)
    (books / "runs" / "empty" / "state.json").write_text('{"status": "running"}')
    assert "no model yet" in labelwise("predict", "runs/empty", stdin="x\n", cwd=books, code=2).err
    labelwise("train", "books.yml", cwd=books)
    assert lw.load(books / "runs" / "books").name == "popularity", "a run folder is as good as its model folder"
    (books / "runs" / "books" / "state.json").unlink()
    assert "did you mean runs/books/model?" in labelwise("predict", "runs/books", stdin="x\n", cwd=books, code=2).err
    assert "is a file" in labelwise("demo", "books.csv", cwd=books, code=2).err


SLOW_REPORT = """
import sys, time
import labelwise.report.run as html
def slow(*args):
    print("reporting", flush=True)
    time.sleep(60)
html.write_report = slow
from labelwise.cli.main import main
main(sys.argv[1:])
"""


def test_stopped_in_the_report_the_run_goes_on(books):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_REPORT, "train", "books.yml", "--set", "run.report=true"],
        cwd=books, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == b"reporting\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    done = labelwise("train", "books.yml", "--set", "run.report=true", cwd=books)
    assert "already evaluated" in done.err
    assert (books / "runs" / "books" / "report.html").exists()


def test_lines_are_answered_as_they_come(books):
    labelwise("train", "books.yml", cwd=books)
    process = subprocess.Popen(
        [sys.executable, "-m", "labelwise.cli.main", "predict", "runs/books", "--k", "1"],
        cwd=books, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    for number in range(3):
        process.stdin.write(b"fish\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == str(number)
    process.stdin.close()
    assert process.wait(timeout=60) == 0


def test_foreign_folders_are_never_emptied(books):
    """Not even if they hold a file that is called like one of ours."""
    for name, content in (("thesis", '{"version": 4}'), ("other", "not json")):
        folder = books / name
        folder.mkdir()
        (folder / "state.json").write_text(content)
        (folder / "thesis.tex").write_text("precious")
        for force in ((), ("--force",)):
            done = labelwise("train", "books.yml", "--set", f"run.folder={name}", *force, cwd=books, code=2)
            assert "not a run folder" in done.err
        assert (folder / "thesis.tex").read_text() == "precious"
    labelwise("train", "books.yml", cwd=books)
    (books / "runs" / "books" / "notes.txt").write_text("mine")
    labelwise("train", "books.yml", "--force", cwd=books)
    assert (books / "runs" / "books" / "notes.txt").read_text() == "mine"


def test_links_and_pipes_stay_what_they_are(books):
    labelwise("train", "books.yml", cwd=books)
    (books / "real.jsonl").write_text("old")
    (books / "link.jsonl").symlink_to(books / "real.jsonl")
    labelwise("predict", "runs/books", "-o", "link.jsonl", "--force", stdin="fish\n", cwd=books)
    assert (books / "link.jsonl").is_symlink()
    assert "fish" in (books / "real.jsonl").read_text()


def test_a_full_disk_is_an_error_in_one_line(books):
    labelwise("train", "books.yml", cwd=books)
    with open("/dev/full", "w") as full:
        for arguments in (["predict", "runs/books"], ["models"]):
            done = subprocess.run(
                [sys.executable, "-m", "labelwise.cli.main", *arguments],
                cwd=books, stdout=full, stderr=subprocess.PIPE, input=b"fish\n",
            )  # fmt: skip
            assert done.returncode == 2
            assert done.stderr.decode().strip().splitlines()[-1].startswith("labelwise: ")
            assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("given", ["1MB", "0", "-1", "true", "[1]", ".nan", ".inf"])
def test_a_wrong_memory_limit_is_explained_in_one_line(tmp_path, given):
    (tmp_path / "run.yml").write_text("data: {path: nowhere}\nmodel: {method: linear_tree}\nrun: {folder: run}\n")
    said = labelwise("train", tmp_path / "run.yml", "--set", f"model.memory={given}", cwd=tmp_path, code=2).err
    assert "model.memory: should be check, ignore, or a limit in GB above 0, such as 2.5, got" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("mapped", [False, True])
def test_a_memory_limit_that_is_too_low_is_named(tmp_path, mapped):
    rows = "".join(f"word{n % 7} word{n % 5} text,label{n % 9}\n" for n in range(60))
    (tmp_path / "train.csv").write_text("text,labels\n" + rows)
    arguments = ("--set", "model.memory=0.002", "--set", f"data.mapped={mapped}")
    said = labelwise("train", "train.csv", "-o", "run", *arguments, cwd=tmp_path, code=2).err
    assert "the limit of 0.002 GB (model.memory) leaves" in said
    assert ("this process, whose data is mapped" in said) == mapped
    advised = re.search(r"raise the limit to (\S+) GB", said)[1]
    arguments = ("--set", f"model.memory={advised}", *arguments[2:])
    assert "11 test documents" in labelwise("train", "train.csv", "-o", "run", *arguments, cwd=tmp_path).out


def table_of(path, delimiter=",", encoding="utf-8"):
    rows = [("text", "labels"), *((f"text caf\xe9 {row}", f"L{row % 7}" if row % 5 else "") for row in range(300))]
    path.write_text("".join(delimiter.join(row) + "\n" for row in rows), encoding=encoding)


@pytest.mark.parametrize("wrong", [{"delimiter": "|"}, {"encoding": "cp1252"}])
def test_the_proposed_reading_option_works_in_train_and_elsewhere(tmp_path, wrong):
    table_of(tmp_path / "a.csv", **wrong)
    quick = ("--method", "popularity", "--set", "run.report=false", "--set", "evaluate.bootstrap=0")
    said = labelwise("train", "a.csv", *quick, cwd=tmp_path, code=2).err
    other, of_run = re.findall(r"--set ('[^']*'|[^\s;,)]*)", said)
    done = labelwise("train", "a.csv", *quick, "--set", of_run.strip("'"), cwd=tmp_path)
    labelwise("data", "stats", "a.csv", "--set", other.strip("'"), cwd=tmp_path)
    zeros = re.search(r"^(\d+) documents without any true label counted as zero$", done.out, re.M)
    assert int(zeros[1]) == json.loads((tmp_path / "runs/a/results.json").read_text())["evaluation"]["n_without_labels"]


def test_more_trees_than_anybody_needs_are_refused_at_once(tmp_path):
    table_of(tmp_path / "a.csv")
    said = labelwise("train", "a.csv", "--set", "model.trees=200000", cwd=tmp_path, code=2).err
    assert said.count("\n") == 1
    assert "model.trees: should be less than or equal to 1000" in said


def test_an_unknown_method_is_reported_by_one_program(tmp_path):
    table_of(tmp_path / "a.csv")
    said = labelwise("train", "a.csv", "--method", "linear_tre", cwd=tmp_path, code=2).err
    assert said.startswith("labelwise: train a.csv: model.method: there is no method 'linear_tre'")
