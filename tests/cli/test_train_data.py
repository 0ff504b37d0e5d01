"""`labelwise train DATA.csv`: from a stranger's table to a calibrated model, without a config."""

import csv
import gzip
import json
import shutil

import pytest

import labelwise as lw
from cli.commands import labelwise
from common import Stop
from conformance.planted import planted_texts
from labelwise.config import ConfigSource
from labelwise.io.json import read_json
from labelwise.report.schema import Results
from labelwise.report.sections import score_table
from labelwise.runs import train as stages
from labelwise.runs.config import run_config
from labelwise.runs.data import RunData
from labelwise.runs.train import documents_to_refit

COLUMNS = ("--text", "title+abstract", "--labels", "subjects")
QUICK = ("--set", "model.trees=1", "--set", "run.report=false", "--set", "evaluate.bootstrap=0")
DOCUMENTS = 300


def write_table(path, documents):
    """A table as spreadsheets export it: a byte order mark, a title, an abstract, subjects separated by `; `."""
    data = planted_texts(n_documents=documents, n_labels=15)
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "title", "abstract", "subjects"])
        for row, text in enumerate(data.texts):
            title, _, abstract = text.partition(" ")
            table.writerow([f"r{row}", title, f"{abstract}, and\nmore", "; ".join(data.labels_of(row))])
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the table and the run, and what the command printed."""
    place = tmp_path_factory.mktemp("stranger")
    write_table(place / "catalogue.csv", DOCUMENTS)
    return place, labelwise("train", "catalogue.csv", *COLUMNS, *QUICK, cwd=place)


def test_one_command_gives_a_judged_and_calibrated_model_of_all_documents(trained):
    place, done = trained
    run = place / "runs" / "catalogue"
    results = json.loads((run / "results.json").read_text())
    held_out = json.loads((run / "calibration.json").read_text())["n_documents"]
    judged = DOCUMENTS - results["n_documents"] - held_out
    assert results["refit"]["n_documents"] == DOCUMENTS
    assert results["refit"]["n_judged"] == judged == results["data"]["train"]["documents"]
    assert results["n_documents"] > 10
    assert held_out > 10
    assert results["evaluation"]["values"]["P@1"] > results["baseline"]["values"]["P@1"]
    assert f"trained on {judged} of {DOCUMENTS} documents" in done.out
    assert f"the saved model was then trained on all {DOCUMENTS}" in done.out
    assert f"model: {run.relative_to(place) / 'model'}" in done.out
    assert "next: labelwise predict runs/catalogue NEW.csv -o suggestions.csv --threshold auto\n" in done.out
    assert "too few to rely on" in done.err

    model, data = lw.load(run / "model"), lw.read(place / "catalogue.csv", options=options())
    assert model.n_documents_ == DOCUMENTS
    assert model.label_counts_.tolist() == data.label_counts().tolist()
    assert model.threshold_ == pytest.approx(results["calibration"]["threshold"])
    card = model.card_
    assert card.scores.values == results["evaluation"]["values"]
    assert card.calibration.threshold == pytest.approx(model.threshold_)
    assert card.reading.options["text_column"] == "title+abstract"
    assert f"of a model trained on {judged} of them" in card.changes[-1].what
    config = ConfigSource.from_file(run / "config.yml").values
    assert config["data"]["options"]["text_column"] == "title+abstract"
    assert (config["data"]["split_by"], config["data"]["test_fraction"], config["run"]["refit"]) == ("hash", 0.1, True)


def test_a_second_command_gives_a_table_of_suggestions(trained, tmp_path):
    place, _ = trained
    with (place / "catalogue.csv").open(encoding="utf-8-sig", newline="") as file:
        records = list(csv.DictReader(file))[:20]
    with (tmp_path / "new.csv").open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "title", "abstract"])
        table.writerows([record["id"], record["title"], record["abstract"]] for record in records)
    labelwise("predict", "runs/catalogue", tmp_path / "new.csv", "-o", tmp_path / "suggestions.csv", "--threshold",
              "auto", cwd=place)  # fmt: skip
    with (tmp_path / "suggestions.csv").open(encoding="utf-8-sig", newline="") as file:
        suggested = list(csv.DictReader(file))
    assert [row["abstract"] for row in suggested] == [record["abstract"] for record in records]
    right = [set(row["labels"].split("; ")) & set(record["subjects"].split("; "))
             for row, record in zip(suggested, records, strict=True)]  # fmt: skip
    assert sum(map(bool, right)) > 15
    assert all(0 < float(number) <= 1 for row in suggested for number in row["probabilities"].split("; ") if number)


def test_the_report_says_what_the_scores_are_of(trained):
    results = read_json(trained[0] / "runs" / "catalogue" / "results.json", Results)
    lines = score_table(results)["lines"]
    assert lines[0].startswith("Scores: of a model trained on")
    assert lines[0].endswith(f"the saved model was then trained on all {DOCUMENTS}.")


def test_a_finished_run_is_refused_with_what_to_type(trained):
    place, _ = trained
    refused = labelwise("train", "catalogue.csv", *COLUMNS, *QUICK, cwd=place, code=2)
    assert "this run is finished; --force replaces it, --set run.folder=runs/catalogue-2 keeps both" in refused.err
    other = ("--text", "titlex", "--labels", "subjects")
    refused = labelwise("train", "catalogue.csv", *other, *QUICK, cwd=place, code=2)
    assert "this run is finished, with another config (data.options.text_column); --force" in refused.err
    refused = labelwise("train", "catalogue.csv", "more.csv", *COLUMNS, *QUICK, cwd=place, code=2)
    assert "there is no file more.csv" in refused.err


def test_data_commands_name_columns_as_train_does(trained, tmp_path):
    place, _ = trained
    table = place / "catalogue.csv"
    stats = labelwise("data", "stats", table, *COLUMNS, "--json").out
    assert json.loads(stats) == json.loads(
        labelwise("data", "stats", table, "--set", "text_column=title+abstract", "--set", "label_column=subjects",
                  "--json").out
    )  # fmt: skip
    labelwise("data", "convert", table, "out.jsonl", *COLUMNS, "--id", "id", cwd=tmp_path)
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["id"] == "r0"
    labelwise("data", "split", table, "parts", *COLUMNS, cwd=tmp_path)
    labelwise("data", "shard", table, "shards", *COLUMNS, cwd=tmp_path)
    both = labelwise("data", "stats", table, "--text", "title", "--set", "text_column=abstract", code=2).err
    assert "--text title and --set text_column=abstract contradict each other" in both


def options():
    return {"text_column": "title+abstract", "label_column": "subjects"}


# --- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "proposed"),
    [
        ((), "--text title+abstract --labels subjects"),
        (("--labels", "subjects"), "--labels subjects --text title+abstract"),
        (("--text=titlex", "--method", "popularity"), "--method popularity --text title --labels subjects"),
        (("--text", "title", "--labels", "nothing like it"), "--text title --labels subjects"),
    ],
)
def test_the_message_has_the_whole_command(trained, tmp_path, given, proposed):
    shutil.copy(trained[0] / "catalogue.csv", tmp_path)
    error = labelwise("train", "catalogue.csv", *given, cwd=tmp_path, code=2).err
    assert "among id, title, abstract, subjects." in error
    assert error.splitlines()[-1] == f"  labelwise train catalogue.csv {proposed}"


def test_columns_that_cannot_be_guessed_are_left_to_fill_in(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    error = labelwise("train", "a.csv", cwd=tmp_path, code=2).err
    assert "there is no column 'text' and no column 'labels' among x, y" in error
    assert "labelwise train a.csv --text COLUMN --labels COLUMN" in error
    stats = labelwise("data", "stats", "a.csv", cwd=tmp_path, code=2).err
    assert "(--set text_column=... --set label_column=..., in a config data.options.text_column, data.o" in stats


def test_fields_of_jsonl_are_named_together_too(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"Title": "a", "keywords": ["b"]}\n')
    error = labelwise("train", "a.jsonl", cwd=tmp_path, code=2).err
    assert "no field 'text' and no field 'labels' among Title, keywords" in error
    assert "labelwise train a.jsonl --text Title --labels keywords" in error


# --- what is held out ------------------------------------------------------------------------------------------------


def config_of(folder):
    return ConfigSource.from_file(folder / "config.yml").values


def popular(*arguments, cwd, code=0):
    return labelwise("train", *arguments, "--method", "popularity", "--set", "run.report=false", cwd=cwd, code=code)


def test_parts_of_a_folder_are_used(tmp_path):
    data = planted_texts(n_documents=60, n_labels=5)
    for name, rows in (("train", slice(0, 40)), ("valid", slice(40, 50)), ("test", slice(50, 60))):
        lw.write(data.take(rows), tmp_path / "set" / f"{name}.csv")
    popular("set", "-o", "mine", cwd=tmp_path)
    results = json.loads((tmp_path / "mine" / "results.json").read_text())
    assert (results["n_documents"], results["refit"]["n_judged"], results["refit"]["n_documents"]) == (10, 40, 60)
    assert results["calibration"]["n_documents"] == 10
    config = config_of(tmp_path / "mine")
    assert config["data"]["path"] == "set"
    assert config["data"]["test_fraction"] is None
    assert config["calibrate"]["fraction"] is None


def test_files_side_by_side_and_overrides(tmp_path):
    data = planted_texts(n_documents=60, n_labels=5)
    for name, rows in (("a", slice(0, 30)), ("b", slice(30, 50)), ("judge", slice(50, 60))):
        lw.write(data.take(rows), tmp_path / f"{name}.csv")
    changes = ("data.test=judge.csv", "calibrate.enabled=false", "run.refit=false", "data.limit=45")
    popular("a.csv", "b.csv", *(word for change in changes for word in ("--set", change)), cwd=tmp_path)
    run = tmp_path / "runs" / "a"
    assert config_of(run)["data"]["train"] == ["a.csv", "b.csv"]
    assert json.loads((run / "results.json").read_text())["data"]["train"]["documents"] == 45
    assert lw.load(run / "model").n_documents_ == 45


@pytest.mark.parametrize("source", ["table.csv.gz", "parts", "single", "single/*.csv"])
def test_a_second_command_reads_tables_as_the_first_did(tmp_path, source):
    table = write_table(tmp_path / "table.csv", 30)
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(table.read_bytes()))
    for name in ("parts/train.csv", "parts/test.csv", "single/catalogue.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(table, tmp_path / name)
    done = popular(source, *COLUMNS, "-o", "run", cwd=tmp_path)
    assert "NEW.csv -o suggestions.csv" in done.out
    labelwise("predict", "run", "table.csv", "-o", "out.csv", cwd=tmp_path)
    assert (tmp_path / "out.csv").read_text("utf-8-sig").startswith("id,title,abstract,subjects,labels,")


def test_options_that_contradict_each_other_are_refused(tmp_path):
    write_table(tmp_path / "a.csv", 20)
    (tmp_path / "run.yml").write_text("data: {train: a.csv}\nmodel: {method: popularity}\n")
    for words, other in (
        (["a.csv", "-o", "one"], "run.folder=two"),
        (["run.yml", "-o", "one"], "run.folder=two"),
        (["a.csv", "--text", "title"], "data.options.text_column=abstract"),
        (["a.csv"], "data.train=b.csv"),
    ):
        refused = labelwise("train", *words, "--set", other, cwd=tmp_path, code=2)
        assert f"--set {other} contradict each other" in refused.err
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "run.yml"}


def test_any_name_is_the_name_of_a_folder(tmp_path):
    write_table(tmp_path / "a.csv", 20)
    options = "{text_column: title, label_column: subjects}"
    (tmp_path / "run.yml").write_text(
        f"data: {{train: a.csv, options: {options}}}\nmodel: {{method: popularity}}\nrun: {{report: false}}\n"
    )
    labelwise("train", "run.yml", "-o", "null", cwd=tmp_path)
    assert (tmp_path / "null" / "model").is_dir()


def test_a_few_documents_are_trained_on_and_said_to_be_few(tmp_path):
    write_table(tmp_path / "few.csv", 3)
    done = popular("few.csv", *COLUMNS, "--set", "data.test_fraction=0.001", cwd=tmp_path)
    assert "few.csv: 3 documents are too few to hold out 0.001 of them for the test part" in done.err
    assert lw.load(tmp_path / "runs" / "few" / "model").n_documents_ == 3


def test_what_is_no_data_is_refused(trained, tmp_path):
    place, _ = trained
    assert "this is a run folder, not data" in popular("runs/catalogue", cwd=place, code=2).err
    assert "this is a model folder, not data" in popular("runs/catalogue/model", cwd=place, code=2).err
    assert "there is no file nothing.csv" in popular("nothing.csv", cwd=place, code=2).err
    assert "nor a known data set" in popular("no_such_thing", cwd=place, code=2).err
    config = labelwise("train", "a.yml", "--labels", "x", cwd=tmp_path, code=2)
    assert "with a config use --set data.options.label_column=x" in config.err
    twice = popular("catalogue.csv", "--set", "model.method=mach", cwd=place, code=2)
    assert "--method popularity and --set model.method=mach contradict each other" in twice.err


# --- refit -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["documents_to_refit", "record_refit"])
def test_a_run_killed_in_its_refit_is_resumed(tmp_path, monkeypatch, where):
    write_table(tmp_path / "catalogue.csv", 120)
    command = ("train", "catalogue.csv", *COLUMNS, "--method", "popularity", "--set", "run.report=false")
    run = tmp_path / "runs" / "catalogue"

    def stop(*_given):
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(stages, where, stop)
        with pytest.raises(Stop):
            labelwise(*command, cwd=tmp_path)
    before = json.loads((run / "results.json").read_text())
    assert (lw.load(run / "model").n_documents_ == 120) == (where == "record_refit")
    assert "missing: refit" in labelwise("info", run).out
    done = labelwise(*command, cwd=tmp_path)
    assert "already evaluated" in done.err
    after = json.loads((run / "results.json").read_text())
    assert after["evaluation"] == before["evaluation"]
    assert after["refit"]["n_documents"] == lw.load(run / "model").n_documents_ == 120
    assert lw.load(run / "model").threshold_ is not None
    assert "has changed" not in labelwise("info", run).out


def test_a_model_of_all_documents_is_never_judged_on_them(tmp_path, monkeypatch):
    write_table(tmp_path / "catalogue.csv", 120)
    command = ("train", "catalogue.csv", *COLUMNS, "--method", "popularity", "--set", "run.report=false")
    labelwise(*command, cwd=tmp_path)
    run = tmp_path / "runs" / "catalogue"
    state = json.loads((run / "state.json").read_text())
    (run / "state.json").write_text(json.dumps({**state, "status": "running"}))
    (run / "results.json").unlink()
    assert "results.json is missing; --force starts over" in labelwise(*command, cwd=tmp_path, code=2).err


def test_a_method_that_stops_early_keeps_its_valid_part():
    data = planted_texts(n_documents=50, n_labels=5)
    train, valid, test, held_out = (
        data.take(rows) for rows in (range(20), range(20, 30), range(30, 40), range(40, 50))
    )
    parts = RunData(train, valid, test)
    assert len(documents_to_refit(parts, held_out, validates=False, scratch=None)) == 50
    assert (
        documents_to_refit(parts, valid, validates=False, scratch=None).texts
        == data.take(range(40)).texts[[*range(30), *range(30, 40)]]
    )
    kept = documents_to_refit(parts, held_out, validates=True, scratch=None)
    assert list(kept.texts) == [*train.texts, *held_out.texts, *test.texts]


def test_configs_do_not_refit_unless_they_say_so(tmp_path):
    source = ConfigSource({"data": {"train": "x.csv"}, "model": {"method": "popularity"}}, "a.yml")
    assert run_config(source).run.refit is False


@pytest.mark.parametrize("command", ["train", "auto"])
def test_a_table_without_a_single_label_is_refused_before_anything_is_trained(tmp_path, command):
    (tmp_path / "blank.csv").write_text("title,abstract,subjects\n" + "a,b,\n" * 40)
    said = labelwise(command, "blank.csv", *COLUMNS, cwd=tmp_path, code=2).err
    assert "none of the 40 documents has a label, so there is nothing to learn" in said
    assert "another column" in said
    assert not (tmp_path / "runs").exists()
