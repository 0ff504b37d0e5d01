"""Learn more documents, and more labels, with a trained tree.

The solver starts from the trained weights and sees only the new documents of each node; the old ones are represented
by statistics (`initial_weights.py`), so the cost follows the number of new documents.

New labels are inserted into the lowest node that the tree itself finds for their documents. If old documents are at
hand, a new label is trained against those of its node, as in full training. Otherwise its training starts from the mean
bias of its siblings, and it is known to be predicted too often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.codes.tree import LabelTree
from labelwise.features.rows import FeatureRows, stacked
from labelwise.linear.beam import beam_search
from labelwise.linear.initial_weights import InitialWeights
from labelwise.linear.level_trainer import Chunk, LevelTrainer, chunks_of, squared_norms
from labelwise.linear.packed import PackedWeights
from labelwise.linear.pass_limit import PassLimit, SolverPace
from labelwise.linear.settings import TrainingSettings
from labelwise.linear.statistics import TrainingStatistics
from labelwise.linear.train_tree import documents_of, scaled
from labelwise.linear.weights import ChunkedWeights, ChunkPart
from labelwise.time_budget import NO_LIMIT

MAX_GROWTH = 2
"""A lowest node accepts new labels up to this multiple of the largest one's size; then the next best does."""
MIN_BEAM = 10
"""Minimum beam with which nodes for new labels are searched."""
CONCENTRATION = 5.0
"""How much more frequent a feature is assumed to be in the documents of a node than in all documents."""
CURVATURE = {"squared_hinge": 2.0, "hinge": 2.0, "logistic": 0.25}
"""Curvature of a loss in the margin; that of the hinge, which has none, is that of the squared hinge."""


@dataclass(frozen=True)
class NewExamples:
    """New documents, the same for all trees.

    Parameters
    ----------
    features, labels
        In the model's order of features; CSR [documents, old and new labels].
    removed
        CSR [documents, labels]: labels that documents had in an earlier training and no longer have, or None.
    old_features, old_labels
        Old documents for new labels to be trained against, or None.
    """

    features: FeatureRows
    labels: Any
    removed: Any = None
    old_features: FeatureRows | None = None
    old_labels: Any = None

    @cached_property
    def occurring(self) -> tuple[FeatureRows, np.ndarray]:
        """The documents with the features that occur numbered without gaps, and the index of each in the model."""
        rows = self.features
        used = np.zeros(rows.shape[1], bool)
        used[rows.indices] = True
        used[rows.first_dense : rows.first_dense + rows.n_dense] = True
        numbers = (np.cumsum(used) - 1).astype(np.int32)
        first_dense = int(numbers[rows.first_dense]) if rows.n_dense else 0
        features = np.flatnonzero(used)
        shape = (rows.shape[0], len(features))
        return rows._replace(indices=numbers[rows.indices], shape=shape, first_dense=first_dense, unused=0), features

    @cached_property
    def norms(self) -> np.ndarray:
        """Squared norms of the documents."""
        return squared_norms(self.features)

    @cached_property
    def with_old(self) -> tuple[FeatureRows, np.ndarray, Any]:
        """New and old documents: features, squared norms, labels."""
        assert self.old_features is not None
        rows = stacked(self.features, self.old_features)
        return rows, squared_norms(rows), sparse.csr_array(sparse.vstack([self.labels, self.old_labels]))


def learn_tree(
    examples: NewExamples,
    tree: LabelTree,
    packed: Sequence[PackedWeights],
    statistics: TrainingStatistics,
    settings: TrainingSettings,
    seed: int = 0,
    number: int = 0,
) -> tuple[LabelTree, list[PackedWeights]]:
    """The tree with the new labels, and its weights after training on the new documents.

    `seed` and `number` are the tree's own. Weights of 16 or 8 bits are converted to 32 bits and back.
    """
    n_features = examples.features.shape[1]
    levels = [replace(level.unpacked().as_float32(), n_features=n_features) for level in packed]
    n_new = examples.labels.shape[1] - tree.n_labels
    added = np.zeros(len(levels[-1].chunk_offsets) - 1, np.int64)
    if n_new:
        leaves = _best_leaves(examples, tree, levels, n_new, settings)
        added = np.bincount(leaves, minlength=len(added))
        tree, levels[-1] = tree.with_labels(leaves), levels[-1].with_children(added)
    alone = examples.old_features is None
    targets = tree.aggregate(examples.labels)
    removed = None if examples.removed is None else tree.aggregate(examples.removed)
    for depth, target in enumerate(targets):
        documents = None
        if depth > 0:
            more = None if removed is None else removed[depth - 1]
            documents = documents_of(targets[depth - 1], more, levels[:depth], examples.features, settings)
        chunks = chunks_of(tree.children_offsets(depth), documents)
        is_last = depth == tree.depth - 1
        if is_last and not alone:
            chunks = [Chunk(c.first, c.last - int(n), c.rows) for c, n in zip(chunks, added, strict=True)]
        counts = statistics.node_documents(number, tree.sizes, depth)
        initial = _initial(levels[depth], examples.occurring[1], statistics, counts, settings)
        parts = _train(examples.occurring[0], examples.norms, target, chunks, settings, seed, depth, initial)
        if is_last and not alone and n_new:
            parts = _with_new_labels(parts, examples, tree, levels, added, settings, seed)
        levels[depth] = _with_parts(levels[depth], parts)
    stored = [level.stored_as(before.precision) for level, before in zip(levels, packed, strict=True)]
    return tree, [PackedWeights.of(level) for level in stored]


