"""Fetching files from a server that misbehaves, and downloading named data sets from it."""

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from functools import lru_cache

import numpy as np
import pytest
from scipy import sparse

from data.faulty_server import (
    FaultyServer,
    endless,
    ranged,
    redirect,
    silent,
    status,
    trickling,
    whole,
)
from labelwise.data import catalogue
from labelwise.data.catalogue import Published
from labelwise.data.confirm import confirmed_address
from labelwise.data.download import Comparison, check, compare, download
from labelwise.data.fetch import Patience, _Redirects, fetch
from labelwise.data.stats import split_statistics
from labelwise.errors import DataError

CONTENT = np.random.default_rng(0).bytes(300_000)
SUM = hashlib.sha256(CONTENT).hexdigest()
HASTY = Patience(timeout=0.4, attempts=3, pause=0.01)


@pytest.fixture
def server():
    with FaultyServer() as running:
        yield running


def get(server, tmp_path, path="/file.gz", sha256=SUM, patience=HASTY):
    return fetch([server.url + path], tmp_path / "file.gz", sha256, patience)


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


# --- one file ----------------------------------------------------------------------------------------------------


def test_plain_download(server, tmp_path):
    server.answers["/file.gz"] = ranged(CONTENT)
    found = get(server, tmp_path)
    assert (found.sha256, found.bytes) == (SUM, len(CONTENT))
    assert found.path.read_bytes() == CONTENT
    assert left_in(tmp_path) == ["file.gz"]


def test_cut_connection_is_resumed(server, tmp_path):
    server.answers["/file.gz"] = [ranged(CONTENT, cut=100_000), ranged(CONTENT, cut=50_000), ranged(CONTENT)]
    assert get(server, tmp_path).path.read_bytes() == CONTENT
    headers = [headers for _, headers in server.requests]
    assert "Range" not in headers[0]
    assert headers[1]["Range"] == "bytes=100000-"
    assert headers[2]["Range"] == "bytes=150000-"
    assert headers[2]["If-Range"] == '"one"'


def test_resumed_by_a_later_run(server, tmp_path):
    server.answers["/file.gz"] = [ranged(CONTENT, cut=120_000), status(500), status(500), status(500)]
    with pytest.raises(DataError, match=r"given up after 3 tries.*120,000 bytes are kept"):
        get(server, tmp_path)
    assert left_in(tmp_path) == ["file.gz.part", "file.gz.part.json"]
    server.answers["/file.gz"] = ranged(CONTENT)
    assert get(server, tmp_path).path.read_bytes() == CONTENT
    assert server.requests[-1][1]["Range"] == "bytes=120000-"
    assert left_in(tmp_path) == ["file.gz"]


def test_a_part_of_unknown_origin_is_not_used(server, tmp_path):
    (tmp_path / "file.gz.part").write_bytes(b"something else")
    server.answers["/file.gz"] = ranged(CONTENT)
    assert get(server, tmp_path).path.read_bytes() == CONTENT
    assert "Range" not in server.requests[0][1]


@pytest.mark.parametrize("note", ['{"address": "%s"}', '{"address": "elsewhere", "total": 300000}', "[1]", "{"])
def test_a_part_that_nothing_vouches_for_is_not_used(server, tmp_path, note):
    (tmp_path / "file.gz.part").write_bytes(CONTENT[:1000])
    (tmp_path / "file.gz.part.json").write_text(note.replace("%s", server.url + "/file.gz"))
    server.answers["/file.gz"] = ranged(CONTENT)
    assert get(server, tmp_path).path.read_bytes() == CONTENT
    assert "Range" not in server.requests[0][1]


def test_a_whole_part_needs_no_request(server, tmp_path):
    (tmp_path / "file.gz.part").write_bytes(CONTENT)
    note = {"address": server.url + "/file.gz", "total": len(CONTENT), "validator": '"one"'}
    (tmp_path / "file.gz.part.json").write_text(json.dumps(note))
    assert get(server, tmp_path).sha256 == SUM
    assert server.requests == []


