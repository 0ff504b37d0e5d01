"""The training loop of all neural methods.

A method passes a `Fitting` (its module, batches, loss, validation) and gets the final weights in its module. A
checkpoint has everything that decides the next step, and all randomness depends on the seed and the step. Therefore a
killed run resumes to the same weights, bit for bit on a CPU with the same number of threads.
"""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from labelwise.config import PART, deciding_fields
from labelwise.errors import ConfigError, DataError, MissingDependencyError, did_you_mean
from labelwise.io.tensors import counts_of
from labelwise.metrics.evaluate import Evaluator
from labelwise.nn.config import TrainingConfig, lower_is_better
from labelwise.nn.heads.sharding import HeadShards, check_head
from labelwise.nn.train.checkpoint import TIME_BUDGET, Checkpoints, History, preserve_random_state, seed_random_state
from labelwise.nn.train.optim import Averaging, clip_adaptively, clip_gradients, make_optimisers, make_schedule
from labelwise.runtime.budget import NO_LIMIT, Budget, OutOfTimeError
from labelwise.runtime.device import torch_threads
from labelwise.runtime.memory import keep_freed_memory
from labelwise.runtime.progress import progress, stage_name
from labelwise.runtime.ranks import BatchShare, Ranks, sharing
from labelwise.runtime.threads import run_stream
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.runtime.job import Job

log = logging.getLogger("labelwise")


class Fitting(Protocol):
    """What is trained: all that the loop needs of a network and its data.

    Everything that changes during training must be a parameter or a buffer of the module. `loss` may draw from the
    global generators of Python, NumPy and torch; `batches` and `load` draw from generators they seed themselves.
    """

    module: Any
    """The module to train; if frozen parts must stay in eval mode, its `train()` has to do so."""
    head_names: Sequence[str]
    """Name prefixes of the parameters with the head's learning rate."""
    row_tables: Sequence[str]
    """Name prefixes of the tables with row-sparse gradients; sparse embeddings need not be listed."""

    def batches(self, epoch: int) -> Sequence[Any]:
        """The batches of an epoch, which depend on the seed and the epoch alone."""

    def load(self, item: Any, epoch: int) -> Any:
        """The tensors of a batch, padded to its longest document; on the CPU, the loop moves them to the device."""

    def loss(self, batch: Any) -> Tensor:
        """Forward pass and loss, the mean over the documents of the batch."""

    def validate(self, budget: Budget) -> dict[str, float]:
        """Metrics such as P@1 on held-out documents; {} without any. The module is in eval mode.

        It calls `budget.check_pace` as it goes, which ends it when there is not enough time.
        """


def summary_writer() -> Any:
    """TensorBoard's class of writers; an error that says what to install if it is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingDependencyError("tensorboard", "tensorboard", "training.tensorboard") from None
    return SummaryWriter


def finite(value: Any) -> Any:
    """The value, or None for a number that is not finite, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- stage time ---
# The time budget of one training: when to take the last step, and which validations there is time for.
#
# A validation in the middle may take half of the remaining time, since what is learned after it is of use only if it is
# validated as well; time for a last one is reserved. If the first would already take longer, there is none, and the
# last weights are kept.

STEPS = 8
"""Steps whose mean duration is expected of the next one."""
LATE = 0.02
"""Fraction of the time budget that the last step may end late."""
RESERVE = 1.1
"""Time reserved for the last validation, as a multiple of the duration of the one before."""


