"""labelwise learn: the model it leaves behind, in every way it can end."""

import csv

import pytest

import labelwise as lw
from cli.commands import labelwise
from common import same_predictions
from conformance.planted import planted_texts
from labelwise.io import folder as store


def write(path, data):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["title", "subjects"])
        table.writerows([text, ";".join(data.labels_of(row))] for row, text in enumerate(data.texts))
    return path


OPTIONS = ("--set", "text_column=title", "--set", "label_column=subjects", "--set", "label_separator=;")


@pytest.fixture
def files(tmp_path):
    data = planted_texts(n_documents=400, n_labels=30)
    old = data.take(slice(0, 300))
    lw.LinearTree(trees=1, leaf_size=8, branching=4).fit(old).save(tmp_path / "model")
    more = data.take(slice(300, 400))
    return tmp_path, write(tmp_path / "old.csv", old), write(tmp_path / "more.csv", more), more


def test_the_model_is_updated_in_place(files):
    folder, _, more, data = files
    expected = lw.load(folder / "model")
    expected.learn(data)
    said = labelwise("learn", folder / "model", more, *OPTIONS).out
    assert "learned 100 documents; new labels: 0" in said
    assert "P@5 on these documents before they were learned" in said
    assert "a full training is due: 100 documents learned since, 33% of 300 (limit 20%)" in said
    model = lw.load(folder / "model")
    same_predictions(model.predict(data, k=5), expected.predict(data, k=5))
    assert "learned 100 documents" in model.card_.changes[-1].what


def test_with_an_output_the_old_model_stays(files):
    folder, old, more, data = files
    before = lw.load(folder / "model").predict(data, k=5)
    labelwise("learn", folder / "model", more, "-o", folder / "newer", "--with", old, *OPTIONS)
    same_predictions(lw.load(folder / "model").predict(data, k=5), before)
    assert lw.load(folder / "newer").n_documents_ == 400
    assert "exists" in labelwise("learn", folder / "model", more, "-o", folder / "newer", *OPTIONS, code=2).err


def test_known_documents_leave_the_model_as_it_is(files):
    folder, old, _, _ = files
    before = (folder / "model" / "manifest.json").read_bytes()
    said = labelwise("learn", folder / "model", old, "--with", old, *OPTIONS).out
    assert "learned 0 documents" in said
    assert "skipped, because the model was trained on them: 300" in said
    assert "is unchanged" in said
    assert (folder / "model" / "manifest.json").read_bytes() == before


def test_a_learn_that_fails_while_writing_leaves_the_old_model(files, monkeypatch):
    folder, _, more, data = files
    before = lw.load(folder / "model").predict(data, k=5)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.FolderWriter, "write_tensors", full)
    assert "No space left" in labelwise("learn", folder / "model", more, *OPTIONS, code=2).err
    monkeypatch.undo()
    same_predictions(lw.load(folder / "model").predict(data, k=5), before)


def test_methods_that_cannot_learn_are_refused_before_data_is_read(files):
    folder, _, _, data = files
    lw.Popularity().fit(data).save(folder / "popular")
    said = labelwise("learn", folder / "popular", folder / "missing.csv", code=2).err
    assert "popularity cannot learn more documents; linear_flat and linear_tree can" in said
