"""Averages of weights along the way: against the averages of what was recorded at every step."""

import pytest
import torch
from recorded_training import Recorder, config, fit, recorded
from tiny_fitting import TinyFitting, _one_thread, same_weights, weights_of  # noqa: F401

from labelwise.nn.config import AveragingConfig
from labelwise.nn.train import loop
from labelwise.nn.train.loop import train
from labelwise.nn.train.optim import Averaging
from labelwise.runtime.job import Job


def test_moving_average():
    settings = config(averaging={"kind": "ema", "decay": 0.8}, restore_best=False)
    fitting, _, recorder = recorded(settings)
    average = None
    for count, weights in enumerate(recorder.weights, 1):
        decay = min(0.8, count / (9 + count))
        average = {
            name: weights[name] if average is None else decay * average[name] + (1 - decay) * weights[name]
            for name in dict(fitting.module.named_parameters())
        }
    for name, parameter in fitting.module.named_parameters():
        torch.testing.assert_close(parameter.detach(), average[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("averaging", "steps"),
    [
        ({"start": 2}, [12, 18]),
        ({"start": 1, "every": 5}, [10, 15]),
        ({"start": 0.3, "every": 3}, [6, 9, 12, 15, 18]),
        ({}, [12, 18]),
    ],
)
def test_plain_mean(averaging, steps):
    settings = config(averaging={"kind": "swa", **averaging}, restore_best=False)
    fitting, _, recorder = recorded(settings)
    for name, parameter in fitting.module.named_parameters():
        mean = torch.stack([recorder.weights[step - 1][name] for step in steps]).mean(0)
        torch.testing.assert_close(parameter.detach(), mean, rtol=1e-5, atol=1e-6)


def test_an_average_that_never_began_is_told(caplog):
    fit(config(averaging={"kind": "swa", "start": 1}))
    assert "averaging" not in caplog.text
    fit(config(averaging={"kind": "swa", "start": 9}))
    assert "averaging: training ended before averaging started" in caplog.text


def test_a_time_budget_brings_the_mean_forward(monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])

    class Clock(Recorder):
        def after_step(self, step, loss):
            super().after_step(step, loss)
            now[0] += 1.0

    settings = config(
        epochs=1000, time_budget=10.5, averaging={"kind": "swa", "start": 0.4, "every": 2}, restore_best=False
    )
    fitting, clock = TinyFitting(settings), Clock()
    clock.module = fitting.module
    history = train(fitting, settings, job=Job(), monitor=clock)
    assert history.steps == 10
    assert "averaging" not in caplog.text
    taken = [step for step in range(1, 11) if step % 2 == 0 and (step - 1) / 10.5 >= 0.4]
    for name, parameter in fitting.module.named_parameters():
        mean = torch.stack([clock.weights[step - 1][name] for step in taken]).mean(0)
        torch.testing.assert_close(parameter.detach(), mean, rtol=1e-5, atol=1e-6)


def test_a_mean_with_a_window_forgets():
    weight = torch.nn.Parameter(torch.zeros(1))
    averaging = Averaging(AveragingConfig(kind="swa", window=2), {"weight": weight})
    expected = None
    for number, value in enumerate([8.0, 4.0, 2.0, 6.0], 1):
        weight.data.fill_(value)
        averaging.update()
        share = 1 / min(number, 2)
        expected = value if expected is None else expected + share * (value - expected)
    assert float(averaging.averages["weight"]) == pytest.approx(expected) == pytest.approx(5.0)


def test_averages_are_what_is_validated():
    class Looking(TinyFitting):
        def validate(self, budget):
            self.looked = weights_of(self.module)
            return super().validate(budget)

    settings = config(epochs=2, averaging={"kind": "ema"}, restore_best=False)
    fitting = Looking(settings)
    train(fitting, settings, job=Job())
    assert same_weights(fitting.looked, weights_of(fitting.module))
