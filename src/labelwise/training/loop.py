"""The training loop of all neural methods.

A method passes a `Fitting` (its module, batches, loss, validation) and gets the final weights in its module. A
checkpoint has everything that decides the next step, and all randomness depends on the seed and the step. Therefore a
killed run resumes to the same weights, bit for bit on a CPU with the same number of threads.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from labelwise.device import torch_threads
from labelwise.encoders.batch_share import BatchShare, sharing
from labelwise.errors import DataError
from labelwise.kept_memory import keep_freed_memory
from labelwise.networks.settings import TrainingConfig
from labelwise.parallel import run_stream
from labelwise.progress import progress, stage_name
from labelwise.time_budget import NO_LIMIT, OutOfTimeError, TimeBudget, complete_within
from labelwise.training.averaging import Averaging
from labelwise.training.best_weights import is_out_of_patience, update_best
from labelwise.training.callbacks import Best, Callback, History, MetricLogger, check_tensorboard, finite
from labelwise.training.checkpoint import TIME_BUDGET
from labelwise.training.checkpoint_manager import CheckpointManager, LoopState
from labelwise.training.fitting import Fitting as Fitting
from labelwise.training.head_shards import HeadShards, check_head
from labelwise.training.interruption import Interruption
from labelwise.training.optimisers import clip_adaptively, clip_gradients, make_optimisers
from labelwise.training.randomness import preserve_random_state, seed_random_state
from labelwise.training.ranks import Ranks
from labelwise.training.schedules import make_schedule
from labelwise.training.stage_time import StageTime

if TYPE_CHECKING:
    from labelwise.fit_context import FitContext

log = logging.getLogger("labelwise")

LAYOUT = 1  # version of the state in a checkpoint; part of the fingerprint
ANY_RANKS = 1  # part of the fingerprint as well: any number of ranks trains as one does


def train(
    fitting: Fitting,
    config: TrainingConfig,
    *,
    context: FitContext,
    head: Sequence[str] = (),
    rows: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    stage: str = "train",
    title: str | None = None,
    identity: str = "",
) -> History:
    """Train `fitting.module` in place; afterwards it is in eval mode on its device with the final weights.

    Parameters
    ----------
    fitting
        Module, batches, loss and validation.
    config
        Settings of training.
    context
        Where checkpoints are kept, where metrics are logged, and the time budget; that of `config` counts as well.
    head
        Name prefixes of the parameters with the head's learning rate.
    rows
        Name prefixes of the tables with row-sparse gradients; sparse embeddings need not be listed.
    callbacks
        Called during training; they may stop it.
    stage
        Name of this training among several of one run: each has its own folder of checkpoints, and a stage that was
        finished before an interruption is not trained again.
    title
        Its name in the log; None: `stage`.
    identity
        A fingerprint of the data and of the method's own settings, so that checkpoints of others are never resumed.
    """
    if config.tensorboard is not None:
        check_tensorboard()
    check_head(getattr(fitting, "head", None), config)
    ranks = Ranks(config.precision)
    interruption = Interruption(active=ranks.on_rank_zero(lambda: context.checkpoints is not None))
    with torch_threads(), keep_freed_memory(), seed_random_state(config.seed + ranks.rank), interruption:
        loop = _Loop(fitting, config, context, ranks, (tuple(head), tuple(rows)), callbacks, stage, identity)
        loop.title, loop.interruption = title or stage, interruption
        try:
            return loop.run()
        finally:
            loop.logger.close()
            fitting.module.eval()


class _Loop:
    """A training and its state."""

    interruption = Interruption(active=False)

    def __init__(
        self,
        fitting: Fitting,
        config: TrainingConfig,
        context: FitContext,
        ranks: Ranks,
        names: tuple[tuple[str, ...], tuple[str, ...]],
        callbacks: Sequence[Callback],
        stage: str,
        identity: str,
    ) -> None:
        self.fitting, self.config, self.ranks, self.title = fitting, config, ranks, stage
        self.shards = HeadShards(fitting.module, ranks)
        # a head that is divided over ranks needs all of them for any score
        self.callbacks = tuple(callbacks) if ranks.is_rank_zero or self.shards else ()
        self.has_rounds = config.validate_every is not None or len(callbacks) > 0
        self.module = fitting.module.to(ranks.device)
        self.learning = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self.optimisers = make_optimisers(self.module, config.optimiser, *names)
        self.averaging = Averaging(config.averaging, self.learning)
        outer = context.budget
        self.manager = CheckpointManager(
            None if context.checkpoints is None or not ranks.is_rank_zero else context.checkpoints / stage,
            [LAYOUT, stage, identity, names, ANY_RANKS, config.part_of_the_result()],
            outer.seconds if config.time_budget is None and outer.is_limited else config.time_budget,
            config.checkpoint_every,
            config.restore_best,
            ranks,
            self.shards,
            self.module,
            self.optimisers,
            self.averaging,
            self.callbacks,
        )
        self.state = self.manager.resume(stage) or LoopState(self._total_steps())
        self.stop = self.state.stopped
        self.schedule = make_schedule(config.schedule, self.state.total_steps)
        # the sum stays on the device of the loss: reading a number from a GPU waits for it
        self.loss_sum = torch.full((), self.state.loss_sum, device=ranks.device)
        tensorboard = config.tensorboard if ranks.is_rank_zero and self.stop is None else None
        self.logger = MetricLogger(context.log if ranks.is_rank_zero else None, stage, tensorboard, self.state.step)
        self.loss = ranks.loss_function(self.module, fitting.loss, names[1], self.shards.tables)
        self.steps_of_epoch = 1
        self.begin = time.monotonic() - self.state.seconds
        own = None if config.time_budget is None else config.time_budget - self.state.seconds
        self.time = StageTime(outer.limited(own), self.state.round_seconds)

    # --- the loop itself ---

    def run(self) -> History:
        """Train from the current state to the end."""
        state = self.state
        if self.stop is None:
            self.module.train()
            left = self.time.budget.remaining
            with progress(self.title, state.total_steps, detail=self._loss_text, seconds_left=left) as advance:
                advance.start_at(state.step)
                while self.stop is None:
                    self._run_epoch(advance)
                if self.has_rounds and state.round_step < state.step and self._has_time_for_last_round():
                    self._end_round(self.time.budget)
            self._finish()
            if self.stop == TIME_BUDGET:
                self.time.budget.end_early()
                log.info("%s: ended by the time budget, %s", stage_name(self.title), self._steps_text())
        best = Best(**state.best) if state.best is not None else None
        return History(state.records, state.step, state.epoch, state.seconds, best, state.stopped or "")

    def _run_epoch(self, advance: Callable[[float], None]) -> None:
        """Run the remaining steps of this epoch."""
        state = self.state
        steps = self._batches_of_steps(state.epoch)
        self.steps_of_epoch = len(steps)
        todo = steps[state.step_of_epoch :]
        batches = self._load_batches([self.ranks.part(item) for step_batches in todo for item in step_batches])
        for step_batches in todo:
            self.time.begin()
            loss = self._step(batches, [self.ranks.share(item) for item in step_batches])
            state.step += 1
            state.step_of_epoch += 1
            if state.step_of_epoch == len(steps):
                state.epoch, state.step_of_epoch = state.epoch + 1, 0
            self._after_step(loss)
            advance(1)
            stop, save, asked = self.ranks.broadcast_flags(
                self.stop is not None, self.manager.is_due(state.step), any_rank=self.interruption.signal is not None
            )
            if stop:
                break
            if save or asked:
                self._save()
            if asked:
                self.ranks.wait()  # until rank zero has written it
                self.interruption.act(signal.SIGTERM)  # or other ranks would wait for those that end in this step
        self.stop = self.ranks.on_rank_zero(lambda: self.stop)

    def _step(self, batches: Iterator[Any], shares: Sequence[BatchShare | None]) -> Tensor:
        """One step: gradients of a batch per share, clipping, update. Returns the mean loss of the batches."""
        self.optimisers.set_rates(self.schedule(self.state.step))
        self.optimisers.clear_gradients()
        total, count = torch.zeros(()), len(shares)
        for number, share in enumerate(shares, 1):
            batch = self.ranks.move(next(batches))
            with sharing(share), self.ranks.no_sync() if number < count else nullcontext():
                factor = (1.0 if share is None or self.shards else share.weight) / count
                loss = self.loss(batch) if factor == 1.0 else self.loss(batch) * factor
                loss.backward()
            total = loss.detach() if number == 1 else total + loss.detach()
        self.ranks.average_rows()
        if self.config.clip is not None:
            self._clip(self.config.clip)
        self.optimisers.step()
        self.loss_sum += total
        return total

    def _clip(self, max_norm: float | Literal["adaptive"]) -> None:
        """Scale the gradients down if their norm is too large; callbacks get the norm before."""
        if max_norm == "adaptive":
            norm = clip_adaptively(self.learning.values(), self.state.lengths, self.shards.parameters)
        else:
            norm = clip_gradients(self.learning.values(), max_norm, self.shards.parameters)
        for callback in self.callbacks:
            callback.clipped(norm)

    def _after_step(self, loss: Tensor) -> None:
        """Average, call callbacks, log and validate where due. Sets `stop` after the last step."""
        state, config = self.state, self.config
        epoch_ended = state.step_of_epoch == 0
        if self.averaging.is_due(state.step, state.total_steps, state.epoch, epoch_ended, self._time_fraction()):
            if config.averaging.kind == "swa":
                self.optimisers.catch_up()
            self.averaging.update()
        for callback in self.callbacks:
            self.stop = callback.after_step(state.step, loss) or self.stop
        if state.step % config.log_every == 0:
            self._log_loss()
        self.time.end_step()
        every = config.validate_every
        due = (state.step % every == 0) if isinstance(every, int) else epoch_ended
        if due and self.ranks.on_rank_zero(self.time.has_time_for_round):
            self._end_round(self.time.budget.part(0.5))
        if state.epoch == config.epochs or state.step == config.steps:
            self.stop = self.stop or "finished"
        elif self.time.is_over(has_best=state.best is not None):
            self.stop = self.stop or TIME_BUDGET

    # --- rounds: from one validation to the next ---

    def _log_loss(self) -> None:
        """Log the mean loss since the last log line."""
        state = self.state
        total, steps = self.ranks.mean(self.loss_sum), state.step - state.logged_step
        if steps == 0:
            return
        if not math.isfinite(total):
            self.stop = "diverged"
        self.logger.write(state.step, epoch=self._epochs_done(), loss=total / steps, rate=self._rate())
        self.loss_sum.zero_()
        state.logged_step = state.step
        state.round_loss += total

    def _has_time_for_last_round(self) -> bool:
        """Whether to validate at the end: not if the time is over and there is nothing to compare with."""
        return self.stop != TIME_BUDGET or self.ranks.on_rank_zero(self.time.has_time_for_last_round)

    def _end_round(self, budget: TimeBudget) -> None:
        """Validate, call callbacks, and keep the weights if they are the best so far."""
        state = self.state
        self.time.begin()
        self._log_loss()
        self.optimisers.catch_up()
        with self._evaluation_mode():
            # with a divided head all ranks validate, in step, so that no clock may end it
            found = self._validate(NO_LIMIT) if self.shards else None
            numbers, stop = self.ranks.on_rank_zero(lambda: found or self._validate(budget))
            if numbers is not None:
                if update_best(state, numbers, self.config):
                    self.manager.save_best(state.step)
                elif is_out_of_patience(state, self.config):
                    self.stop = self.stop or "early stopping"
        if numbers is None:
            self.time.give_up_rounds()
            name = stage_name(self.title)
            log.info("%s: no validation at step %s, the time budget does not suffice", name, f"{state.step:,}")
            return
        self.time.end_round()
        state.round_seconds = self.time.round_seconds
        self.stop = stop or self.stop
        state.records.append({key: finite(value) for key, value in numbers.items()})
        state.round_loss, state.round_step = 0.0, state.step

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Averaged weights, eval mode, no gradients, the precision of training; random states are restored."""
        self.module.eval()
        with self.averaging.applied(), preserve_random_state(), torch.no_grad(), self.ranks.autocast():
            yield
        self.module.train()

    def _validate(self, budget: TimeBudget) -> tuple[dict[str, Any] | None, str | None]:
        """The numbers of a round and a reason to stop; no numbers if the budget has ended it."""
        state = self.state
        numbers: dict[str, Any] = {
            "step": state.step,
            "epoch": self._epochs_done(),
            "loss": state.round_loss / max(1, state.step - state.round_step),
            "rate": self._rate(),
        }
        if self.config.validate_every is not None:
            try:
                with complete_within(budget):
                    metrics = self.fitting.validate()
            except OutOfTimeError:
                return None, None
            if numbers.keys() & metrics.keys():
                raise ValueError(f"validate() may not name its metrics {', '.join(numbers)}")
            numbers |= metrics
        stops = [callback.after_validation(numbers) for callback in self.callbacks]
        written = {key: value for key, value in numbers.items() if key not in ("step", "epoch", "loss", "rate")}
        if written:
            self.logger.write(state.step, split="valid", epoch=self._epochs_done(), **written)
        return numbers, next((reason for reason in stops if reason is not None), None)

    # --- unfinished and finished work ---

    def _save(self) -> None:
        """Write a checkpoint, or stop if the weights have diverged."""
        self.state.loss_sum, self.state.seconds = self.ranks.mean(self.loss_sum), self._seconds()
        if math.isfinite(self.state.loss_sum):
            self.manager.save(self.state)
        else:
            self.stop = "diverged"

    def _finish(self) -> None:
        state = self.state
        self.optimisers.clear_gradients()
        self.optimisers.catch_up()
        state.stopped, state.seconds = self.stop, self._seconds()
        state.loss_sum = state.round_loss = 0.0
        self.manager.finish(state)

    # --- small parts ---

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

    def _load_batches(self, items: list[Any]) -> Iterator[Any]:
        load = partial(self.fitting.load, epoch=self.state.epoch)
        if self.config.load_ahead == 0:
            return map(load, items)
        return run_stream(load, items, self.config.load_ahead)

    def _epochs_done(self) -> float:
        return self.state.epoch + self.state.step_of_epoch / self.steps_of_epoch

    def _rate(self) -> float:
        return self.optimisers.parts[0].param_groups[0]["lr"]

    def _seconds(self) -> float:
        return time.monotonic() - self.begin

    def _time_fraction(self) -> float:
        """Fraction of the time budget used, by the clock of rank zero; 0 unless averaging needs it."""
        if not self.time.budget.is_limited or self.config.averaging.kind != "swa":
            return 0.0
        return self.ranks.on_rank_zero(lambda: self.time.fraction(self._seconds()))

    def _steps_text(self) -> str:
        state = self.state
        return f"after {state.step:,} of {state.total_steps:,} steps ({self._epochs_done():.3g} epochs)"

    def _loss_text(self) -> str:
        """The mean loss since the last line of metrics.jsonl, for lines of progress."""
        steps = self.state.step - self.state.logged_step
        return f"loss {float(self.loss_sum) / steps:.4g}" if steps else ""
