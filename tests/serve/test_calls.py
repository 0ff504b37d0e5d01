"""Requests that are computed one after the other or together: each answer is sent as soon as it is there."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from labelwise.model.method import Method
from labelwise.serve import models as served
from labelwise.serve import predictions as prediction_routes
from serve.running import running_client, wait_until

PREDICT, EXPLAIN = "/v1/models/topics/predict", "/v1/models/topics/explain"


class Held:
    """Holds the thread of a model until `go` is set, in a first explanation; `asking` are all requests."""

    def __init__(self, client, monkeypatch):
        self.client, self.go, self.computed, self.calls = client, threading.Event(), [], []
        explain, predict = prediction_routes.explanations, Method.predict

        def explanations(model, document, *options):
            assert document != "first" or self.go.wait(60)
            self.computed.append(document)
            return explain(model, document, *options)

        def predictions(model, documents, *options, **named):
            self.calls.append(list(documents))
            return predict(model, documents, *options, **named)

        monkeypatch.setattr(prediction_routes, "explanations", explanations)
        monkeypatch.setattr(Method, "predict", predictions)
        self.pool = ThreadPoolExecutor(20)
        self.waiting = 0
        self.first = self.post(EXPLAIN, {"text": "first"})

    def post(self, path, body, documents=1):
        """Send a request in a thread, and wait until it is in the queue."""
        future = self.pool.submit(self.client.post, path, json=body)
        self.waiting += documents
        wait_until(lambda: self.waiting == queued(self.client) or future.done())
        return future


def queued(client):
    return int(re.search(r'queue_documents\{model="topics"\} (\d+)', client.get("/metrics").text)[1])


def test_each_answer_is_sent_when_it_is_computed_and_late_ones_are_not_computed(folder, monkeypatch):
    with running_client({"topics": folder}, timeout=5.0) as client:
        held = Held(client, monkeypatch)
        explain, slow = prediction_routes.explanations, threading.Event()

        def explanations(model, document, *options):
            assert document != "slow" or slow.wait(60)
            return explain(model, document, *options)

        monkeypatch.setattr(prediction_routes, "explanations", explanations)
        fast = held.post(EXPLAIN, {"text": "fast"})
        held.post(EXPLAIN, {"text": "slow"})
        late = held.post(EXPLAIN, {"text": "late"})
        held.go.set()
        assert fast.result(60).status_code == 200
        wait_until(lambda: queued(client) == 2)
        assert late.result(60).json()["type"] == "urn:labelwise:problem:timeout"
        slow.set()
        wait_until(lambda: queued(client) == 0)
        assert held.computed == ["first", "fast", "slow"]


def test_requests_that_fit_are_computed_together_and_others_keep_their_turn(folder, monkeypatch):
    with running_client({"topics": folder}, batch=4) as client:
        held = Held(client, monkeypatch)
        sizes = (1, 4, 2, 1, 1)
        answers = [
            held.post(PREDICT, {"documents": [f"{number} {row}" for row in range(size)], "k": 1}, size)
            for number, size in enumerate(sizes)
        ]
        answers.append(held.post(PREDICT, {"text": "other", "k": 2}))
        held.go.set()
        assert {one.result(60).status_code for one in (held.first, *answers)} == {200}
        wait_until(lambda: queued(client) == 0)
    assert held.calls[1:] == [  # without the one of the explanation
        ["0 0", "2 0", "2 1", "3 0"], ["1 0", "1 1", "1 2", "1 3"], ["4 0"], ["other"],
    ]  # fmt: skip


def test_a_text_is_not_given_to_a_model_of_images_that_replaced_the_one_it_was_sent_to(folder, monkeypatch):
    loaded, load_model = [], served.load_model
    monkeypatch.setattr(served, "load_model", lambda path: loaded.append(load_model(path)) or loaded[0])
    with running_client({"topics": folder}) as client:
        held = Held(client, monkeypatch)
        answers = [held.post(PREDICT, {"text": "/etc/passwd"}), held.post(EXPLAIN, {"text": "/etc/passwd"})]
        loaded[0].reads = "image"
        held.go.set()
        refused = [one.result(60) for one in answers]
    assert [(one.status_code, one.json()["type"]) for one in refused] == [(503, "urn:labelwise:problem:loading")] * 2
    assert held.computed == ["first"]


def test_a_slow_model_gets_calls_that_end_before_the_timeout(folder, monkeypatch):
    with running_client({"topics": folder}, timeout=4.0) as client:
        predict, sizes = Method.predict, []

        def slow(model, documents, *options, **named):
            sizes.append(len(documents))
            time.sleep(0.2 * len(documents))
            return predict(model, documents, *options, **named)

        monkeypatch.setattr(Method, "predict", slow)
        for _ in range(2):
            assert client.post(PREDICT, json={"text": "cat"}).status_code == 200
        with ThreadPoolExecutor(40) as pool:
            codes = list(pool.map(lambda _: client.post(PREDICT, json={"text": "cat"}).status_code, range(40)))
    assert max(sizes) < 10, "all together would take 8 seconds"
    assert codes.count(200) >= 5
