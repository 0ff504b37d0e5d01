"""Tables on the page in a real Chromium: what happens while rows are labelled, and when not all can be."""

import csv

import pytest

from cli.commands import labelwise
from serve.browser import Browser, find_chromium
from serve.running import make_data, running_server, wait_until

pytest.importorskip("fastapi", reason="the extra serve is not installed")

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"
)

HOLD = """(() => { const plain = window.fetch; window.sent = 0; let release; const held = new Promise((go) => { release = go; });
window.release = release;
window.fetch = async (path, options) => {
  if (String(path).includes("/predict") && ++window.sent > %d) await held;
  return plain(path, options); }; })()"""
"""Requests after so many wait until the test releases them."""
ANSWER = """(() => { const plain = window.fetch; window.sent = 0;
window.fetch = async (path, options) => String(path).includes("/predict") && ++window.sent > 1
  ? new Response(JSON.stringify({detail: "%s"}), {status: %d}) : plain(path, options); })()"""
"""All requests after the first get this answer."""

SEEN = """(() => { const plain = window.fetch; window.bodies = [];
window.fetch = async (path, options) => {
  if (String(path).includes("/predict")) window.bodies.push(JSON.parse(options.body).documents);
  return plain(path, options); }; })()"""
"""Keeps the documents of each request."""


@pytest.fixture(scope="module")
def page(folder, tmp_path_factory):
    with running_server({"topics": folder}, max_text=5000, max_request=40_000) as address:
        chromium = Browser(tmp_path_factory.mktemp("chromium"))
        chromium.address = address
        yield chromium
        chromium.close()


@pytest.fixture(autouse=True)
def fresh(page, tmp_path):
    page.size(1200, 800)
    page.open(page.address)
    page.wait("document.querySelectorAll('#model option').length === 1")
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "downloads"))
    page.type("#k", "1")
    page.click("#table summary")


def write(path, texts):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *([f"{path.stem}{row}", text] for row, text in enumerate(texts))])
    return path


def choose(page, path):
    page.choose_file("#csv", path)
    page.wait(f"document.querySelector('#table-status').innerText.startsWith('{path.name}: ')")


def downloaded(page, path):
    page.wait("document.querySelector('#download').checkVisibility()")
    page.click("#download")
    wait_until(path.exists)
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.reader(file))


def test_another_file_is_refused_while_rows_are_labelled(page, tmp_path):
    first, second = (
        write(tmp_path / "first.csv", ["cat dog", "violin"]),
        write(tmp_path / "second.csv", ["court", "judge"]),
    )
    choose(page, first)
    page.value(HOLD % 0)
    page.click("#run-table")
    page.wait("window.sent === 1")
    page.choose_file("#csv", second)
    page.wait("document.querySelector('#error').innerText.includes('first.csv is being labelled')")
    page.drop([("second.csv", "text/csv", second.read_bytes())])
    page.wait("document.querySelector('#error').innerText.includes('first.csv is being labelled')")
    assert page.value("document.querySelector('#run-table').disabled && document.querySelector('#column').disabled")
    assert page.visible("#stop-table")
    page.value("window.release()")
    rows = downloaded(page, tmp_path / "downloads" / "first-labels.csv")
    assert [row[:4] for row in rows[1:]] == [
        ["first0", "cat dog", "T0", "animals"],
        ["first1", "violin", "T1", "music"],
    ]
    assert not page.visible("#stop-table")
    choose(page, second)
    assert not page.value("document.querySelector('#run-table').disabled")


def test_a_run_can_be_stopped_and_its_rows_are_kept(page, tmp_path):
    choose(page, write(tmp_path / "many.csv", ["cat"] * 250))
    page.value(HOLD % 1)
    page.click("#run-table")
    page.wait("window.sent === 2")
    page.click("#stop-table")
    page.value("window.release()")
    rows = downloaded(page, tmp_path / "downloads" / "many-labels.csv")
    assert len(rows) == 201
    assert page.text("#download") == "Download the first 200 rows"
    assert page.text("#table-status") == "many.csv: ended after 200 of 250 rows."
    assert not page.visible("#error")


def test_a_text_that_is_too_long_has_no_labels_and_the_others_have(page, tmp_path):
    texts = ["cat"] * 150
    texts[120], texts[121] = "x" * 5001, "\N{MUSICAL SYMBOL G CLEF}" * 5000  # two UTF-16 units each
    choose(page, write(tmp_path / "long.csv", texts))
    page.click("#run-table")
    rows = downloaded(page, tmp_path / "downloads" / "long-labels.csv")
    assert [row[0] for row in rows[1:] if row[2] == ""] == ["long120"]
    assert len(rows) == 151
    assert page.text("#table-status").endswith(
        "149 rows labelled. Too long, without labels: row 122. A text may have 5,000 characters."
    )


@pytest.mark.parametrize(
    ("detail", "status", "shown"),
    [("document 3 cannot be read", 422, "row 105 cannot be read"), ("/documents/3: no text", 422, "row 105: no text"),
     ("an API key is needed", 403, "an API key is needed")],
)  # fmt: skip
def test_what_fails_in_the_middle_is_named_by_its_row_and_finished_rows_are_kept(page, tmp_path, detail, status, shown):
    choose(page, write(tmp_path / "half.csv", ["cat"] * 250))
    page.value(ANSWER % (detail, status))
    page.click("#run-table")
    page.wait(f"document.querySelector('#error').innerText === '{shown}'")
    assert len(downloaded(page, tmp_path / "downloads" / "half-labels.csv")) == 101
    assert page.text("#download") == "Download the first 100 rows"
    assert not page.value("document.querySelector('#run-table').disabled")