def test_server_without_ranges_starts_over(server, tmp_path):
    server.answers["/file.gz"] = [ranged(CONTENT, cut=100_000), whole(CONTENT)]
    assert get(server, tmp_path).path.read_bytes() == CONTENT


@pytest.mark.parametrize("obeys_if_range", [True, False])
def test_a_file_that_changed_is_not_spliced(server, tmp_path, obeys_if_range):
    new = CONTENT[::-1] + b"longer"
    second = ranged(new, etag='"two"', obeys_if_range=obeys_if_range)
    server.answers["/file.gz"] = [ranged(CONTENT, cut=100_000), second]
    assert get(server, tmp_path, sha256=None).path.read_bytes() == new


def test_wrong_checksum_names_both_and_leaves_nothing(server, tmp_path):
    server.answers["/file.gz"] = ranged(CONTENT)
    with pytest.raises(DataError) as raised:
        get(server, tmp_path, sha256="0" * 64)
    assert SUM in str(raised.value)
    assert "0" * 64 in str(raised.value)
    assert left_in(tmp_path) == []


def test_missing_file_is_told_at_once(server, tmp_path):
    with pytest.raises(DataError, match=r"no such file \(404") as raised:
        get(server, tmp_path)
    assert str(tmp_path / "file.gz") in str(raised.value)
    assert len(server.requests) == 1


def test_busy_server_is_asked_again(server, tmp_path):
    server.answers["/file.gz"] = [status(503, Retry_After="0"), status(429), ranged(CONTENT)]
    assert get(server, tmp_path).sha256 == SUM


def test_the_next_address_is_asked_when_one_has_nothing(server, tmp_path):
    server.answers["/mirror.gz"] = ranged(CONTENT)
    addresses = [server.url + "/file.gz", server.url + "/mirror.gz"]
    assert fetch(addresses, tmp_path / "file.gz", SUM, HASTY).address == addresses[1]


@pytest.mark.parametrize("answer", [silent, trickling])
def test_dead_and_trickling_connections_time_out(server, tmp_path, answer):
    server.answers["/file.gz"] = answer
    with pytest.raises(DataError, match="given up after 3 tries"):
        get(server, tmp_path)
    assert len(server.requests) == 3


def test_an_endless_file_is_refused(server, tmp_path):
    server.answers["/file.gz"] = endless
    with pytest.raises(DataError, match="more than the 1,000,000 bytes"):
        get(server, tmp_path, patience=Patience(timeout=5, max_bytes=1_000_000))


def test_a_file_said_to_be_too_large_is_refused_at_once(server, tmp_path):
    server.answers["/file.gz"] = ranged(CONTENT)
    with pytest.raises(DataError, match="more than the 1,000 bytes"):
        get(server, tmp_path, patience=Patience(max_bytes=1_000))
    assert "file.gz" not in left_in(tmp_path)


