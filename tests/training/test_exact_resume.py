"""A training that was stopped anywhere goes on to the very weights of one that never was."""

import logging
import os
import signal
import time
from functools import partial

import numpy as np
import pytest
import torch
from tiny_fitting import TinyFitting, Watcher, _one_thread, same_weights, weights_of  # noqa: F401

from common import Stop
from forking import kill_soon_after
from labelwise.nn.config import TrainingConfig
from labelwise.nn.train import loop as interruption
from labelwise.nn.train.loop import train
from labelwise.runtime.job import Job, fingerprint

OPTIMISERS = {
    "adagrad": {"name": "adagrad", "rate_decay": 0.01},
    "adadelta": {"name": "adadelta"},
    "adam": {"name": "adam", "weight_decay": 0.01},
    "amsgrad": {"name": "amsgrad"},
    "adamw": {"name": "adamw", "rate": 0.01, "head_factor": 3},
    "sgd": {"name": "sgd", "rate": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "plain sgd": {"name": "sgd", "rate": 0.1, "weight_decay": 0.1},
}
VARIANTS = {
    "accumulate": {"accumulate": 3},
    "adaptive clipping": {"clip": "adaptive"},
    "ema": {"averaging": {"kind": "ema", "decay": 0.9}, "schedule": {"kind": "cosine", "warmup": 5}},
    "swa": {"averaging": {"kind": "swa", "start": 1, "every": 2}, "restore_best": False, "validate_every": 4},
    "sparse": {"schedule": {"kind": "linear", "warmup": 0.3}, "early_stopping": {"patience": 2}},
}


class StopAfter(Watcher):
    """Breaks off after some steps of this try, and remembers over interruptions all steps it has seen."""

    def __init__(self, steps):
        self.left = steps
        self.seen = []

    def after_step(self, step, loss):
        self.seen.append(step)
        self.left -= 1
        if self.left == 0:
            raise Stop

    def state(self):
        return {"seen": self.seen}

    def restore(self, state):
        self.seen = list(state["seen"])


def run(config, folder, stop_after=10**9, sparse=False, identity="", seed=0):
    fitting = TinyFitting(config, sparse=sparse, seed=seed)
    callback = StopAfter(stop_after)
    history = train(
        fitting,
        config,
        job=Job(folder, identity=identity),
        monitor=callback,
    )
    return weights_of(fitting.module), history, callback


def without_time(history):
    return (history.records, history.steps, history.epochs, history.best, history.stopped)


# each optimiser with two variants, each variant with at least two optimisers
PAIRS = [
    (optimiser, list(VARIANTS)[(place + step) % len(VARIANTS)])
    for place, optimiser in enumerate(OPTIMISERS)
    for step in (0, 2)
    if not (optimiser in ("adadelta", "amsgrad") and list(VARIANTS)[(place + step) % len(VARIANTS)] == "sparse")
]


@pytest.mark.parametrize(("optimiser", "variant"), PAIRS)
def test_every_optimiser_resumes_exactly(optimiser, variant, tmp_path):
    common = {"epochs": 5, "batch_size": 7, "log_every": 4, "metric": "valid_loss", "checkpoint_every": {"steps": 3}}
    config = TrainingConfig.model_validate({"optimiser": OPTIMISERS[optimiser], **common, **VARIANTS[variant]})
    sparse = variant == "sparse"
    whole, history, _ = run(config, None, sparse=sparse)
    steps = history.steps
    assert steps > 11
    for stop_after in (5, 4, 5):  # at step 5, at 7 (from the checkpoint at 3), and at 11: past a best and an average
        with pytest.raises(Stop):
            run(config, tmp_path, stop_after, sparse)
    resumed, again, callback = run(config, tmp_path, sparse=sparse)
    assert callback.seen == list(range(1, steps + 1))
    assert same_weights(whole, resumed)
    assert without_time(again) == without_time(history)
    assert [path.name for path in (tmp_path / "train").iterdir()] == ["final"]


def test_the_seed_matters(tmp_path):
    """Otherwise equal weights would prove little."""
    config = TrainingConfig(epochs=2, batch_size=7)
    other = config.model_copy(update={"seed": 1})
    assert not same_weights(run(config, None)[0], run(other, None)[0])


class ReportStep(Watcher):
    """Reports that a step is reached and continues; for a few steps only, as the test may be late with its kill."""

    def __init__(self, step, reached):
        self.step, self.reached = step, reached

    def after_step(self, step, loss):
        if step == self.step:
            self.reached()
        if step == self.step + 5:
            time.sleep(600)


def test_killed_at_any_moment(tmp_path):
    """SIGKILL, wherever it falls: in a step, in a checkpoint, in a validation."""
    values = {
        "epochs": 6,
        "batch_size": 7,
        "metric": "valid_loss",
        "checkpoint_every": {"steps": 1},
        "optimiser": {"name": "adamw", "rate": 0.01},
        "averaging": {"kind": "ema"},
    }
    config = TrainingConfig.model_validate(values)

    def trained(reached=None, last_step=10**9):
        fitting = TinyFitting(config)
        history = train(fitting, config, job=Job(tmp_path), monitor=ReportStep(last_step, reached))
        return weights_of(fitting.module), history

    for last_step, delay in ((5, 0.013), (11, 0.0)):
        kill_soon_after(partial(trained, last_step=last_step), delay)
        assert not (tmp_path / "train" / "final").exists()
    resumed, again = trained()
    whole, history, _ = run(config, None)
    assert history.steps == again.steps == 42
    assert same_weights(resumed, whole)


class Signal(Watcher):
    """Sends this process a signal at a step, which must then be finished and kept."""

    def __init__(self, number, step):
        self.number, self.step = number, step

    def after_step(self, step, loss):
        if step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(("number", "effect"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Stop)])