class StageTime:
    """When a training has to end.

    Parameters
    ----------
    budget
        Of this training.
    round_seconds
        Duration of the last validation with its diagnosis, if there was one before an interruption.
    """

    def __init__(self, budget: Budget, round_seconds: float | None) -> None:
        self.budget, self.round_seconds = budget, round_seconds
        self.durations: deque[float] = deque(maxlen=STEPS)
        self._began = time.monotonic()

    def begin(self) -> None:
        """A step, or a round of validation, begins."""
        self._began = time.monotonic()

    def end_step(self) -> None:
        """The step has ended."""
        self.durations.append(time.monotonic() - self._began)

    def end_round(self) -> None:
        """The round has ended."""
        self.round_seconds = time.monotonic() - self._began

    def give_up_rounds(self) -> None:
        """A round was longer than it may be; the remaining time only becomes less."""
        if self.round_seconds is None:
            self.round_seconds = math.inf

    def is_over(self, has_best: bool) -> bool:
        """Whether the next step is expected to end late: by half of it, or by some hundredths of the budget.

        With `has_best` time for the last round is reserved, which decides between those weights and the last ones; the
        next step must then end before it.
        """
        if not self.budget.is_limited:
            return False
        step, left = sum(self.durations) / max(len(self.durations), 1), self.budget.remaining()
        if has_best and self.round_seconds and math.isfinite(self.round_seconds):
            return left - RESERVE * self.round_seconds < step
        return left <= 0 or left < step - min(LATE * self.budget.seconds, step / 2)

    def has_time_for_round(self) -> bool:
        """Whether there is time for a round now and another at the end. The duration of the first is not known."""
        return self.budget.remaining() >= 2 * (self.round_seconds or 0.0)

    def has_time_for_last_round(self) -> bool:
        """Whether there is time for a round at the end."""
        return self.round_seconds is not None and self.budget.remaining() >= self.round_seconds

    def fraction(self, spent: float) -> float:
        """Fraction of the time of this training that is used, after `spent` seconds; 0 without a limit."""
        left = self.budget.remaining()
        return spent / (spent + left) if math.isfinite(left) and spent > 0 else 0.0


# --- interruption ---
# A training that is asked to end (Ctrl-C, SIGTERM) finishes its step and writes a checkpoint before it does.

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOTE = b"labelwise: a checkpoint is written after this step, then training ends; once more ends it at once\n"
ONE_REQUEST = 1.0
"""Seconds within which signals are one request: `timeout` and job managers signal a process, and then its group."""


class Interruption:
    """Inside the block the first signal to end is kept until `act`; another one later has its usual effect at once.

    Without a folder for checkpoints (`active=False`), and outside the main thread, signals have their usual effect.
    """

    def __init__(self, active: bool) -> None:
        self.active = active and threading.current_thread() is threading.main_thread()
        self.signal: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS if self.active else ():
            handler = signal.getsignal(number)
            if handler not in (None, signal.SIG_IGN):
                self._before[number] = handler
                signal.signal(number, self._keep)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()
        self.act()

    def _keep(self, number: int, frame: Any) -> None:
        if self.signal is None:
            self.signal, self._since = number, time.monotonic()
            with suppress(OSError):
                os.write(2, NOTE)  # a log may be in the middle of a line of its own
        elif time.monotonic() - self._since >= ONE_REQUEST:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)

    def act(self, otherwise: int | None = None) -> None:
        """Let the signal have its usual effect; if there was none, that of `otherwise`."""
        number, self.signal = self.signal or otherwise, None
        if number is not None:
            self._restore()
            signal.raise_signal(number)


# --- best weights ---
# Which validation of a training was the best, and when patience has run out.


def update_best(state: History, numbers: Mapping[str, Any], config: TrainingConfig) -> bool:
    """Record a validation; returns whether it is the best so far.

    Parameters
    ----------
    state
        Progress of the training; `best` and `without_gain` are updated.
    numbers
        The numbers of the validation by name.
    config
        Settings of training, among them `metric`.
    """
    if config.validate_every is None:
        return False
    if config.metric not in numbers:
        offered = [key for key in numbers if key not in ("step", "epoch", "rate")]
        if offered == ["loss"] and config.early_stopping is None:
            return False  # no held-out documents, and no setting depends on them
        raise ConfigError(f"training.metric: no '{config.metric}' here; {did_you_mean(config.metric, offered)}")
    value = float(numbers[config.metric])
    sign = -1 if lower_is_better(config.metric) else 1
    if math.isfinite(value) and (state.best is None or sign * value > sign * state.best["value"]):
        state.best, state.without_gain = {"metric": config.metric, "value": value, "step": state.steps}, 0
        return True
    state.without_gain += 1
    return False


