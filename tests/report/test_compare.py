"""Runs side by side: the best is marked where, and only where, figures can be compared."""

from __future__ import annotations

import json
import re

import pytest
from made_up_run import make_run, write_json
from reading_pages import Page

from labelwise.errors import ConfigError, DataError
from labelwise.report.compare import compare_runs, write_comparison


@pytest.fixture
def three(tmp_path):
    return [
        make_run(tmp_path / "a", name="tree", fit=13.4),
        make_run(tmp_path / "b", name="attention", method="attention_xml", gain=0.01, fit=4210.0),
        make_run(tmp_path / "c", name="hybrid", method="hybrid_linear", gain=0.01, fit=61.0),
    ]


def changed(path, change) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    write_json(path, values)


def best(comparison, column) -> list[str]:
    return [row.name for row in comparison.rows if row.cells[column].best]


def test_the_best_of_every_column_is_marked(three):
    changed(three[0] / "results.json", lambda r: r["model"].update(bytes=10))
    changed(three[1] / "results.json", lambda r: r["timings"].update(predict_documents_per_second=9999.0))
    comparison = compare_runs(three)
    assert [row.name for row in comparison.rows] == ["tree", "attention", "hybrid"]
    assert best(comparison, "P@1") == ["attention", "hybrid"]  # equal figures are equally good
    assert best(comparison, "PSP@5") == ["attention", "hybrid"]
    assert best(comparison, "training") == ["tree"]
    assert best(comparison, "documents a second") == ["attention"]
    assert best(comparison, "model size") == ["tree"]
    assert best(comparison, "peak memory") == []  # all alike: nothing is best
    assert best(comparison, "tail, top 5") == []
    assert comparison.rows[1].cells["P@1"].text == "92.65"
    assert comparison.rows[1].cells["P@1"].value == pytest.approx(0.9265)
    assert comparison.notes == ()


def test_the_size_of_a_refitted_run_is_that_of_its_saved_model(three):
    refit = {"n_documents": 60_000, "n_judged": 45_000, "bytes": 99_000_000}
    changed(three[0] / "results.json", lambda r: r.update(refit=refit))
    assert [row.cells["model size"].text for row in compare_runs(three).rows] == ["99.0 MB", "88.4 MB", "88.4 MB"]


def test_best_is_what_an_independent_look_says(tmp_path):
    gains = [0.013, -0.2, 0.0301, 0.0, 0.03]
    runs = [make_run(tmp_path / str(i), name=f"r{i}", gain=gain, fit=5.0 + i) for i, gain in enumerate(gains)]
    comparison = compare_runs(runs)
    for column in comparison.columns_of("score"):
        values = {row.name: row.cells[column.name].value for row in comparison.rows}
        assert best(comparison, column.name) == [max(values, key=values.get)] == ["r2"]


def test_markdown(three):
    text = compare_runs(three).to_markdown()
    scores, costs = text.strip().split("\n\n")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in scores.splitlines()]
    assert lines[0][:4] == ["run", "method", "P@1", "P@3"]
    assert len({len(line) for line in lines}) == 1
    assert lines[2][:3] == ["tree", "linear_tree", "91.65"]
    assert lines[3][:3] == ["attention", "attention_xml", "**92.65**"]
    assert "| tree | linear_tree | **13.4 s** | 4,225 | 88.4 MB | 1.3 GB |" in costs


def test_names_cannot_break_a_markdown_table(tmp_path):
    runs = [make_run(tmp_path / "a", name="x|y\n**z** <b>"), make_run(tmp_path / "b", name="plain")]
    line = compare_runs(runs).to_markdown().splitlines()[2]
    assert line.startswith(r"| x\|y \*\*z\*\* \<b\> | linear_tree | 91.65 |")


