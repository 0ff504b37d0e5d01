"""Labels and examples in a run's report: worst labels, frequency bins, confused siblings, the browser of examples."""

import html
import re
import shutil
import subprocess

import pytest
from made_up_run import example, make_run, write_json, write_lines
from reading_pages import page_of

from labelwise.errors import DataError
from labelwise.report.label_lines import read_labels
from labelwise.report.run_files import read_run

EVIL = "<script>alert(1)</script><img src=x>"


def write_labels(path, rows):
    """(label, train, test, predicted, correct) as labels.tsv."""
    path.write_text("label\ttrain\ttest\tpredicted\tcorrect\n" + "".join("\t".join(map(str, r)) + "\n" for r in rows))
    return path


def test_bins_add_up_labels_with_about_equally_many_documents(tmp_path):
    rows = [
        ("z", 0, 3, 0, 0),
        ("a", 1, 2, 1, 1),
        ("b", 2, 1, 4, 1),
        ("c", 3, 1, 1, 0),
        ("d", 4, 5, 2, 2),
        ("e", 9, 1, 1, 1),
    ]
    bins = read_labels(write_labels(tmp_path / "labels.tsv", rows)).bins
    assert [(one.low, one.high, one.labels) for one in bins] == [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 4, 2), (9, 16, 1)]
    assert [(one.test, one.predicted, one.correct) for one in bins] == [
        (3, 0, 0),
        (2, 1, 1),
        (1, 4, 1),
        (6, 3, 2),
        (1, 1, 1),
    ]


def test_the_worst_labels_have_documents_enough_and_the_lowest_f1(tmp_path):
    rows = [(f"l{i}", 50, 10, 10, 10 - i % 10) for i in range(40)]
    rows += [("rare", 9, 50, 50, 0), ("few tests", 50, 4, 9, 0), ("perfect", 50, 9, 9, 9), ("worst", 50, 99, 0, 0)]
    table = read_labels(write_labels(tmp_path / "labels.tsv", rows))
    names = [row[0] for row in table.worst]
    assert len(names) == 20
    assert names[0] == "worst"
    assert names[1:5] == ["l9", "l19", "l29", "l39"]
    assert not {"rare", "few tests", "perfect"} & set(names)


def test_a_table_without_predictions_has_neither(tmp_path):
    (tmp_path / "labels.tsv").write_text("label\ttrain\na\t3\n")
    table = read_labels(tmp_path / "labels.tsv")
    assert (table.bins, table.worst) == ((), ())


@pytest.mark.usefixtures("quick")
def test_confused_siblings_are_shown_and_escaped(tmp_path):
    run = make_run(tmp_path / "run")
    assert not read_run(run).confusions.pairs, "older runs have none"
    pair = {"true": EVIL, "true_documents": 8, "predicted": "b", "predicted_text": EVIL, "predicted_documents": 3}
    write_json(run / "confusion.json", {"pairs": [{**pair, "documents": 6}]})
    page = page_of(run)
    assert page.tables["confusion-table"][1] == [EVIL, f"{EVIL} (b)", "6", "8", "75.0", "3"]
    assert "img" not in {tag for tag, _ in page.tags}
    (run / "confusion.json").write_text('{"pairs": [{"true": "a"}]}')
    with pytest.raises(DataError, match=r"confusion\.json"):
        page_of(run)


@pytest.mark.usefixtures("quick")
def test_few_examples_need_no_script(tmp_path):
    run = make_run(tmp_path / "run")
    write_lines(run / "examples.jsonl", [example(0)])
    page = page_of(run)
    assert "script" not in {tag for tag, _ in page.tags}
    assert not [a for a in page.attributes("meta") if "script-src" in a.get("content", "")]


@pytest.fixture
def in_browser(tmp_path):
    """A function that opens a page in a headless Chromium and returns the document after its scripts."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed")

    def opened(page):
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        arguments += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom"]
        done = subprocess.run([chromium, *arguments, page.as_uri()], capture_output=True, timeout=200, check=True)
        return done.stdout.decode()

    return opened


def visible(document):
    """The first line of each example that is shown."""
    cards = re.findall(r'<article class="example"([^>]*)>\s*<h3>(.*?)</h3>', document, re.S)
    return [html.unescape(re.sub("<[^>]*>", "", title)) for attributes, title in cards if "hidden" not in attributes]


@pytest.mark.usefixtures("quick")
def test_examples_are_searched_and_filtered_in_a_browser(tmp_path, in_browser):
    run = make_run(tmp_path / "run")
    right, wrong = ({"label": "a", "score": 0.9, "correct": one} for one in (True, False))
    lines = [
        {
            "id": f"doc {i}",
            "text": f"text number {i}",
            "truth": [{"label": "a"}],
            "predicted": [wrong if i % 3 else right],
        }
        for i in range(20)
    ]
    write_lines(run / "examples.jsonl", lines)
    page_of(run)
    document = in_browser(run / "report.html")
    assert visible(document) == [f"doc {i}" for i in range(6)], "the script runs under the page's own policy"
    assert "20 documents</output>" in document
    # the policy of the page forbids scripts of a test, so the test removes it
    source = (run / "report.html").read_text(encoding="utf-8")
    source = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", source)
    steps = """<script>
    const filter = document.querySelector("#example-browser select");
    filter.value = "first-right"; filter.dispatchEvent(new Event("change"));
    const search = document.querySelector("#example-browser input");
    search.value = "NUMBER 1"; search.dispatchEvent(new Event("input"));
    </script></body>"""
    changed = tmp_path / "changed.html"
    changed.write_text(source.replace("</body>", steps), encoding="utf-8")
    document = in_browser(changed)
    assert visible(document) == ["doc 12", "doc 15", "doc 18"]
    assert "3 documents</output>" in document
