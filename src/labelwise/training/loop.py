"""The training loop of all neural methods.

A method hands over a `Fitting` (its module, batches, loss, validation) and finds the weights to keep in its module.
Everything that decides the next step is in a checkpoint, and whatever is random is a function of the seed and the place
in the training. Therefore a run that was killed resumes to the same weights, bit for bit on a CPU with the same number
of threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from labelwise.device import torch_threads
from labelwise.errors import ConfigError, DataError, did_you_mean
from labelwise.networks.settings import TrainingConfig, lower_is_better
from labelwise.parallel import run_stream
from labelwise.progress import progress
from labelwise.training.averaging import Averaging
from labelwise.training.keeping import Keeper, Place
from labelwise.training.kept_memory import kept_memory
from labelwise.training.optimisers import clip_adaptively, clip_gradients, make_optimisers
from labelwise.training.randomness import kept_randomness, own_randomness
from labelwise.training.ranks import Machine
from labelwise.training.schedules import make_schedule
from labelwise.training.watching import Best, History, Journal, Watcher, check_tensorboard, finite

if TYPE_CHECKING:
    from labelwise.fit_context import FitContext

LAYOUT = 1  # of the state in a checkpoint; part of the fingerprint


class Fitting(Protocol):
    """What a method hands to the loop.

    All that changes while training must be a parameter or a buffer of the module. `loss` may draw from the global
    generators of Python, NumPy and torch; `batches` and `load` draw from generators they seed themselves.
    """

    @property
    def module(self) -> nn.Module:
        """The module to train; its own `train()` keeps frozen parts in eval mode if they are to stay there."""
        ...

    def batches(self, epoch: int) -> Sequence[Any]:
        """The batches of an epoch: a function of the seed and the epoch alone."""
        ...

    def load(self, item: Any, epoch: int) -> Any:
        """The tensors of a batch in this epoch, padded to its longest document; on the CPU, the loop moves them."""
        ...

    def loss(self, batch: Any) -> Tensor:
        """Forward pass and loss, the mean over the documents of the batch."""
        ...

    def validate(self) -> dict[str, float]:
        """Numbers such as P@1 on held-out documents; {} when there are none. The module is in eval mode."""
        ...


def train(
    fitting: Fitting,
    config: TrainingConfig,
    *,
    context: FitContext,
    head: Sequence[str] = (),
    rows: Sequence[str] = (),
    watchers: Sequence[Watcher] = (),
    stage: str = "train",
    identity: str = "",
) -> History:
    """Train `fitting.module` in place; it ends in eval mode on its device with the weights to keep.

    Parameters
    ----------
    fitting
        Module, batches, loss and validation.
    config
        All settings.
    context
        Where unfinished work is kept and numbers are logged.
    head
        Beginnings of the names of parameters that have the head's rate.
    rows
        Beginnings of the names of tables whose gradients come as rows; sparse embeddings are found without it.
    watchers
        Look on and may end the training.
    stage
        Name of this training among several of one run: checkpoints of each have a folder of their own, and a stage that
        was finished before an interruption is not trained again.
    identity
        A fingerprint of the data and of the method's own settings, so that checkpoints of others are never resumed.
    """
    if config.tensorboard is not None:
        check_tensorboard()
    machine = Machine(config.precision)
    with torch_threads(), kept_memory(), own_randomness(config.seed + machine.rank):
        loop = _Loop(fitting, config, context, machine, (tuple(head), tuple(rows)), watchers, stage, identity)
        try:
            return loop.run()
        finally:
            loop.journal.close()
            fitting.module.eval()


class _Loop:
    """One training on its way."""

    def __init__(
        self,
        fitting: Fitting,
        config: TrainingConfig,
        context: FitContext,
        machine: Machine,
        names: tuple[tuple[str, ...], tuple[str, ...]],
        watchers: Sequence[Watcher],
        stage: str,
        identity: str,
    ) -> None:
        self.fitting, self.config, self.machine, self.stage = fitting, config, machine, stage
        self.watchers = tuple(watchers) if machine.is_rank_zero else ()
        self.looked_at = config.validate_every is not None or len(watchers) > 0
        self.module = fitting.module.to(machine.device)
        self.learning = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self.optimisers = make_optimisers(self.module, config.optimiser, *names)
        self.averaging = Averaging(config.averaging, self.learning)
        self.keeper = Keeper(
            None if context.checkpoints is None else context.checkpoints / stage,
            [LAYOUT, stage, identity, names, machine.ranks, config.part_of_the_result()],
            config.checkpoint_every,
            config.restore_best,
            machine,
            self.module,
            self.optimisers,
            self.averaging,
            self.watchers,
        )
        self.place = self.keeper.resume(stage) or Place(self._total_steps())
        self.stop = self.place.stopped
        self.schedule = make_schedule(config.schedule, self.place.total_steps)
        # the sum stays where the loss is: to read a number from a GPU is to wait for it
        self.loss_sum = torch.full((), self.place.loss_sum, device=machine.device)
        tensorboard = config.tensorboard if machine.is_rank_zero and self.stop is None else None
        self.journal = Journal(context.log if machine.is_rank_zero else None, stage, tensorboard, self.place.step)
        self.loss = machine.loss_function(self.module, fitting.loss)  # all ranks get the first one's weights
        self.steps_of_epoch = 1
        self.begin = time.monotonic() - self.place.seconds

    # --- the loop itself ---

    def run(self) -> History:
        """From wherever it is to the end."""
        place = self.place
        if self.stop is None:
            self.module.train()
            with progress(self.stage, place.total_steps) as advance:
                advance(place.step)
                while self.stop is None:
                    self._epoch(advance)
                if self.looked_at and place.round_step < place.step:
                    self._end_round()
            self._finish()
        best = Best(**place.best) if place.best is not None else None
        return History(place.records, place.step, place.epoch, place.seconds, best, place.stopped or "")

    def _epoch(self, advance: Callable[[float], None]) -> None:
        """The steps of this epoch that are still to be taken."""
        place = self.place
        windows = self._windows(place.epoch)
        self.steps_of_epoch = len(windows)
        todo = windows[place.step_of_epoch :]
        batches = self._loaded([item for window in todo for item in window])
        for window in todo:
            loss = self._step(batches, len(window))
            place.step += 1
            place.step_of_epoch += 1
            if place.step_of_epoch == len(windows):
                place.epoch, place.step_of_epoch = place.epoch + 1, 0
            self._after_step(loss)
            advance(1)
            stop, save = self.machine.broadcast_flags(self.stop is not None, self.keeper.is_due(place.step))
            if stop:
                break
            if save:
                self._save()
        self.stop = self.machine.on_rank_zero(lambda: self.stop)

    def _step(self, batches: Iterator[Any], count: int) -> Tensor:
        """One step: gradients of `count` batches, clipping, update. Returns the mean loss of the batches."""
        self.optimisers.set_rates(self.schedule(self.place.step))
        self.optimisers.forget_gradients()
        total = torch.zeros(())
        for number in range(1, count + 1):
            batch = self.machine.move(next(batches))
            with self.machine.no_sync() if number < count else nullcontext():
                loss = self.loss(batch) if count == 1 else self.loss(batch) / count
                loss.backward()
            total = loss.detach() if number == 1 else total + loss.detach()
        if self.config.clip is not None:
            self._clip(self.config.clip)
        self.optimisers.step()
        self.loss_sum += total
        return total

    def _clip(self, most: float | Literal["adaptive"]) -> None:
        """Scale the gradients down if their norm is too large; watchers get the norm before."""
        if most == "adaptive":
            norm = clip_adaptively(self.learning.values(), self.place.lengths)
        else:
            norm = clip_gradients(self.learning.values(), most)
        for watcher in self.watchers:
            watcher.clipped(norm)

    def _after_step(self, loss: Tensor) -> None:
        """All that may be due now that a step is done. Sets `stop` when it was the last."""
        place, config = self.place, self.config
        epoch_ended = place.step_of_epoch == 0
        if self.averaging.due(place.step, place.total_steps, place.epoch, epoch_ended, self._time_share()):
            if config.averaging.kind == "swa":
                self.optimisers.settle()
            self.averaging.take_in()
        for watcher in self.watchers:
            self.stop = watcher.after_step(place.step, loss) or self.stop
        if place.step % config.log_every == 0:
            self._log_loss()
        every = config.validate_every
        if (place.step % every == 0) if isinstance(every, int) else epoch_ended:
            self._end_round()
        if place.epoch == config.epochs or place.step == config.steps:
            self.stop = self.stop or "finished"
        elif config.time_budget is not None and self._seconds() > config.time_budget:
            self.stop = self.stop or "time budget"

    # --- rounds: from one validation to the next ---

    def _log_loss(self) -> None:
        """Read the loss since the last log line, and write one."""
        place = self.place
        total, steps = self.machine.mean(self.loss_sum), place.step - place.logged_step
        if steps == 0:
            return
        if not math.isfinite(total):
            self.stop = "diverged"
        self.journal.write(place.step, epoch=self._epochs_done(), loss=total / steps, rate=self._rate())
        self.loss_sum.zero_()
        place.logged_step = place.step
        place.round_loss += total

    def _end_round(self) -> None:
        """Validate, let watchers look, note whether it is the best so far."""
        place = self.place
        self._log_loss()
        self.optimisers.settle()
        with self._evaluating():
            numbers, stop = self.machine.on_rank_zero(self._validated)
            self._judge(numbers)
        self.stop = stop or self.stop
        place.records.append({key: finite(value) for key, value in numbers.items()})
        place.round_loss, place.round_step = 0.0, place.step

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Averaged weights, eval mode, no gradients, the precision of training; randomness as if nothing had been."""
        self.module.eval()
        with self.averaging.in_place(), kept_randomness(), torch.no_grad(), self.machine.autocast():
            yield
        self.module.train()

    def _validated(self) -> tuple[dict[str, Any], str | None]:
        place = self.place
        numbers: dict[str, Any] = {
            "step": place.step,
            "epoch": self._epochs_done(),
            "loss": place.round_loss / max(1, place.step - place.round_step),
            "rate": self._rate(),
        }
        if self.config.validate_every is not None:
            found = self.fitting.validate()
            if numbers.keys() & found.keys():
                raise ValueError(f"validate() may not name its numbers {', '.join(numbers)}")
            numbers |= found
        stops = [watcher.after_validation(numbers) for watcher in self.watchers]
        written = {key: value for key, value in numbers.items() if key not in ("step", "epoch", "loss", "rate")}
        if written:
            self.journal.write(place.step, split="valid", epoch=self._epochs_done(), **written)
        return numbers, next((reason for reason in stops if reason is not None), None)

    def _judge(self, numbers: dict[str, Any]) -> None:
        """Keep the weights if they are the best so far; stop when there has been no best for too long."""
        place, config = self.place, self.config
        if config.validate_every is None:
            return
        if config.metric not in numbers:
            offered = [key for key in numbers if key not in ("step", "epoch", "rate")]
            if offered == ["loss"] and config.early_stopping is None:
                return  # nothing is held out, and nothing depends on it
            raise ConfigError(f"training.metric: no '{config.metric}' here; {did_you_mean(config.metric, offered)}")
        value = float(numbers[config.metric])
        sign = -1 if lower_is_better(config.metric) else 1
        if math.isfinite(value) and (place.best is None or sign * value > sign * place.best["value"]):
            place.best = {"metric": config.metric, "value": value, "step": place.step}
            place.without_gain = 0
            self.keeper.save_best(place.step)
            return
        place.without_gain += 1
        if config.early_stopping is not None and place.without_gain >= config.early_stopping.patience:
            self.stop = self.stop or "early stopping"

    # --- unfinished and finished work ---

    def _save(self) -> None:
        """Write a checkpoint, but not of weights that are no numbers any more."""
        self.place.loss_sum, self.place.seconds = self.machine.mean(self.loss_sum), self._seconds()
        if math.isfinite(self.place.loss_sum):
            self.keeper.save(self.place)
        else:
            self.stop = "diverged"

    def _finish(self) -> None:
        place = self.place
        self.optimisers.forget_gradients()
        self.optimisers.settle()
        place.stopped, place.seconds = self.stop, self._seconds()
        place.loss_sum = place.round_loss = 0.0
        self.keeper.finish(place)

    # --- small answers ---

    def _windows(self, epoch: int) -> list[list[Any]]:
        """The batches of each step of an epoch."""
        items = self.fitting.batches(epoch)
        if len(items) == 0:
            raise DataError("there is no batch to train on")
        return self.machine.windows(items, self.config.accumulate)

    def _total_steps(self) -> int:
        """All steps, as far as the first epoch tells."""
        epochs, steps = self.config.epochs, self.config.steps
        if epochs is None:
            return steps or 0
        total = epochs * len(self._windows(0))
        return total if steps is None else min(total, steps)

    def _loaded(self, items: list[Any]) -> Iterator[Any]:
        load = partial(self.fitting.load, epoch=self.place.epoch)
        if self.config.load_ahead == 0:
            return map(load, items)
        return run_stream(load, items, self.config.load_ahead)

    def _epochs_done(self) -> float:
        return self.place.epoch + self.place.step_of_epoch / self.steps_of_epoch

    def _rate(self) -> float:
        return self.optimisers.parts[0].param_groups[0]["lr"]

    def _seconds(self) -> float:
        return time.monotonic() - self.begin

    def _time_share(self) -> float:
        """How much of the time budget is spent, on the first rank's clock, where an average has to know."""
        budget = self.config.time_budget
        if budget is None or self.config.averaging.kind != "swa":
            return 0.0
        return self.machine.on_rank_zero(lambda: self._seconds() / budget)
