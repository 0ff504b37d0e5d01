"""Limits of all clients together, and models that are not there yet."""

import json
import signal
import socket
import subprocess
import sys
import threading

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from serve.running import running_client, running_server, wait_until

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

    from labelwise.serve import served
    from labelwise.serve.app import create_app
    from labelwise.serve.settings import Settings

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


def test_connections_are_bounded(folder):
    with running_server({"topics": folder}, max_connections=3) as address:
        port = int(address.rpartition(":")[2])
        held = [socket.create_connection(("localhost", port)) for _ in range(3)]

        def answer():
            with socket.create_connection(("localhost", port)) as other:
                other.settimeout(5)
                try:
                    return other.recv(2000)
                except TimeoutError:
                    return b""

        wait_until(lambda: b" 503 " in answer(), 30)
        assert b"retry-after: 1" in answer().lower()
        for one in held:
            one.close()


def test_sigterm_does_not_wait_for_a_model_that_is_loading(plain_folder):
    code = (
        "import time, sys\nfrom labelwise.serve import served\nserved.load_model = lambda path: time.sleep(600)\n"
        "from labelwise.cli.main import main\nmain(sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(plain_folder), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert "listening" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(60) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.stderr.close()


def test_workers_that_die_again_and_again_are_started_after_longer_pauses(monkeypatch):
    from labelwise.serve import server

    class Supervisor(server.Workers):
        def __init__(self):
            self.processes, self.starts = [type("Dead", (), {"pid": 0})()], []

    now = [0.0]
    monkeypatch.setattr(server.time, "monotonic", lambda: now[0])

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


def test_limits_that_contradict_each_other(folder):
    from labelwise.errors import LabelwiseError

    with (
        pytest.raises((LabelwiseError, ValueError), match="max_bodies"),
        running_client({"t": folder}, max_bodies=2000),
    ):
        pass
