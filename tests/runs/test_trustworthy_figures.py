"""What a run, `evaluate` and `calibrate` say about their figures: one truth, seen documents, samples, weak models."""

import json
import re

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from labelwise.errors import DataError, ModelFormatError

N_LABELS = 60


def rows(n, seed):
    """Documents with 1 to 40 labels; their words are their labels."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        labels = [f"L{i}" for i in rng.permutation(N_LABELS)[: rng.integers(1, 41)]]
        yield " ".join(f"word{label}" for label in labels), labels


def write(path, pairs):
    path.write_text("".join(json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in pairs))
    return path


def train(folder, *settings, method="linear_flat", code=0, **data):
    config = folder / "run.yml"
    config.write_text(json.dumps({"data": {key: str(path) for key, path in data.items()}, "model": {"method": method}}))
    given = [part for setting in ("evaluate.bootstrap=20", *settings) for part in ("--set", setting)]
    return labelwise("train", config, *given, "--force", cwd=folder, code=code)


def results(folder):
    return json.loads((folder / "runs" / "run" / "results.json").read_text())


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    sizes = {"train": 300, "valid": 100, "test": 80}
    return {name: write(folder / f"{name}.jsonl", rows(n, seed)) for seed, (name, n) in enumerate(sizes.items())}


@pytest.fixture(scope="module")
def run(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    done = train(folder, "model.leaf_size=8", "model.branching=4", method="linear_tree", **parts)  # several trees
    return folder / "runs" / "run", done


def micro_f1(text):
    return float(re.search(r"^micro-F1 +([0-9.]+)", text, re.M)[1])


# --- k from the data ---


def test_table_command_and_calibration_show_one_f1(run, parts):
    path, done = run
    found, model, test = results(path.parent.parent), lw.load(path / "model"), lw.read(parts["test"])
    counts = np.diff(lw.read(parts["train"]).labels.indptr)
    assert found["k"] == found["calibration"]["k"] == np.quantile(counts, 0.99, method="higher") > 20
    assert found["calibration"]["n_cut"] == found["evaluation"]["n_cut"] == 0
    expected = lw.evaluate(model.predict(test, threshold="auto"), test, ["micro-F1"], threshold=model.threshold_)
    assert found["evaluation"]["values"]["micro-F1"] == pytest.approx(expected["micro-F1"])
    said = labelwise("evaluate", path, parts["test"]).out
    assert micro_f1(said) == micro_f1(done.out) == pytest.approx(100 * expected["micro-F1"], abs=0.005)
    assert found["calibration"]["f1"] == pytest.approx(expected["micro-F1"], abs=0.05)
    alone = lw.evaluate(model.predict(test, 10), test, ["micro-F1"], threshold=model.threshold_)
    assert alone["micro-F1"] < expected["micro-F1"] - 0.1  # what a cut at 10 shows
    assert alone.n_cut > 0


def test_the_label_table_counts_what_f1_counts(run):
    path, _ = run
    found = results(path.parent.parent)
    lines = [line.split("\t") for line in (path / "labels.tsv").read_text().splitlines()]
    test, predicted, correct = (sum(int(row[lines[0].index(name)]) for row in lines[1:])
                                for name in ("test", "predicted", "correct"))  # fmt: skip
    assert 2 * correct / (test + predicted) == pytest.approx(found["evaluation"]["values"]["micro-F1"])
    assert found["label_counts"] == {"threshold": found["threshold"], "k": None}
    page = (path / "report.html").read_text()
    assert f"Predictions that count: labels that reach the threshold of {found['threshold']:.4g}" in page


def test_a_given_k_cuts_and_says_so(run, parts, tmp_path):
    done = labelwise("evaluate", run[0], parts["test"], "--set", "k=10")
    assert "every listed prediction reaches the threshold" in done.err
    train(tmp_path, "evaluate.k=10", "calibrate.k=10", **parts)
    found = results(tmp_path)
    assert found["k"] == found["calibration"]["k"] == 10
    assert found["calibration"]["n_cut"] > 0
    page = (tmp_path / "runs" / "run" / "report.html").read_text()
    assert "every listed prediction reaches the threshold" in page
    assert "all 10 predicted labels reach the threshold" in page


def test_calibration_ranks_as_many_labels_as_reach_the_threshold(parts):
    """The training documents have few labels, those to calibrate on have many."""
    short = [(text, labels[:2]) for text, labels in rows(200, 7)]
    model = lw.LinearFlat().fit(*zip(*short, strict=True))
    valid = lw.read(parts["valid"])
    whole = model.calibrate(valid, k=N_LABELS)
    derived = model.calibrate(valid)
    assert derived.k == 20
    assert derived.n_cut == 0
    assert (derived.threshold, derived.f1) == pytest.approx((whole.threshold, whole.f1), abs=0.02)
    assert model.calibrate(valid, k=3).n_cut > 0


# --- documents that the model was trained on ---


def test_training_and_testing_on_the_same_file_is_said(parts, tmp_path):
    done = train(tmp_path, train=parts["train"], test=parts["train"])
    assert "300 of 300 documents (100.0 %) were in the training data" in done.err
    assert results(tmp_path)["n_seen"] == 300
    assert (
        "300 of 300 documents (100.0 %) were in the training data"
        in (tmp_path / "runs" / "run" / "report.html").read_text()
    )
    assert "were in the training data" in (tmp_path / "runs" / "run" / "log.txt").read_text()


def test_evaluate_and_calibrate_count_training_documents(run, parts, tmp_path):
    path, done = run
    assert "were in the training data" not in done.err
    assert results(path.parent.parent)["n_seen"] == 0
    seen = parts["train"].read_text().splitlines()[:20]
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text("\n".join([*seen, *parts["test"].read_text().splitlines()]) + "\n")
    said = labelwise("evaluate", path / "model", mixed)
    assert "20 of 100 documents (20.0 %) were in the training data: the model has seen them" in said.err
    lw.load(path / "model").save(tmp_path / "copy")
    said = labelwise("calibrate", tmp_path / "copy", mixed, "--force")
    assert "20 of 100 documents (20.0 %) were in the training data" in said.err
    report = lw.load(path).calibrate(lw.read(mixed))
    assert report.n_seen == 20
    assert "20 of 100" in report.remarks()[0]


def test_older_and_damaged_folders(run, parts, tmp_path):
    model = lw.load(run[0])
    assert 290 < len(model.trained_on_.hashes) <= 300  # some documents have the same text
    model.save(tmp_path / "old")
    (tmp_path / "old" / "training.safetensors").unlink()
    manifest = json.loads((tmp_path / "old" / "manifest.json").read_text())
    manifest["files"].pop("training.safetensors")
    (tmp_path / "old" / "manifest.json").write_text(json.dumps(manifest))
    old = lw.load(tmp_path / "old")
    assert old.trained_on_ is None
    labelwise("evaluate", tmp_path / "old", parts["train"])
    broken = lw.load(run[0])
    object.__setattr__(broken.trained_on_, "hashes", broken.trained_on_.hashes[::-1].copy())
    broken.save(tmp_path / "broken")
    with pytest.raises(ModelFormatError, match="training documents are damaged"):
        lw.load(tmp_path / "broken")


# --- documents without labels ---


def test_documents_without_any_label_are_an_error(run, parts, tmp_path):
    bare = write(tmp_path / "bare.jsonl", [(text, []) for text, _ in rows(5, 9)])
    assert "none of the 5 documents has a label" in labelwise("evaluate", run[0], bare, code=2).err
    assert "none of the 5 documents has a label" in labelwise("calibrate", run[0], bare, "--force", code=2).err
    mostly = write(tmp_path / "mostly.jsonl", [*((f"text {i}", []) for i in range(100)), ("text", ["L1"])])
    assert "none of the 2 documents has" in labelwise("evaluate", run[0], mostly, "--set", "limit=2", code=2).err
    done = train(tmp_path, train=parts["train"], test=bare, code=2)
    assert "none of the 5 documents has a label" in done.err
    assert not (tmp_path / "runs" / "run" / "model").exists()
    with pytest.raises(DataError, match="none of the 2 documents"):
        lw.evaluate(lw.load(run[0]).predict(["a", "b"]), [[], []])
    some = write(tmp_path / "some.jsonl", [*((text, []) for text, _ in rows(5, 9)), *rows(5, 10)])
    labelwise("evaluate", run[0], some, "-o", tmp_path / "some.json")
    assert json.loads((tmp_path / "some.json").read_text())["n_without_labels"] == 5


# --- a sample of the test documents ---


def test_a_sample_of_the_test_documents(run, parts, tmp_path):
    said = labelwise("evaluate", run[0], parts["test"], "--set", "limit=30", "-o", tmp_path / "one.json").out
    assert "30 of 80 documents" in said.splitlines()[0]
    lines = parts["test"].read_text().splitlines()
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(reversed(lines)) + "\n")
    labelwise("evaluate", run[0], other, "--set", "limit=30", "--set", "bootstrap=0", "-o", tmp_path / "two.json")
    one, two = (json.loads((tmp_path / name).read_text())["values"] for name in ("one.json", "two.json"))
    assert one == pytest.approx(two)
    done = train(tmp_path, "evaluate.limit=30", method="popularity", **parts)
    found = results(tmp_path)
    assert (found["n_documents"], found["n_available"]) == (30, 80)
    assert "30 of 80 test documents" in done.out
    assert "on 30 of 80 test documents" in (tmp_path / "runs" / "run" / "report.html").read_text()
    assert "all of" not in labelwise("evaluate", run[0], parts["test"], "--set", "limit=1000").out.splitlines()[0]


# --- models that have learned too little ---


def test_a_model_that_is_not_better_than_popularity(parts, tmp_path):
    rng = np.random.default_rng(0)
    popular = [("word", [f"L{i}" for i in np.unique(np.append(rng.zipf(1.4, 2) % 50, 0))]) for _ in range(200)]
    data = {
        "train": write(tmp_path / "train.jsonl", popular[:120]),
        "test": write(tmp_path / "test.jsonl", popular[120:]),
    }
    done = train(tmp_path, "evaluate.groups=[3,30]", **data)
    said = next(line for line in done.err.splitlines() if "not clearly better than popularity" in line)
    assert "P@1 100.00 against 100.00" in said
    assert "recall of tail labels is 0" in done.err
    assert done.out.splitlines()[0].endswith("80 test documents")  # the table comes first
    page = (tmp_path / "runs" / "run" / "report.html").read_text()
    assert "Not clearly better than popularity" in page
    assert len(results(tmp_path)["remarks"]) >= 2


def test_a_good_model_has_no_remarks(run):
    path, done = run
    assert results(path.parent.parent)["remarks"] == []
    assert "popularity" not in done.err


def test_remarks_on_ties_follow_the_table(parts, tmp_path):
    model = lw.Popularity().fit(["a", "b"], [["x"], ["y"]])
    model.save(tmp_path / "model")
    data = write(tmp_path / "data.jsonl", [("c", ["y"])])
    out = labelwise("evaluate", tmp_path / "model", data, "--set", "metrics=[P@1]").out.splitlines()
    assert "1 documents" in out[0]
    assert "equal scores: in another order P@1 could be 0.00 to 100.00" in out[-1]


def test_documents_with_unknown_labels_only_are_an_error(run, parts, tmp_path):
    renamed = [(text, [f"id:{label}" for label in labels]) for text, labels in rows(5, 9)]
    strange, said = write(tmp_path / "strange.jsonl", renamed), r"none of its \d+ labels is known to the model"
    for command in (
        ("evaluate", run[0], strange, "-o", tmp_path / "x.json"),
        ("calibrate", run[0], strange, "--force"),
    ):
        assert re.search(said + ".* a label is called 'id:L", labelwise(*command, code=2).err)
    assert not (tmp_path / "x.json").exists()
    assert re.search(said, train(tmp_path, train=parts["train"], test=strange, code=2).err)
    assert not (tmp_path / "runs" / "run" / "model").exists()
    mixed = write(tmp_path / "mixed.jsonl", [*renamed, *rows(5, 10)])
    assert "labels are unknown to the model" in labelwise("evaluate", run[0], mixed).out
