"""Malformed, huge and slow requests are refused with a problem, and never break the server."""

import http.client
import json
import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.errors import ModelFormatError
from serve.running import MARKUP, running_client, running_server

pytest.importorskip("fastapi", reason="the extra serve is not installed")

PREDICT, SUGGEST = "/v1/models/topics/predict", "/v1/projects/topics/suggest"
JSON = {"Content-Type": "application/json"}
DEEP = b'{"text":' + b"[" * 20_000 + b"]" * 20_000 + b"}"


def is_problem(answer, *statuses):
    assert answer.status_code in statuses, (answer.status_code, answer.text[:300])
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert (found["status"], bool(found["title"]), bool(found["detail"])) == (answer.status_code, True, True)
    return found


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"\xff\xfe\x00", 400), (bytes(range(255, 0, -1)) * 4, 400), (DEEP, 400), (b"null", 422),
        (b"[]", 422), (b'"text"', 422), (b"{}", 422), (b'{"text": 5}', 422), (b'{"text": null}', 422),
        (b'{"text": "a", "documents": ["b"]}', 422), (b'{"documents": "abc"}', 422), (b'{"documents": [1]}', 422),
        (b'{"text": "a", "k": "5"}', 422), (b'{"text": "a", "k": 0}', 422), (b'{"text": "a", "k": -1}', 422),
        (b'{"text": "a", "k": 1.5}', 422), (b'{"text": "a", "k": 1e400}', 422), (b'{"text": "a", "k": true}', 422),
        (b'{"text": "a", "k": 99999}', 422), (b'{"text": "a", "threshold": NaN}', 422),
        (b'{"text": "a", "threshold": "high"}', 422), (b'{"text": "a", "labels": []}', 422),
        (b'{"text": "a", "labels": ["unknown"]}', 422), (b'{"text": "a", "label_weights": {"T0": -1}}', 422),
        (b'{"text": "a", "label_weights": {"T0": "x"}}', 422), (b'{"text": "a", "explain": 0}', 422),
        (b'{"text": "a", "unknown": 1}', 422), (b'{"text": "\\ud800"}', 400),
        (json.dumps({"text": "x" * 2001}).encode(), 413), (json.dumps({"documents": ["x"] * 21}).encode(), 413),
        (b'{"text": "' + b"x" * 60_000 + b'"}', 413),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_bodies_that_are_refused(client, body, status):
    is_problem(client.post(PREDICT, content=body, headers=JSON), status)


def test_errors_name_the_part_that_is_wrong(client):
    found = is_problem(client.post(PREDICT, json={"documents": ["a", {"id": 3}]}), 422)
    assert {one["pointer"] for one in found["errors"]} == {"/documents/1/text", "/documents/1/id"}
    found = is_problem(client.post(PREDICT, json={"text": "a", "threshold": "high"}), 422)
    assert {one["pointer"] for one in found["errors"]} == {"/threshold"}
    found = is_problem(client.post(PREDICT, json={"text": "a", "label_weights": {"a/b~c": "x", "str": "x"}}), 422)
    assert {one["pointer"] for one in found["errors"]} == {"/label_weights/a~1b~0c", "/label_weights/str"}
    for body, pointers in (
        ({"text": "a", "str": 1}, ["/str"]), ({"text": "a", "Document": 1}, ["/Document"]),
        ({"documents": [{"text": "a", "str": 1}]}, ["/documents/0/str"]),
        ({"text": "a", "label_weights": {"x" * 10_001: 1.0}}, ["/label_weights/" + "x" * 59 + "…"]),
        ({"text": "a", "label_weights": {"[key]": "x"}}, ["/label_weights/[key]"]),
    ):  # fmt: skip
        found = is_problem(client.post(PREDICT, json=body), 422)
        assert [one["pointer"] for one in found["errors"]] == pointers
    found = is_problem(client.post(PREDICT, json={}), 422)
    assert found["errors"][0]["detail"].startswith("give either `text`")
    found = is_problem(client.post(PREDICT, json={"text": "a", "labels": ["\x1b[2J"]}), 422)
    assert "\x1b" not in found["detail"]


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({"txt": "a"}, [("/txt", "there is no field 'txt'; did you mean 'text'?")]),
        ({"documents": [{"text": "a", "name": "b"}]}, [("/documents/0/name", "there is no field 'name'; accepted: text, id")]),
        ({"documents": [5]}, [("/documents/0", "a document is a text, or an object with `text` and `id`")]),
        ({"text": "a", "threshold": "aut"}, [("/threshold", 'a number or "auto" is accepted')]),
        ({"text": "a", "threshold": 1e31}, [("/threshold", "Input should be less than or equal to 1")]),
        ({"text": "a", "k": 300_000}, [("/k", "k: 300,000 labels per document; 1,000 at most are returned")]),
        ({"text": "a", "k": 10**29}, [("/k", "k: 100,000,000,000,000,000,000,0")]),
        ({"text": " \n"}, [("/text", "a text is needed")]),
        ({"documents": ["a", "", "b"]}, [("/documents/1", "a text is needed")]),
        ({"documents": ["a", {"text": "\u3000"}]}, [("/documents/1/text", "a text is needed")]),
    ],
    ids=str,
)  # fmt: skip
def test_errors_say_what_is_accepted(client, body, errors):
    found = is_problem(client.post(PREDICT, json=body), 422)
    assert [one["pointer"] for one in found["errors"]] == [pointer for pointer, _ in errors]
    for one, (_, detail) in zip(found["errors"], errors, strict=True):
        assert one["detail"].startswith(detail)


