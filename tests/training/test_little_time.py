"""What a training does when its time is short, on a clock that the tests move."""

import numpy as np
import pytest

pytest.importorskip("torch")

import labelwise as lw
from common import Clock
from conformance.planted import planted
from conformance.small import SMALL
from labelwise.nn.config import TrainingConfig
from labelwise.nn.encode import encode_some_texts
from labelwise.nn.inputs import Part, Vectors
from labelwise.nn.train.loop import History, train
from labelwise.nn.words.vocabulary import WordTokens
from labelwise.runtime.budget import NO_LIMIT
from labelwise.runtime.job import Job
from labelwise.strings import Strings
from training.tiny_fitting import TinyFitting, Watcher


@pytest.fixture
def clock(monkeypatch):
    moved = Clock()
    monkeypatch.setattr("time.monotonic", moved)
    return moved


class Slow(TinyFitting):
    """Validation takes a time that is known from its first document on."""

    clock: Clock
    seconds = 0.0
    validated = 0

    def validate(self, budget):
        begin = self.clock.now
        for done in range(1, 11):
            self.clock.now += self.seconds / 10
            budget.check_pace(begin, done, 10)
        self.validated += 1
        return super().validate(budget)


class Steps(Watcher):
    """A step takes a second."""

    def __init__(self, clock):
        self.clock = clock

    def after_step(self, step, loss):
        self.clock.now += 1.0


def trained(clock, seconds, **settings):
    config = TrainingConfig(epochs=1000, batch_size=16, validate_every=5, **settings)
    fitting = Slow(config)
    fitting.clock, fitting.seconds = clock, seconds
    begin = clock.now
    budget = NO_LIMIT.limited(30.0)
    history = train(fitting, config, job=Job(budget=budget), monitor=Steps(clock))
    assert budget.ended_early == (history.stopped == "time budget")
    return fitting, history, clock.now - begin


def test_the_last_validation_is_reserved(clock):
    fitting, history, took = trained(clock, 2.0)
    assert history.stopped == "time budget"
    assert history.records[-1]["step"] == history.steps, "the last weights were validated"
    assert 28.5 <= took <= 30.0
    assert fitting.validated == len(history.records)


def test_a_validation_that_is_too_long_is_left_out(clock, caplog):
    caplog.set_level("INFO")
    fitting, history, took = trained(clock, 60.0)
    assert fitting.validated == 0
    assert history.best is None
    assert 29.5 <= took <= 30.5, "its first part shows how long it would take"
    assert "train: no validation at step 5, the time budget does not suffice" in caplog.messages
    assert f"train: ended by the time budget, after {history.steps} of 3,000 steps" in caplog.text


def test_repetitions_share_the_time_and_those_without_any_are_left_out(clock, monkeypatch, caplog):
    budgets = []

    def quick(fitting, config, job, **others):
        budgets.append(round(job.budget.remaining(), 6))
        clock.now += seconds
        return History(stopped="time budget")

    monkeypatch.setattr("labelwise.nn.train.repetitions.train", quick)
    data = planted("features", n_documents=60)
    settings = {**SMALL["mach"], "repetitions": 4, "training": {"time_budget": 100.0}}
    seconds = 25.0
    assert len(lw.Mach(**settings).fit(data).repetitions_) == 4
    assert budgets == [25.0] * 4, "one budget for all, not one for each"
    budgets.clear()
    seconds = 40.0
    model = lw.Mach(**settings).fit(data)
    assert budgets == [25.0, 10.0, 5.0], "what came late is reserved, up to half of the time"
    assert [one.number for one in model.repetitions_] == [0, 1, 2]
    assert "time budget: 3 of 4 results of repetition are there, the others are left out" in caplog.text
    assert model.predict(data, 3).ids.shape == (60, 3)


def test_a_part_of_the_documents_is_read_and_encoded_as_it_would_be_with_all(clock):
    random = np.random.default_rng(0)
    lengths = random.integers(1, 9, 500)
    tokens = WordTokens(random.integers(1, 30, lengths.sum()).astype(np.int32), np.concatenate([[0], lengths.cumsum()]))
    rows = np.sort(random.permutation(500)[:40])
    some = Part(tokens, rows=rows)
    batch, whole = some.batch(np.arange(5, 12)), tokens.batch(rows[5:12])
    np.testing.assert_array_equal(rows[batch.rows], whole.rows)
    for one, other in zip(batch.arrays, whole.arrays, strict=True):
        np.testing.assert_array_equal(one, other)

    class Ticking:
        def __init__(self, inputs):
            self.inputs = inputs

        def __len__(self):
            return len(self.inputs)

        def __getattr__(self, name):
            return getattr(self.inputs, name)

        def batch(self, documents, epoch=None):
            clock.now += 0.1 * len(documents)
            return self.inputs.batch(documents)

    class Doubling:
        width, device = 4, "cpu"

        def __call__(self, vectors):
            return 2 * vectors

        def eval(self):
            return self

    vectors = Vectors(random.normal(size=(500, 4)).astype(np.float32))
    texts, budget = Strings.of([str(number) for number in range(500)]), NO_LIMIT.limited(20.0)
    encoded, doubled = encode_some_texts(Doubling(), texts, budget=budget, inputs=Ticking(vectors))
    assert 150 < len(encoded) <= 200
    np.testing.assert_array_equal(doubled, 2 * vectors.values[encoded])
