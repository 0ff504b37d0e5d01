"""`labelwise auto DATA --budget TIME`: what a user sees and gets."""

import json
import re
import shutil
import sys

import numpy as np
import pytest

import labelwise as lw
from auto.steady import steady
from cli.commands import labelwise, on_terminal
from cli.test_train_data import COLUMNS, write_table
from conformance.planted import planted_arrays, planted_features, planted_texts
from killing import kill_where_it_holds
from labelwise.io.json import read_json
from labelwise.report.schema import AutoRecord
from labelwise.runs.config import DataSection
from labelwise.runs.data import load_run_data
from labelwise.tuning.auto import Search

BUDGET = ("--budget", "30s")
"""Too little for a network: it is skipped."""
QUICK = ("--set", "run.report=false", "--set", "evaluate.bootstrap=0")
DOCUMENTS = 600


def values_of(run):
    """Names, states and figures of a table, without times."""
    record = read_json(run / "auto.json", AutoRecord)
    return record.chosen, [(option.name, option.status, option.value, option.parameters) for option in record.options]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table."""
    folder = tmp_path_factory.mktemp("auto")
    write_table(folder / "catalogue.csv", DOCUMENTS)
    return folder


@pytest.fixture(scope="module")
def done(place):
    """What the command printed; the run is in runs/catalogue."""
    with steady():
        return labelwise("auto", "catalogue.csv", *COLUMNS, *BUDGET, cwd=place)


@pytest.fixture
def run(place, done):
    return place / "runs" / "catalogue"


def test_the_result_is_an_ordinary_run(place, run, done):
    results = json.loads((run / "results.json").read_text())
    assert results["refit"]["n_documents"] in (DOCUMENTS, DOCUMENTS - read_json(run / "auto.json", AutoRecord).n_valid)
    assert results["evaluation"]["values"]["P@1"] > results["baseline"]["values"]["P@1"]
    assert results["timings"]["fit"] > 0
    assert "next: labelwise predict" in done.out
    (place / "new.csv").write_text("id,title,abstract\na,w1,w2 w3\n")
    labelwise("predict", "runs/catalogue", "new.csv", "-o", "out.csv", cwd=place)
    assert "a" in (place / "out.csv").read_text()
    assert "P@1" in labelwise("info", "runs/catalogue", cwd=place).out


def test_the_table_shows_what_was_tried_and_why(run, done):
    record = read_json(run / "auto.json", AutoRecord)
    by_name = {option.name: option for option in record.options}
    assert by_name["popularity"].status == by_name["pair_trees"].status == by_name["flat"].status == "tried"
    assert by_name["popularity"].value < by_name["tree"].value
    assert "reads features" in by_name["norm"].reason
    assert "no texts" in by_name["names"].reason
    assert "--encoder FOLDER" in by_name["hybrid"].reason
    assert "would take about" in by_name["bigru"].reason
    assert any(option.members for option in record.options)
    assert f"* {record.chosen}" in done.out
    assert record.why in done.out
    page = (run / "report.html").read_text()
    assert "What was tried" in page
    for option in record.options:
        assert option.name in page
    assert f'<th scope="row" class="best">{record.chosen} ★' in page


def test_the_cheapest_within_noise_is_chosen(run):
    record = read_json(run / "auto.json", AutoRecord)
    tried = [option for option in record.options if option.status == "tried"]
    assert next(option.name for option in tried if option.within_noise) == record.chosen
    assert max(tried, key=lambda option: option.value).name == record.best
    for option in tried:
        best, low, high = option.behind_best
        assert best == pytest.approx(record.option(record.best).value - option.value)
        assert option.within_noise == (best <= (high - low) / 3.92)


def test_figures_are_those_of_documents_that_no_model_has_seen(place, run):
    section = DataSection(
        train=str(place / "catalogue.csv"), split_by="hash", test_fraction=0.1, valid_fraction=0.1,
        options={"text_column": "title+abstract", "label_column": "subjects"},
    )  # fmt: skip
    data = load_run_data(section)
    record = read_json(run / "auto.json", AutoRecord)
    assert (record.n_train, record.n_valid) == (len(data.train), len(data.valid))
    for name in ("tree", "pairs"):
        (folder,) = (run / "auto").glob(f"{name}-*")
        model = lw.load(folder / "model")
        for part, seen in ((data.train, len(data.train)), (data.valid, 0), (data.test, 0)):
            assert model.trained_on_.overlap(part, "texts").seen == seen
        found = lw.evaluate(model.predict(data.valid, 50), data.valid, metrics=["P@5"])["P@5"]
        assert record.option(name).value == pytest.approx(found)


def test_train_with_the_method_auto_is_the_same(place, run):
    arguments = ("catalogue.csv", *COLUMNS, "--method", "auto", *BUDGET, "-o", "same", *QUICK)
    with steady():
        labelwise("train", *arguments, cwd=place)
    assert values_of(place / "same") == values_of(run)
    texts = ["w1 w2 w3", "w4"]
    one, other = lw.load(place / "same").predict(texts, 5), lw.load(run).predict(texts, 5)
    assert np.array_equal(one.ids, other.ids)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)


def test_what_the_test_documents_are_decides_nothing(tmp_path):
    data = planted_texts(n_documents=300, n_labels=10)
    train, test = data.take(slice(0, 240)), data.take(slice(240, 300))
    turned = np.arange(len(test))[::-1]
    found = []
    for name, part in (
        ("honest", test),
        ("leaked", lw.Dataset(test.labels[turned], test.label_names, texts=test.texts)),
    ):
        lw.write(train, tmp_path / name / "train.jsonl")
        lw.write(part, tmp_path / name / "test.jsonl")
        with steady():
            labelwise("auto", tmp_path / name, *BUDGET, *QUICK, "-o", tmp_path / f"run-{name}", "--metric", "micro-F1")
        found.append(values_of(tmp_path / f"run-{name}"))
    assert found[0] == found[1]
    scores = [json.loads((tmp_path / f"run-{name}/results.json").read_text()) for name in ("honest", "leaked")]
    assert len({score["evaluation"]["values"]["P@1"] for score in scores}) == 2


def test_what_only_an_expensive_model_can_see_makes_it_win(tmp_path):
    """The order of two words decides the label: words alone are no better than a guess."""
    draw = np.random.default_rng(0)
    lines = []
    for row in range(500):  # a word of its own: equal texts would all be in one part
        words = [f"x{number}" for number in draw.permutation(5)[:2]]
        lines.append({"text": " ".join([f"n{row}", *words]), "labels": ["".join(words)]})
    (tmp_path / "order.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with steady():
        labelwise("auto", tmp_path / "order.jsonl", *BUDGET, *QUICK, "--metric", "P@1", "-o", tmp_path / "run")
    record = read_json(tmp_path / "run" / "auto.json", AutoRecord)
    assert record.chosen == "pairs", "the cheapest model with word pairs"
    assert record.option("trees").value < 0.8 < record.option("pairs").value
    assert lw.load(tmp_path / "run").predict(["x1 x2", "x2 x1"], 1).to_lists() == [["x1x2"], ["x2x1"]]


def test_an_ensemble_of_similar_models_becomes_a_complete_run(place, tmp_path, monkeypatch):
    plain = Search.decide

    def decide(self):
        record = plain(self)
        found = [one.name for one in record.options if sum("pair" in name for name in one.members) > 1]
        self.record = record.model_copy(update={"chosen": found[0]})
        return self.record

    monkeypatch.setattr(Search, "decide", decide)
    with steady():
        labelwise("auto", place / "catalogue.csv", *COLUMNS, *BUDGET, *QUICK, "-o", tmp_path / "run")
    config = labelwise("config", "show", tmp_path / "run" / "config.yml").out
    assert config.count("ngrams") >= 2, "the members' settings are written out"
    assert "ensemble" in labelwise("info", tmp_path / "run").out
    again = labelwise("auto", place / "catalogue.csv", *COLUMNS, *BUDGET, *QUICK, "-o", tmp_path / "run", code=2)
    assert "this run is finished" in again.err


HOLD_AT_THREE_TREES = """
from labelwise.tuning import auto as search
plain = search.run_trial
def run_trial(workspace, name, *others):
    if name == "trees":
        hold()
    return plain(workspace, name, *others)
