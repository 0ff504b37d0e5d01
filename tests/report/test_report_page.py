"""The report of a run: what is on it, and that it is safe and self-contained."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys

import pytest
from made_up_run import changed_json, make_run, write_card_of_model, write_json, write_lines
from reading_pages import Page, page_of

from labelwise.metrics.formulas import GroupRow, Propensity
from labelwise.metrics.result import Evaluation
from labelwise.model.card import Card, Change
from labelwise.report.run import write_report
from labelwise.report.run_files import read_run

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run with all charts, and the bytes of its report."""
    run = make_run(tmp_path_factory.mktemp("runs") / "first", curves=True)
    return run, write_report(run).read_bytes()


@pytest.fixture(scope="module")
def page(written) -> Page:
    return Page(written[1].decode())


def test_the_verdict_names_method_data_scores_and_time(page):
    assert page.inside("verdict") == (
        "linear_tree on eurlex57k: P@1 91.65 %, P@3 81.79 %, P@5 68.68 % on 6,000 test documents; "
        "trained in 13.4 s; 4,225 documents per second at prediction."
    )
    assert "linear-tree" in page.text


def test_the_score_table_has_every_metric_with_interval_and_baseline(page):
    head, *rows = page.tables["score-table"]
    assert head == ["metric", "%", "95 % interval", "popularity"]
    assert [row[0] for row in rows] == [
        "P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@5",
    ]  # fmt: skip
    assert rows[0] == ["P@1", "91.65", "91.05 – 92.20", "13.91"]
    assert rows[8] == ["R@5", "71.04", "70.44 – 71.59", "9.74"]
    assert "A 0.55, B 1.5, N 45,000" in page.text


def test_the_group_and_data_tables(page):
    head, *rows = page.tables["group-table"]
    assert head[:5] == ["group", "labels", "true occurrences", "of all occurrences, %", "recall@1, %"]
    assert rows[2] == ["tail", "2,129", "1,100", "3.7", "3.00", "14.00", "21.00", "0.45", "1.10", "1.18"]
    facts = {row[0]: row[1:] for row in page.tables["data-table"]}
    assert facts["documents"] == ["45,000", "6,000"]
    assert facts["labels with at most 5 documents, %"] == ["41.27", "41.27"]
    assert facts["max labels"] == ["26", "26"]
    assert facts["labels in the label space"] == ["4,271", "4,271"]
    assert facts["labels that occur"] == ["4,108", "2,876"]


@pytest.mark.usefixtures("quick")
def test_the_label_table_names_the_predictions_that_count(page, tmp_path):
    assert "Predictions that count: the best 5 labels of each document." in page.text
    run = make_run(tmp_path / "run")
    changed_json(run / "results.json", label_counts={"threshold": 0.25, "k": None})
    assert "Predictions that count: labels that reach the threshold of 0.25" in page_of(run).text


def test_true_labels_that_were_never_trained_are_counted_both_ways(page):
    assert "163 distinct true labels (90 occurrences) never occur in the training documents." in page.text


@pytest.mark.usefixtures("quick")
def test_a_model_that_has_changed_since_it_was_judged(tmp_path):
    run = make_run(tmp_path / "run")
    card = Card().with_change("trained on all documents", refit=True)
    write_card_of_model(run, card)
    assert "has changed" not in page_of(run).text
    learned = tuple(Change(at="2026-03-04T05:06:07Z", what=f"learned {n} documents") for n in (100, 200, 300, 400))
    write_card_of_model(run, card.model_copy(update={"changes": card.changes + learned}))
    changes = ", ".join(f"learned {n} documents (2026-03-04)" for n in (200, 300, 400))
    assert f"The model has changed since it was judged: {changes}, and 1 before." in page_of(run).text
    (run / "model" / "manifest.json").write_text("{")
    assert "Whether the model has changed since it was judged is not known" in page_of(run).text


@pytest.mark.usefixtures("quick")
def test_sizes_and_times_of_a_refitted_run(tmp_path):
    run = make_run(tmp_path / "run")
    refit = {"n_documents": 60_000, "n_judged": 45_000, "n_labels": 4400, "bytes": 99_000_000, "seconds": 21.5}
    changed_json(run / "results.json", refit=refit)
    page = page_of(run)
    costs = {row[0]: row[1] for row in page.tables["cost-table"]}
    assert (costs["model on disk"], costs["labels in the model"]) == ("99.0 MB", "4,400")
    assert (costs["fit"], costs["refit (training on all documents)"]) == ("13.4 s", "21.5 s")
    assert "88.4 MB" not in page.text