def test_plain_data(three):
    plain = json.loads(json.dumps(compare_runs(three).to_dict(), allow_nan=False))
    assert [run["name"] for run in plain["runs"]] == ["tree", "attention", "hybrid"]
    assert plain["runs"][0]["values"]["training"] == 13.4
    assert plain["runs"][0]["best"] == ["training"]
    assert plain["runs"][1]["n_documents"] == 6000
    assert {"name": "training", "kind": "cost", "higher_is_better": False} in plain["columns"]


@pytest.mark.parametrize("difference", [{"n_documents": 5999}, {"data_name": "other"}])
def test_different_test_documents_are_not_comparable(tmp_path, difference):
    runs = [
        make_run(tmp_path / "a", name="a"),
        make_run(tmp_path / "b", name="b", gain=0.01, fit=1.0, **difference),
    ]
    comparison = compare_runs(runs)
    assert len(comparison.notes) == 1
    assert "not comparable" in comparison.notes[0]
    assert "eurlex57k/test.tsv" in comparison.notes[0]
    assert not any(cell.best for row in comparison.rows for cell in row.cells.values())
    assert "not comparable" in comparison.to_markdown()
    source = write_comparison(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "not comparable" in Page(source).text


def test_the_place_of_the_same_files_does_not_matter(tmp_path):
    runs = [make_run(tmp_path / "a", name="a"), make_run(tmp_path / "b", name="b", gain=0.01)]
    changed(
        runs[1] / "results.json",
        lambda r: r["data"]["test"].update(name="/elsewhere/data/eurlex57k/test.tsv"),
    )
    assert best(compare_runs(runs), "P@1") == ["b"]


def test_times_on_different_machines_are_not_ranked(three):
    changed(three[1] / "machine.json", lambda machine: machine.update(threads=64))
    comparison = compare_runs(three)
    assert "times are not comparable" in comparison.notes[0]
    assert best(comparison, "training") == []
    assert best(comparison, "P@1") == ["attention", "hybrid"]


def test_different_propensities_and_training_sizes_are_told(three):
    changed(three[0] / "results.json", lambda r: r["evaluation"]["propensity"].update(A=0.6))
    changed(three[0] / "results.json", lambda r: r["data"]["train"].update(documents=100))
    comparison = compare_runs(three)
    reported = "The propensities differ in the constant A (0.55; 0.6), so the PSP figures are not comparable."
    assert reported in comparison.notes
    assert [note for note in comparison.notes if "trained on different numbers" in note]
    assert best(comparison, "PSP@1") == []
    assert best(comparison, "P@1") == ["attention", "hybrid"]


def test_propensities_that_differ_in_the_training_documents_alone(three):
    changed(three[1] / "results.json", lambda r: r["evaluation"]["propensity"].update(N=9527))
    comparison = compare_runs(three)
    reported = "The propensities differ in N, the number of training documents (9,527; 45,000), so the PSP figures"
    assert [note.startswith(reported) for note in comparison.notes] == [True]
    assert best(comparison, "PSP@1") == []


def test_costs_that_hardly_differ_are_equally_good(three):
    for run, seconds, rate in zip(three, (10.0, 10.9, 11.1), (950_000.0, 1_000_000.0, 1_030_000.0), strict=True):
        changed(
            run / "results.json",
            lambda r, s=seconds, d=rate: r["timings"].update(fit=s, predict_documents_per_second=d),
        )
    comparison = compare_runs(three)
    assert best(comparison, "training") == ["tree", "attention"]
    assert best(comparison, "documents a second") == []
    assert comparison.mark_meaning("cost") == ("marks the best of each column; within 10 % of the best counts as equal")
    assert comparison.mark_meaning("group") is None


def test_the_mark_is_only_explained_where_it_is_used(tmp_path):
    runs = [make_run(tmp_path / "a", name="a"), make_run(tmp_path / "b", name="b")]
    assert "★" not in write_comparison(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    runs.append(make_run(tmp_path / "c", name="c", gain=0.01))
    page = Page(write_comparison(runs, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.text.count("★ marks the best of each column") == 1


def test_sizes_of_groups_stand_under_bars_only_where_all_runs_agree(three, tmp_path):
    def sizes() -> list[str]:
        source = write_comparison(three, tmp_path / "page.html").read_text(encoding="utf-8")
        return re.findall(r">([\d,]+ labels)<", source)

    assert sizes() == ["612 labels", "1,530 labels", "2,129 labels", "163 labels"]
    changed(three[1] / "results.json", lambda r: r["evaluation"]["groups"][0].update(n_labels=600))
    assert sizes() == []


def test_a_run_without_results_is_listed_and_named(three, tmp_path):
    (three[2] / "results.json").unlink()
    comparison = compare_runs(three)
    assert comparison.rows[2].cells["P@1"].text == "–"
    assert best(comparison, "P@1") == ["attention"]
    assert "not evaluated: hybrid" in comparison.notes[0]
    write_comparison(three, tmp_path / "page.html")
    for run in three[:2]:
        (run / "results.json").unlink()
    assert compare_runs(three).columns == ()
    write_comparison(three, tmp_path / "page.html")


def test_metrics_that_only_some_runs_have(three):
    changed(three[0] / "results.json", lambda r: r["evaluation"]["values"].update({"RP@5": 0.5}))
    comparison = compare_runs(three)
    assert [row.cells["RP@5"].text for row in comparison.rows] == ["50.00", "–", "–"]
    assert best(comparison, "RP@5") == []


def test_the_page(three, tmp_path):
    path = write_comparison(three, tmp_path / "deep" / "page.html")
    page = Page(path.read_text(encoding="utf-8"))
    rows = page.tables["comparison-table"]
    assert rows[0][:3] == ["run", "method", "P@1"]
    assert rows[2][:3] == ["attention", "attention_xml", "92.65 ★"]
    assert ["tree", "13.4 s ★", "4,225", "88.4 MB", "1.3 GB"] in rows
    marked = [text for text, attributes in page.cells if attributes.get("class") == "best"]
    assert marked
    assert all(text.endswith("★") for text in marked)
    titles = [a["aria-label"].partition(".")[0] for a in page.attributes("svg")]
    assert titles == ["P@k", "nDCG@k", "PSP@k", "P@1 against training time", "Recall@5 from head to tail"]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not [a for a in page.tags if a[0] in ("script", "link", "img")]
    before = path.read_bytes()
    assert write_comparison(three, tmp_path / "again.html").read_bytes() == before


def test_many_runs_make_one_small_page(tmp_path):
    runs = [make_run(tmp_path / f"r{i}", name=f"run number {i} of a sweep", gain=-i / 100) for i in range(30)]
    path = write_comparison(runs, tmp_path / "page.html")
    assert path.stat().st_size < 1_000_000
    text = Page(path.read_text(encoding="utf-8")).text
    assert "run number 29 of a sweep" in text
    assert "the first 24 runs" in text


def test_names_are_told_apart(tmp_path):
    run, other = make_run(tmp_path / "a", name="same"), make_run(tmp_path / "b", name="same")
    names = [row.name for row in compare_runs([run, other, run]).rows]
    assert len(set(names)) == 3
    assert all(name.startswith("same (") for name in names)
    assert names[2].endswith("#2")


def test_evil_names_are_escaped(tmp_path):
    evil = "<script>alert(1)</script>$\\frac{$"
    runs = [make_run(tmp_path / "a", name=evil, method=evil), make_run(tmp_path / "b", name="b", gain=0.1)]
    page = Page(write_comparison(runs, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "script" not in {tag for tag, _ in page.tags}
    assert evil in page.text


def test_too_few_runs_or_none_at_all(tmp_path, three):
    with pytest.raises(ConfigError, match="at least two"):
        compare_runs(three[:1])
    with pytest.raises(ConfigError, match="at least two"):
        compare_runs(three[0])
    with pytest.raises(DataError, match="no such run folder"):
        write_comparison([three[0], tmp_path / "nothing"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
