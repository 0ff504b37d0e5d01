"""The page of a study: its table in words, its pictures with texts, what is missing or damaged; the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from drawn import draw_files_of, draw_once
from made_up_study import OPTIMISER, WORDS, add_trial, course, every_verdict, inspection, optimiser_study, write_results
from reading_pages import Page

from labelwise.cli.report import report_command
from labelwise.errors import DataError
from labelwise.report.study import study_charts, study_values, summary, write_study_report
from labelwise.report.study_files import read_study_folder

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def page_of(folder):
    """The page without the charts' files, which take most of the time."""
    from labelwise.report.run import write_page

    study = read_study_folder(folder)
    write_page(folder / "page.html", "study.html", study_values(study, study_charts(study)))
    source = (folder / "page.html").read_text(encoding="utf-8")
    return Page(source), source


def one_setting(folder, values, lines, inside=None, **trial):
    """A study with one setting of one trial."""
    add_trial(folder, "only", values, lines, inside)
    return write_results(folder, "P@1", [("", values, {"only": {"status": "finished", **trial}})])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = every_verdict(tmp_path_factory.mktemp("study"))
    with pytest.MonkeyPatch.context() as patch:
        draw_files_of(patch, "settings")
        return folder, write_study_report(folder)


def test_the_page_and_every_chart_as_files(whole):
    folder, written = whole
    names = ["settings", "curves", "by-rate", "collapse", "points", "attention-1", "layers-1", "layers-2", "layers-3"]
    assert written == [folder / "report.html", *(folder / "plots" / f"{n}.{k}" for n in names for k in ("svg", "png"))]
    for path in written[1:]:
        assert path.read_bytes().startswith(b"<?xml" if path.suffix == ".svg" else b"\x89PNG\r\n")


def test_the_page_is_complete_in_itself_and_has_texts_for_pictures(whole):
    folder, _ = whole
    source = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(source)
    assert "http" not in re.sub(r'http-equiv="', "", source)
    pictures = [attributes for attributes in page.attributes("svg") if "chart" in attributes.get("class", "")]
    assert len(pictures) == 9
    for picture in pictures:
        assert picture["role"] == "img"
        assert len(picture["aria-label"]) > 40
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "a")
        for key in ("href", "src"):
            assert attributes.get(key, "#").startswith(("#", "data:image/png;base64,")), (tag, attributes)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    # three runs with three layers side by side, each of them with all four; a scale of colours each time
    assert len(page.attributes("image")) == (3 * 3 + 1) + 3 * (4 + 1)


def test_the_table_tells_verdict_reason_and_remedy(whole):
    folder, _ = whole
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    head, *rows = page.tables["study-table"]
    assert head == ["rate", "P@1, %", "test, %", "final loss", "time", "verdict, reason, remedy"]
    by_rate = {row[0]: row for row in rows}
    assert list(by_rate) == ["0.1", "0.01", "1e-3", "1e-4", "1e-6"]
    assert by_rate["1e-4"][1:5] == ["79.81", "50.00", "0.0021", "1 min 00 s"]
    assert by_rate["0.1"][3] == "not a number"
    for row, verdict in zip(rows, ("diverged", "collapsed", "on the plateau", "healthy", "under-trained"), strict=True):
        reason, remedy = WORDS[verdict]
        assert row[-1] == f"{verdict}: {reason}." + (f" {remedy}." if remedy else "")
    reported = page.inside("summary")
    assert reported.startswith("5 settings, chosen by P@1 on held-out documents. The best is rate 1e-4 with 79.81 %.")
    assert reported.endswith("1 healthy, 1 on the plateau, 1 under-trained, 1 collapsed, 1 diverged.")
    assert "fruit &amp; &lt;vegetable&gt;" in (folder / "report.html").read_text(encoding="utf-8")


def test_seeds_are_a_mean_with_its_spread(tmp_path):
    study = read_study_folder(optimiser_study(tmp_path))
    values = study_values(study, {})
    assert values["columns"][:5] == ["group", "optimiser", "rate", "weight decay", "P@1, %"]
    row = next(row for row in values["rows"] if row["cells"][:4] == ["adamw", "adamw", "1e-4", "0.01"])
    assert row["cells"][4] == "76.81 ± 1.41"
    assert [one["name"] for one in row["verdicts"]] == ["2 × healthy"]
    assert len(values["rows"]) == 21
    assert len(values["trials"]) == 2 * 19


def test_a_failed_trial_is_told_and_not_drawn(tmp_path):
    path = f"{OPTIMISER}.rate"
    add_trial(tmp_path, "good", {path: 1e-4}, course("healthy"))
    add_trial(tmp_path, "bad", {path: 1e9}, None)
    add_trial(tmp_path, "slow", {path: 1e-7}, course("under-trained", epochs=1))
    trials = [
        ("", {path: 1e-4}, {"good": {"status": "finished", "value": 0.8, "seconds": 9.0, "verdict": "healthy"}}),
        ("", {path: 1e-7}, {"slow": {"status": "stopped as hopeless", "value": 0.01, "verdict": "under-trained"}}),
        ("", {path: 1e9}, {"bad": {"status": "failed", "value": None, "message": "<b>killed</b> by signal 9"}}),
    ]
    page, source = page_of(write_results(tmp_path, "P@1", trials))
    bad = page.tables["study-table"][3]
    assert bad[:4] == ["1e9", "–", "–", "–"]
    assert bad[-1] == "failed: <b>killed</b> by signal 9"
    assert "<b>killed" not in source
    assert page.tables["study-table"][2][-1].endswith("stopped as hopeless")
    assert page.inside("summary").endswith("1 failed.")
    charts = study_charts(read_study_folder(tmp_path))
    assert "1e9: loss" not in charts["by-rate"].description