def test_costs_machine_and_config(page):
    costs = {row[0]: row[1] for row in page.tables["cost-table"]}
    assert costs["fit"] == "13.4 s"
    assert costs["evaluate"] == "610 ms"
    assert costs["peak memory"] == "1.3 GB"
    assert costs["model on disk"] == "88.4 MB"
    about = page.inside("about")
    assert "Some Processor 8000 @ 2.40GHz, 2 threads, 4 cores, 16.7 GB" in about
    assert "numpy 2.2.0" in about
    assert "max_leaf: 100" in about
    assert "KDD 2016" in about


def test_all_charts_are_there_and_described(page):
    charts = [attributes for attributes in page.attributes("svg") if attributes.get("class") == "chart"]
    titles = [chart["aria-label"].partition(".")[0] for chart in charts]
    assert titles == [
        "Scores by k",
        "Recall from head to tail",
        "Where the correct predictions come from",
        "Precision and recall by label frequency",
        "How often labels occur",
        "loss",
        "P@1",
    ]
    assert "tail: 3.00 in the top 1, 14.00 in the top 3, 21.00 in the top 5" in charts[1]["aria-label"]
    assert "fit valid: from " in charts[5]["aria-label"]
    assert all(chart["role"] == "img" and "viewbox" in chart for chart in charts)