def test_unknown_names_unknown_fields_and_blank_texts_of_other_routes(client):
    found = is_problem(client.post("/v1/models/topic/predict", json={"text": "a"}), 404)
    assert found["detail"] == "there is no model 'topic'; there are: topics, plain"
    found = is_problem(client.post("/v1/projects/topic/suggest", data={"text": "a"}), 404)
    assert found["detail"] == "there is no project 'topic'; there are: topics, plain"
    found = is_problem(client.post(PREDICT, json={"nonsense": "a"}), 422)
    assert "accepted: k, threshold, labels, label_weights, explain, text, documents" in found["detail"]
    found = is_problem(client.post("/v1/models/topics/explain", json={"text": ""}), 422)
    assert found["detail"] == "text: a text is needed, this one is blank"
    found = is_problem(client.post(SUGGEST, data={"text": "a", "limit": 300_000}), 400)
    assert found["detail"] == "limit: 1,000 subjects at most are returned"
    assert client.post(SUGGEST, data={"text": ""}).status_code == 200  # as Annif answers


def test_bodies_of_very_many_values_are_refused_before_they_are_parsed(plain_folder):
    """Parsed, each wrong value becomes several errors, and each unknown field one."""
    many = 320_000
    bodies = (
        {"documents": [1] * many}, {"documents": [[]] * many}, {"documents": [dict.fromkeys(map(str, range(many)), 0)]},
        dict.fromkeys(map(str, range(many)), 0), {"text": "a", "x": [[]] * many},
    )  # fmt: skip
    path = "/v1/models/plain/predict"
    with running_client({"plain": plain_folder}, max_text=5_000_000) as client:
        for body in bodies:
            is_problem(client.post(path, json=body), 413)
        text = '\\ "a", [b], {"c": \\" ' * 100_000
        assert client.post(path, json={"text": text}).status_code == 200
        found = is_problem(client.post(path, json={"documents": [1] * 200_000}), 422)
        assert {one["pointer"] for one in found["errors"]} == {"/documents/0"}
        weights = {"text": "a", "label_weights": dict.fromkeys(map(str, range(20_000)), "x")}
        found = is_problem(client.post(path, json=weights), 422)
        assert ("20,000" in found["detail"], "errors" in found) == (True, False)


def test_other_wrong_requests(client):
    is_problem(client.post(PREDICT, content=b'{"text": "a"}', headers={"Content-Type": "text/plain"}), 415)
    is_problem(client.post(PREDICT, content=b'{"text": "a"}', headers={"Content-Type": ""}), 415)
    is_problem(client.post("/v1/models/../predict", json={}), 404, 405)
    is_problem(client.post("/v1/models/none/predict", json={"text": "a"}), 404)
    is_problem(client.get(PREDICT), 405)
    is_problem(client.delete("/v1/models/topics"), 405)
    is_problem(client.get("/v1/models/topics/labels?limit=1000"), 422)
    is_problem(client.get("/v1/models/topics/labels?query=" + "x" * 1001), 422)
    is_problem(client.get("/%00%1b[2J"), 404)
    is_problem(client.post(PREDICT, json={"text": "a", "threshold": 2.0, "explain": 1000}), 422)
    is_problem(client.post("/v1/models/plain/predict", json={"text": "a", "threshold": "auto"}), 422)
    is_problem(client.post("/v1/models/plain/explain", json={"text": "a"}), 422)
    is_problem(client.post("/v1/models/plain/predict", json={"text": "a", "explain": 1}), 422)
    is_problem(client.post(PREDICT, files={"image": b"x"}), 415)