def test_a_training_that_is_asked_to_end_writes_a_checkpoint(number, effect, tmp_path, caplog):
    def terminate(number, frame):
        raise Stop

    config = TrainingConfig.model_validate({"epochs": 3, "batch_size": 7, "metric": "valid_loss"})
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, terminate)
    try:
        fitting = TinyFitting(config)
        with pytest.raises(effect):
            train(fitting, config, job=Job(tmp_path), monitor=Signal(number, 5))
        assert signal.getsignal(signal.SIGTERM) is terminate
        assert signal.getsignal(signal.SIGINT) is before[signal.SIGINT]
        again = TinyFitting(config)
        with caplog.at_level(logging.INFO, logger="labelwise"):
            train(again, config, job=Job(tmp_path), monitor=Signal(number, 0))
        assert "resuming after step 5 of 21" in caplog.text
        with pytest.raises(effect):  # nothing to write: at once, inside the step
            train(TinyFitting(config), config, job=Job(), monitor=Signal(number, 1))
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    whole = TinyFitting(config)
    train(whole, config, job=Job(), monitor=Signal(number, 0))
    assert same_weights(weights_of(again.module), weights_of(whole.module))


class Twice(Watcher):
    """Sends two signals at step 5."""

    reached = False

    def after_step(self, step, loss):
        if step == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            self.reached = True


