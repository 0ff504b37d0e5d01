"""Train a label tree level by level from the top, each node's children against each other.

Training documents of a node's children: with `teacher` forcing the documents that have a label below the node; with
`matcher` also the documents that the levels above predict for the node, which are the ones it will see in a search.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.codes.tree import LabelTree
from labelwise.executors.base import Handle, executor
from labelwise.features.held_rows import is_mapped
from labelwise.features.rows import FeatureRows
from labelwise.linear.beam import beam_search
from labelwise.linear.level_tasks import LevelInputs, trained_elsewhere, widths_of
from labelwise.linear.level_trainer import LevelTrainer, chunks_of, held_bytes, squared_norms, work_per_pass
from labelwise.linear.pass_limit import PassLimit, SolverPace
from labelwise.linear.settings import TrainingSettings
from labelwise.linear.shards import ChunkShards
from labelwise.linear.weights import ChunkedWeights, ChunkPart
from labelwise.mapped import counts_of
from labelwise.progress import stage_name
from labelwise.time_budget import NO_LIMIT, TimeBudget

log = logging.getLogger("labelwise")


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
    def shared(self) -> Handle:
        """Features and norms, for the tasks of all levels and trees."""
        return executor().share((self.features, self.norms))

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
        if not executor().shares_memory:
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