def train(fitting: Fitting, config: TrainingConfig, *, job: Job, monitor: Any = None, title: str = "") -> History:
    """Train `fitting.module` in place; afterwards it is in eval mode on its device with the final weights.

    Parameters
    ----------
    fitting
        Module, batches, loss and validation.
    config
        Settings of training.
    job
        Where checkpoints are kept (those of a finished training are its result), where metrics are logged, and the time
        budget; that of `config` counts as well. What comes later in the job follows from the trained weights.
    monitor
        Follows the training, and may stop it: a `CollapseMonitor`, or what has its hooks. With several ranks, only on
        rank zero unless the head is divided.
    title
        In lines of progress; empty: the name of the job.
    """
    if config.tensorboard is not None:
        summary_writer()  # an error that says what to install, before any work is done
    check_head(getattr(fitting, "head", None), config)
    ranks = Ranks(config.precision)
    interruption = Interruption(active=ranks.on_rank_zero(lambda: job.folder is not None))
    with torch_threads(), keep_freed_memory(), seed_random_state(config.seed + ranks.rank), interruption:
        loop = _Loop(fitting, config, job, ranks, monitor, title)
        try:
            history = loop.run(interruption)
        finally:
            if loop.writer is not None:
                loop.writer.close()
            fitting.module.eval()
    if job.identity:  # rows of a head that is divided over ranks are left out: any number of ranks resumes what follows
        divided = loop.shards.tables
        named = fitting.module.named_parameters()
        job.follow(*(weights for name, weights in named if weights.requires_grad and name not in divided))
    return history