search.run_trial = run_trial
"""
HOLD_AFTER_THE_DECISION = """
from labelwise.runs import train
train.evaluate_model = lambda *others: hold()
"""


def test_a_killed_search_resumes_without_training_again(place, run, monkeypatch):
    monkeypatch.chdir(place)
    command = ("auto", "catalogue.csv", *COLUMNS, *BUDGET, "-o", "killed", *QUICK)
    with steady():
        kill_where_it_holds(HOLD_AT_THREE_TREES, *command)
        before = {path: path.stat().st_mtime_ns for path in (place / "killed" / "auto").glob("*/model/manifest.json")}
        assert {path.parts[-3].split("-")[0] for path in before} == {"popularity", "tree", "soft"}
        about = labelwise("info", "killed", cwd=place).out
        assert re.search(r"^status +stopped: no model is chosen yet$", about, re.M)
        assert re.search(r"^tried +popularity [\d.]+, tree [\d.]+, soft [\d.]+$", about, re.M)
        assert re.search(r"^resume +run the same labelwise auto command again", about, re.M)
        assert json.loads(labelwise("info", "killed", "--json", cwd=place).out)["search"]["status"] == "stopped"
        assert "this search has no model yet" in labelwise("predict", "killed", "a text", cwd=place, code=2).err
        kill_where_it_holds(HOLD_AFTER_THE_DECISION, *command)
        decided = values_of(place / "killed")
        with monkeypatch.context() as patch:
            patch.setattr(Search, "try_models", None)  # the decision is not made again
            again = labelwise(*command, cwd=place)
    assert "resuming the search" in again.err
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert values_of(place / "killed") == decided == values_of(run)
    assert (place / "killed" / "results.json").exists()


def test_other_data_and_finished_runs_are_noticed(place, run, monkeypatch):
    labelwise("auto", "catalogue.csv", *COLUMNS, *BUDGET, cwd=place, code=2)
    with steady():
        monkeypatch.chdir(place)
        command = ("auto", "other.csv", *COLUMNS, *BUDGET, "-o", "other", *QUICK)
        write_table(place / "other.csv", 150)
        kill_where_it_holds(HOLD_AT_THREE_TREES, *command)
        write_table(place / "other.csv", 160)
        assert "search on other data; --force" in labelwise(*command, cwd=place, code=2).err
        labelwise(*command, "--force", cwd=place)
    assert read_json(place / "other" / "auto.json", AutoRecord).n_train < 160


def test_what_would_not_fit_is_skipped_with_the_reason(place):
    with steady({"tree": 12.0, "soft": 9.0}) as clock:
        begin = clock.now
        labelwise("auto", "catalogue.csv", *COLUMNS, "--budget", "1m", "-o", "short", *QUICK, cwd=place)
        assert clock.now - begin < 36 + 1, "three fifths are for trying"
    record = read_json(place / "short" / "auto.json", AutoRecord)
    assert [option.name for option in record.options if option.status == "tried" and not option.members] == [
        "popularity", "tree", "soft"
    ]  # fmt: skip
    assert record.option("trees").reason.startswith("would take about 36.0 s, 1")
    assert record.option("trees").status == "skipped"


def test_a_small_budget_still_gives_a_model(place):
    with steady({"popularity": 1.0, "tree": 30.0}):
        done = labelwise("auto", "catalogue.csv", *COLUMNS, "--budget", "3", "-o", "small", *QUICK, cwd=place)
    assert "a budget of 3.0 s is small" in done.err
    assert "refit: left out" in done.err
    assert "refit" not in json.loads((place / "small" / "results.json").read_text())
    assert read_json(place / "small" / "auto.json", AutoRecord).chosen == "tree"
    assert lw.load(place / "small").name == "linear_tree"


def test_features_and_images_get_what_can_read_them(tmp_path, monkeypatch):
    for package in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    lw.write(planted_features(n_documents=300, n_labels=10), tmp_path / "rows")
    lw.write(planted_arrays(n_documents=120, n_labels=10), tmp_path / "images")
    with steady():
        labelwise("auto", tmp_path / "rows", *BUDGET, *QUICK, "-o", tmp_path / "rows-run")
        labelwise("auto", tmp_path / "images", *BUDGET, *QUICK, "-o", tmp_path / "images-run")
    rows = read_json(tmp_path / "rows-run" / "auto.json", AutoRecord)
    tried = [option.name for option in rows.options if option.status == "tried" and not option.members]
    assert tried == ["popularity", "tree", "norm", "soft", "trees", "flat"]
    assert "the data has features" in rows.option("pairs").reason
    images = read_json(tmp_path / "images-run" / "auto.json", AutoRecord)
    assert images.chosen == "popularity"
    assert "needs the package 'torch'" in images.option("image_network").reason


def test_without_torch_texts_get_linear_methods(place, monkeypatch):
    for package in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    with steady():
        labelwise("auto", "catalogue.csv", *COLUMNS, *BUDGET, "-o", "plain", *QUICK, cwd=place)
    assert "needs the package 'torch'" in read_json(place / "plain" / "auto.json", AutoRecord).option("bigru").reason


def test_a_terminal_shows_the_table_while_it_grows(place):
    with steady():
        shown = on_terminal("auto", place / "catalogue.csv", *COLUMNS, *BUDGET, "-o", place / "live", *QUICK)
    assert "left" in shown
    assert "tried in" in shown
    shutil.rmtree(place / "live")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "soon"], "'soon' is not a time span; accepted: 90, 90s, 10m, 2h"),
        (["--budget", "0"], "'0' is not a time span"),
        (["--metric", "macro-F1"], "macro-F1 is not a mean over documents"),
        (["--metric", "P5"], "there is no metric 'P5'"),
        (["--set", "model.trees=1"], "auto chooses the method"),
        (["--set", "run.time_budget=5"], "contradict each other"),
        (["--encoder", "nowhere"], "there is no folder nowhere; nothing is downloaded"),
    ],
)
def test_mistakes_are_reported(place, arguments, message):
    failed = labelwise("auto", "catalogue.csv", *COLUMNS, "-o", "never", *arguments, cwd=place, code=2)
    assert message in failed.err
    assert not (place / "never").exists()


def test_options_of_auto_belong_to_auto(place):
    failed = labelwise("train", "catalogue.csv", *COLUMNS, "--budget", "5m", cwd=place, code=2)
    assert "--budget is for --method auto" in failed.err
    for option in (["--workers", "2"], ["--address", "head:6379"]):
        failed = labelwise("train", "catalogue.csv", *COLUMNS, "--method", "auto", *option, cwd=place, code=2)
        assert f"{option[0]} needs --launcher" in failed.err
    (place / "run.yml").write_text("data: {train: catalogue.csv}\nmodel: {method: linear_tree}\n")
    assert "labelwise auto DATA" in labelwise("train", "run.yml", "--method", "auto", cwd=place, code=2).err
    (place / "few.csv").write_text("text,labels\na b,x\nc d,y\n")
    failed = labelwise("auto", "few.csv", "--text", "text", "--labels", "labels", "-o", "few", cwd=place, code=2)
    assert "too few to hold out any" in failed.err
    assert not (place / "few").exists()


def test_a_run_that_has_trained_nothing_makes_room_for_a_search(place, tmp_path):
    shutil.copyfile(place / "catalogue.csv", tmp_path / "catalogue.csv")
    command = ("catalogue.csv", *COLUMNS, *QUICK)
    refused = labelwise("train", *command, "--set", "model.memory=0.0001", cwd=tmp_path, code=2)
    assert "raise the limit" in refused.err
    assert (tmp_path / "runs" / "catalogue" / "state.json").exists()
    with steady():
        labelwise("auto", *command, "--budget", "1s", cwd=tmp_path)
    assert read_json(tmp_path / "runs" / "catalogue" / "auto.json", AutoRecord).chosen
