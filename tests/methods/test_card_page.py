"""README.md of a model folder: what it says, that it follows the card, and that names from data stay names."""

import json
import re
from dataclasses import replace

import pytest

import labelwise as lw
from labelwise.io.folder import MANIFEST, Folder
from labelwise.model.card import (
    PAGE_FILE,
    Change,
    Scores,
    code,
    update_card,
)
from labelwise.testing.subject import planted_features, planted_texts

HOSTILE = "<script>alert(1)</script> ![x](http://evil/x.png) `b` | c\n# heading \x1b[31m"


@pytest.fixture(scope="module")
def model():
    return lw.LinearTree(trees=1).fit(planted_texts(60, 8))


def page(folder):
    return (folder / PAGE_FILE).read_text(encoding="utf-8")


def test_it_is_written_at_save_and_follows_the_card(model, tmp_path):
    folder = tmp_path / "m"
    model.save(folder)
    first = page(folder)
    assert "60 documents" in first
    assert "8 labels" in first
    assert "`linear_tree`" in first
    assert "Not evaluated" in first
    assert "not probabilities" in first
    top = model.predict(planted_texts(60, 8), k=5)
    evaluation = lw.evaluate(top, planted_texts(60, 8), metrics=["P@1"], bootstrap=50)
    update_card(folder, {"scores": Scores.of(evaluation, planted_texts(60, 8))})
    low, high = evaluation.intervals["P@1"]
    row = re.search(r"^\| `P@1` \| (.*) \| (.*) to (.*) \|$", page(folder), re.M)
    assert [float(cell) for cell in row.groups()] == pytest.approx(
        [100 * evaluation.values["P@1"], 100 * low, 100 * high], abs=0.01
    )
    loaded = lw.load(folder)
    report = loaded.calibrate(planted_texts(60, 8, seed=1), k=5)
    loaded.save_calibration(folder)
    assert f"threshold {report.threshold:.4g}" in page(folder)
    assert "--threshold auto" in page(folder)
    assert "| `P@1` |" in page(folder), "the scores stay"
    update_card(folder, {"changes": (Change(what="made smaller"),)})
    assert "made smaller" in page(folder)


def test_it_is_not_listed_and_may_be_edited(model, tmp_path):
    model.save(tmp_path / "m")
    assert PAGE_FILE not in Folder(tmp_path / "m", "model").manifest["files"]
    (tmp_path / "m" / PAGE_FILE).write_text("mine")
    assert lw.load(tmp_path / "m").predict(["some text"], k=1).ids.shape == (1, 1)
    (tmp_path / "m" / PAGE_FILE).unlink()
    update_card(tmp_path / "m", {})
    assert page(tmp_path / "m").startswith("# A model of labelwise")


def test_its_commands_load_and_predict(model, tmp_path, monkeypatch, capsys):
    model.save(tmp_path / "MODEL")
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", page(tmp_path / "MODEL"), re.M | re.S)
    exec(compile(block, PAGE_FILE, "exec"), {})
    assert capsys.readouterr().out.startswith("[['L")


def test_names_from_data_cannot_become_markup(tmp_path):
    data = planted_texts(60, 8)
    names = lw.Strings.of([HOSTILE, *list(data.label_names)[1:]])
    model = lw.Popularity().fit(replace(data, label_names=names, name=HOSTILE))
    model.card_ = model.card_.with_change(HOSTILE)
    model.save(tmp_path / "m")
    text = page(tmp_path / "m")
    outside = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    outside = re.sub(r"`[^`\n]+`", "", outside)
    assert "script" in text
    assert "\x1b" not in text
    assert not re.search(r"<|script|evil|!\[", outside)
    assert not re.search(r"^# heading", text, re.M)


def test_a_manifest_of_a_stranger_cannot_become_markup(model, tmp_path):
    model.save(tmp_path / "m")
    manifest = json.loads((tmp_path / "m" / MANIFEST).read_text(encoding="utf-8"))
    for key in ("n_labels", "n_documents", "members", "input", "plugin"):
        (tmp_path / "m" / MANIFEST).write_text(json.dumps({**manifest, key: HOSTILE}), encoding="utf-8")
        update_card(tmp_path / "m", {})
        assert not re.search(r"<|script", re.sub(r"`[^`\n]+`", "", page(tmp_path / "m"))), key


@pytest.mark.parametrize(("text", "shown"), [("a|b`c\n d", "`a\\|b'c d`"), ("", "`(empty)`"), (" \n", "`(empty)`")])
def test_code_spans_are_one_line(text, shown):
    assert code(text) == shown


def test_models_of_features_name_a_file_that_holds_features(tmp_path):
    lw.LinearFlat().fit(planted_features(60, 8)).save(tmp_path / "m")
    assert "labelwise predict MODEL documents.npz -o" in page(tmp_path / "m")
