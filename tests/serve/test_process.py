"""The command itself: starts, reloads a changed model, stops after the requests it has begun; mistakes end with code 2."""

import json
import os
import re
import signal
import sys
import threading
import urllib.error
import urllib.request

import pytest

import labelwise as lw
from cli.commands import labelwise
from serve.running import Started, make_data, running_server, wait_until

pytest.importorskip("fastapi", reason="the extra serve is not installed")


def test_workers_reload_and_stop_without_dropping_requests(tmp_path):
    data = make_data()
    path = tmp_path / "topics"
    lw.Popularity().fit(data).save(path)
    one = Started(path, "--workers", "2", "--reload", "0.2")
    try:
        assert "labelwise_ready_workers 2\n" in one.get("/metrics")
        wait_until(lambda: len(one.events("ready")) >= 2)
        answers, stop = [], threading.Event()

        def ask():
            while not stop.is_set():
                answers.append(one.get("/v1/models/topics/predict", {"text": "cat dog", "k": 1})["results"][0])

        asking = threading.Thread(target=ask)
        asking.start()
        changed = data.take([row for row in range(len(data)) if "T0" not in data.labels_of(row)][:40])
        lw.Popularity().fit(changed).save(path, force=True)
        wait_until(lambda: len(one.events("model loaded")) >= 4)  # both workers, twice
        stop.set()
        asking.join()
        assert answers
        most = lw.load(path).predict(["x"], k=1).to_lists()[0][0]
        assert one.get("/v1/models/topics/predict", {"text": "cat", "k": 1})["results"][0]["labels"][0]["label"] == most
        path.joinpath("manifest.json").write_text("{")
        wait_until(lambda: len(one.events("a changed model cannot be loaded; the old one stays")) >= 2)
        assert one.get("/v1/models/topics/predict", {"text": "cat", "k": 1})["results"][0]["labels"][0]["label"] == most
        counts = one.get("/metrics")
        assert 'labelwise_model_loads_total{model="topics",result="ok"} 4' in counts
        assert f'labelwise_documents_total{{model="topics"}} {len(answers) + 2}' in counts
        pids = {line["id"] for line in one.events("request")}
        assert len(pids) > len(answers)
    finally:
        code = one.end()
    assert code == 0
    assert one.events("stopping")
    assert one.events("stopped")


def test_a_request_is_answered_before_the_end(folder):
    one = Started(f"named={folder}", LABELWISE_API_KEYS="")
    documents = [text for text in make_data(3, 100).texts] * 10
    found = {}

    def ask():
        found["answer"] = one.get("/v1/models/named/predict", {"documents": documents, "explain": 3})

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: 'queue_documents{model="named"} 1000' in one.get("/metrics") or "answer" in found)
    code = one.end(signal.SIGINT)
    asking.join()
    assert code == 0
    assert len(found["answer"]["results"]) == 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "no such folder"), (["."], "not a model folder"), (["{model}", "a={model}", "a={model}"], "two models are called 'a'"),
        (["a b={model}"], "cannot be the name"), (["{model}", "--port", "99999"], "port"), (["{model}", "--queue", "1"], "queue"),
        (["{model}", "--host", "no.such.host.invalid"], "--host"), (["{model}", "--api-keys", "missing"], "missing"),
        (["{model}", "--api-keys", "{short}"], "fewer than 16 characters"), (["{model}", "--log-format", "xml"], "--log-format"),
    ],
    ids=str,
)  # fmt: skip
def test_mistakes(folder, tmp_path, arguments, message):
    (tmp_path / "short").write_text("key")
    words = [word.format(model=folder, short=tmp_path / "short") for word in arguments]
    assert message in labelwise("serve", *words, cwd=tmp_path, code=2).err


def test_models_that_cannot_be_served_and_ports_in_use(tmp_path, folder):
    import socket

    import numpy as np

    lw.Popularity().fit(np.eye(4), [["a"], ["b"], ["a"], ["b"]]).save(tmp_path / "features")
    assert (
        "models of texts or images can be served"
        in labelwise("serve", tmp_path / "features", "--port", "0", code=2).err
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        message = labelwise("serve", folder, "--port", str(taken.getsockname()[1]), code=2).err
    assert "--port chooses another" in message


def test_the_missing_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert "pip install 'labelwise[serve]'" in labelwise("serve", folder, code=2).err


def test_a_model_whose_files_arrive_one_by_one_is_loaded_when_it_is_complete(tmp_path):
    names = []
    for number, name in enumerate(("old", "new")):
        lw.Popularity().fit(make_data(number).take(slice(0, 20))).save(tmp_path / name)
        names.append(lw.load(tmp_path / name).predict(["x"], k=3).to_lists()[0])
    assert names[0] != names[1]
    with running_server({"topics": tmp_path / "old"}, reload=0.05) as address:

        def text(path, body=None):
            request = urllib.request.Request(address + path, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.read().decode()

        def predicted():
            found = json.loads(text("/v1/models/topics/predict", b'{"text": "x", "k": 3}'))
            return [one["label"] for one in found["results"][0]["labels"]]

        files = sorted((tmp_path / "new").iterdir(), key=lambda file: file.name != "manifest.json")
        os.replace(files[0], tmp_path / "old" / files[0].name)
        failed = re.compile(r'labelwise_model_loads_total\{model="topics",result="error"\} [1-9]')
        wait_until(lambda: failed.search(text("/metrics")))
        assert predicted() == names[0]
        for file in files[1:]:
            os.replace(file, tmp_path / "old" / file.name)
        wait_until(lambda: predicted() == names[1])