def test_redirects(server, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("not for you")
    server.answers["/file.gz"] = redirect(secret.as_uri())
    with pytest.raises(DataError, match="not allowed"):
        get(server, tmp_path, sha256=None)
    server.answers["/file.gz"] = redirect(server.url + "/elsewhere")
    server.answers["/elsewhere"] = ranged(CONTENT)
    assert get(server, tmp_path).sha256 == SUM


@pytest.mark.parametrize(
    ("old", "new"),
    [("https://a/x", "http://a/x"), ("http://a/x", "ftp://a/x"), ("http://a/x", "data:,x")],
)
def test_unsafe_redirects_are_refused(old, new):
    import urllib.request

    request = urllib.request.Request(old)
    with pytest.raises(DataError, match="refused"):
        _Redirects().redirect_request(request, io.BytesIO(), 302, "Found", {}, new)


@pytest.mark.parametrize("address", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x", "nothing"])
def test_only_web_addresses(tmp_path, address):
    with pytest.raises(DataError, match="only http and https"):
        fetch([address], tmp_path / "x", None, HASTY)


def test_a_file_put_there_by_hand(server, tmp_path):
    (tmp_path / "file.gz").write_bytes(CONTENT)
    assert get(server, tmp_path).sha256 == SUM
    assert server.requests == []
    with pytest.raises(DataError, match="remove it"):
        get(server, tmp_path, sha256="0" * 64)
    assert left_in(tmp_path) == ["file.gz"]


# --- the page before large files ---------------------------------------------------------------------------------

FORM = """<html><head><title>Virus scan warning</title></head><body>
<form action="https://search.example/find"><input type="hidden" name="q" value="no"></form>
<form id="download-form" action="{action}" method="get"><input type="submit" value="Download anyway"/>
<input type="hidden" name="id" value="ab&amp;c"><input type="hidden" name="confirm" value="t">
<input type="hidden" name="uuid" value="1-2"></form></body></html>"""


def test_confirmation_form(server, tmp_path):
    page = whole(FORM.format(action=server.url + "/download").encode(), "text/html; charset=utf-8")
    server.answers["/uc"] = page
    server.answers["/download"] = [ranged(CONTENT, cut=90_000), ranged(CONTENT)]
    assert get(server, tmp_path, "/uc?export=download&id=ab").path.read_bytes() == CONTENT
    asked = "/download?id=ab%26c&confirm=t&uuid=1-2"
    assert server.paths() == ["/uc?export=download&id=ab", asked, "/uc?export=download&id=ab", asked]
    assert server.requests[-1][1]["Range"] == "bytes=90000-"


def test_confirmation_link(server, tmp_path):
    link = '<a id="uc-download-link" href="/uc?export=download&amp;confirm=Xy1&amp;id=ab">Download anyway</a>'
    server.answers["/uc"] = [whole(link.encode(), "text/html"), ranged(CONTENT)]
    assert get(server, tmp_path, "/uc?export=download&id=ab").sha256 == SUM
    assert server.paths()[1] == "/uc?export=download&confirm=Xy1&id=ab"


def test_page_without_a_button(server, tmp_path):
    page = b"<title>Google Drive - Quota exceeded</title><p>Too many users"
    server.answers["/file.gz"] = whole(page, "text/html")
    with pytest.raises(DataError, match=r"Quota exceeded\) instead of the file; too many people"):
        get(server, tmp_path)
    assert left_in(tmp_path) == []


def test_confirmation_that_leads_to_another_page(server, tmp_path):
    server.answers["/uc"] = whole(FORM.format(action="/uc").encode(), "text/html")
    with pytest.raises(DataError, match="twice"):
        get(server, tmp_path, "/uc")


def test_confirmation_stays_where_it_belongs():
    drive = "https://drive.google.com/uc?id=1"
    there = "https://drive.usercontent.google.com/download"
    assert confirmed_address(FORM.format(action=there), drive).startswith(there + "?id=ab%26c")
    for action in (
        "https://evil.example/x",
        "http://drive.google.com/x",
        "file:///etc/passwd",
        "javascript:x",
    ):
        with pytest.raises(DataError, match="refused"):
            confirmed_address(FORM.format(action=action), drive)


# --- named data sets ---------------------------------------------------------------------------------------------


def tar_gz(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def npz(matrix):
    buffer = io.BytesIO()
    sparse.save_npz(buffer, sparse.csr_matrix(matrix, dtype=np.float32))
    return buffer.getvalue()


@lru_cache  # archives hold the time they were made at
def tiny_archive():
    """Three and two documents, four labels, five features, as PECOS packs them."""
    train, test = np.eye(3, 4), np.eye(2, 4, 2)
    train[0, 3] = 1
    files = {"trn": (b"one\ntwo\nthree\n", train, np.eye(3, 5)), "tst": (b"four\nfive\n", test, np.eye(2, 5))}
    packed = {"output-items.txt": b"a\nb\nc\nd\n"}
    for split, (texts, labels, features) in files.items():
        packed[f"X.{split}.txt"] = texts
        packed[f"Y.{split}.npz"] = npz(labels)
        packed[f"tfidf-attnxml/X.{split}.npz"] = npz(features)
    return tar_gz({f"xmc-base/tiny/{name}": content for name, content in packed.items()})


TINY = """
tiny:
  title: a small one
  format: pecos
  sources:
    - file: tiny.tar.gz
      addresses: [{url}/tiny.tar.gz]
      sha256: {sha256}
    - file: extra.txt
      addresses: [{url}/extra.txt]
      unpack: false
      optional: true
  licence: none
  citation: nobody
  propensity: [0.55, 1.5]
  published: {{train: 3, test: 2, features: 5, labels: 4, mean_labels: 1.33}}
  notes: made for a test
"""


@pytest.fixture
def tiny(server, tmp_path, monkeypatch):
    """A catalogue with one data set; gives a function that changes its checksum."""

    def known(sha256="null"):
        path = tmp_path / "catalogue.yml"
        path.write_text(TINY.format(url=server.url, sha256=sha256))
        monkeypatch.setattr(catalogue, "CATALOGUE", path)
        catalogue._entries.cache_clear()

    known()
    server.answers["/tiny.tar.gz"] = ranged(tiny_archive())
    yield known
    monkeypatch.undo()
    catalogue._entries.cache_clear()


def test_download_a_data_set(server, tmp_path, tiny):
    home = tmp_path / "home"
    with pytest.raises(DataError, match=f"labelwise data download tiny --folder {home}"):
        catalogue.dataset("tiny", folder=home)
    found = download("tiny", home, patience=HASTY)
    assert found.folder == home / "tiny"
    assert not found.was_there
    assert left_in(home) == ["downloads", "tiny", "tiny.lock.json"]
    assert left_in(home / "downloads") == []
    assert left_in(home / "tiny") == [
        "X.trn.txt", "X.tst.txt", "Y.trn.npz", "Y.tst.npz", "output-items.txt", "source.json", "tfidf-attnxml",
    ]  # fmt: skip
    source = json.loads((home / "tiny" / "source.json").read_text())
    assert source["files"]["tiny.tar.gz"]["sha256"] == hashlib.sha256(tiny_archive()).hexdigest()
    train = catalogue.dataset("tiny", "train", home)
    assert list(train.texts) == ["one", "two", "three"]
    assert list(train.label_texts) == ["a", "b", "c", "d"]
    assert set(catalogue.dataset("tiny", folder=home)) == {"train", "test"}
    rows = check("tiny", home)
    assert [row.ok for row in rows] == [True] * 5
    assert len(rows) == 5


def test_what_is_there_is_not_downloaded_again(server, tmp_path, tiny):
    download("tiny", tmp_path, patience=HASTY)
    before = len(server.requests)
    assert download("tiny", tmp_path, patience=HASTY).was_there
    assert len(server.requests) == before
    assert not download("tiny", tmp_path, force=True, patience=HASTY).was_there
    assert len(server.requests) > before


def test_a_file_that_changed_since_the_first_download(server, tmp_path, tiny):
    download("tiny", tmp_path, patience=HASTY)
    server.answers["/tiny.tar.gz"] = ranged(tar_gz({"X.trn.txt": b"another\n"}))
    first = hashlib.sha256(tiny_archive()).hexdigest()
    with pytest.raises(DataError, match=f"has changed and was removed.*{first}"):
        download("tiny", tmp_path, force=True, patience=HASTY)
    assert list(catalogue.dataset("tiny", "train", tmp_path).texts) == ["one", "two", "three"]
    (tmp_path / "tiny.lock.json").unlink()
    download("tiny", tmp_path, force=True, patience=HASTY)
    assert (tmp_path / "tiny" / "X.trn.txt").read_bytes() == b"another\n"


def test_known_checksum(server, tmp_path, tiny):
    tiny("'" + "0" * 64 + "'")
    with pytest.raises(DataError, match="is not the file we know and has been removed"):
        download("tiny", tmp_path / "home", patience=HASTY)
    assert not (tmp_path / "home" / "tiny").exists()
    tiny("'" + hashlib.sha256(tiny_archive()).hexdigest() + "'")
    assert download("tiny", tmp_path / "home", patience=HASTY).folder.is_dir()


def test_a_mirror(server, tmp_path, tiny):
    server.answers["/inside/tiny.tar.gz"] = ranged(tiny_archive())
    found = download("tiny", tmp_path, base_url=server.url + "/inside/", patience=HASTY)
    assert found.files[0].address == server.url + "/inside/tiny.tar.gz"


def test_optional_files_come_along_when_they_are_there(server, tmp_path, tiny):
    server.answers["/extra.txt"] = ranged(b"more")
    server.answers["/tiny.tar.gz"] = ranged(tar_gz({"X.trn.txt": b"one\n"}))
    download("tiny", tmp_path, patience=HASTY)
    assert (tmp_path / "tiny" / "extra.txt").read_bytes() == b"more"


@pytest.mark.parametrize(
    "content",
    [
        tiny_archive()[:-200],
        b"this is no archive",
        tar_gz({"../escaped.txt": b"x"}),
        tar_gz({"ok.txt": b"x", "/tmp/escaped.txt": b"x"}),
    ],
)
def test_a_bad_archive_leaves_nothing(server, tmp_path, tiny, content):
    home = tmp_path / "deep" / "home"
    server.answers["/tiny.tar.gz"] = ranged(content)
    with pytest.raises(DataError):
        download("tiny", home, patience=HASTY)
    assert left_in(home) == ["downloads"]
    assert not list(tmp_path.rglob("escaped.txt"))


def test_after_a_damaged_archive_the_next_try_works(server, tmp_path, tiny):
    server.answers["/tiny.tar.gz"] = whole(tiny_archive()[:-200])
    with pytest.raises(DataError, match="damaged or cut short"):
        download("tiny", tmp_path / "home", patience=HASTY)
    server.answers["/tiny.tar.gz"] = ranged(tiny_archive())
    assert download("tiny", tmp_path / "home", patience=HASTY).folder.is_dir()


def test_a_bomb_is_refused(server, tmp_path, tiny):
    server.answers["/tiny.tar.gz"] = ranged(tar_gz({"X.trn.txt": bytes(1 << 20)}))
    with pytest.raises(DataError, match="more than 100,000 bytes"):
        download("tiny", tmp_path / "home", patience=HASTY, max_unpacked_bytes=100_000)


def test_a_folder_that_is_not_ours_is_never_replaced(server, tmp_path, tiny):
    mine = tmp_path / "tiny"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    assert download("tiny", tmp_path).was_there
    with pytest.raises(DataError, match="was not made by labelwise"):
        download("tiny", tmp_path, force=True)
    assert left_in(mine) == ["notes.txt"]
    assert server.requests == []


def test_two_processes_do_not_write_one_file(server, tmp_path, tiny):
    fcntl = pytest.importorskip("fcntl")
    waiting = tmp_path / "downloads" / "tiny"
    waiting.mkdir(parents=True)
    with (waiting / ".lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process"):
            download("tiny", tmp_path, patience=HASTY)
    assert server.requests == []
    assert download("tiny", tmp_path, patience=HASTY).folder.is_dir()


def test_comparison_with_published_figures(server, tmp_path, tiny):
    download("tiny", tmp_path, patience=HASTY)
    found = split_statistics(catalogue.dataset("tiny", folder=tmp_path))
    published = Published(train=4, valid=1, labels=4, mean_labels=1.2)
    said = {row.what: (row.expected, row.found, row.ok) for row in compare(published, found)}
    assert said["train documents"] == (4, 3, False)
    assert said["valid documents"] == (1, None, None)
    assert said["test documents"] == (None, 2, None)
    assert said["labels"] == (4, 4, True)
    # 6 labels on 5 documents, 4 on 3 in train: the figure may mean either
    assert said["labels a document"] == (1.2, pytest.approx(1.2), True)
    assert Comparison("x", 5.31, 5.32).ok
    assert not Comparison("x", 5.31, 5.4).ok


# --- EURLEX57K ---------------------------------------------------------------------------------------------------


def law(number, labels_key, labels):
    return {
        "celex_id": f"3{number}",
        "title": f"Title {number}",
        "header": "THE\nCOUNCIL",
        "recitals": "Whereas\tthis",
        "main_body": ["Article 1", " Article 2\n"],
        labels_key: labels,
    }


def eurlex_zip(shape):
    parts = {"train": [["1", "20"], ["3"]], "dev": [["20"]], "test": [["1"]]}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for split, rows in parts.items():
            if shape == "folders":
                for number, labels in enumerate(rows):
                    text = json.dumps(law(number, "concepts", labels))
                    packed.writestr(f"dataset/{split}/3{number}.json", text)
                    packed.writestr(f"__MACOSX/dataset/{split}/._3{number}.json", b"\0")
            else:
                lines = [json.dumps(law(n, "eurovoc_concepts", labels)) for n, labels in enumerate(rows)]
                packed.writestr(f"{split}.jsonl", "\n".join(lines) + "\n")
    return buffer.getvalue()


@pytest.mark.parametrize("shape", ["folders", "lines"])
def test_eurlex57k_in_both_shapes(server, tmp_path, shape):
    server.answers["/dataset.zip"] = ranged(eurlex_zip(shape))
    concepts = [{"id": "1", "title": "fish"}, {"id": "20", "title": "milk\tproduct"}]
    server.answers["/eurovoc_concepts.jsonl"] = ranged("\n".join(map(json.dumps, concepts)).encode())
    download("eurlex57k", tmp_path, base_url=server.url, patience=HASTY)
    assert left_in(tmp_path / "eurlex57k") == [
        "label_names.tsv", "source.json", "test_labels.txt", "test_texts.txt", "train_labels.txt",
        "train_texts.txt", "valid_labels.txt", "valid_texts.txt",
    ]  # fmt: skip
    parts = catalogue.dataset("eurlex57k", folder=tmp_path)
    train = parts["train"]
    assert list(train.texts) == [f"Title {n} THE COUNCIL Whereas this Article 1 Article 2" for n in (0, 1)]
    assert list(train.label_names) == ["1", "3", "20"]
    assert train.labels.toarray().tolist() == [[1, 0, 1], [0, 1, 0]]
    assert list(train.label_texts) == ["fish", "3", "milk product"]
    assert {name: len(part) for name, part in parts.items()} == {"train": 2, "valid": 1, "test": 1}
    assert [row.ok for row in check("eurlex57k", tmp_path)][:4] == [False] * 4


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"[]", "a JSON object is needed"),
        (b"{", "not a JSON document"),
        (json.dumps({"title": "x"}).encode(), "a list of ids is needed"),
        (json.dumps({"title": 3, "concepts": []}).encode(), "'title' holds a int"),
        (json.dumps({"title": " ", "concepts": []}).encode(), "none of title"),
    ],
)
def test_eurlex57k_that_is_not_as_expected(server, tmp_path, document, message):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr("train.jsonl", document)
    server.answers["/dataset.zip"] = ranged(buffer.getvalue())
    with pytest.raises(DataError, match=message):
        download("eurlex57k", tmp_path, base_url=server.url, patience=HASTY)
    assert left_in(tmp_path) == ["downloads"]


def test_files_that_are_not_unpacked(server, tmp_path):
    lines = gzip.compress(b"1 | 3:0.5 4:1\n2 | 4:2\n")
    server.answers["/train.vw.gz"] = ranged(lines)
    server.answers["/test.vw.gz"] = ranged(lines)
    download("odp", tmp_path, base_url=server.url, patience=HASTY)
    assert left_in(tmp_path / "odp") == ["source.json", "test.vw.gz", "train.vw.gz"]
    assert (tmp_path / "odp" / "train.vw.gz").read_bytes() == lines
    assert len(catalogue.dataset("odp", "train", tmp_path)) == 2