class _Loop:
    """A training and its state."""

    def __init__(
        self, fitting: Fitting, config: TrainingConfig, job: Job, ranks: Ranks, monitor: Any, title: str
    ) -> None:
        name = job.name or "train"
        folder = job.folder / name if job.folder is not None and not job.name else job.folder
        self.fitting, self.config, self.ranks, self.title = fitting, config, ranks, title or name
        self.shards = HeadShards(fitting.module, ranks)
        # a head that is divided over ranks needs all of them for any score
        self.monitor = monitor if ranks.is_rank_zero or self.shards else None
        self.has_rounds = config.validate_every is not None or monitor is not None
        self.module = fitting.module.to(ranks.device)
        self.learning = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self.optimisers = make_optimisers(self.module, config.optimiser, fitting.head_names, fitting.row_tables)
        self.averaging = Averaging(config.averaging, self.learning)
        outer = job.budget
        limit = outer.seconds if config.time_budget is None and outer.is_limited else config.time_budget
        names = [list(fitting.head_names), list(fitting.row_tables)]
        settings = [job.fingerprint("train"), *names, deciding_fields(config, PART)]
        self.checkpoints = Checkpoints(self, folder, settings, limit)
        self.state = self.checkpoints.resume(name) or History(self._total_steps())
        self.schedule = make_schedule(config.schedule, self.state.total_steps)
        # the sum stays on the device of the loss: reading a number from a GPU waits for it
        self.loss_sum = torch.full((), self.state.loss_sum, device=ranks.device)
        self.name, self.log, self.writer = name, job.log if ranks.is_rank_zero else None, None
        if config.tensorboard is not None and ranks.is_rank_zero and not self.state.stopped:
            # events that an interrupted run wrote after its checkpoint are written again
            again = self.state.steps + 1 if self.state.steps else None
            self.writer = summary_writer()(config.tensorboard, purge_step=again)
        ranks.begin(self.module, self.shards.tables)
        self.steps_of_epoch = 1
        self.begin = time.monotonic() - self.state.seconds
        own = None if config.time_budget is None else config.time_budget - self.state.seconds
        self.time = StageTime(outer.limited(own), self.state.round_seconds)

    # --- the loop itself ---

    def run(self, interruption: Interruption) -> History:
        """Train from the current state to the end."""
        state = self.state
        if not state.stopped:
            self.module.train()
            left = self.time.budget.remaining
            with progress(self.title, state.total_steps, detail=self._loss_text, seconds_left=left) as advance:
                advance.start_at(state.steps)
                while not state.stopped:
                    self._run_epoch(advance, interruption)
                # not if the time is over and there is nothing to compare with
                in_time = state.stopped != TIME_BUDGET or self.ranks.on_rank_zero(self.time.has_time_for_last_round)
                if self.has_rounds and state.round_step < state.steps and in_time:
                    self._end_round(self.time.budget)
            self._finish()
            if state.stopped == TIME_BUDGET:
                self.time.budget.end_early()
                done = f"{state.steps:,} of {state.total_steps:,} steps ({self._epochs_done():.3g} epochs)"
                log.info("%s: ended by the time budget, after %s", stage_name(self.title), done)
        return state

    def _run_epoch(self, advance: Callable[[float], None], interruption: Interruption) -> None:
        """Run the remaining steps of this epoch."""
        state = self.state
        steps = self._batches_of_steps(state.epochs)
        self.steps_of_epoch = len(steps)
        todo = steps[state.step_of_epoch :]
        items = [self.ranks.part(item) for step_batches in todo for item in step_batches]
        load, ahead = partial(self.fitting.load, epoch=state.epochs), self.config.load_ahead
        batches = run_stream(load, items, ahead) if ahead else map(load, items)
        for step_batches in todo:
            self.time.begin()
            loss = self._step(batches, [self.ranks.share(item) for item in step_batches])
            state.steps += 1
            state.step_of_epoch += 1
            if state.step_of_epoch == len(steps):
                state.epochs, state.step_of_epoch = state.epochs + 1, 0
            self._after_step(loss)
            advance(1)
            due, asked = self.checkpoints.is_due(state.steps), interruption.signal is not None
            stop, save, asked = self.ranks.broadcast_flags(bool(state.stopped), due, any_rank=asked)
            if stop:
                break
            if save or asked:
                self._save()
            if asked:
                self.ranks.wait()  # until rank zero has written it
                interruption.act(signal.SIGTERM)  # or other ranks would wait for those that end in this step
        state.stopped = self.ranks.on_rank_zero(lambda: state.stopped)

    def _step(self, batches: Iterator[Any], shares: Sequence[BatchShare | None]) -> Tensor:
        """One step: gradients of a batch per share, clipping, update. Returns the mean loss of the batches."""
        self.optimisers.set_rates(self.schedule(self.state.steps))
        self.optimisers.clear_gradients()
        total, count = torch.zeros(()), len(shares)
        for number, share in enumerate(shares, 1):
            batch = self.ranks.move(next(batches))
            with sharing(share):
                with self.ranks.autocast():
                    loss = self.fitting.loss(batch)
                factor = (1.0 if share is None or self.shards else share.weight) / count
                loss = loss if factor == 1.0 else loss * factor
                loss.backward()
            total = loss.detach() if number == 1 else total + loss.detach()
        self.ranks.average_gradients()
        if self.config.clip is not None:
            self._clip(self.config.clip)
        self.optimisers.step()
        self.loss_sum += total
        return total

    def _clip(self, max_norm: float | Literal["adaptive"]) -> None:
        """Scale the gradients down if their norm is too large; the monitor gets the norm before."""
        if max_norm == "adaptive":
            norm = clip_adaptively(self.learning.values(), self.state.lengths, self.shards.parameters)
        else:
            norm = clip_gradients(self.learning.values(), max_norm, self.shards.parameters)
        if self.monitor is not None:
            self.monitor.clipped(norm)

    def _after_step(self, loss: Tensor) -> None:
        """Average, call the monitor, log and validate where due. Sets `stopped` after the last step."""
        state, config = self.state, self.config
        epoch_ended = state.step_of_epoch == 0
        if self.averaging.is_due(state.steps, state.total_steps, state.epochs, epoch_ended, self._time_fraction()):
            if config.averaging.kind == "swa":
                self.optimisers.catch_up()
            self.averaging.update()
        if self.monitor is not None:
            state.stopped = self.monitor.after_step(state.steps, loss) or state.stopped
        if state.steps % config.log_every == 0:
            self._log_loss()
        self.time.end_step()
        every = config.validate_every
        due = (state.steps % every == 0) if isinstance(every, int) else epoch_ended
        if due and self.ranks.on_rank_zero(self.time.has_time_for_round):
            self._end_round(self.time.budget.part(0.5))
        if state.epochs == config.epochs or state.steps == config.steps:
            state.stopped = state.stopped or "finished"
        elif self.time.is_over(has_best=state.best is not None):
            state.stopped = state.stopped or TIME_BUDGET

    # --- rounds: from one validation to the next ---

    def _log_loss(self) -> None:
        """Log the mean loss since the last log line."""
        state = self.state
        total, steps = self.ranks.mean(self.loss_sum), state.steps - state.logged_step
        if steps == 0:
            return
        if not math.isfinite(total):
            state.stopped = "diverged"
        self._log(epoch=self._epochs_done(), loss=total / steps, rate=self._rate())
        self.loss_sum.zero_()
        state.logged_step = state.steps
        state.round_loss += total

    def _end_round(self, budget: Budget) -> None:
        """Validate, call the monitor, and keep the weights if they are the best so far."""
        state = self.state
        self.time.begin()
        self._log_loss()
        self.optimisers.catch_up()
        self.module.eval()
        with self.averaging.applied(), preserve_random_state(), torch.no_grad(), self.ranks.autocast():
            # with a divided head all ranks validate, in step, so that no clock may end it
            found = self._validate(NO_LIMIT) if self.shards else None
            numbers, stop = self.ranks.on_rank_zero(lambda: found or self._validate(budget))
            if numbers is not None:
                if update_best(state, numbers, self.config):
                    self.checkpoints.save_best(state)
                elif self.config.early_stopping and state.without_gain >= self.config.early_stopping.patience:
                    state.stopped = state.stopped or "early stopping"
        self.module.train()
        if numbers is None:
            self.time.give_up_rounds()
            name = stage_name(self.title)
            log.info("%s: no validation at step %s, the time budget does not suffice", name, f"{state.steps:,}")
            return
        self.time.end_round()
        state.round_seconds = self.time.round_seconds
        state.stopped = stop or state.stopped
        state.records.append({key: finite(value) for key, value in numbers.items()})
        state.round_loss, state.round_step = 0.0, state.steps

    def _validate(self, budget: Budget) -> tuple[dict[str, Any] | None, str | None]:
        """The numbers of a round and a reason to stop; no numbers if the budget has ended it."""
        state = self.state
        numbers: dict[str, Any] = {
            "step": state.steps,
            "epoch": self._epochs_done(),
            "loss": state.round_loss / max(1, state.steps - state.round_step),
            "rate": self._rate(),
        }
        if self.config.validate_every is not None:
            try:
                metrics = self.fitting.validate(budget)
            except OutOfTimeError:
                return None, None
            if numbers.keys() & metrics.keys():
                raise ValueError(f"validate() may not name its metrics {', '.join(numbers)}")
            numbers |= metrics
        reason = None if self.monitor is None else self.monitor.after_validation(numbers)
        written = {key: value for key, value in numbers.items() if key not in ("step", "epoch", "loss", "rate")}
        if written:
            self._log(split="valid", epoch=self._epochs_done(), **written)
        return numbers, reason

    # --- unfinished and finished work ---

    def _save(self) -> None:
        """Write a checkpoint, or stop if the weights have diverged."""
        self.state.loss_sum, self.state.seconds = self.ranks.mean(self.loss_sum), self._seconds()
        if math.isfinite(self.state.loss_sum):
            self.checkpoints.save(self.state)
        else:
            self.state.stopped = "diverged"

    def _finish(self) -> None:
        state = self.state
        self.optimisers.clear_gradients()
        self.optimisers.catch_up()
        state.seconds = self._seconds()
        state.loss_sum = state.round_loss = 0.0
        state.monitor = {}  # only what is unfinished needs it
        self.checkpoints.finish(state)

    # --- small parts ---

    def _log(self, **numbers: Any) -> None:
        """Write numbers of this step to metrics.jsonl and, if configured, to TensorBoard."""
        if self.log is not None:
            self.log(part=self.name, step=self.state.steps, **{key: finite(value) for key, value in numbers.items()})
        if self.writer is not None:
            for key, value in numbers.items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(f"{self.name}/{key}", value, self.state.steps)

    def _batches_of_steps(self, epoch: int) -> list[list[Any]]:
        """The batches of each step of an epoch."""
        items = self.fitting.batches(epoch)
        if len(items) == 0:
            raise DataError("there are no batches to train on")
        size = self.config.accumulate
        return [list(items[begin : begin + size]) for begin in range(0, len(items), size)]

    def _total_steps(self) -> int:
        """Total number of steps, by the number of batches of the first epoch."""
        epochs, steps = self.config.epochs, self.config.steps
        if epochs is None:
            return steps or 0
        total = epochs * len(self._batches_of_steps(0))
        return total if steps is None else min(total, steps)

    def _epochs_done(self) -> float:
        return self.state.epochs + self.state.step_of_epoch / self.steps_of_epoch

    def _rate(self) -> float:
        return self.optimisers.parts[0].param_groups[0]["lr"]

    def _seconds(self) -> float:
        return time.monotonic() - self.begin

    def _time_fraction(self) -> float:
        """Fraction of the time budget used, by the clock of rank zero; 0 unless averaging needs it."""
        if not self.time.budget.is_limited or self.config.averaging.kind != "swa":
            return 0.0
        return self.ranks.on_rank_zero(lambda: self.time.fraction(self._seconds()))

    def _loss_text(self) -> str:
        """The mean loss since the last line of metrics.jsonl, for lines of progress."""
        steps = self.state.steps - self.state.logged_step
        return f"loss {float(self.loss_sum) / steps:.4g}" if steps else ""


# --- validation ---
# Ranking metrics on held-out documents during training.

VALIDATED = ("P@1", "P@3", "P@5", "nDCG@5")


def metrics_to_validate(metric: str) -> tuple[list[str], int]:
    """The metrics to compute, including that of the training config, and the number of predictions they need."""
    metrics = list(dict.fromkeys([*VALIDATED, *([metric] if "loss" not in metric else [])]))
    return metrics, max(int(k) for name in metrics for k in re.findall(r"@(\d+)", name) or ["5"])


def validation_metrics(top: TopK, labels: Any, metrics: list[str], train_labels: Any) -> dict[str, float]:
    """Metrics of predictions; `labels` may have columns that the training labels lack."""
    counts = counts_of(train_labels.indices, labels.shape[1])
    # ranks instead of scores: a network has many ties early in training, which need no warning
    by_rank = np.where(np.isneginf(top.scores), -np.inf, -np.arange(top.k)).astype(np.float32)
    evaluator = Evaluator(metrics, labels.shape[1], train=counts, train_documents=train_labels.shape[0], groups=())
    evaluator.update(TopK(top.ids, by_rank), labels)
    return dict(evaluator.result().values)
