"""What Annif's `http` backend (Annif 1.4.3) and annif-client (0.5.0) send, byte for byte, over a real socket.

The requests were recorded from those programs; only the name of the project, the texts and the port differ.
"""

import json
import socket
from datetime import datetime
from urllib.parse import urlsplit

import pytest

import labelwise as lw
from serve.running import running_server

pytest.importorskip("fastapi", reason="the extra serve is not installed")

PREFIX = "http://eurovoc.europa.eu/"
COMMON = "Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\n"
FORM, JSON = "application/x-www-form-urlencoded", "application/json"
TEXT = 'Cat & "dog" für 100 % of\na tariff'
FORM_TEXT = "text=Cat+%26+%22dog%22+f%C3%BCr+100+%25+of%0Aa+tariff"


@pytest.fixture(scope="module")
def port(folder):
    with running_server({"topics": folder}, language="en", uri_prefix=PREFIX) as address:
        yield urlsplit(address).port


@pytest.fixture(scope="module")
def model(folder):
    return lw.load(folder)


def send(port, agent, request, kind=None, body=""):
    """The status and the JSON of an answer; its connection stays open, as both programs ask for."""
    head = f"{request} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: {agent}\r\n{COMMON}"
    if kind:
        head += f"Content-Length: {len(body)}\r\nContent-Type: {kind}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"{head}\r\n{body}".encode("ascii"))
        with connection.makefile("rb") as answer:
            status = int(answer.readline().split()[1])
            headers = {}
            while line := answer.readline().strip():
                key, _, value = line.decode().partition(": ")
                headers[key.lower()] = value
            found = json.loads(answer.read(int(headers["content-length"])))
    assert headers["content-type"] == ("application/json" if status == 200 else "application/problem+json")
    return status, found


def test_the_http_backend_gets_suggestions_with_the_uris_of_its_vocabulary(port, model):
    agent = "Annif/1.4.3"
    status, project = send(port, agent, "GET /v1/projects/topics")
    assert (status, project["is_trained"]) == (200, True)
    assert datetime.fromisoformat(project["modification_time"]).tzinfo is not None
    expected = list(next(iter(model.predict([TEXT], k=100))))
    for extra in ("", "&metadata_title=A+title", "&project=other"):
        status, found = send(port, agent, "POST /v1/projects/topics/suggest", FORM, f"{FORM_TEXT}{extra}&limit=100")
        assert status == 200
        assert [one["uri"] for one in found["results"]] == [PREFIX + label for label, _ in expected]
        assert [one["notation"] for one in found["results"]] == [label for label, _ in expected]
        scores = [one["score"] for one in found["results"]]
        assert scores == pytest.approx([score for _, score in expected], rel=1e-5)
        assert all(0 <= score <= 1 for score in scores)


def test_annif_client_is_answered_in_annifs_schema(port, model):
    agent = "Annif-client/0.5.0"
    assert send(port, agent, "GET /v1/")[1].keys() == {"title", "version"}
    (project,) = send(port, agent, "GET /v1/projects")[1]["projects"]
    assert project == send(port, agent, "GET /v1/projects/topics")[1]
    assert (project["project_id"], project["language"]) == ("topics", "en")

    status, found = send(
        port, agent, "POST /v1/projects/topics/suggest", FORM, f"{FORM_TEXT}&limit=3&threshold=0.05"
    )  # fmt: skip
    expected = [PREFIX + label for label, _ in next(iter(model.predict([TEXT], k=3, threshold=0.05)))]
    assert (status, [one["uri"] for one in found["results"]]) == (200, expected)

    documents = {"documents": [{"text": TEXT, "document_id": "a"}, {"text": "violin", "metadata": {"title": "b"}}]}
    status, found = send(
        port, agent, "POST /v1/projects/topics/suggest-batch?limit=2&threshold=0.01", JSON, json.dumps(documents)
    )  # fmt: skip
    assert (status, [one["document_id"] for one in found]) == (200, ["a", None])
    assert (found[1]["results"][0]["label"], found[1]["results"][0]["uri"]) == ("music", f"{PREFIX}T1")


def test_annif_client_shows_refusals(port):
    agent = "Annif-client/0.5.0"
    document = [{"text": TEXT, "subjects": [{"uri": "http://x", "label": "y"}]}]
    status, found = send(port, agent, "POST /v1/projects/topics/learn", JSON, json.dumps(document))
    assert (status, "labelwise learn" in found["detail"]) == (503, True)
    for asked in (
        ("GET /v1/projects/none",), ("POST /v1/projects/none/suggest", FORM, FORM_TEXT),
        ("POST /v1/detect-language", JSON, '{"text": "some text", "languages": ["en", "fi"]}'),
    ):  # fmt: skip
        status, found = send(port, agent, *asked)
        assert status == 404
        assert found["detail"]  # the client raises it as its message


def test_only_names_that_are_no_uris_get_the_prefix():
    from labelwise.serve.annif import subject

    for name, uri, notation in (
        ("http://www.yso.fi/onto/yso/p1", "http://www.yso.fi/onto/yso/p1", None), ("urn:a:1", "urn:a:1", None),
        ("p1", f"{PREFIX}p1", "p1"), ("doi:10.1/x", "doi:10.1/x", None), ("info:a/b", "info:a/b", None),
        ("civil law: \"cats\"", f"{PREFIX}civil%20law:%20%22cats%22", "civil law: \"cats\""),
        ("a/ä#1", f"{PREFIX}a/%C3%A4%231", "a/ä#1"),
    ):  # fmt: skip
        assert subject(name, "cats", PREFIX) == {"uri": uri, "label": "cats", "notation": notation}
    assert subject("p1", None, "") == {"uri": "p1", "label": "p1", "notation": None}
