"""The page in a real Chromium: typing, clicking, files, errors, keyboard, phone."""

import json
import os
from pathlib import Path

import pytest

from serve.browser import Browser, find_chromium
from serve.running import MARKUP, running_server, wait_until

pytest.importorskip("fastapi", reason="the extra serve is not installed")

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"
)

TEXT = "The cat and the dog in the stable 𝔘 with fur."


@pytest.fixture(scope="module")
def address(folder, plain_folder):
    with running_server({"topics": folder, "plain": plain_folder}, max_text=5000) as one:
        yield one


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    one = Browser(tmp_path_factory.mktemp("chromium"))
    yield one
    one.close()


@pytest.fixture
def page(chromium, address):
    """A fresh page, on which nothing may fail unseen."""
    chromium.events.clear()
    chromium.size(1200, 800)
    chromium.scheme("light")
    chromium.open(address)
    chromium.wait("document.querySelectorAll('#model option').length === 2")
    yield chromium
    assert [fault for fault in chromium.faults() if "status of 4" not in fault] == []


def labels(page):
    return page.value("Array.from(document.querySelectorAll('.label .name'), (one) => one.innerText)")


def find_labels(page, text):
    page.type("#document", text)
    page.click("#predict")
    page.wait("document.querySelectorAll('.label').length")


def shoot(page, name):
    """Keep a screenshot where somebody wants to look at it."""
    folder = os.environ.get("LABELWISE_SCREENSHOTS")
    if folder:
        page.screenshot(Path(folder) / f"{name}.png")


def test_labels_with_bars_words_and_path(page):
    find_labels(page, TEXT)
    assert labels(page)[0].startswith("animals")
    assert "%" in page.text(".label .number")
    page.wait("document.querySelector('#explanation').checkVisibility()")
    marked = page.value("Array.from(document.querySelectorAll('#marked mark.for'), (one) => one.textContent)")
    assert {"cat", "dog"} <= set(marked)
    assert page.text("#marked") == TEXT
    assert "Path in the tree" in page.text("#why")
    assert page.value("parseFloat(document.querySelector('.bar').style.width)") > 0
    shoot(page, "labels")


def test_words_for_and_against_differ_by_more_than_colour(page):
    find_labels(page, "cat dog stable with a violin and a piano")
    page.wait("document.querySelector('#marked mark.against') !== null")
    assert page.text("#marked") == "cat dog stable with a violin and a piano"
    sign = "getComputedStyle(document.querySelector('#marked mark.%s'), '::before').content"
    assert (page.value(sign % "against"), page.value(sign % "for")) == ('"\u2212"', "none")
    line = "getComputedStyle(document.querySelector('#marked mark.%s')).textDecorationLine"
    assert (page.value(line % "against"), page.value(line % "for")) == ("underline", "none")
    assert page.text("#legend").split() == ["for", "the", "label", "against", "it"]
    assert page.value("document.querySelector('#marked').getAttribute('role')") == "region"
    shoot(page, "against")


def test_another_label_is_explained_by_a_click_and_by_keys(page):
    find_labels(page, TEXT)
    page.wait("document.querySelector('.label').ariaPressed === 'true'")
    page.click("#labels li:nth-child(2) button")
    page.wait("document.querySelectorAll('.label')[1].ariaPressed === 'true'")
    page.value("document.querySelectorAll('.label')[0].focus()")
    page.press(" ")
    page.wait("document.querySelectorAll('.label')[0].ariaPressed === 'true'")
    page.value("document.querySelector('#document').focus()")
    page.type("#document", "violin and piano")
    page.press("Enter", modifiers=2)
    page.wait("document.querySelector('.label .name')?.innerText.startsWith('music')")


def test_the_explanation_of_a_clicked_label_is_scrolled_into_view(page):
    page.size(1200, 500)
    find_labels(page, TEXT)
    page.wait("document.querySelector('.label').ariaPressed === 'true'")
    page.value("window.scrollTo(0, 0)")
    page.value("document.querySelectorAll('.label')[1].click()")
    page.wait("document.querySelectorAll('.label')[1].ariaPressed === 'true'")
    page.wait("window.scrollY > 0")
    assert page.value("document.querySelector('#explained').getBoundingClientRect().bottom") < 500
    assert page.value("document.querySelector('#explained').getBoundingClientRect().top") >= 0


def test_k_threshold_and_errors(page):
    page.type("#k", "2")
    find_labels(page, TEXT)
    assert len(labels(page)) == 2
    page.click("#auto")
    assert page.value("document.querySelector('#threshold').value") == "auto"
    page.type("#threshold", "0.9999")
    page.click("#predict")
    page.wait("document.querySelector('#status').innerText.includes('No label')")
    page.type("#threshold", "")
    page.wait("document.querySelector('#status').innerText === ''")
    assert page.text("#hint").startswith("Labels of the text appear here")
    page.type("#threshold", "much")
    page.click("#predict")
    assert "a number or auto is needed" in page.wait("document.querySelector('#error').innerText")
    page.type("#threshold", "")
    page.type("#document", "")
    page.click("#predict")
    page.wait("document.querySelector('#error').innerText.includes('Paste a text')")
    page.type("#document", "x" * 6000)
    page.click("#predict")
    page.wait("document.querySelector('#error').innerText.includes('5,000 are accepted')")
    shoot(page, "error")


def test_markup_in_labels_and_texts_stays_text(page):
    find_labels(page, f"{MARKUP} <script>document.title = 2</script> angle bracket")
    assert MARKUP in labels(page)[0]
    assert page.value("document.querySelectorAll('main img, main script').length") == 0
    assert page.value("document.title") == "labelwise"


