"""Train a label tree level by level from the top, each node's children against each other.

Training documents of a node's children: with `teacher` forcing the documents that have a label below the node; with
`matcher` also the documents that the levels above predict for the node, which are the ones it will see in a search.
"""

from __future__ import annotations

import heapq
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from labelwise.errors import DataError, ModelFormatError
from labelwise.features.rows import FeatureRows, is_mapped
from labelwise.io import folder as store
from labelwise.io.tensors import all_finite, are_sizes, counts_of, in_range, is_increasing
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.search import beam_search
from labelwise.linear.settings import TrainingSettings
from labelwise.linear.solver import (
    Chunk,
    LevelTrainer,
    PassLimit,
    SolverPace,
    chunks_of,
    held_bytes,
    squared_norms,
    tasks_of,
    work_per_pass,
)
from labelwise.linear.weights import ChunkedWeights, ChunkPart
from labelwise.runtime.finished import find_finished, keep_finished
from labelwise.runtime.progress import progress, stage_name
from labelwise.runtime.tasks import Shared, current, refuse_time_budget
from labelwise.runtime.time_budget import NO_LIMIT, TimeBudget

if TYPE_CHECKING:
    from labelwise.linear.settings import TrainingSettings


# --- shards ---
# Finished chunks of an unfinished training on disk, from which a killed training resumes.
#
# Chunks are collected and written together as a *shard*, a small folder that is written atomically. A shard has the
# fingerprint of the training (parameters and data); those of other trainings, or damaged ones, are ignored. Writing
# takes a small fraction of the time: the interval between shards grows with the time a shard takes.

log = logging.getLogger("labelwise")

MIN_INTERVAL = 1.0
"""Seconds between shards, if writing is fast; a kill loses the work of one interval."""
WRITE_FRACTION = 0.01
"""Fraction of the time that may be spent on writing."""
MAX_BYTES = 64 << 20
"""Maximum bytes collected before they are written."""
CHUNKS, TREE = KINDS = ("chunks", "tree")
"""Types of finished work, and the beginnings of its folders' names."""
CHUNKS_FILE, TREE_FILE = "chunks.safetensors", "tree.safetensors"
_ARRAYS = {"features": "i", "row_counts": "i", "lanes": "u", "values": "f", "bias": "f"}  # and the kind of each dtype

Key = tuple[int, int, int]
"""Index of the tree, level in it, and the chunk's first child."""