def test_a_setting_of_which_a_seed_failed_is_not_called_the_best(tmp_path):
    path = f"{OPTIMISER}.rate"
    trials = [
        ("", {path: 1e-4}, {name: {"status": "finished", "value": 0.7} for name in ("a", "b")}),
        ("", {path: 1e-3}, {"c": {"status": "finished", "value": 0.9}, "d": {"status": "failed", "value": None}}),
    ]
    for _, values, entries in trials:
        for name in entries:
            add_trial(tmp_path, name, values, None)
    page, _ = page_of(write_results(tmp_path, "P@1", trials))
    assert "The best is rate 1e-4 with 70.00 %." in page.inside("summary")


def test_a_trial_without_validation_has_its_loss_alone(tmp_path):
    lines = course("collapsed", validated=False)
    folder = one_setting(tmp_path, {f"{OPTIMISER}.rate": 1.0}, lines, value=0.05, verdict="collapsed")
    charts = study_charts(read_study_folder(folder))
    assert set(charts) == {"curves", "collapse"}
    assert "P@1" not in charts["curves"].description
    page, _ = page_of(folder)
    assert page.tables["study-table"][1][0] == "5.00"


def test_a_study_in_which_all_failed(tmp_path):
    folder = one_setting(tmp_path, {"model.a": 1}, None, status="failed", message="no memory")
    page, _ = page_of(folder)
    assert page.attributes("svg") == []
    assert page.tables["study-table"][1][-1] == "failed: no memory"
    assert summary(read_study_folder(folder)) == "1 setting, chosen by P@1 on held-out documents. 1 failed."


def test_names_cannot_break_the_page(tmp_path):
    evil = '<script>alert("x")</script>$\\frac{1}{$--><img src=x>'
    inside = inspection("healthy", documents=1)
    inside["attention"][0]["tokens"][1] = evil
    inside["points"]["labels"][0] = evil
    add_trial(tmp_path, "a", {"model.word": evil}, course("healthy"), inside)
    add_trial(tmp_path, "b", {"model.word": "plain"}, course("collapsed"))
    trial = {"status": "finished", "value": 0.5, "verdict": "healthy", "message": evil}
    settings = [("", {"model.word": evil}, {"a": trial}), ("", {"model.word": "plain"}, {"b": trial})]
    page, source = page_of(write_results(tmp_path, "P@1", settings))
    assert "<script" not in source
    assert page.attributes("img") == []
    assert evil in page.tables["study-table"][1][0]


# --- damaged and missing files ------------------------------------------------------------------------


def test_a_study_that_has_not_ended(tmp_path):
    (tmp_path / "trials").mkdir()
    with pytest.raises(DataError, match=r"results\.json is missing: the sweep has not finished"):
        report_command(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"rows": [{"P@1": 1, "trials": ["nobody"]}]}, "does not name its trials"),
        ({"rows": [{"trials": []}]}, "lacks the metric"),
        ({"metric": None}, "metric"),
        ({"trials": {"../../etc": {}}}, "not the name of a trial"),
        ({"trials": {"x": {"value": "much"}}}, "value"),
    ],
)
def test_damaged_results_are_reported(tmp_path, change, reported):
    folder = one_setting(tmp_path, {"model.a": 1}, None)
    whole = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps({**whole, **change}))
    with pytest.raises(DataError, match=reported):
        read_study_folder(folder)


@pytest.mark.parametrize("change", [{"x": [1.0]}, {"colours": [9] * 60}, {"y": None}])
def test_a_damaged_inspection_is_told(tmp_path, change):
    inside = inspection("healthy")
    inside["points"] |= change
    folder = one_setting(tmp_path, {"model.a": 1}, course("healthy"), inside)
    with pytest.raises(DataError, match=r"inspection\.json: damaged: points"):
        read_study_folder(folder)


def test_maps_must_be_square(tmp_path):
    inside = inspection("healthy")
    inside["attention"][1]["weights"][0].pop()
    folder = one_setting(tmp_path, {"model.a": 1}, course("healthy"), inside)
    with pytest.raises(DataError, match="square matrix over the tokens"):
        read_study_folder(folder)


# --- the command --------------------------------------------------------------------------------------


def test_report_of_a_study_replaces_foreign_charts_only_when_forced(tmp_path, capsys, monkeypatch):
    draw_once(monkeypatch)
    folder, plots = tmp_path / "study", tmp_path / "plots"
    one_setting(folder, {"model.a": 1}, course("healthy", epochs=2), value=0.5, verdict="healthy")
    report_command(str(folder), str(plots))
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"written: {folder / 'report.html'}", f"written: {plots / 'curves.svg'}",
    ]  # fmt: skip
    (plots / "curves.png").write_bytes(b"mine")
    with pytest.raises(DataError, match="exists already; --force replaces it"):
        report_command(str(folder), str(plots))
    assert (plots / "curves.png").read_bytes() == b"mine"
    report_command(str(folder))
    report_command(str(folder))
    assert sorted(path.name for path in (folder / "plots").iterdir()) == [
        "collapse.png", "collapse.svg", "curves.png", "curves.svg",
    ]  # fmt: skip


def test_a_report_never_needs_torch(tmp_path):
    one_setting(tmp_path, {"model.a": 1}, course("healthy", epochs=2), inspection("healthy", 1, 6, 1), value=0.5)
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from labelwise.report.study import write_study_report\n"
        f"write_study_report({str(tmp_path)!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "plots" / "points.png").exists()