def test_a_dropped_table_may_be_larger_than_a_request(page, tmp_path):
    content = write(tmp_path / "large.csv", ["cat " * 250] * 60).read_bytes()
    assert len(content) > 40_000
    page.drop([("large.csv", "text/csv", content)])
    page.wait("document.querySelector('#table-status').innerText === 'large.csv: 60 rows'")
    page.click("#run-table")
    assert len(downloaded(page, tmp_path / "downloads" / "large-labels.csv")) == 61
    page.drop([("large.txt", "text/plain", content)])
    page.wait("document.querySelector('#error').innerText.includes('larger than this server accepts')")


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"a,b\n1\n", "bad.csv: row 2 has 1 cell, the header has 2"),
        (b"", "bad.csv: the file has no rows under its header"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "bad.csv is not a text file; text and CSV can be read"),
        ("text\nein gro\xdfer Hund\n".encode("latin-1"), "bad.csv is not encoded as UTF-8; save it as UTF-8 (in Excel: CSV UTF-8), then choose it again"),
    ],
    ids=["ragged", "empty", "image", "latin-1"],
)  # fmt: skip
def test_a_file_that_cannot_be_read_leaves_no_rows_of_the_one_before(page, tmp_path, content, shown):
    choose(page, write(tmp_path / "good.csv", ["cat"]))
    assert not page.value("document.querySelector('#run-table').disabled")
    (tmp_path / "bad.csv").write_bytes(content)
    page.choose_file("#csv", tmp_path / "bad.csv")
    page.wait("document.querySelector('#error').checkVisibility()")
    assert page.text("#error") == shown
    assert page.value("document.querySelector('#run-table').disabled && document.querySelector('#column').disabled")
    assert (page.text("#columns"), page.text("#table-status")) == ("", "")
    choose(page, write(tmp_path / "good.csv", ["cat"]))
    assert not page.visible("#error")


def test_several_columns_are_joined_and_rows_without_text_have_no_labels(page, tmp_path):
    table = tmp_path / "books.csv"
    table.write_text("abstract,title,year\nviolin,cat,1990\n , ,1991\ndog,,1992\n")
    choose(page, table)
    assert page.value("document.querySelector('#columns label:has(:checked)').innerText.trim()") == "abstract"
    page.click("#columns label:nth-child(2) input")
    page.value(SEEN)
    page.click("#run-table")
    rows = downloaded(page, tmp_path / "downloads" / "books-labels.csv")
    assert page.value("window.bodies") == [["violin cat", "dog "]]
    assert [bool(row[3]) for row in rows[1:]] == [True, False, True]
    assert page.text("#table-status") == "books.csv: 2 rows labelled. Without text, without labels: row 3."
    for number in (1, 2):
        page.click(f"#columns label:nth-child({number}) input")
    page.click("#run-table")
    page.wait("document.querySelector('#error').innerText === 'Choose a column with the text first'")


def test_the_columns_of_the_training_texts_are_chosen(tmp_path, tmp_path_factory):
    with (tmp_path / "train.csv").open("w", newline="") as file:
        rows = [[one, "title of " + one, "abc"[row % 3]] for row, one in enumerate(make_data().texts)]
        csv.writer(file).writerows([["abstract", "title", "labels"], *rows])
    labelwise(
        "train",
        tmp_path / "train.csv",
        "--text",
        "title+abstract",
        "--method",
        "popularity",
        "--output",
        "run",
        cwd=tmp_path,
    )
    with running_server({"books": tmp_path / "run"}) as address:
        page = Browser(tmp_path_factory.mktemp("chromium"))
        page.open(address)
        page.wait("document.querySelectorAll('#model option').length === 1")
        page.click("#table summary")
        table = tmp_path / "new.csv"
        table.write_text("year,abstract,title\n1990,a violin,on cats\n")
        choose(page, table)
        chosen = "Array.from(document.querySelectorAll('#columns label:has(:checked)'), (one) => one.innerText.trim())"
        assert page.value(chosen) == ["abstract", "title"]
        page.value(SEEN)
        page.click("#run-table")
        page.wait("document.querySelector('#download').checkVisibility()")
        assert page.value("window.bodies") == [["on cats a violin"]]
        page.close()


def test_errors_are_seen_where_the_page_is_scrolled_down(page, tmp_path):
    page.size(360, 500, phone=True)
    (tmp_path / "bad.csv").write_text("a,b\n1\n")
    page.value("document.querySelector('#csv').scrollIntoView()")
    page.choose_file("#csv", tmp_path / "bad.csv")
    page.wait("document.querySelector('#error').innerText === 'bad.csv: row 2 has 1 cell, the header has 2'")
    top, bottom = page.value(
        "(({top, bottom}) => [top, bottom])(document.querySelector('#error').getBoundingClientRect())"
    )
    assert 0 <= top < bottom <= 500
