"""Repetitions of a bucket code trained by tasks: each trains one or some, and writes them as finished ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from labelwise.executors.base import RETRIES, LostTaskError, executor, refuse_time_budget, task_folder
from labelwise.fit_context import FitContext
from labelwise.networks.bucket_networks import Repetition
from labelwise.progress import progress

if TYPE_CHECKING:
    from labelwise.training.repetitions import RepetitionTraining


class RepetitionTask(NamedTuple):
    """Repetitions to train together, the folder of finished ones, and that of unfinished work."""

    numbers: tuple[int, ...]
    folder: Path
    checkpoints: Path | None


class TrainedRepetitions(NamedTuple):
    """What a task returns besides the files it has written."""

    records: list[dict[str, Any]]
    """Numbers for metrics.jsonl."""
    diverged: list[Repetition]
    """Repetitions that are not written as finished."""


def trained_elsewhere(
    training: RepetitionTraining, groups: Sequence[Sequence[int]], folder: Path | None
) -> dict[int, Repetition]:
    """Train groups of repetitions by the tasks of the executor; files that cannot be read are trained again."""
    if training.context.budget.is_limited:
        refuse_time_budget("repetitions")
    running, done = executor(), {}
    kept = (task_folder() / "repetitions" if folder is None else folder).absolute()
    kept.mkdir(parents=True, exist_ok=True)
    checkpoints = None if training.context.checkpoints is None else training.context.checkpoints.absolute()
    shared = running.share((training.identity, replace(training, context=FitContext())))
    left = [RepetitionTask(tuple(group), kept, checkpoints) for group in groups]
    try:
        with progress("repetitions", sum(map(len, groups))) as step:
            for _ in range(RETRIES + 1):
                for task, trained in zip(left, running.map(train_group, left, shared), strict=True):
                    for record in trained.records:
                        training.context.log(**record)
                    found = [*training.finished(task.numbers, kept), *trained.diverged]
                    done |= {one.number: one for one in found}
                    step(len(found))
                left = [task for task in left if any(number not in done for number in task.numbers)]
                if not left:
                    return done
    finally:
        shared.remove()
    raise LostTaskError(f"{kept}: trained repetitions could not be read, {RETRIES + 1} times")


def train_group(shared: tuple[str, RepetitionTraining], task: RepetitionTask) -> TrainedRepetitions:
    """A task: train repetitions, unless an attempt before has done so."""
    from labelwise.device import torch_threads

    identity, training = shared
    records: list[dict[str, Any]] = []
    context = FitContext(task.checkpoints, lambda **numbers: records.append(numbers))
    own = replace(training, context=context)
    vars(own)["identity"] = identity  # computed by the driver: it hashes all data
    with torch_threads():
        trained = own.run(task.numbers, task.folder, len(task.numbers))
    return TrainedRepetitions(records, [one for one in trained if not one.is_finite])
