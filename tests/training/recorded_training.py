"""Trainings of the tiny model with some settings, and all that can be seen of them."""

from tiny_fitting import TinyFitting, Watcher, weights_of

from labelwise.nn.config import TrainingConfig
from labelwise.nn.train.loop import train
from labelwise.runtime.job import Job


def config(**values):
    return TrainingConfig.model_validate({"epochs": 3, "batch_size": 8, "metric": "valid_loss", **values})


def fit(settings, monitor=None, job=None, **options):
    fitting = TinyFitting(settings, **options)
    history = train(fitting, settings, job=job or Job(), monitor=monitor)
    return fitting, history


class Recorder(Watcher):
    def __init__(self):
        self.losses, self.weights, self.rates, self.numbers = [], [], [], []
        self.module = None

    def after_step(self, step, loss):
        assert step == len(self.losses) + 1
        self.losses.append(float(loss))
        if self.module is not None:
            self.weights.append(weights_of(self.module))

    def after_validation(self, numbers):
        self.numbers.append(dict(numbers))


def recorded(settings, **options):
    recorder = Recorder()
    fitting = TinyFitting(settings, **options)
    recorder.module = fitting.module
    history = train(fitting, settings, job=Job(), monitor=recorder)
    return fitting, history, recorder
