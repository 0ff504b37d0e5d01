"""The training loop: what each setting does, against the plain computation it stands for."""

import json
import random
import sys
import threading

import numpy as np
import pytest
import torch
from recorded_training import Recorder, config, fit, recorded
from tiny_fitting import TinyFitting, Watcher, _one_thread, same_weights, weights_of  # noqa: F401
from torch import nn

from labelwise.errors import ConfigError, DataError, MissingDependencyError
from labelwise.nn.train.loop import train
from labelwise.runtime.job import Job
from labelwise.runtime.ranks import Ranks
from labelwise.runtime.threads import using_threads

# --- against a loop written out by hand ---


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_plain_torch_loop(accumulate):
    """48 documents, 6 batches of 8, the last step of an epoch with what is left; dropout on."""
    settings = config(
        accumulate=accumulate,
        clip=0.5,
        restore_best=False,
        optimiser={"name": "adam", "rate": 0.02},
        schedule={"kind": "linear", "warmup": 2},
    )
    fitting, history, recorder = recorded(settings)
    plain = TinyFitting(settings)
    torch.manual_seed(settings.seed)
    optimiser = torch.optim.Adam(plain.module.parameters(), lr=0.02, fused=True)
    per_epoch = -(-6 // accumulate)
    total, step, losses = 3 * per_epoch, 0, []
    for epoch in range(3):
        items = plain.batches(epoch)
        for begin in range(0, 6, accumulate):
            some = items[begin : begin + accumulate]
            optimiser.param_groups[0]["lr"] = 0.02 * ((step + 1) / 2 if step < 2 else (total - step) / (total - 2))
            optimiser.zero_grad()
            losses.append(0.0)
            for item in some:
                loss = plain.loss(plain.load(item, 0)) / len(some)
                loss.backward()
                losses[-1] += loss.item()
            torch.nn.utils.clip_grad_norm_(plain.module.parameters(), 0.5)
            optimiser.step()
            step += 1
    assert history.steps == step == total
    assert recorder.losses == pytest.approx(losses, rel=1e-6)
    for name, tensor in weights_of(plain.module).items():
        torch.testing.assert_close(weights_of(fitting.module)[name], tensor, rtol=1e-5, atol=1e-6)


def test_accumulated_batches_are_one_large_batch():
    common = {"restore_best": False, "optimiser": {"name": "sgd", "rate": 0.5}, "clip": None}
    small, _ = fit(config(accumulate=6, **common), dropout=0, batch_norm=False)
    large, history = fit(config(batch_size=48, **common), dropout=0, batch_norm=False)
    assert history.steps == 3
    for one, other in zip(small.module.parameters(), large.module.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_it_learns():
    fitting, history = fit(config(epochs=30, optimiser={"rate": 0.03}), dropout=0, documents=200)
    assert history.stopped == "finished"
    assert history.records[-1]["loss"] < 0.4 < 0.6 < history.records[0]["loss"]
    assert history.records[-1]["P@1"] > 0.8
    assert not fitting.module.training


# --- the end ---


def test_steps_end_inside_an_epoch():
    _, history = fit(config(steps=8))
    assert (history.steps, history.epochs, history.stopped) == (8, 1, "finished")
    assert [record["step"] for record in history.records] == [6, 8]
    assert history.records[-1]["epoch"] == pytest.approx(1 + 2 / 6)
    assert fit(config(epochs=None, steps=20))[1].epochs == 3


class Scripted(TinyFitting):
    """Validation numbers from a list."""

    script = ()

    def validate(self, budget):
        super().validate(budget)
        self.seen = getattr(self, "seen", 0) + 1
        return {"P@1": self.script[self.seen - 1], "valid_loss": -self.script[self.seen - 1]}


@pytest.mark.parametrize("metric", ["P@1", "valid_loss"])
@pytest.mark.parametrize("restore", [True, False])
def test_early_stopping_and_the_best_weights(metric, restore, tmp_path):
    for folder in (None, tmp_path):
        settings = config(epochs=20, metric=metric, early_stopping={"patience": 3}, restore_best=restore)
        fitting = Scripted(settings)
        fitting.script = [0.1, 0.5, 0.3, float("nan"), 0.5, 0.9]  # the tie at the end is no gain
        recorder = Recorder()
        recorder.module = fitting.module
        history = train(fitting, settings, job=Job(folder), monitor=recorder)
        assert history.stopped == "early stopping"
        assert history.epochs == 5
        best = history.best
        assert (best["step"], best["metric"], abs(best["value"])) == (12, metric, 0.5)
        kept = 12 if restore else 30
        assert same_weights(weights_of(fitting.module), recorder.weights[kept - 1])


def test_validation_in_steps_and_never():
    _, history = fit(config(validate_every=4))
    assert [record["step"] for record in history.records] == [4, 8, 12, 16, 18]
    fitting, history = fit(config(validate_every=None))
    assert history.best is None
    assert [set(record) for record in history.records] == 3 * [{"step", "epoch", "loss", "rate"}]
    assert fitting.loads == 18


def test_validation_leaves_no_trace():
    one, _ = fit(config(validate_every=1, restore_best=False))
    other, _ = fit(config(validate_every=None))
    assert same_weights(weights_of(one.module), weights_of(other.module))


def test_time_budget_ends_cleanly():
    class Slow(Watcher):
        def after_step(self, step, loss):
            clock[0] += 1.0

    clock = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelwise.nn.train.loop.time.monotonic", lambda: clock[0])
        _, history = fit(config(epochs=1000, time_budget=10.5), monitor=Slow())
    assert history.stopped == "time budget"
    assert history.steps == 10
    assert history.records[-1]["step"] == 10  # what was not validated yet is
    assert history.best is not None


def test_watchers_may_end_it_and_add_numbers():
    class Judge(Watcher):
        def after_validation(self, numbers):
            assert not fitting.module.training
            assert not torch.is_grad_enabled()
            numbers["verdict"] = "collapsed"
            return "collapsed: all vectors are one" if numbers["epoch"] >= 2 else None

    class Impatient(Watcher):
        def after_step(self, step, loss):
            assert fitting.module.head.weight.grad is not None
            return "enough" if step == 4 else None

    for callback, steps, reason in ((Judge(), 12, "collapsed: all vectors are one"), (Impatient(), 4, "enough")):
        lines = []
        fitting = TinyFitting(config(epochs=9))
        job = Job(None, lambda **numbers: lines.append(numbers))  # noqa: B023
        history = train(fitting, fitting.config, job=job, monitor=callback)
        assert (history.steps, history.stopped) == (steps, reason)
        if isinstance(callback, Judge):
            assert history.records[-1]["verdict"] == "collapsed"
            assert [line["verdict"] for line in lines if "verdict" in line] == 2 * ["collapsed"]


@pytest.mark.parametrize("kept", [True, False])
def test_divergence_is_noticed(kept, tmp_path):
    class Exploding(TinyFitting):
        def loss(self, batch):
            self.steps = getattr(self, "steps", 0) + 1
            return super().loss(batch) * (float("inf") if self.steps == 9 else 1)

    settings = config(epochs=50, log_every=5, checkpoint_every={"steps": 1 if kept else 1000})
    fitting = Exploding(settings)
    lines = []
    job = Job(tmp_path, lambda **numbers: lines.append(json.dumps(numbers, allow_nan=False)))
    history = train(fitting, settings, job=job)
    assert history.stopped == "diverged"
    assert history.best["step"] == 6
    assert all(torch.isfinite(p).all() for p in fitting.module.parameters())
    assert history.steps == 10


# --- precision, threads, randomness, files ---


def test_bf16_is_used_where_it_is_asked_for():
    class Asking(TinyFitting):
        kinds = ()

        def loss(self, batch):
            self.kinds = {*self.kinds, torch.is_autocast_enabled("cpu"), self.module.head(torch.zeros(1, 8)).dtype}
            return super().loss(batch)

    for precision, expected in (("auto", torch.float32), ("float32", torch.float32), ("bf16", torch.bfloat16)):
        settings = config(epochs=1, precision=precision)
        fitting = Asking(settings)
        train(fitting, settings, job=Job())
        assert fitting.kinds == {expected == torch.bfloat16, expected}
        assert fitting.module.head.weight.dtype == torch.float32


def test_a_gpu_that_cannot_sum_losses_is_left_alone(monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)  # Apple's, which know no float64
    assert Ranks("auto").device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_torch_uses_the_toolkit_s_threads():
    class Counting(TinyFitting):
        def loss(self, batch):
            self.threads = torch.get_num_threads()
            return super().loss(batch)

    before = torch.get_num_threads()
    fitting = Counting(config(epochs=1))
    with using_threads(3):
        train(fitting, fitting.config, job=Job())
    assert fitting.threads == 3
    assert torch.get_num_threads() == before


def test_randomness_outside_is_left_alone():
    def drawn():
        return random.random(), float(np.random.rand()), float(torch.rand(1))  # noqa: NPY002

    def seeded():
        random.seed(5), np.random.seed(5), torch.manual_seed(5)  # noqa: NPY002

    seeded()
    expected = drawn()
    fitting = TinyFitting(config(epochs=1))
    seeded()
    train(fitting, fitting.config, job=Job())
    assert drawn() == expected


def test_loading_ahead_changes_nothing_but_the_thread():
    class Noting(TinyFitting):
        threads = ()

        def load(self, item, epoch):
            self.threads = {*self.threads, threading.current_thread().name}
            return super().load(item, epoch)

        def validate(self, budget):
            return {}

    fitting = Noting(config(load_ahead=3))
    with using_threads(2):  # both, because sums of torch depend on the number of threads
        plain, _ = fit(config(validate_every=None))
        train(fitting, fitting.config, job=Job())
    assert all(name.startswith("labelwise") for name in fitting.threads)
    for one, other in zip(plain.module.parameters(), fitting.module.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_log_lines():
    lines = []
    fit(config(log_every=4), job=Job(None, lambda **n: lines.append(n)))
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    assert [step for step, _ in losses] == [4, 6, 8, 12, 16, 18]
    validated = [line for line in lines if line.get("split") == "valid"]
    assert [line["step"] for line in validated] == [6, 12, 18]
    assert all(line["part"] == "train" and 0 <= line["P@1"] <= 1 for line in validated)
    _, history, recorder = recorded(config(log_every=4))
    assert losses[0][1] == pytest.approx(np.mean(recorder.losses[:4]), rel=1e-6)
    assert history.records[0]["loss"] == pytest.approx(np.mean(recorder.losses[:6]), rel=1e-6)


def test_tensorboard(tmp_path, monkeypatch):
    fit(config(epochs=1, tensorboard=str(tmp_path / "board")))
    (file,) = (tmp_path / "board").iterdir()
    content = file.read_bytes()
    assert b"train/valid_loss" in content
    assert b"train/loss" in content
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingDependencyError, match="tensorboard"):
        fit(config(epochs=1, tensorboard=str(tmp_path / "other")))
    assert not (tmp_path / "other").exists()


def test_stages_keep_apart(tmp_path):
    settings, job = config(epochs=1), Job(tmp_path, identity="a fit")
    for name in ("level0", "level1"):
        with job.stage(name) as part:
            train(TinyFitting(settings), settings, job=part)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["level0", "level1"]
    assert [path.name for path in (tmp_path / "level1").iterdir()] == ["final"]


# --- faults ---


def test_faults_are_named():
    with pytest.raises(ConfigError, match=r"no 'P@2' here; .*P@1"):
        fit(config(metric="P@2"))

    class Empty(TinyFitting):
        def batches(self, epoch):
            return []

        def validate(self, budget):
            return {}

    fitting = Empty(config())
    with pytest.raises(DataError, match="no batch"):
        train(fitting, fitting.config, job=Job())

    class NothingHeldOut(TinyFitting):
        def validate(self, budget):
            return {}

    fitting = NothingHeldOut(config())
    assert train(fitting, fitting.config, job=Job()).best is None
    fitting = NothingHeldOut(config(early_stopping={}))
    with pytest.raises(ConfigError, match="no 'valid_loss'"):
        train(fitting, fitting.config, job=Job())

    class Clashing(TinyFitting):
        def validate(self, budget):
            return {"loss": 1.0}

    fitting = Clashing(config())
    with pytest.raises(ValueError, match="may not name"):
        train(fitting, fitting.config, job=Job())


def test_training_loss_can_be_the_metric():
    class NothingHeldOut(TinyFitting):
        def validate(self, budget):
            return {}

    settings = config(metric="loss", epochs=10, optimiser={"rate": 0.05})
    fitting = NothingHeldOut(settings)
    history = train(fitting, settings, job=Job())
    assert history.best["value"] == min(record["loss"] for record in history.records)


def test_head_and_frozen_parts():
    settings = config(epochs=2, optimiser={"name": "sgd", "rate": 1e-9, "head_factor": 1e8})
    fitting = TinyFitting(settings)
    fitting.module.words.requires_grad_(False)
    before = weights_of(fitting.module)
    train(fitting, settings, job=Job())
    after = weights_of(fitting.module)
    moved = {name for name in after if (after[name] - before[name]).abs().max() > 1e-5 and "running" not in name}
    assert moved == {"head.weight", "head.bias", "body.3.num_batches_tracked"}
    assert torch.equal(after["words.weight"], before["words.weight"])
    assert isinstance(fitting.module.words, nn.Embedding)