def test_ids_are_unique_and_references_lead_to_them(page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = [attributes["href"].removeprefix("#") for attributes in page.attributes("use")]
    for _, attributes in page.tags:
        used += re.findall(r"url\(#([^)]+)\)", " ".join(attributes.values()))
    assert used
    assert set(used) <= set(ids)


def test_nothing_is_loaded_from_elsewhere(page, written):
    source = written[1].decode()
    assert not {tag for tag, _ in page.tags} & {"link", "img", "iframe", "object", "embed", "base"}
    for _, attributes in page.tags:
        for key, value in attributes.items():
            assert not key.startswith("on")
            if key in ("src", "href", "xlink:href", "action", "data", "srcset"):
                assert value.startswith("#")
            assert "//" not in value
    assert "@import" not in source
    assert not re.search(r"url\((?!#)", source)
    policies = [a["content"] for a in page.attributes("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.S)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policies == [f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"]


def test_examples_mark_what_is_right(page):
    rows = page.tables[""]
    assert rows[0] == ["✓ import refund (2356)", "", "0.97"]
    assert rows[2] == ["✗ fruit vegetable (1644)", "", "0.323"]
    assert "32000R0000" in page.text
    assert "15 documents. " in page.text
    widths = [a["style"] for a in page.attributes("span") if a.get("class") == "bar"]
    assert widths[:2] == ["width: 97.0%", "width: 48.5%"]


@pytest.mark.usefixtures("quick")
def test_bars_of_scores_that_are_no_probabilities(tmp_path):
    run = make_run(tmp_path / "run")
    labels = [("a", 6.0), ("b", 2.0), ("c", -2.0), ("d", None)]
    predicted = [{"label": label, "text": None, "score": score, "correct": False} for label, score in labels]
    write_lines(run / "examples.jsonl", [{"id": 7, "text": None, "truth": [], "predicted": predicted}])
    page = page_of(run)
    widths = [a["style"] for a in page.attributes("span") if a.get("class") == "bar"]
    assert widths[:4] == ["width: 100.0%", "width: 50.0%", "width: 0.0%", "width: 0.0%"]
    assert page.tables[""][3] == ["✗ d", "", "–"]


@pytest.mark.usefixtures("quick")
def test_the_label_table_shows_the_most_frequent_and_a_few_rare(tmp_path):
    run = make_run(tmp_path / "run")
    counts = {f"l{i}": (i * 7919) % 1000 for i in range(500)}
    lines = ["label\ttext\ttrain\ttest\tprecision"]
    lines += [f"{label}\t\t{count}\t{count % 2}\t0.25" for label, count in counts.items()]
    (run / "labels.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = read_run(run).labels
    assert table.n_rows == 500
    assert [row[0] for row in table.frequent] == sorted(counts, key=counts.get, reverse=True)[:20]
    allowed = {label for label, count in counts.items() if 0 < count < 10 and count % 2}
    assert {row[0] for row in table.rare} == allowed
    head, *rows = page_of(run).tables["label-table"]
    assert head == ["label", "train", "test", "precision, %"]
    assert rows[0] == ["l321", "999", "1", "25.0"]


def test_the_draw_of_rare_labels_is_fixed_and_inside_the_rare(tmp_path):
    run = make_run(tmp_path / "run")
    rows = "".join(f"l{i}\t{1 + i % 12}\t1\n" for i in range(5000))
    (run / "labels.tsv").write_text("label\ttrain\ttest\n" + rows, encoding="utf-8")
    table = read_run(run).labels
    assert len(table.rare) == 20
    assert all(int(row[1]) < 10 for row in table.rare)
    assert len({row[0] for row in table.rare}) == 20
    assert table == read_run(run).labels
    assert max(int(row[0][1:]) for row in table.rare) > 2500


def test_the_same_files_give_the_same_bytes(written, tmp_path):
    run, first = written
    program = (
        "import sys\n"
        "from labelwise.report.run import write_report\n"
        "import labelwise.report.compare\n"
        "assert not {'matplotlib', 'jinja2', 'numba'} & set(sys.modules)\n"
        "write_report(sys.argv[1], sys.argv[2])\n"
    )
    arguments = [sys.executable, "-c", program, str(run), str(tmp_path / "again.html")]
    environment = {
        "PYTHONPATH": ":".join(sys.path),
        "PYTHONHASHSEED": "12345",
        "HOME": str(tmp_path),
        "PATH": "",
    }
    subprocess.run(arguments, check=True, env=environment)
    assert (tmp_path / "again.html").read_bytes() == first


def test_the_users_matplotlib_settings_do_not_matter(written, tmp_path):
    import matplotlib

    run, first = written
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False, "svg.fonttype": "path"}):
        assert write_report(run, tmp_path / "again.html").read_bytes() == first
        assert matplotlib.rcParams["font.size"] == 30


EVIL = '<script>alert("x")</script>&amp;$\\frac{1}{$<img src=x onerror=alert(1)>--><!--'


def test_all_that_comes_from_files_is_escaped(tmp_path):
    run = make_run(tmp_path / "run", name=EVIL, curves=True)
    changed_json(run / "state.json", method=EVIL)
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    evaluation = results["evaluation"]
    evaluation["values"] |= {f"{EVIL}@1": 0.5, f"{EVIL}@3": 0.25}
    evaluation["groups"][0]["name"] = EVIL
    evaluation["ties"][f"{EVIL}@1"] = [0.1, 0.9]
    results["baseline"]["method"] = EVIL
    results["split"] = EVIL
    results["data"]["train"] |= {EVIL: EVIL, "name": EVIL}
    results["data"][EVIL] = {"name": EVIL}
    results["timings"][EVIL] = 1.0
    results["model"][EVIL] = EVIL
    write_json(run / "results.json", results)
    changed_json(run / "machine.json", cpu=EVIL, packages={EVIL: EVIL})
    example = {"id": EVIL, "text": EVIL, "truth": [{"label": EVIL, "text": EVIL, "count": 1}]}
    write_lines(run / "examples.jsonl", [example | {"predicted": [{"label": EVIL, "text": EVIL, "score": 0.1}]}])
    (run / "config.yml").write_text(f"data:\n  path: '{EVIL}'\n", encoding="utf-8")
    (run / "labels.tsv").write_text(f"label\ttrain\t{EVIL}\n{EVIL}\t5\t{EVIL}\n", encoding="utf-8")
    write_lines(run / "metrics.jsonl", [{"stage": EVIL, "split": EVIL, "step": s, EVIL: s * 0.5} for s in range(3)])
    page = page_of(run)
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
    assert page.text.count('<script>alert("x")</script>&amp;$\\frac') > 8
    assert EVIL in page.inside("examples")


def test_odd_characters_do_no_harm(tmp_path):
    run = make_run(tmp_path / "run", name="标签 \ud800 \x00\x1b مرحبا")
    entries = [{"stage": "f\ud800", "step": s, "P\x00@1": s / 9, "標籤": s} for s in range(4)]
    write_lines(run / "metrics.jsonl", entries)
    example = {"id": "\x00", "text": "half \ud83d a character", "truth": [], "predicted": []}
    write_lines(run / "examples.jsonl", [example])
    assert "标签 مرحبا" in page_of(run).text


def test_a_large_run_stays_a_small_page(tmp_path):
    run = make_run(tmp_path / "run")
    long = "word " * 20_000
    label = {"label": "x" * 500, "text": "meaning " * 200, "count": 1, "score": 0.5, "correct": True}
    example = {"id": long, "text": long, "truth": [label] * 50, "predicted": [label] * 50}
    write_lines(run / "examples.jsonl", [example] * 20)
    entries = [
        {"stage": "fit", "split": f"s{s % 3}", "step": s, **{f"number_{i}": (s * i) % 97 for i in range(30)}}
        for s in range(3000)
    ]
    write_lines(run / "metrics.jsonl", entries)
    (run / "config.yml").write_text("data: {}\n# " + "x" * 500_000 + "\n", encoding="utf-8")
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    ranks = list(range(1, 50_000))
    results["frequency_curve"] = {"rank": ranks, "count": [100_000 // rank for rank in ranks]}
    write_json(run / "results.json", results)
    assert write_report(run).stat().st_size < 1_000_000


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("ties", "reported"), [(0.0004, False), (0.002, True)])
def test_ties_are_reported_where_they_matter(tmp_path, ties, reported):
    text = page_of(make_run(tmp_path / "run", ties=ties)).text
    assert ("Labels with equal scores can be ranked in any order" in text) == reported
    assert ("P@1 91.45 – 91.85" in text) == reported
    assert (
        "Lower bounds, because ties extend beyond the last predicted label: P@1 (in 3 documents)." in text
    ) == reported


@pytest.mark.usefixtures("quick")
def test_ties_that_are_cut_off_are_told_even_where_the_range_is_narrow(tmp_path):
    run = make_run(tmp_path / "run", ties=0.0)
    assert "stand in any order" not in page_of(run).text
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    results["evaluation"]["ties_cut_off"] = {"P@1": 3, "P@3": 1200}
    write_json(run / "results.json", results)
    assert "P@3 81.79 – 81.79. Lower bounds, because ties extend beyond the last predicted label: P@3 (in 1,200" in (
        page_of(run).text
    )


@pytest.mark.usefixtures("quick")
def test_long_names_may_break_at_separators_and_stay_escaped(tmp_path):
    run = make_run(tmp_path / "run", name="a_b/<i>&_c")
    changed_json(run / "results.json", data={"test": {"name": "/deep/test_texts/<b>", "documents": 12000}})
    source = write_report(run).read_text(encoding="utf-8")
    assert "<h1>a_<wbr>b/<wbr>&lt;i&gt;&amp;_<wbr>c</h1>" in source
    assert "<td>/<wbr>deep/<wbr>test_<wbr>texts/<wbr>&lt;b&gt;</td>" in source
    assert "<td>12,000</td>" in source
    page = Page(source)
    assert "a_b/<i>&_c" in page.text
    assert ["name", "/deep/test_texts/<b>"] in page.tables["data-table"]


@pytest.mark.usefixtures("quick")
def test_what_an_evaluation_writes_is_what_a_report_reads(tmp_path):
    run = make_run(tmp_path / "run")
    evaluation = Evaluation(
        values={"P@1": 0.5, "macro-F1": 0.125},
        n_documents=8,
        n_without_labels=2,
        n_unseen_labels=1,
        intervals={"P@1": (0.25, 0.75)},
        groups=[
            GroupRow("head", 100, None, 4, 3, 10, 1.0, {1: 0.5}, {1: 0.4}),
            GroupRow("unseen", 0, 0, 2, 0, 0, 0.0, {1: 0.0}, {1: 0.0}),
        ],
        ties={"P@1": (0.25, 0.5)},
        ties_cut_off={"P@1": 0},
        propensity=Propensity(0.6, 2.6, 1000),
    )
    changed_json(run / "results.json", evaluation=evaluation.to_dict(), baseline=None)
    page = page_of(run)
    head, *rows = page.tables["score-table"]
    assert head == ["metric", "%", "95 % interval"]
    assert rows == [["P@1", "50.00", "25.00 – 75.00"], ["macro-F1", "12.50", "–"]]
    assert page.tables["group-table"][1] == ["head", "4", "10", "100.0", "40.00", "50.00"]
    assert page.tables["group-table"][2][4] == "–"
    assert "A 0.6, B 2.6, N 1,000" in page.text
    assert "2 documents without any true label are counted as zero" in page.text
    assert "Lower bounds" not in page.text


@pytest.mark.usefixtures("quick")
def test_unknown_values_are_dashes(tmp_path):
    run = make_run(tmp_path / "run")
    bare = '{"evaluation": {"values": {"P@1": NaN, "P@3": 0.5}, "intervals": null}, "data": {"train": {"a": 1e999}}}'
    (run / "results.json").write_text(bare, encoding="utf-8")
    page = page_of(run)
    assert page.tables["score-table"] == [["metric", "%"], ["P@1", "–"], ["P@3", "50.00"]]