class ChunkShards:
    """The finished chunks and trees of one training. Use it in a `with` block, which writes them after an error too."""

    def __init__(self, folder: Path, fingerprint: str, n_labels: int | None = None) -> None:
        self.folder, self.fingerprint, self.n_labels = folder, fingerprint, n_labels
        self.number = 0
        self._parts: dict[Key, ChunkPart] = {}
        self._trees: dict[int, LabelTree] = {}
        self._waiting: dict[Key, ChunkPart] = {}
        self._bytes = 0
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._due = time.monotonic() + MIN_INTERVAL
        self._failed = False

    def __enter__(self) -> ChunkShards:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(".*.new-*"):
            shutil.rmtree(path, ignore_errors=True)  # left half written by a kill
        for path in sorted(self.folder.iterdir()):
            kind, _, number = path.name.partition("-")
            if kind in KINDS and number.isdigit():  # other stages of a method keep their work in the same folder
                self.number = max(self.number, int(number) + 1)
                self._read(path, kind)
        if self._parts or self._trees:
            log.info("resuming after %s finished chunks", f"{len(self._parts):,}")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        if kind is not None:  # otherwise the whole model is saved next
            with self._writing:
                self._write()

    def tree(self, number: int) -> LabelTree | None:
        """A tree of these labels that was built before, if any."""
        tree = self._trees.get(number)
        if tree is not None and self.n_labels not in (None, tree.n_labels):
            log.warning(
                "%s: not used: tree %d has %d labels, not %d", self.folder, number, tree.n_labels, self.n_labels
            )
            return None
        return tree

    def keep_tree(self, number: int, tree: LabelTree) -> None:
        """Write a new tree immediately: all its chunks depend on it."""
        self._new_folder(TREE, {"tree": number}, TREE_FILE, tree.to_tensors())

    def level(
        self,
        tree: int,
        depth: int,
        widths: Mapping[int, int],
        n_features: int,
        parts: Mapping[Key, ChunkPart] | None = None,
    ) -> dict[int, ChunkPart]:
        """The level's finished chunks by first child; `widths` has the number of children of each possible chunk.

        They are those of an earlier attempt, unless `parts` are given.
        """
        finished = {}
        for (of_tree, of_level, first), part in (self._parts if parts is None else parts).items():
            if (of_tree, of_level) != (tree, depth):
                continue
            if first in widths and _is_valid(part, widths[first], n_features):
                finished[first] = part
            else:
                log.warning("%s: a chunk of level %d does not fit and is trained again", self.folder, depth + 1)
        return finished

    def add(self, key: Key, part: ChunkPart) -> None:
        """Add a finished chunk. Thread-safe; when a shard is due, one thread writes it and the others continue."""
        with self._lock:
            self._waiting[key] = part
            self._bytes += sum(getattr(part, name).nbytes for name in _ARRAYS)
            due = self._bytes >= MAX_BYTES or time.monotonic() >= self._due
        if due and self._writing.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._writing.release()

    def _write(self) -> None:
        with self._lock:
            parts, self._waiting, self._bytes = self._waiting, {}, 0
        if not parts:
            return
        begin = time.monotonic()
        self._new_folder(CHUNKS, {}, CHUNKS_FILE, _to_tensors(parts))
        end = time.monotonic()
        self._due = end + max(MIN_INTERVAL, (end - begin) / WRITE_FRACTION)

    def _new_folder(self, kind: str, about: Mapping[str, Any], name: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Write a shard under the next free number. If one cannot be written, no others are tried."""
        if self._failed:
            return
        self._failed = not keep_finished(self.new_path(kind), kind, self.fingerprint, name, tensors, about)

    def new_path(self, kind: str = CHUNKS) -> Path:
        """The path of a new shard, for somebody else to write."""
        with self._lock:
            self.number += 1
            return self.folder / f"{kind}-{self.number - 1:06d}"

    def _read(self, path: Path, kind: str) -> None:
        if kind == CHUNKS:
            self._parts |= read_shard(path, self.fingerprint) or {}
            return
        folder = find_finished(path, kind, self.fingerprint)
        if folder is None:
            return
        try:
            tree = LabelTree.from_tensors("tree", folder.tensors(TREE_FILE), path)
            self._trees[int(folder.manifest.get("tree", -1))] = tree
        except ModelFormatError as error:
            log.warning("%s: not used: %s", path, error)


def write_shard(path: Path, fingerprint: str, parts: Mapping[Key, ChunkPart]) -> None:
    """Write finished chunks, unless another process has written the same ones in the meantime."""
    written = keep_finished(path, CHUNKS, fingerprint, CHUNKS_FILE, _to_tensors(parts))
    if not written and read_shard(path, fingerprint) is None:
        raise DataError("finished chunks cannot be written", path)


def read_shard(path: Path, fingerprint: str) -> dict[Key, ChunkPart] | None:
    """The chunks of a shard, with checksums compared; None if it is missing or damaged."""
    folder = find_finished(path, CHUNKS, fingerprint)
    if folder is None:
        return None
    try:
        return _from_tensors(folder.tensors(CHUNKS_FILE), path)
    except ModelFormatError as error:
        log.warning("%s: not used: %s", path, error)
        return None


def _to_tensors(parts: Mapping[Key, ChunkPart]) -> dict[str, np.ndarray]:
    """All parts concatenated, with the sizes of each."""
    tensors = {"keys": np.array(list(parts), np.int64)}
    for name in _ARRAYS:
        arrays = [getattr(part, name) for part in parts.values()]
        tensors[name] = np.concatenate(arrays)
        tensors[f"{name}.sizes"] = np.array([len(array) for array in arrays], np.int64)
    return tensors


def _from_tensors(tensors: Mapping[str, np.ndarray], path: Path) -> dict[Key, ChunkPart]:
    keys = store.get_tensor(tensors, "keys", path)
    arrays_by_name = []
    for name in _ARRAYS:
        array, sizes = store.get_tensor(tensors, name, path), store.get_tensor(tensors, f"{name}.sizes", path)
        if array.ndim != 1 or sizes.shape != (len(keys),) or not are_sizes(sizes, len(array)):
            raise ModelFormatError(f"{path}: the sizes of {name} are damaged")
        arrays_by_name.append(np.split(array, np.cumsum(sizes)[:-1]))
    if keys.ndim != 2 or keys.shape[1] != 3:
        raise ModelFormatError(f"{path}: the keys are damaged")
    parts = zip(keys.tolist(), zip(*arrays_by_name, strict=True), strict=True)
    return {(tree, level, first): ChunkPart(*arrays) for (tree, level, first), arrays in parts}


def _is_valid(part: ChunkPart, width: int, n_features: int) -> bool:
    """Whether a part is consistent: kernels read it without checks."""
    return bool(
        all(getattr(part, name).dtype.kind == kind for name, kind in _ARRAYS.items())
        and len(part.features) == len(part.row_counts)
        and len(part.lanes) == len(part.values)
        and are_sizes(part.row_counts, len(part.lanes))
        and len(part.bias) == width
        and (part.row_counts > 0).all()
        and is_increasing(part.features)
        and in_range(part.features, n_features)
        and in_range(part.lanes, width)
        and all_finite(part.values)
        and all_finite(part.bias)
    )


# --- level tasks ---
# Levels of linear trees trained by tasks: each trains some chunks and writes them as a shard with a checksum.
#
# A chunk depends on the documents and targets of its node and on nothing that other chunks compute, so that any process
# may train any of them, twice if need be. Shards are those from which a killed training resumes (`shards.py`).

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

    examples: Shared
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

    `place` is the tree and the level.
    """
    if trainer.limit.budget.is_limited:
        refuse_time_budget(what)
    tasks, parts = current(), dict(done)
    if shards is None:
        token = secrets.token_hex(16)
        assert tasks.folder is not None
        shards = ChunkShards(tasks.folder / token, token)  # other levels have the same numbers in folders of their own
        shards.folder.mkdir()
    pieces = {piece.first: piece for chunk in chunks for piece in tasks_of(chunk)}
    widths, n_features = widths_of(chunks), trainer.features.shape[1]
    work = {first: trainer.work(piece) for first, piece in pieces.items() if first not in parts}
    groups = [
        ChunkTask(*place, firsts, shards.new_path().absolute(), shards.fingerprint)
        for firsts in balanced(work, TASKS_PER_SLOT * tasks.slots)
        if firsts
    ]

    def read(task: ChunkTask, _result: None) -> dict[int, ChunkPart] | None:
        found = shards.level(*place, widths, n_features, read_shard(task.path, task.fingerprint) or {})
        return found if found.keys() >= set(task.firsts) else None

    with progress(what, sum(work.values()), "work") as step, tasks.share(inputs) as shared:
        for _, new in tasks.map(train_chunks, groups, shared, read=read):
            parts |= new
            step(sum(work[first] for first in new))
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


@dataclass(frozen=True)
class TrainingExamples:
    """Documents to train on, the same for all trees.

    Parameters
    ----------
    features, labels
        Renumbered by frequency, with the dense columns last; CSR [documents, labels].
    user_negatives
        CSR [documents, labels]: additional negative documents for the siblings of a label.
    folder
        For temporary files, if features are mapped.
    """

    features: FeatureRows
    labels: Any
    user_negatives: Any = None
    folder: Path | None = None

    @cached_property
    def norms(self) -> np.ndarray:
        """Squared norms of the documents."""
        return squared_norms(self.features)

    @cached_property
    def shared(self) -> Shared:
        """Features and norms, for the tasks of all levels and trees."""
        return current().share((self.features, self.norms))

    def remove_shared(self) -> None:
        """Delete the file of `shared`, if there is one."""
        if "shared" in vars(self):
            self.shared.remove()


@dataclass(frozen=True)
class TreeTime:
    """The time budget of a tree, and the measured pace of the solver, which all trees share."""

    budget: TimeBudget
    pace: SolverPace


def train_tree(
    examples: TrainingExamples,
    tree: LabelTree,
    targets: Sequence[Any],
    settings: TrainingSettings,
    seed: int = 0,
    shards: ChunkShards | None = None,
    number: int = 0,
    time: TreeTime | None = None,
) -> list[ChunkedWeights]:
    """Train the weights of every level, from the top.

    Parameters
    ----------
    targets
        The labels of the examples at each level of the tree, from `LabelTree.aggregate`.
    settings
        With `relevance` a positive example is weighted by the label's value (a node's by the sum of those below); rows
        are scaled so that their values average 1, which keeps the scale of costs.
    seed
        The tree's own.
    shards, number
        Storage of finished chunks, including those of an earlier, stopped attempt, and the tree's index in it.
    time
        The time budget of this tree; levels have parts of it by their work.
    """
    time = time or TreeTime(NO_LIMIT, SolverPace(examples.features))
    work = _work_of_levels(tree, targets, examples.features.shape[0])
    features, norms = examples.features, examples.norms
    further = None if examples.user_negatives is None else tree.aggregate(examples.user_negatives)
    levels: list[ChunkedWeights] = []
    cut_above = False
    hold = held_bytes(settings.memory) if is_mapped(features) else None
    for depth, target in enumerate(targets):
        if settings.relevance:
            target = scaled(target)
        offsets = tree.children_offsets(depth)
        documents = None
        if depth > 0:
            more = None if further is None else further[depth - 1]
            documents = documents_of(targets[depth - 1], more, levels, features, settings)
        chunks = chunks_of(offsets, documents)
        limit = PassLimit(time.budget.part(work[depth] / max(sum(work[depth:]), 1.0)), time.budget, time.pace)
        trainer = LevelTrainer(
            features, norms, target, settings.solver, settings.relevance, seed, limit, hold=hold, folder=examples.folder
        )
        what = f"level {depth + 1} of {len(targets)}"
        done, finished = None, None
        if shards is not None:
            done = shards.level(number, depth, widths_of(chunks), features.shape[1])
            # what is stored must be what training without a time budget gives, whatever the next attempt's budget is
            if settings.negatives == "teacher" or not cut_above:
                finished = partial(_add_finished, shards, number, depth)
        if not current().shares_memory:
            inputs = LevelInputs(examples.shared, target, documents, offsets, settings, seed)
            done = trained_elsewhere(inputs, trainer, chunks, what, shards, (number, depth), done or {})
        parts = trainer.train(chunks, what, done, finished)
        levels.append(ChunkedWeights.joined(parts, features.shape[1], offsets))
        shown = stage_name(what)
        log.info("%s: %s nodes, %s weights", shown, f"{levels[-1].n_children:,}", f"{levels[-1].n_weights:,}")
        if limit.cut:
            cut_above = True
            log.info("%s: %s", shown, limit)
    return levels


def _work_of_levels(tree: LabelTree, targets: Sequence[Any], n_documents: int) -> list[float]:
    """Work per pass of each level; additional negatives are not counted."""
    work = []
    for depth in range(len(targets)):
        children = np.diff(tree.children_offsets(depth))
        rows = n_documents if depth == 0 else counts_of(targets[depth - 1].indices, len(children))
        work.append(float(np.sum(work_per_pass(rows, children))))
    return work


def _add_finished(shards: ChunkShards, number: int, depth: int, first: int, part: ChunkPart) -> None:
    shards.add((number, depth, first), part)


def documents_of(
    targets: Any, further: Any, levels: Sequence[ChunkedWeights], features: FeatureRows, settings: TrainingSettings
) -> Any:
    """CSC [documents, nodes above]: the documents that each node's children are trained on.

    `targets` and `further` are the labels and additional negatives at the level above, the last of `levels`.
    """
    documents = targets if further is None else targets + further
    if settings.negatives == "matcher":
        width = levels[-1].n_children
        post_processor, beam, kept = settings.search.upper(len(levels))
        top = beam_search(features, levels, np.arange(width), beam, min(kept, width), post_processor)
        predicted = top.to_csr(width)
        predicted.data[:] = 1  # predicted with a score of 0 too
        documents = documents + predicted
    return sparse.csc_array(documents)


def scaled(target: Any) -> Any:
    """Rows scaled so that their values average 1."""
    counts = np.diff(target.indptr)
    sums = np.asarray(target.sum(axis=1)).ravel()
    factors = np.divide(counts, sums, out=np.ones(len(counts)), where=sums > 0)
    result = target.copy()
    result.data = (target.data * np.repeat(factors, counts)).astype(np.float32)
    return result