def test_wrong_forms(client):
    for content in (b"text", b"text=%ff", b"\xff\xfe", b"&".join(b"a%d=1" % i for i in range(500))):
        is_problem(
            client.post(SUGGEST, content=content, headers={"Content-Type": "application/x-www-form-urlencoded"}), 400
        )
    found = is_problem(client.post(SUGGEST, data={"limit": 3}), 400)  # Annif's API has no 422
    assert (found["type"], found["errors"][0]["pointer"]) == ("urn:labelwise:problem:invalid-request", "/text")
    is_problem(client.post(SUGGEST, data={"text": "a", "limit": "many"}), 400)
    is_problem(client.post(SUGGEST, data={"text": "a", "threshold": "nan"}), 400)
    is_problem(client.post(SUGGEST, data={"text": "a" * 2001}), 413)
    is_problem(client.post(SUGGEST, json={"text": "a"}), 415)
    broken = {"Content-Type": "multipart/form-data"}
    is_problem(client.post(SUGGEST, content=b"--x\r\n\r\n", headers=broken), 400)
    is_problem(
        client.post(SUGGEST, content=b"--x\r\n\r\n", headers={"Content-Type": "multipart/form-data; boundary=x"}), 400
    )
    field = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\na\r\n--x--\r\n'
    unknown = {"Content-Type": "multipart/form-data; boundary=x; charset=undefined"}  # a codec that refuses everything
    is_problem(client.post(SUGGEST, content=field, headers=unknown), 400)
    many = {"documents": [{"text": "a"}] * 33}
    is_problem(client.post("/v1/projects/topics/suggest-batch", json=many), 400)
    is_problem(client.post("/v1/projects/topics/suggest-batch?limit=-1", json={"documents": []}), 400)
    described = client.get("/openapi.json").json()["paths"]
    assert not [path for path in described if "projects" in path and "422" in str(described[path])]


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes(client, content):
    is_problem(client.post(PREDICT, content=content, headers=JSON), 400, 422)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["text", "documents", "k", "threshold", "labels", "label_weights", "explain"]), values
    )
)
def test_any_json(client, body):
    content = json.dumps(body).encode()
    answer = client.post(PREDICT, content=content, headers=JSON)
    assert answer.status_code in (200, 400, 413, 422), answer.text
    if answer.status_code != 200:
        is_problem(answer, 400, 413, 422)


def test_labels_with_markup_are_data(client):
    answer = client.post(PREDICT, json={"text": "angle bracket quote", "k": 1})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["results"][0]["labels"][0]["text"] == MARKUP
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_bugs_are_answered_without_details(folder, monkeypatch):
    from labelwise.serve import batching

    with running_client({"topics": folder}) as client:
        monkeypatch.setattr(batching, "compute", lambda _, works: [(works, [ZeroDivisionError("secret")] * len(works))])
        found = is_problem(client.post(PREDICT, json={"text": "a"}), 500)
        assert "secret" not in json.dumps(found)
        damaged = ModelFormatError("/srv/secret/state.safetensors: the weights are damaged")
        monkeypatch.setattr(batching, "compute", lambda _, works: [(works, [damaged] * len(works))])
        found = is_problem(client.post(PREDICT, json={"text": "a"}), 500)
        assert "secret" not in json.dumps(found)
        assert "damaged" in found["detail"]
        monkeypatch.undo()
        assert client.post(PREDICT, json={"text": "a"}).status_code == 200


def test_slow_and_broken_clients_on_a_socket(folder, monkeypatch):
    from labelwise.serve import protocol

    monkeypatch.setattr(protocol, "HEADER_SECONDS", 1.0)
    with running_server({"topics": folder}, timeout=2.0, max_request=10_000) as address:
        port = int(address.rpartition(":")[2])
        silent = socket.create_connection(("localhost", port))
        slow_head = socket.create_connection(("localhost", port))
        slow_head.sendall(b"POST /v1/models/topics/predict HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        slow_body = socket.create_connection(("localhost", port))
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % PREDICT.encode()
        slow_body.sendall(head + b"Content-Length: 100\r\n\r\n{")
        gone = socket.create_connection(("localhost", port))
        gone.sendall(head + b"Content-Length: 100\r\n\r\n{")
        gone.close()
        endless = socket.create_connection(("localhost", port))
        chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
        endless.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + 21 * chunk)  # at once: the server hangs up
        assert b" 413 " in endless.recv(1000)
        announced = socket.create_connection(("localhost", port))
        announced.sendall(head + b"Content-Length: 99999999\r\n\r\n")
        assert b" 413 " in announced.recv(1000)
        nonsense = socket.create_connection(("localhost", port))
        nonsense.sendall(b"\x16\x03\x01\x00\xa5 nonsense\r\n\r\n")
        assert b" 400 " in nonsense.recv(1000)
        for one in (silent, slow_head):
            one.settimeout(30)
            assert one.recv(100) == b""
        slow_body.settimeout(30)
        assert b" 408 " in slow_body.recv(1000)
        connection = http.client.HTTPConnection("localhost", port)
        for _ in range(2):  # the same connection again, after a pause that is shorter than the one for idle ones
            connection.request("POST", PREDICT, json.dumps({"text": "cat"}), JSON)
            answer = connection.getresponse()
            assert (answer.status, bool(json.loads(answer.read())["results"])) == (200, True)
            time.sleep(1.2)
