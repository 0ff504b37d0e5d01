"""Limits of all clients together, and models that are not there yet."""

import fcntl
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from starlette.testclient import TestClient

from cli.commands import labelwise
from forking import Forked
from labelwise.serve import answers
from labelwise.serve.app import create_app
from labelwise.serve.gate import Counters
from labelwise.serve.protocol import LimitedProtocol
from labelwise.serve.settings import Settings
from labelwise.strings import Strings
from serve.running import running_server, wait_until

PREDICT = "/v1/models/topics/predict"


def test_thresholds_that_no_probability_reaches_are_refused(client):
    refused = client.post(PREDICT, json={"text": "cat", "threshold": 5})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/threshold")
    assert client.post(PREDICT, json={"text": "cat", "threshold": 1, "k": 3}).status_code == 200
    scores = client.post("/v1/models/plain/predict", json={"text": "cat", "threshold": 5})  # not probabilities
    assert scores.status_code == 200


def test_errors_about_labels_are_bounded(client):
    for body in ({"labels": ["x" * 9000]}, {"label_weights": {"y" * 9000: 1.0}}):
        refused = client.post(PREDICT, json={"text": "cat", **body})
        assert refused.status_code == 422
        assert len(refused.json()["detail"]) < 600


def test_models_that_are_loading_are_listed(plain_folder, monkeypatch):
    from starlette.testclient import TestClient

    from labelwise.serve import models as served
    from labelwise.serve.app import create_app

    go, plain = threading.Event(), served.load_model
    monkeypatch.setattr(served, "load_model", lambda path: go.wait(60) and plain(path))
    app = create_app(Settings(models={"plain": str(plain_folder)}, reload=0), lambda error: None)
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/v1/models").json()["models"] == [{"name": "plain", "status": "loading"}]
        go.set()
        wait_until(lambda: client.get("/ready").status_code == 200)
        assert client.get("/v1/models").json()["models"][0]["status"] == "ready"


def test_bodies_of_all_clients_are_bounded(folder):
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % PREDICT.encode()
    with running_server({"topics": folder}, max_request=10_000, max_bodies=15_000, timeout=20.0) as address:
        port = int(address.rpartition(":")[2])
        held = socket.create_connection(("localhost", port))
        held.sendall(head + b"Content-Length: 9000\r\n\r\n" + 8000 * b" ")
        body = json.dumps({"text": "cat"}).encode().rjust(9000)

        def answer():
            with socket.create_connection(("localhost", port)) as other:
                other.settimeout(30)
                other.sendall(head + b"Content-Length: 9000\r\n\r\n" + body)
                return other.recv(2000)

        wait_until(lambda: b" 503 " in answer(), 20)
        assert b"retry-after: 1" in answer().lower()
        held.close()
        wait_until(lambda: b" 200 " in answer(), 20)


@pytest.mark.parametrize("characters", [3, 4_000_000])
def test_connections_are_bounded(folder, characters, caplog):
    """Clients that send their whole request before they read get the refusal, and are accepted when others have gone."""
    body = json.dumps({"text": "cat".ljust(characters)})

    def answer():
        client = http.client.HTTPConnection("localhost", port, timeout=30)
        try:
            client.request("POST", PREDICT, body, {"Content-Type": "application/json"})
            response = client.getresponse()
            return response.status, response.getheader("Retry-After"), response.read()
        finally:
            client.close()

    with running_server({"topics": folder}, max_connections=3, max_text=5_000_000) as address:
        port = int(address.rpartition(":")[2])
        held = [socket.create_connection(("localhost", port)) for _ in range(3)]
        wait_until(lambda: answer()[0] == 503, 30)
        for _ in range(10):
            status, retry, text = answer()
            assert (status, retry, json.loads(text)["type"]) == (503, "1", "urn:labelwise:problem:busy")
        for one in held:
            one.close()
        wait_until(lambda: answer()[0] == 200, 30)
        with urllib.request.urlopen(f"{address}/metrics") as found:
            lines = found.read().decode().splitlines()
    refused = [line for line in lines if line.startswith("labelwise_refused_connections_total ")]
    assert float(refused[0].split()[1]) >= 11
    logged = [record.fields for record in caplog.records if record.message == "connections were refused"]
    assert logged, "the first of them is logged"
    assert len(logged) <= 3, "and the others together"


def test_a_refused_client_that_says_nothing_is_let_go(folder, monkeypatch):
    monkeypatch.setattr("labelwise.serve.lingering.SECONDS", 0.1)
    with running_server({"topics": folder}, max_connections=1) as address:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("localhost", port)), socket.create_connection(("localhost", port)) as other:
            wait_until(lambda: other.recv(2000) == b"" or not LimitedProtocol._open_refusals, 30)
            wait_until(lambda: not LimitedProtocol._open_refusals, 30)


