"""Worker processes that end, are started again, or lose their parent."""

import json
import os
import re
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import labelwise as lw
from labelwise.serve.settings import SETTINGS_VARIABLE
from serve.running import Started, make_data, wait_until

pytest.importorskip("fastapi", reason="the extra serve is not installed")

SLOW = """
import time
from labelwise.serve import loading
plain = loading.load_model
loading.load_model = lambda path: time.sleep(1) or plain(path)
"""


@pytest.fixture
def started(tmp_path):
    """Two workers, which take a second to load their model."""
    lw.Popularity().fit(make_data()).save(tmp_path / "topics")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sitecustomize.py").write_text(SLOW)
    paths = [str(tmp_path / "code"), os.environ.get("PYTHONPATH", "")]
    one = Started(tmp_path / "topics", "--workers", "2", PYTHONPATH=os.pathsep.join(filter(None, paths)))
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.end()


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_workers_that_are_started_again_accept_nothing_before_they_can_answer(started):
    failures, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            try:
                assert started.get("/ready")["status"] == "ready"
                assert started.get("/v1/models/topics/predict", {"text": "cat", "k": 1})["results"]
            except urllib.error.HTTPError as error:
                failures.append(error.read())
            except (urllib.error.URLError, ConnectionError):
                pass  # accepted by the one that was ended

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        ended = started.workers()
        os.kill(ended[0], signal.SIGKILL)
        wait_until(lambda: len(started.events("ready")) == 3)
        found = started.get("/metrics")
        assert "labelwise_ready_workers 2\n" in found
        pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in started.workers())
        reported = float(re.search(r"^labelwise_resident_bytes (\S+)$", found, re.MULTILINE)[1])
        assert reported / (pages * os.sysconf("SC_PAGE_SIZE")) == pytest.approx(1, rel=0.2), "of all, as they are now"
        started.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(started.events("ready")) == 5 and not set(ended) & set(started.workers()))
    finally:
        stop.set()
        asking.join()
    assert not failures


def test_a_server_that_was_ready_stays_so_while_one_of_its_workers_answers(started):
    ended = set(started.workers())
    for one in ended:
        os.kill(one, signal.SIGKILL)
    wait_until(lambda: len(set(started.workers()) - ended) == 2)
    held, _ = set(started.workers()) - ended
    os.kill(held, signal.SIGSTOP)  # while it loads
    try:
        assert started.get("/ready")["status"] == "ready"
        assert "labelwise_ready_workers 1\n" in started.get("/metrics")
    finally:
        os.kill(held, signal.SIGCONT)


def test_workers_end_with_a_parent_that_is_killed(started):
    workers = started.workers()
    variables = Path(f"/proc/{workers[0]}/environ").read_bytes().split(b"\0")
    (settings,) = [one.partition(b"=")[2] for one in variables if one.startswith(SETTINGS_VARIABLE.encode() + b"=")]
    counters = Path(json.loads(settings)["counters"])
    assert counters.exists()
    os.kill(workers[1], signal.SIGSTOP)  # the file is removed by any of them
    started.process.kill()
    wait_until(lambda: not is_running(workers[0]) and not counters.parent.exists())
    os.kill(workers[1], signal.SIGCONT)
    wait_until(lambda: not is_running(workers[1]))
    started.end()


def test_a_worker_is_stopped_while_it_loads(started):
    os.kill(started.workers()[0], signal.SIGKILL)
    wait_until(lambda: len(started.events("a worker has died and is started again")) == 1)
    assert started.end() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_keys_from_a_pipe_are_read_once(tmp_path, workers):
    lw.Popularity().fit(make_data()).save(tmp_path / "topics")
    key, pipe = "0123456789abcdef,x", tmp_path / "keys"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(key + "\n",))
    writer.start()
    one = Started(tmp_path / "topics", "--workers", workers, "--api-keys", pipe)
    try:
        writer.join()
        request = urllib.request.Request(one.address + "/v1/models", headers={"X-API-Key": key})
        assert "topics" in urllib.request.urlopen(request, timeout=60).read().decode()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            one.get("/v1/models")
    finally:
        one.end()
    assert not one.events("a worker has died and is started again")
