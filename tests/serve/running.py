"""The service in this process or on a real socket, and data for a small model."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

import labelwise as lw

MARKUP = '<img src=x onerror="document.title=1"> & "co"'
"""A label that would be markup if a page did not escape it."""
WORDS = {
    "animals": "cat dog horse stable fur paw", "music": "violin piano concert orchestra song choir",
    "trade": "import export tariff customs duty market", "law": "court judge statute appeal verdict treaty",
    MARKUP: "angle bracket quote script element attribute",
}  # fmt: skip


def make_data(seed=0, documents=150):
    rng = np.random.default_rng(seed)
    names, texts, labels = list(WORDS), [], []
    for _ in range(documents):
        chosen = rng.choice(len(names), size=rng.integers(1, 3), replace=False)
        words = [word for one in chosen for word in rng.choice(WORDS[names[one]].split(), 5)]
        rng.shuffle(words)
        texts.append(" ".join(words))
        labels.append([f"T{one}" for one in chosen])
    matrix, found = _labels(labels)
    described = [names[int(name[1:])] for name in found]
    return lw.Dataset(matrix, found, texts=texts, label_texts=described)


def _labels(labels):
    from labelwise.data.csr import labels_from_lists

    return labels_from_lists(labels)


@contextlib.contextmanager
def running_client(models, **settings):
    """A client of the application in this process, with its models loaded."""
    from starlette.testclient import TestClient

    from labelwise.serve.app import create_app
    from labelwise.serve.settings import Settings

    failures = []
    named = {name: str(path) for name, path in models.items()}
    app = create_app(Settings(models=named, reload=0, log_requests=False, **settings), failures.append)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        wait_until(lambda: client.get("/ready").status_code == 200 or failures)
        assert not failures, failures
        yield client


@contextlib.contextmanager
def running_server(models, **settings):
    """A server on a socket, in a thread of this process; gives its address."""
    from labelwise.serve.server import listening_socket, make_server
    from labelwise.serve.settings import Settings

    named = {name: str(path) for name, path in models.items()}
    wanted = Settings(models=named, port=0, log_requests=False, **{"reload": 0, **settings})
    failures = []
    with listening_socket(wanted) as listening:
        server = make_server(wanted, failures)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            address = f"http://localhost:{listening.getsockname()[1]}"
            wait_until(lambda: _ready(address) or failures)
            assert not failures, failures
            yield address
        finally:
            server.should_exit = True
            thread.join()


class Started:
    """`labelwise serve` in a process of its own."""

    def __init__(self, *arguments, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "labelwise", "serve", *map(str, arguments), "--port", "0"],
            stderr=subprocess.PIPE, env={**os.environ, **environment}, text=True,
        )  # fmt: skip
        self.lines, self.address = [], None
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        wait_until(lambda: self._ready() or self.process.poll() is not None)
        assert self.process.poll() is None, self.lines

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(json.loads(line))
            self.address = self.lines[-1].get("address", self.address)

    def _ready(self):
        try:
            return self.address is not None and self.get("/ready")["status"] == "ready"
        except (urllib.error.URLError, ConnectionError):
            return False

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read().decode()
        return json.loads(content) if content[0] in "{[" else content

    def workers(self):
        """The numbers of the worker processes."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        workers = []
        for one in found:
            with contextlib.suppress(FileNotFoundError):  # it has ended in the meantime
                workers += [int(one)] if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes() else []
        return workers

    def events(self, message):
        return [line for line in self.lines if line["message"] == message]

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.reader.join()
        self.process.stderr.close()
        return code


def _ready(address):
    try:
        with urllib.request.urlopen(f"{address}/ready") as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)
