"""Levels of linear trees trained by tasks: each trains some chunks and writes them as a shard with a checksum.

A chunk depends on the documents and targets of its node and on nothing that other chunks compute, so that any process
may train any of them, twice if need be. Shards are those from which a killed training resumes (`shards.py`).
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labelwise.executors.base import RETRIES, Handle, LostTaskError, executor, refuse_time_budget, task_folder
from labelwise.linear.level_trainer import Chunk, LevelTrainer, chunks_of, tasks_of
from labelwise.linear.pass_limit import PassLimit, SolverPace
from labelwise.linear.shards import ChunkShards, read_shard, write_shard
from labelwise.linear.weights import ChunkPart
from labelwise.progress import progress
from labelwise.time_budget import NO_LIMIT

if TYPE_CHECKING:
    from labelwise.linear.settings import TrainingSettings

TASKS_PER_SLOT = 4
"""Tasks of a level for each that runs at a time: more, so that they end together and little is lost with a worker."""


@dataclass(frozen=True)
class LevelInputs:
    """What the chunks of a level are trained from.

    Parameters
    ----------
    examples
        Features and their squared norms, the same for all levels.
    target, documents, offsets
        Labels at this level; the documents of each node above (None: all); the nodes' first children.
    settings, seed
        As for `train_tree`.
    """

    examples: Handle
    target: Any
    documents: Any
    offsets: np.ndarray
    settings: TrainingSettings
    seed: int


class ChunkTask(NamedTuple):
    """Some chunks of a level, and the shard to write them to."""

    tree: int
    depth: int
    firsts: tuple[int, ...]
    path: Path
    fingerprint: str


def trained_elsewhere(
    inputs: LevelInputs,
    trainer: LevelTrainer,
    chunks: Sequence[Chunk],
    what: str,
    shards: ChunkShards | None,
    place: tuple[int, int],
    done: Mapping[int, ChunkPart],
) -> dict[int, ChunkPart]:
    """The parts of a level by first child: those done, and the others trained by the tasks of the executor.

    `place` is the tree and the level. Shards that cannot be read are trained again; what remains after all retries is
    an error.
    """
    if trainer.limit.budget.is_limited:
        refuse_time_budget(what)
    running, parts = executor(), dict(done)
    if shards is None:
        token = secrets.token_hex(16)
        shards = ChunkShards(task_folder() / token, token)  # other levels have the same numbers in folders of their own
        shards.folder.mkdir()
    pieces = {piece.first: piece for chunk in chunks for piece in tasks_of(chunk)}
    widths, n_features = widths_of(chunks), trainer.features.shape[1]
    work = {first: trainer.work(piece) for first, piece in pieces.items()}
    shared = running.share(inputs)
    try:
        with progress(what, sum(size for first, size in work.items() if first not in parts), "work") as step:
            for _ in range(RETRIES + 1):
                missing = {first: size for first, size in work.items() if first not in parts}
                if not missing:
                    return parts
                tasks = [
                    ChunkTask(*place, firsts, shards.new_path().absolute(), shards.fingerprint)
                    for firsts in balanced(missing, TASKS_PER_SLOT * running.slots)
                ]
                for task, _ in zip(tasks, running.map(train_chunks, tasks, shared), strict=True):
                    found = read_shard(task.path, task.fingerprint) or {}
                    new = shards.level(*place, widths, n_features, found)
                    parts |= new
                    step(sum(work[first] for first in new))
    finally:
        shared.remove()
    if any(first not in parts for first in work):
        raise LostTaskError(f"{what}: {shards.folder}: trained chunks could not be read, {RETRIES + 1} times")
    return parts


def train_chunks(inputs: LevelInputs, task: ChunkTask) -> None:
    """A task: train chunks and write them, unless an attempt before has done so."""
    if task.path.exists() and read_shard(task.path, task.fingerprint) is not None:
        return
    features, norms = inputs.examples.open()
    settings, wanted = inputs.settings, set(task.firsts)
    limit = PassLimit(NO_LIMIT, NO_LIMIT, SolverPace(features))
    trainer = LevelTrainer(features, norms, inputs.target, settings.solver, settings.relevance, inputs.seed, limit)
    chunks = chunks_of(inputs.offsets, inputs.documents)
    pieces = [piece for chunk in chunks for piece in tasks_of(chunk) if piece.first in wanted]
    parts = {}
    trainer.train_pieces(pieces, "chunks", parts)
    write_shard(task.path, task.fingerprint, {(task.tree, task.depth, first): part for first, part in parts.items()})


def balanced(work: Mapping[int, float], count: int) -> list[tuple[int, ...]]:
    """At most `count` groups with about the same work, each with its chunks in order; the largest work first."""
    groups: list[list[int]] = [[] for _ in range(max(1, min(count, len(work))))]
    totals = [(0.0, number) for number in range(len(groups))]
    for first in sorted(work, key=lambda first: (-work[first], first)):
        total, number = heapq.heappop(totals)
        groups[number].append(first)
        heapq.heappush(totals, (total + work[first], number))
    return [tuple(sorted(groups[number])) for _, number in sorted(totals, reverse=True)]


def widths_of(chunks: Sequence[Chunk]) -> dict[int, int]:
    """Children of each piece of work, by the first of them."""
    return {piece.first: piece.last - piece.first for chunk in chunks for piece in tasks_of(chunk)}
