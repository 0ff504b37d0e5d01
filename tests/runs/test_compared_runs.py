"""`labelwise compare` of real runs: intervals, paired differences, marks, the popularity row."""

import json
import shutil

import numpy as np
import pytest

from cli.commands import labelwise
from labelwise.io.folder import PREDICTIONS
from labelwise.metrics.result import SavedPredictions

WORDS = [f"w{i}" for i in range(40)]


def corpus(path, n, seed):
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(n):
            labels = rng.choice(12, 2, replace=False)
            words = [WORDS[3 * label + int(rng.integers(3))] for label in labels for _ in range(2)]
            words += rng.choice(WORDS, 6).tolist()
            text = " ".join(rng.permutation(words).tolist())
            file.write(json.dumps({"text": text, "labels": [f"l{i}" for i in labels]}) + "\n")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A model, the same with a slightly different cost, and one that saw a handful of documents."""
    folder = tmp_path_factory.mktemp("runs")
    corpus(folder / "train.jsonl", 500, 0)
    corpus(folder / "test.jsonl", 400, 1)
    base = {"data": {"train": str(folder / "train.jsonl"), "test": str(folder / "test.jsonl")}}
    made = {}
    for name, limit, cost in (("good", None, 1.0), ("alike", None, 1.05), ("poor", 12, 1.0)):
        model = {"method": "linear_flat", "solver": {"cost_positive": cost}}
        run = {"folder": str(folder / name), "report": False}
        config = {"data": {**base["data"], "limit": limit}, "model": model, "run": run}
        (folder / f"{name}.yml").write_text(json.dumps(config), encoding="utf-8")
        labelwise("train", folder / f"{name}.yml")
        made[name] = folder / name
    return made


def compared(*arguments):
    return json.loads(labelwise("compare", *arguments, "--json").out)


def test_differences_and_marks(runs):
    table = compared(*runs.values())
    good, alike, poor = table["runs"]
    assert table["paired"]
    marked = [run["name"] for run in (good, alike, poor) if "P@1" in run["best"]]
    assert marked == ["good", "alike"]  # which cannot be distinguished
    low, high = poor["differences"]["P@1"]["interval"]
    assert low <= poor["differences"]["P@1"]["value"] <= high < 0
    assert table["baseline"]["method"] == "popularity"
    assert table["baseline"]["differences"]["P@5"]["interval"][1] < 0
    results = json.loads((runs["good"] / "results.json").read_text(encoding="utf-8"))
    assert good["intervals"]["P@1"] == results["evaluation"]["intervals"]["P@1"]
    assert table["baseline"]["values"] | results["baseline"]["values"] == table["baseline"]["values"]


def test_against_one_run(runs):
    table = compared(runs["good"], runs["alike"], "--against", runs["poor"])
    assert table["reference"] == "poor"
    assert [run["name"] for run in table["runs"]] == ["poor", "good", "alike"]
    for run in table["runs"][1:]:
        assert run["differences"]["nDCG@5"]["interval"][0] > 0
    text = labelwise("compare", runs["good"], runs["poor"], "--against", runs["poor"]).out
    better, worse = (line for line in text.splitlines() if "[+" in line or "[-" in line)
    assert better.startswith("| good |")
    assert "**+" in better
    assert "**" not in worse  # popularity, which is worse
    assert "Difference to poor" in text
    assert "reference" in text
    assert "popularity" in text


def test_popularity_has_no_f1_at_the_threshold_of_another_model(runs, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, limit in zip(folders, (400, 200), strict=True):
        labelwise(
            "train", runs["good"].parent / "good.yml", "--set", "calibrate.fraction=0.2", "--set", f"data.limit={limit}",
            "--set", f"run.folder={folder}",
        )  # fmt: skip
    table = compared(*folders)
    assert table["runs"][0]["values"]["micro-F1"] > 0
    assert table["baseline"]["values"]["micro-F1"] is None
    assert "micro-F1" not in table["baseline"]["differences"]
    assert "micro-F1" not in table["baseline"]["intervals"]


def test_the_page_shows_differences(runs, tmp_path):
    labelwise("compare", *runs.values(), "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for words in ("Difference to the best run of each column", "95 % intervals", "popularity"):
        assert words in page


def test_kept_predictions_can_be_read_without_the_model(runs):
    kept = SavedPredictions.read(runs["good"] / PREDICTIONS)
    results = json.loads((runs["good"] / "results.json").read_text(encoding="utf-8"))
    truth = [json.loads(line)["labels"] for line in (runs["good"].parent / "test.jsonl").open(encoding="utf-8")]
    hits = [labels[0] in true for labels, true in zip(kept.top.labels, truth, strict=True)]
    assert np.mean(hits) == pytest.approx(results["evaluation"]["values"]["P@1"])


def test_the_same_number_of_other_documents_is_noticed(runs, tmp_path):
    lines = (runs["good"].parent / "test.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "test.jsonl").write_text("\n".join([*lines[1:], lines[0]]) + "\n", encoding="utf-8")
    labelwise(
        "train", runs["good"].parent / "good.yml", "--set", f"data.test={tmp_path / 'test.jsonl'}",
        "--set", f"run.folder={tmp_path / 'moved'}",
    )  # fmt: skip
    table = compared(runs["good"], tmp_path / "moved")
    assert not table["paired"]
    assert any("different documents" in note for note in table["notes"])
    assert not any(run["best"] for run in table["runs"])


def test_runs_that_kept_nothing_are_compared_by_their_scores(runs, tmp_path):
    old = shutil.copytree(runs["good"], tmp_path / "old")
    (old / PREDICTIONS).unlink()
    table = compared(old, runs["poor"])
    assert not table["paired"]
    assert "P@1" in table["runs"][0]["best"]
    assert any(note.startswith("Without test predictions: ") for note in table["notes"])
    noted = compared(old, runs["poor"], "--against", old)["notes"]
    assert any("There are no differences" in note for note in noted)
