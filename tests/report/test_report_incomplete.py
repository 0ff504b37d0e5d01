"""The report of a run that is incomplete, damaged or none, and where a report is written."""

from __future__ import annotations

import sys

import pytest
from made_up_run import changed_json, make_run
from reading_pages import page_of

from labelwise.errors import DataError, LabelwiseError, MissingDependencyError
from labelwise.report.run import write_report
from labelwise.report.run_files import FILES

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named_and_the_rest_is_shown(tmp_path, name):
    run = make_run(tmp_path / "run")
    (run / name).unlink()
    page = page_of(run)
    assert f"{name} is missing" in page.text
    assert page.text.count("is missing") == 1
    assert ("91.65" in page.text) == (name != "results.json")
    assert ("32000R0000" in page.text) == (name != "examples.jsonl")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", FILES)
def test_one_file_alone_makes_a_report(tmp_path, name):
    run = make_run(tmp_path / "run")
    for other in FILES:
        if other != name:
            (run / other).unlink()
    assert page_of(run).text.count("is missing") == len(FILES) - 1


@pytest.mark.usefixtures("quick")
def test_a_run_that_was_stopped_says_so(tmp_path):
    run = make_run(tmp_path / "run", curves=True)
    changed_json(run / "state.json", status="running", finished=None)
    assert "has not finished" not in page_of(run).text  # the report is written by the run itself, at its end
    (run / "results.json").unlink()
    page = page_of(run)
    assert "This run has not finished." in page.text
    assert page.inside("verdict") == "linear_tree on eurlex57k: not evaluated."
    assert len(page.attributes("svg")) == 2


@pytest.mark.usefixtures("quick")
def test_a_cut_last_line_of_the_metrics_is_left_out(tmp_path):
    run = make_run(tmp_path / "run", curves=True)
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"time": 3, "sta')
    assert "last line of metrics.jsonl is cut" in page_of(run).text


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("results.json", b"{", "not valid JSON"),
        ("results.json", b"[1, 2]", "damaged"),
        ("results.json", b"\xff\xfe", "not UTF-8"),
        ("results.json", b'{"split": "test"}', "evaluation"),
        ("results.json", b'{"evaluation": {"values": {"P@1": "much"}}}', "evaluation.values.P@1"),
        ("results.json", b'{"evaluation": {"values": {"P@1": 1e999}}}', "evaluation.values.P@1"),
        (
            "results.json",
            b'{"evaluation": {"values": {}, "groups": [{"name": 3, "recall": {"a": 1}}]}}',
            "recall",
        ),
        (
            "results.json",
            b'{"evaluation": {"values": {}}, "frequency_curve": {"rank": 3}}',
            "frequency_curve",
        ),
        ("results.json", b"[" * 100_000, "not valid JSON"),
        ("state.json", b"", "not valid JSON"),
        ("state.json", b'"finished"', "damaged"),
        ("machine.json", b'{"cores": "many"}', "cores"),
        ("metrics.jsonl", b'{"step": 1}\n{"step": \n{"step": 2}\n', "metrics.jsonl:2"),
        ("metrics.jsonl", b"{}\n{\n", "metrics.jsonl:2"),
        ("metrics.jsonl", b"5\n", "metrics.jsonl:1"),
        ("examples.jsonl", b'{"id": "a", "truth": [{"text": "no label"}]}\n', "examples.jsonl:1"),
        ("examples.jsonl", b'{"id": "a"}\n\n{"truth', "examples.jsonl:3"),
        ("labels.tsv", b"", "empty"),
        ("labels.tsv", b"label\ttrain\na\t1\nb\n", "labels.tsv:3"),
        ("labels.tsv", b"label\ttrain\na\tmany\n", "labels.tsv:2"),
        ("labels.tsv", b"label\ttrain\na\xff\t1\n", "not UTF-8"),
        ("config.yml", b"data: [", "config.yml:1"),
        ("config.yml", b"\xff", "not UTF-8"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, name, content, reported):
    run = make_run(tmp_path / "run")
    (run / name).write_bytes(content)
    with pytest.raises(LabelwiseError) as caught:
        write_report(run)
    assert name in str(caught.value)
    assert reported in str(caught.value)
    assert {path.name for path in run.iterdir()} == set(FILES)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(DataError, match="no such run folder"):
        write_report(tmp_path / "nothing")
    with pytest.raises(DataError, match="not a run folder"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_a_failure_leaves_the_old_report(tmp_path):
    run = make_run(tmp_path / "run")
    before = write_report(run).read_bytes()
    (run / "results.json").write_text("{", encoding="utf-8")
    with pytest.raises(LabelwiseError):
        write_report(run)
    assert (run / "report.html").read_bytes() == before
    with pytest.raises(LabelwiseError, match="folder"):
        write_report(make_run(tmp_path / "other"), tmp_path)


@pytest.mark.usefixtures("quick")
def test_the_path_can_be_chosen(tmp_path):
    run = make_run(tmp_path / "run")
    target = tmp_path / "deep" / "page.html"
    assert write_report(str(run), str(target)) == target
    assert target.is_file()
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, package):
    run = make_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"{package}.*labelwise\[report\]"):
        write_report(run)
    assert not (run / "report.html").exists()
