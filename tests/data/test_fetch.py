"""Fetching one file from a server that misbehaves, and the page that stands before large ones."""

import hashlib
import io
import json
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest

from data.faulty_server import HASTY, endless, left_in, ranged, redirect, silent, status, trickling, whole
from labelwise.data.catalogue import DownloadLimits, _Redirects, confirmed_address, fetch
from labelwise.errors import DataError

CONTENT = np.random.default_rng(0).bytes(300_000)
SUM = hashlib.sha256(CONTENT).hexdigest()


def get(server, tmp_path, path="/file.gz", sha256=SUM, limits=HASTY):
    return fetch([server.url + path], tmp_path / "file.gz", sha256, limits)


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
    with pytest.raises(DataError, match=r"gave up after 3 attempts.*120,000 bytes are kept"):
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
    with pytest.raises(DataError, match=r"no such file.*404") as raised:
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
    with pytest.raises(DataError, match="gave up after 3 attempts"):
        get(server, tmp_path)
    assert len(server.requests) == 3


def test_an_endless_file_is_refused(server, tmp_path):
    server.answers["/file.gz"] = endless
    with pytest.raises(DataError, match="more than the 1,000,000 bytes"):
        get(server, tmp_path, limits=DownloadLimits(timeout=5, max_bytes=1_000_000))


def test_a_file_said_to_be_too_large_is_refused_at_once(server, tmp_path):
    server.answers["/file.gz"] = ranged(CONTENT)
    with pytest.raises(DataError, match="more than the 1,000 bytes"):
        get(server, tmp_path, limits=DownloadLimits(max_bytes=1_000))
    assert "file.gz" not in left_in(tmp_path)


def test_without_a_network(tmp_path):
    with pytest.raises(DataError, match=r"gave up after 3 attempts: no connection \(.*refused") as raised:
        fetch(["http://127.0.0.1:9/file.gz"], tmp_path / "file.gz", None, HASTY)
    assert f"copy it to {tmp_path / 'file.gz'}" in str(raised.value)
    assert left_in(tmp_path) == []


def test_a_disk_that_is_too_small(server, tmp_path, monkeypatch):
    server.answers["/file.gz"] = ranged(CONTENT)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DataError, match="has 300,000 bytes, but the disk has only 1,000 bytes free"):
        get(server, tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("address", ["http://[1/x", "http://a b/x", "http:///x"])
def test_what_is_no_address(tmp_path, address):
    with pytest.raises(DataError, match="x"):
        fetch([address], tmp_path / "x", None, HASTY)


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
    with pytest.raises(DataError, match="remove the file"):
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


def test_page_without_a_button(server, tmp_path):
    page = b"<title>Google Drive - Quota exceeded</title><p>Too many users"
    server.answers["/file.gz"] = whole(page, "text/html")
    with pytest.raises(DataError, match=r"Quota exceeded\) instead of the file; its download quota is exceeded"):
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
