"""Cluster labels into trees, and train each tree level by level from the top, a node's children against each other.

Training documents of a node's children: with `teacher` forcing the documents that have a label below the node; with
`matcher` also the documents that the levels above predict for the node, which are the ones it will see in a search.
Finished chunks are kept in the folder of the job, and may be trained by its tasks.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from labelwise.errors import DataError, ModelFormatError
from labelwise.features.featurizers import Given, Words
from labelwise.features.labels import pifa, with_label_texts
from labelwise.features.rows import FeatureOrder, FeatureRows, OrderedFeatures
from labelwise.io import folder as store
from labelwise.io.tensors import all_finite, are_sizes, counts_of, in_range, is_increasing
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.memory import bytes_of, check_memory, clustering_need, clusters_at_once, training_need
from labelwise.linear.search import beam_search
from labelwise.linear.settings import TrainingSettings, UserInput
from labelwise.linear.solver import (
    Chunk,
    LevelTrainer,
    PassLimit,
    SolverPace,
    chunks_of,
    held_bytes,
    pieces_of,
    squared_norms,
    whole,
    work_per_pass,
)
from labelwise.linear.trees import LinearTrees, TrainingStatistics, document_counts
from labelwise.linear.weights import ChunkedWeights, ChunkPart, PackedWeights
from labelwise.runtime.job import Job, find_finished, keep_finished
from labelwise.runtime.progress import progress, stage_name
from labelwise.runtime.tasks import HERE, Shared, Tasks

log = logging.getLogger("labelwise")

# --- label trees ---


def fit_trees(features: Any, rows: Any, labels: Any, given: UserInput, config: Any, job: Job) -> LinearTrees:
    """Cluster labels, unless the user gives a tree, and train the classifiers on rows renumbered by frequency.

    `features` has made the rows; unless they are those of the user, they are renumbered in place. A fit that resumes
    computes features again; label trees (`tree-N` in its folder) and finished chunks (`weights-N`) are read.
    """
    folder = job.scratch if sparse.issparse(rows) else None
    may_overwrite = folder is None and (not isinstance(features, Given) or features.norm is not None)
    order = partial(FeatureOrder.learn, in_place=may_overwrite, folder=folder)
    # sums depend on the order of columns: TF-IDF alone is renumbered before labels are described, all else after it
    ordered = order(rows) if isinstance(features, Words) else None
    trees = given.trees
    if trees is None:
        describing = rows if ordered is None else ordered.rows.sparse
        names = None if given.names is None else features.tfidf.transform(given.names)
        if names is not None and ordered is not None:
            names = ordered.order.apply(names)
        trees = cluster_trees(describing, labels, names, config, job)
    ordered = order(rows) if ordered is None else ordered
    return train_trees(ordered, labels, trees, TrainingSettings.of(config), job, given.negatives)


def cluster_trees(rows: Any, labels: Any, names: Any, config: Any, job: Job) -> list[LabelTree]:
    """One tree of label clusters per seed; `names` are features of the names of labels, or None.

    Label features are computed only if a tree is missing, and are freed before training begins.
    """

    @cache
    def described() -> Any:
        clusters = clusters_at_once(config, labels.shape[1])
        need = partial(clustering_need, rows, labels, config.label_features, names, clusters=clusters)
        check_memory(need, config.memory, bytes_of(rows, labels), report=False)
        found = pifa(rows, labels, keep=config.label_features, hold=held_bytes(config.memory))
        return found if names is None else with_label_texts(found, names, config.label_text_weight)

    def clustered(seed: int) -> dict[str, np.ndarray]:
        make = LabelTree.kway if config.tree == "kway" else LabelTree.balanced
        return make(described(), leaf_size=config.leaf_size, branching=config.branching, seed=seed).to_tensors()

    seeds = TrainingSettings.of(config).seeds(config.trees)
    kept = [job.kept(f"tree-{number}", partial(clustered, seed)) for number, seed in enumerate(seeds)]
    return [LabelTree.from_tensors("tree", arrays, Path("clustering")) for arrays in kept]


# --- weights ---

WORTHWHILE = 0.5
"""Fraction of the duration of the last tree that has to be left for another one, which then gets fewer passes."""


@dataclass(frozen=True)
class TrainingExamples:
    """Documents to train on, the same for all trees.

    Parameters
    ----------
    features
        Renumbered by frequency, with the dense columns last.
    user_negatives
        CSR [documents, labels]: additional negative documents for the siblings of a label.
    folder
        For temporary files, if features are mapped.
    tasks
        Where chunks are trained.
    """

    features: FeatureRows
    user_negatives: Any = None
    folder: Path | None = None
    tasks: Tasks = HERE

    @cached_property
    def norms(self) -> np.ndarray:
        """Squared norms of the documents."""
        return squared_norms(self.features)

    @cached_property
    def pace(self) -> SolverPace:
        """How fast the solver is, as measured in all trees."""
        return SolverPace(self.features)

    @cached_property
    def shared(self) -> Shared:
        """Features and norms, for the tasks of all levels and trees."""
        return self.tasks.share((self.features, self.norms))


def train_trees(
    ordered: OrderedFeatures, labels: Any, trees: Sequence[LabelTree], settings: TrainingSettings, job: Job,
    user_negatives: Any = None,
) -> LinearTrees:  # fmt: skip
    """Train the classifiers of all trees.

    `user_negatives` [documents, labels] are additional negative documents for the siblings of a label. The time budget
    decides how many trees are trained: there is always one, with fewer passes of the solver if necessary.
    """
    examples = TrainingExamples(ordered.rows, user_negatives, ordered.folder, job.tasks or HERE)
    targets = trees[0].aggregate(labels)
    for tree in trees:
        settings.search.check(tree.depth)
    need = partial(training_need, ordered.rows, targets, trees[0], settings, trees=len(trees))
    check_memory(need, settings.memory, bytes_of(ordered.rows, labels))
    del need  # it refers to the targets of the first tree
    trained, documents, seconds = LinearTrees(ordered.order), [], 0.0
    with examples.shared:
        for number, (seed, tree) in enumerate(zip(settings.seeds(len(trees)), trees, strict=True)):
            left = job.budget.remaining()
            if number > 0:
                if left < WORTHWHILE * seconds:
                    log.info("time budget: %d of %d trees are trained, the others are left out", number, len(trees))
                    job.budget.end_early()
                    break
                targets = tree.aggregate(labels)
            title = f"tree {number + 1} of {len(trees)}" if len(trees) > 1 else ""
            with job.stage(f"weights-{number}", title=title) as part:
                levels = train_tree(examples, tree, targets, settings, part, seed)
            stored = []
            while levels:  # none of them is needed any longer when it is packed, nor while the next tree is trained
                stored.append(PackedWeights.of(levels.pop(0).stored_as(settings.precision)))
            trained.trees.append((tree, stored))
            documents.append(document_counts(targets))
            seconds = left - job.budget.remaining() if job.budget.is_limited else 0.0
    trained.statistics = TrainingStatistics.of(ordered.rows, documents)
    return trained


def train_tree(
    examples: TrainingExamples,
    tree: LabelTree,
    targets: Sequence[Any],
    settings: TrainingSettings,
    job: Job,
    seed: int = 0,
) -> list[ChunkedWeights]:
    """Train the weights of every level, from the top.

    Parameters
    ----------
    targets
        The labels of the examples at each level of the tree, from `LabelTree.aggregate`.
    settings
        With `relevance` a positive example is weighted by the label's value (a node's by the sum of those below); rows
        are scaled so that their values average 1, which keeps the scale of costs.
    job
        Of this tree: finished chunks are kept in its folder, and levels have parts of its time by their work.
    seed
        The tree's own.
    """
    work = _work_of_levels(tree, targets, examples.features.shape[0])
    further = None if examples.user_negatives is None else tree.aggregate(examples.user_negatives)
    levels: list[ChunkedWeights] = []
    cut_above = False
    folder = job.folder
    if folder is None and examples.tasks.folder is not None:
        folder = examples.tasks.folder / secrets.token_hex(16)
    kept = nullcontext() if folder is None else ChunkShards(folder, job.fingerprint(CHUNKS))
    with kept as shards:
        for depth, target in enumerate(targets):
            if settings.relevance:
                target = scaled(target)
            documents = None
            if depth > 0:
                more = None if further is None else further[depth - 1]
                documents = documents_of(targets[depth - 1], more, levels, examples.features, settings)
            budget = job.budget.part(work[depth] / max(sum(work[depth:]), 1.0))
            limit = PassLimit(budget, job.budget, examples.pace)
            # what is kept must be what training without a time budget gives, whatever the next attempt's budget is
            keep = settings.negatives == "teacher" or not cut_above
            what, offsets = f"level {depth + 1} of {len(targets)}", tree.children_offsets(depth)
            level = Level(examples, target, documents, offsets, settings, seed, depth, what)
            parts = solve_chunks(level, limit, shards, keep)
            levels.append(ChunkedWeights.joined(parts, examples.features.shape[1], offsets))
            del parts, level, documents  # before the next level is trained
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


# --- level tasks ---
# Levels of linear trees trained by tasks: each trains some chunks and writes them as a shard with a checksum.
#
# A chunk depends on the documents and targets of its node and on nothing that other chunks compute, so that any process
# may train any of them, twice if need be. Shards are those from which a killed training resumes (see below).

TASKS_PER_SLOT = 4
"""Tasks of a level for each that runs at a time: more, so that they end together and little is lost with a worker."""


@dataclass(frozen=True)
class Level:
    """What the chunks of a level are trained from.

    Parameters
    ----------
    examples
        `TrainingExamples`; for tasks their features and squared norms, shared by all levels.
    target, documents, offsets
        Labels at this level; the documents of each node above (None: all); the nodes' first children.
    settings, seed
        As for `train_tree`.
    depth, what
        Number and name of the level.
    """

    examples: Any
    target: Any
    documents: Any
    offsets: np.ndarray
    settings: TrainingSettings
    seed: int
    depth: int
    what: str

    @cached_property
    def chunks(self) -> list[Chunk]:
        """The children of each node."""
        return chunks_of(self.offsets, self.documents)

    @cached_property
    def pieces(self) -> dict[int, Chunk]:
        """What is trained as one task, by first child."""
        return {piece.first: piece for piece in pieces_of(self.chunks)}


def solve_chunks(level: Level, limit: PassLimit, shards: ChunkShards | None, keep: bool) -> list[ChunkPart]:
    """The weights of each chunk of a level: finished ones from the shards, others trained here or by tasks.

    `keep`: whether what is trained here is added to the shards.
    """
    examples, n_features = level.examples, level.examples.features.shape[1]
    trainer = LevelTrainer(
        examples.features, examples.norms, level.target, level.settings, level.seed, limit, folder=examples.folder
    )
    parts = {} if shards is None else shards.level(level.depth, level.pieces, n_features)
    missing = [piece for first, piece in level.pieces.items() if first not in parts]
    if shards is not None and not examples.tasks.shares_memory:
        parts |= trained_elsewhere(level, trainer, missing, shards)
    else:
        finished = (lambda first, part: shards.add((level.depth, first), part)) if shards is not None and keep else None
        done, parts = parts, trainer.train_pieces(missing, level.what, finished)
        parts |= done  # not a copy: threads may still refer to what they have trained, which `whole` takes out
    return whole(level.chunks, parts)


class ChunkTask(NamedTuple):
    """Some chunks of a level, and the shard to write them to."""

    firsts: tuple[int, ...]
    path: Path
    fingerprint: str


def trained_elsewhere(
    level: Level, trainer: LevelTrainer, missing: Sequence[Chunk], shards: ChunkShards
) -> dict[int, ChunkPart]:
    """Pieces of a level by first child, trained by tasks."""
    trainer.limit.budget.refuse_tasks(level.what)
    tasks, n_features = level.examples.tasks, trainer.features.shape[1]
    work = {piece.first: trainer.work(piece) for piece in missing}
    groups = [
        ChunkTask(firsts, shards.new_path().absolute(), shards.fingerprint)
        for firsts in balanced(work, TASKS_PER_SLOT * tasks.slots)
    ]

    def read(task: ChunkTask, _result: None) -> dict[int, ChunkPart] | None:
        found = shards.level(level.depth, level.pieces, n_features, read_shard(task.path, task.fingerprint) or {})
        return found if found.keys() >= set(task.firsts) else None

    parts = {}
    given = replace(level, examples=level.examples.shared)
    with progress(level.what, sum(work.values()), "work") as step, tasks.share(given) as shared:
        for _, new in tasks.map(train_chunks, groups, shared, read=read):
            parts |= new
            step(sum(work[first] for first in new))
    return parts


def train_chunks(level: Level, task: ChunkTask) -> None:
    """A task: train chunks and write them, unless an attempt before has done so."""
    if task.path.exists() and read_shard(task.path, task.fingerprint) is not None:
        return
    features, norms = level.examples.open()
    trainer = LevelTrainer(features, norms, level.target, level.settings, level.seed)
    parts = trainer.train_pieces([level.pieces[first] for first in task.firsts], "chunks")
    written = write_shard(task.path, task.fingerprint, {(level.depth, first): part for first, part in parts.items()})
    if not written and read_shard(task.path, task.fingerprint) is None:  # nor by another process in the meantime
        raise DataError("finished chunks cannot be written", task.path)


def balanced(work: Mapping[int, float], count: int) -> list[tuple[int, ...]]:
    """At most `count` groups with about the same work, each with its chunks in order; the largest work first."""
    ordered = sorted(work, key=lambda first: (-work[first], first))
    count = min(count, len(ordered))
    return [tuple(sorted(ordered[number::count])) for number in range(count)]


# --- shards ---
# Finished chunks of an unfinished training on disk, from which a killed training resumes.
#
# Chunks are collected and written together as a *shard*, a small folder that is written atomically. A shard has the
# fingerprint of the training (parameters and data); those of other trainings, or damaged ones, are ignored. Writing
# takes a small fraction of the time: the interval between shards grows with the time a shard takes.

MIN_INTERVAL = 1.0
"""Seconds between shards, if writing is fast; a kill loses the work of one interval."""
WRITE_FRACTION = 0.01
"""Fraction of the time that may be spent on writing."""
MAX_BYTES = 64 << 20
"""Maximum bytes collected before they are written."""
CHUNKS, CHUNKS_FILE = "chunks", "chunks.safetensors"
"""Type of the folders, with which their names begin."""
_ARRAYS = {"features": "i", "row_counts": "i", "lanes": "u", "values": "f", "bias": "f"}  # and the kind of each dtype

Key = tuple[int, int]
"""Level in the tree, and the chunk's first child."""