@pytest.mark.parametrize(("seconds", "finished"), [(60.0, True), (0.0, False)])
def test_a_second_signal_ends_at_once_unless_it_is_the_same_request(seconds, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(interruption, "ONE_REQUEST", seconds)
    config, twice = TrainingConfig.model_validate({"epochs": 1, "batch_size": 7, "metric": "valid_loss"}), Twice()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(TinyFitting(config), config, job=Job(tmp_path), monitor=twice)
    assert twice.reached == finished
    assert any(path.is_file() for path in tmp_path.rglob("*")) == finished
    assert signal.getsignal(signal.SIGINT) is before


CONFIG = TrainingConfig.model_validate(
    {"epochs": 4, "batch_size": 7, "metric": "valid_loss", "checkpoint_every": {"steps": 3}}
)


def stopped(folder, after=8, **options):
    with pytest.raises(Stop):
        run(CONFIG, folder, after, **options)
    (last,) = (folder / "train").glob("last-*")
    return last


def test_finished_stage_is_not_trained_again(tmp_path):
    whole, history, _ = run(CONFIG, tmp_path)
    again, same, callback = run(CONFIG, tmp_path)
    assert same_weights(whole, again)
    assert same == history
    assert callback.seen == []


def test_last_and_best_are_kept(tmp_path):
    stopped(tmp_path)
    kinds = sorted(path.name.split("-")[0] for path in (tmp_path / "train").iterdir())
    assert kinds == ["best", "last"]
    assert not [path for path in tmp_path.rglob("*") if path.suffix not in ("", ".json", ".safetensors")]


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_damaged_checkpoint_is_passed_over(file, tmp_path, caplog):
    whole, _, _ = run(CONFIG, None)
    last = stopped(tmp_path)
    content = bytearray((last / file).read_bytes())
    content[-2] ^= 1
    (last / file).write_bytes(bytes(content))
    with caplog.at_level(logging.WARNING, "labelwise"):
        weights, _, callback = run(CONFIG, tmp_path)
    assert "not used" in caplog.text
    assert file in caplog.text
    assert callback.seen[0] == 1
    assert same_weights(weights, whole)


def test_missing_best_weights_are_no_end(tmp_path, caplog):
    stopped(tmp_path, after=11)
    (best,) = (tmp_path / "train").glob("best-*")
    (best / "tensors.safetensors").unlink()
    _, history, _ = run(CONFIG, tmp_path)
    assert "not used" in caplog.text
    assert history.best is not None


@pytest.mark.parametrize("change", ["identity", "config", "frozen"])
def test_checkpoints_of_another_training_are_not_mixed_in(change, tmp_path, caplog):
    stopped(tmp_path)
    config, identity = CONFIG, ""
    fitting = TinyFitting(config)
    if change == "identity":
        identity = fingerprint("other data", np.arange(3))
    elif change == "config":
        config = TrainingConfig.model_validate({**CONFIG.model_dump(), "clip": 0.5})
    else:
        fitting.module.words.requires_grad_(False)
    callback = StopAfter(10**9)
    train(fitting, config, job=Job(tmp_path, identity=identity), monitor=callback)
    assert callback.seen[0] == 1
    assert "other settings, parameters or data" in caplog.text


def test_settings_that_change_no_weight_may_change(tmp_path):
    whole, _, _ = run(CONFIG, None)
    stopped(tmp_path)
    other = TrainingConfig.model_validate({**CONFIG.model_dump(), "checkpoint_every": {"steps": 5}, "load_ahead": 2})
    weights, _, callback = run(other, tmp_path)
    assert callback.seen == list(range(1, 29))
    assert same_weights(weights, whole)


def test_rest_of_a_kill_is_cleared_away(tmp_path):
    whole, _, _ = run(CONFIG, None)
    stopped(tmp_path)
    (tmp_path / "train" / ".last-0000000009.new-abc").mkdir()
    (tmp_path / "train" / "best-0000000099").mkdir()
    with pytest.raises(Stop):
        run(CONFIG, tmp_path, 1)
    names = [path.name for path in (tmp_path / "train").iterdir()]
    assert not [name for name in names if name.startswith(".") or name.endswith("99")]
    assert same_weights(run(CONFIG, tmp_path)[0], whole)


def test_a_half_precision_model_is_kept_bit_for_bit(tmp_path):
    class Half(TinyFitting):
        def loss(self, batch):
            ids, mask, labels = batch
            return super().loss((ids, mask.bfloat16(), labels.bfloat16()))

        def validate(self, budget):
            return {}

    def half(folder, stop_after):
        fitting = Half(CONFIG)
        fitting.module.bfloat16()
        train(fitting, CONFIG, job=Job(folder), monitor=StopAfter(stop_after))
        return weights_of(fitting.module)

    whole = half(None, 10**9)
    with pytest.raises(Stop):
        half(tmp_path, 8)
    resumed = half(tmp_path, 10**9)
    assert resumed["head.weight"].dtype == torch.bfloat16
    assert same_weights(whole, resumed)


def test_a_stage_that_the_time_budget_ended_is_used_under_the_same_budget_only(tmp_path):
    def trained(**settings):
        config = TrainingConfig(epochs=2, batch_size=16, **settings)
        fitting = TinyFitting(config)
        return train(fitting, config, job=Job(tmp_path)), weights_of(fitting.module)

    history, weights = trained(time_budget=1e-9)
    assert history.stopped == "time budget"
    again, same = trained(time_budget=1e-9)
    assert (again.seconds, again.steps) == (history.seconds, history.steps)
    assert same_weights(same, weights)
    longer, _ = trained(time_budget=1000)
    assert (longer.stopped, longer.steps > history.steps) == ("finished", True)
    assert trained()[0].seconds == longer.seconds