def test_scores_are_called_probabilities_only_if_they_are(page):
    page.value(
        "(() => { const one = document.querySelector('#model'); one.value = 'plain'; one.dispatchEvent(new Event('change')); })()"
    )
    assert not page.visible("#auto")
    assert page.text("#hint") == "Labels of the text appear here."
    find_labels(page, "anything")
    assert page.value("document.querySelector('.label .number').title") == "score"
    assert "%" not in page.text(".label .number")
    assert page.value("document.querySelector('.label').tagName") == "DIV", "it cannot explain"
    assert page.value("getComputedStyle(document.querySelector('.label')).opacity") == "1"
    page.click("#search summary")
    page.wait("document.querySelectorAll('#found .label').length === 2")
    assert page.value("document.querySelectorAll('#output button, #found button').length") == 0
    assert page.text("#found li:nth-child(2)") == "second 1 document"


def test_label_search_explains_a_label(page):
    find_labels(page, TEXT)
    page.click("#search summary")
    page.type("#query", "LAW")
    page.wait("document.querySelectorAll('#found button').length === 1")
    page.click("#found button")
    page.wait("document.querySelector('#explained').innerText.startsWith('law')")
    page.click("#card summary")
    page.wait("document.querySelector('#about').innerText.includes('linear_tree')")


def test_copy_as_curl_runs(page, address):
    import shlex
    import subprocess

    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"], origin=address)
    page.type("#document", "it's a cat")
    page.click("#curl")
    page.wait("document.querySelector('#status').innerText !== ''")
    shown = page.text("#status")
    command = page.value("navigator.clipboard.readText()") if shown.startswith("Copied") else shown
    words = shlex.split(command)
    assert words[0] == "curl"
    answer = subprocess.run(["curl", "-s", *words[1:]], capture_output=True, timeout=60, check=True).stdout
    assert json.loads(answer)["results"][0]["labels"][0]["text"] == "animals"


def test_a_table_is_labelled_and_downloaded(page, tmp_path):
    table = tmp_path / "books.csv"
    table.write_text('id;title;labels\n1;"cat; dog";old\n2;"violin ""piano""\nsong";\n', encoding="utf-8")
    page.click("#table summary")
    page.choose_file("#csv", table)
    page.wait("!document.querySelector('#run-table').disabled")
    assert page.value("document.querySelector('#columns label:has(:checked)').innerText.trim()") == "title"
    page.type("#k", "1")
    page.click("#run-table")
    page.wait("document.querySelector('#download').checkVisibility()")
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "downloads"))
    page.click("#download")
    saved = tmp_path / "downloads" / "books-labels.csv"
    wait_until(saved.exists)
    rows = saved.read_text(encoding="utf-8-sig").split("\n")
    assert rows[0] == "id;title;labels;predicted_labels;label_texts;probabilities"
    assert rows[1].startswith('1;"cat; dog";old;T0;animals;0.')
    table.write_text("a,b\n1\n")
    page.choose_file("#csv", table)
    page.wait("document.querySelector('#error').innerText.includes('row 2 has 1 cell')")


def test_dropped_files(page):
    page.drop([("note.txt", "text/plain", b"violin concert")])
    page.wait("document.querySelector('.label .name')?.innerText.startsWith('music')")
    page.drop([("program", "application/octet-stream", b"\x7fELF\x00\x00")])
    page.wait("document.querySelector('#error').innerText.includes('not a text file')")
    page.drop([("more.csv", "text/csv", b"text\ncat\n")])
    page.wait("document.querySelector('#table-status').innerText.includes('1 row')")


def test_dark_and_phone(page):
    light = page.value("getComputedStyle(document.body).backgroundColor")
    page.scheme("dark")
    assert page.value("getComputedStyle(document.body).backgroundColor") != light
    page.click("#theme")
    assert page.value("getComputedStyle(document.body).backgroundColor") == light
    page.click("#theme")
    page.size(360, 740, phone=True)
    find_labels(page, TEXT)
    page.wait("document.querySelector('#explanation').checkVisibility()")
    assert page.value("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.value(
        "document.querySelector('#output').getBoundingClientRect().top < document.querySelector('#more').getBoundingClientRect().top"
    )
    shoot(page, "phone")
    page.value("localStorage.clear()")


def test_the_page_of_the_api(page, address):
    page.open(f"{address}/docs")
    page.wait("document.querySelectorAll('article').length > 8")
    assert "/v1/models/{name}/predict" in page.text("#operations")
    assert "A bill to fund school lunches" in page.text("#operations")
    assert "labelwise_documents_total" in page.text("#operations")
    assert "`" not in page.text("main")
    answers = page.value("Array.from(document.querySelectorAll('pre'), (one) => one.innerText)")
    assert not {"{}", "null", ""} & set(answers)
    page.size(360, 740, phone=True)
    assert page.value("document.documentElement.scrollWidth <= window.innerWidth")
    shoot(page, "api")


def test_the_page_asks_for_a_key(chromium, folder, tmp_path):
    (tmp_path / "keys").write_text("a-long-and-secret-key\n")
    with running_server({"topics": folder}, keys_file=str(tmp_path / "keys")) as address:
        chromium.size(1200, 800)
        chromium.open(address)
        chromium.wait("document.querySelector('#key-form').checkVisibility()")
        chromium.type("#key", "wrong")
        chromium.press("Enter")
        chromium.wait("document.querySelector('#error').innerText.includes('API key')")
        chromium.type("#key", "a-long-and-secret-key")
        chromium.press("Enter")
        chromium.wait("document.querySelectorAll('#model option').length === 1")
        assert not chromium.visible("#key-form")
        find_labels(chromium, TEXT)
        chromium.value("sessionStorage.clear()")