def test_sigterm_does_not_wait_for_a_model_that_is_loading(plain_folder):
    code = (
        "import time, sys\nfrom labelwise.serve import models as served\nserved.load_model = lambda path: time.sleep(600)\n"
        "from labelwise.cli.main import main\nmain(sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(plain_folder), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert "listening" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(60) in (0, 128 + signal.SIGTERM)
    finally:
        process.kill()
        process.stderr.close()


def test_a_server_is_ready_when_all_its_workers_are(folder, tmp_path, monkeypatch):
    counters = tmp_path / "counters"
    counters.touch()
    settings = Settings(models={"topics": str(folder)}, workers=2, counters=str(counters), log_requests=False)
    with TestClient(create_app(settings, pytest.fail), base_url="http://localhost") as client:
        wait_until(lambda: "labelwise_ready_workers 1\n" in client.get("/metrics").text)
        assert client.post(PREDICT, json={"text": "cat"}).status_code == 200
        refused = client.get("/ready")
        assert refused.status_code == 503
        assert "1 of 2 worker processes" in refused.json()["detail"]
        monkeypatch.setattr(Counters, "total", lambda *_: 2.0)
        assert client.get("/ready").status_code == 200
        monkeypatch.undo()
        assert client.get("/ready").status_code == 200, "this one answers while the other is restarted"


def test_gauges_of_workers_that_have_ended_do_not_count(tmp_path):
    file = tmp_path / "counters"
    file.touch()

    def work():
        ended = Counters(["/"], ["topics"], str(file))
        ended.set("labelwise_ready_workers", 1)
        ended.set("labelwise_queue_documents", 5, model="topics")
        ended.add("labelwise_documents_total", 3, model="topics")

    mine = Counters(["/"], ["topics"], str(file))
    mine.set("labelwise_ready_workers", 1)
    assert Forked(work).wait() == 0
    assert mine.total("labelwise_ready_workers") == 1
    assert mine.total("labelwise_documents_total", model="topics") == 3
    assert 'labelwise_queue_documents{model="topics"} 0' in mine.text()

    def ask():
        with file.open("rb") as opened:
            fcntl.lockf(opened, fcntl.LOCK_SH, 1, 1)  # the row of the one that has ended
            (tmp_path / "asking").touch()
            sys.stdin.read()

    asking = Forked(ask, stdin=subprocess.PIPE)
    wait_until((tmp_path / "asking").exists)
    assert mine.total("labelwise_ready_workers") == 1, "another worker that asks at the same time is not the owner"
    asking.stdin.close()
    assert asking.wait() == 0


def test_workers_that_die_again_and_again_are_started_after_longer_pauses(monkeypatch):
    from labelwise.serve import server

    class Supervisor(server.Workers):
        def __init__(self):
            self.processes, self.starts = [type("Dead", (), {"pid": 0})()], []

    now = [0.0]
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def die(self):
        self.starts.append(now[0])
        self.processes = [type("Dead", (), {"pid": len(self.starts)})()]

    monkeypatch.setattr(server.Multiprocess, "keep_subprocess_alive", die)
    workers = Supervisor()
    for _ in range(600):
        workers.keep_subprocess_alive()
        now[0] += 0.5
    pauses = [later - earlier for earlier, later in zip(workers.starts, workers.starts[1:], strict=False)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert max(pauses) == server.LONGEST_PAUSE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-bodies", "2"), "--max-bodies: 2,000,000 bytes for all requests are fewer than the 16,000,000 of one"),
        (("--queue", "10"), "lower --max-documents"),
        (("--max-connections", "0"), "--max-connections: should be greater than or equal to 1, got 0"),
        (("--uri-prefix", "nope"), "--uri-prefix: the beginning of a URI is needed, such as http://"),
        (("--language", "no language"), "--language: a language code is needed, such as en"),
    ],
)
def test_wrong_options_are_named(folder, options, message):
    refused = labelwise("serve", folder, "--port", "0", *options, code=2).err
    assert message in refused
    assert "[A-Za-z]" not in refused


def test_defaults_of_the_command_are_those_of_the_settings(folder, monkeypatch):
    found = []
    monkeypatch.setattr("labelwise.serve.server.serve", found.append)
    labelwise("serve", f"t={folder}", "--log-format", "json")
    assert found == [Settings(models={"t": str(folder)})]
    labelwise("serve", f"t={folder}", "--max-request", "300")
    assert found[0].all_bodies == 256_000_000
    assert found[1].all_bodies == 300_000_000


def test_kept_json_of_labels_is_bounded_by_its_size(monkeypatch):
    monkeypatch.setattr(answers, "KEPT_BYTES", 10_000)
    names = Strings.of([f"{'x' * 900} {number}" for number in range(100)])
    starts = answers.LabelStarts(names, None, answers.label_fields)
    for number in (*range(100), 0, 99):
        assert json.loads(starts[number] + "1}") == {"label": names[number], "score": 1}
        assert sum(map(len, starts.values())) <= 10_000