def _initial(
    level: ChunkedWeights,
    features: np.ndarray,
    statistics: TrainingStatistics,
    counts: np.ndarray,
    settings: TrainingSettings,
) -> InitialWeights:
    solver = settings.solver
    factor = CURVATURE[solver.loss] * solver.cost_negative * CONCENTRATION
    return InitialWeights(level, features, factor * statistics.mean_squares(features), factor * solver.bias**2, counts)


def _train(
    features: FeatureRows,
    norms: np.ndarray,
    target: Any,
    chunks: Sequence[Chunk],
    settings: TrainingSettings,
    seed: int,
    depth: int,
    initial: InitialWeights | None,
) -> dict[int, ChunkPart]:
    """The trained chunks that have documents, by first child."""
    if settings.relevance:
        target = scaled(target)
    chunks = [chunk for chunk in chunks if chunk.first < chunk.last and (chunk.rows is None or len(chunk.rows))]
    limit = PassLimit(NO_LIMIT, NO_LIMIT, SolverPace(features))
    trainer = LevelTrainer(features, norms, target, settings.solver, settings.relevance, seed, limit, initial)
    return {chunk.first: part for chunk, part in zip(chunks, trainer.train(chunks, f"level {depth + 1}"), strict=True)}


def _with_new_labels(
    parts: dict[int, ChunkPart],
    examples: NewExamples,
    tree: LabelTree,
    levels: Sequence[ChunkedWeights],
    added: np.ndarray,
    settings: TrainingSettings,
    seed: int,
) -> dict[int, ChunkPart]:
    """Chunks of the last level with their new labels, trained on old and new documents from the beginning."""
    features, norms, labels = examples.with_old
    targets = tree.aggregate(labels)
    documents = None
    if tree.depth > 1:
        documents = documents_of(targets[-2], None, levels[:-1], features, settings)
    chunks = chunks_of(tree.children_offsets(tree.depth - 1), documents)
    new = [Chunk(c.last - int(n), c.last, c.rows) for c, n in zip(chunks, added, strict=True)]
    trained = _train(features, norms, targets[-1], new, settings, seed, tree.depth - 1, None)
    firsts = {piece.first: chunk.first for chunk, piece in zip(chunks, new, strict=True)}
    grown = {firsts[at]: ChunkPart.side_by_side([parts[firsts[at]], part]) for at, part in trained.items()}
    return parts | grown


def _with_parts(level: ChunkedWeights, parts: dict[int, ChunkPart]) -> ChunkedWeights:
    """The level with some of its chunks, by first child, replaced."""
    firsts = level.children_offsets[:-1].tolist()
    joined = [parts[first] if first in parts else level.part(chunk) for chunk, first in enumerate(firsts)]
    return ChunkedWeights.joined(joined, level.n_features, level.children_offsets)


def _best_leaves(
    examples: NewExamples, tree: LabelTree, levels: Sequence[ChunkedWeights], n_new: int, settings: TrainingSettings
) -> np.ndarray:
    """For each new label the lowest inner node that ranks highest in a search with the label's documents."""
    sizes = np.diff(tree.children_offsets(tree.depth - 1))
    width, limit = len(sizes), MAX_GROWTH * int(sizes.max())
    if tree.depth == 1:
        return np.zeros(n_new, np.int64)
    post_processor, _, kept = settings.search.upper(tree.depth - 1)
    beam = min(max(kept, MIN_BEAM), width)
    inner = np.arange(width)
    top = beam_search(examples.features, levels[:-1], inner, beam, beam, post_processor)
    votes = np.where(top.ids >= 0, 1 / (1 + np.arange(beam)), 0)  # by rank, because scores have ties
    documents = sparse.csc_array(examples.labels[:, tree.n_labels :])
    leaves = np.empty(n_new, np.int64)
    for label in range(n_new):
        own = documents.indices[documents.indptr[label] : documents.indptr[label + 1]]
        sums = np.bincount(np.maximum(top.ids[own], 0).ravel(), votes[own].ravel(), width)
        sums[sizes >= limit] = -1
        leaves[label] = np.argmax(sums)
        sizes[leaves[label]] += 1
    return leaves