class ChunkShards:
    """The finished chunks of one tree. Use it in a `with` block, which writes them after an error too."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint
        self.number = 0
        self._parts: dict[Key, ChunkPart] = {}
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
            if kind == CHUNKS and number.isdigit():
                self.number = max(self.number, int(number) + 1)
                self._parts |= read_shard(path, self.fingerprint) or {}
        if self._parts:
            log.info("resuming after %s finished chunks", f"{len(self._parts):,}")
        return self

    def __exit__(self, *_details: object) -> None:
        with self._writing:
            self._write()

    def level(
        self, depth: int, pieces: Mapping[int, Chunk], n_features: int, parts: Mapping[Key, ChunkPart] | None = None
    ) -> dict[int, ChunkPart]:
        """The level's finished chunks by first child; `pieces` has all that are possible.

        They are those of an earlier attempt, unless `parts` are given.
        """
        finished = {}
        for (of_level, first), part in (self._parts if parts is None else parts).items():
            if of_level != depth:
                continue
            if first in pieces and _is_valid(part, pieces[first].last - first, n_features):
                finished[first] = part
            else:
                log.warning("%s: a chunk of level %d does not fit and is trained again", self.folder, depth + 1)
        return finished

    def add(self, key: Key, part: ChunkPart) -> None:
        """Add a finished chunk. Thread-safe; when a shard is due, one thread writes it and the others continue.

        If one cannot be written, no others are tried.
        """
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
        if not parts or self._failed:
            return
        begin = time.monotonic()
        self._failed = not write_shard(self.new_path(), self.fingerprint, parts)
        end = time.monotonic()
        self._due = end + max(MIN_INTERVAL, (end - begin) / WRITE_FRACTION)

    def new_path(self) -> Path:
        """The path of a new shard, for somebody else to write."""
        with self._lock:
            self.number += 1
            return self.folder / f"{CHUNKS}-{self.number - 1:06d}"


def write_shard(path: Path, fingerprint: str, parts: Mapping[Key, ChunkPart]) -> bool:
    """Write finished chunks; False, and a warning, if that is not possible."""
    tensors = _to_tensors(parts)
    return keep_finished(path, CHUNKS, fingerprint, lambda folder: folder.write_tensors(CHUNKS_FILE, tensors))


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
    if keys.ndim != 2 or keys.shape[1] != 2:
        raise ModelFormatError(f"{path}: the keys are damaged")
    parts = zip(keys.tolist(), zip(*arrays_by_name, strict=True), strict=True)
    return {(level, first): ChunkPart(*arrays) for (level, first), arrays in parts}


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
