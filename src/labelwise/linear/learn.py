"""Learn more documents, and more labels, with a trained tree.

The solver starts from the trained weights and sees only the new documents of each node; the old ones are represented
by statistics (`solver.InitialWeights`), so the cost follows the number of new documents.

New labels are inserted into the lowest node that the tree itself finds for their documents. If old documents are at
hand, a new label is trained against those of its node, as in full training. Otherwise its training starts from the mean
bias of its siblings, and it is known to be predicted too often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.errors import ConfigError
from labelwise.features.rows import FeatureRows, stacked
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.search import beam_search
from labelwise.linear.settings import TrainingSettings
from labelwise.linear.solver import Chunk, InitialWeights, LevelTrainer, SolverConfig, chunks_of, squared_norms
from labelwise.linear.train import documents_of, scaled
from labelwise.linear.trees import Learned, LinearTrees, TrainingStatistics, document_counts
from labelwise.linear.weights import ChunkedWeights, ChunkPart, PackedWeights

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
    settings
        How trees are trained.
    removed
        CSR [documents, labels]: labels that documents had in an earlier training and no longer have, or None.
    old
        Features and labels of old documents for new labels to be trained against, or None.
    """

    features: FeatureRows
    labels: Any
    settings: TrainingSettings
    removed: Any = None
    old: tuple[FeatureRows, Any] | None = None

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
        assert self.old is not None
        rows = stacked(self.features, self.old[0])
        return rows, squared_norms(rows), sparse.csr_array(sparse.vstack([self.labels, self.old[1]]))


def learn_trees(
    trees: LinearTrees,
    features: Any,
    labels: Any,
    settings: TrainingSettings,
    learned: Learned,
    old: Any = None,
    removed: Any = None,
) -> LinearTrees:
    """The trees after training on more documents; the given trees do not change.

    Parameters
    ----------
    features, labels
        New documents; features and labels after those of the trees are new.
    learned
        The counts to keep about these documents.
    old
        Features and labels of old documents, which new labels are trained against.
    removed
        CSR [documents, labels]: labels that the documents had in an earlier training.
    """
    if trees.statistics is None:
        raise ConfigError(
            "this model cannot learn more documents: it was imported, or saved by an older version, without "
            "statistics of its training documents; fit it again"
        )
    order = trees.order.extended(features.shape[1])
    rows = order.rows(features)
    examples = NewExamples(rows, labels, settings, removed, None if old is None else (order.rows(old[0]), old[1]))
    result = LinearTrees(order)
    for number, ((tree, levels), seed) in enumerate(zip(trees.trees, settings.seeds(len(trees.trees)), strict=True)):
        result.trees.append(learn_tree(examples, tree, levels, trees.statistics, seed, number))
    counts = [document_counts(tree.aggregate(labels)) for tree, _ in result.trees]
    result.statistics = trees.statistics.added(rows, counts, learned)
    return result


def learn_tree(
    examples: NewExamples,
    tree: LabelTree,
    packed: Sequence[PackedWeights],
    statistics: TrainingStatistics,
    seed: int,
    number: int,
) -> tuple[LabelTree, list[PackedWeights]]:
    """The tree with the new labels, and its weights after training on the new documents.

    `seed` and `number` are the tree's own. Weights of 16 or 8 bits are converted to 32 bits and back.
    """
    n_features, settings = examples.features.shape[1], examples.settings
    levels = [replace(level.unpacked().as_float32(), n_features=n_features) for level in packed]
    n_new = examples.labels.shape[1] - tree.n_labels
    added = np.zeros(len(levels[-1].chunk_offsets) - 1, np.int64)
    if n_new:
        leaves = _best_leaves(examples, tree, levels, n_new)
        added = np.bincount(leaves, minlength=len(added))
        tree, levels[-1] = tree.with_labels(leaves), levels[-1].with_children(added)
    alone = examples.old is None
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
        rows, occurring = examples.occurring
        initial = _initial(levels[depth], occurring, statistics, counts, settings.solver)
        trainer = LevelTrainer(rows, examples.norms, _weighted(target, settings), settings, seed, initial=initial)
        parts = _trained(trainer, chunks, depth)
        if is_last and not alone and n_new:
            parts = _with_new_labels(parts, examples, tree, levels, added, seed)
        levels[depth] = _with_parts(levels[depth], parts)
    stored = [level.stored_as(before.precision) for level, before in zip(levels, packed, strict=True)]
    return tree, [PackedWeights.of(level) for level in stored]


def _initial(
    level: ChunkedWeights,
    features: np.ndarray,
    statistics: TrainingStatistics,
    counts: np.ndarray,
    solver: SolverConfig,
) -> InitialWeights:
    factor = CURVATURE[solver.loss] * solver.cost_negative * CONCENTRATION
    return InitialWeights(level, features, factor * statistics.mean_squares(features), factor * solver.bias**2, counts)


def _weighted(target: Any, settings: TrainingSettings) -> Any:
    return scaled(target) if settings.relevance else target


def _trained(trainer: LevelTrainer, chunks: Sequence[Chunk], depth: int) -> dict[int, ChunkPart]:
    """The trained chunks that have documents, by first child."""
    chunks = [chunk for chunk in chunks if chunk.first < chunk.last and (chunk.rows is None or len(chunk.rows))]
    return {chunk.first: part for chunk, part in zip(chunks, trainer.train(chunks, f"level {depth + 1}"), strict=True)}


def _with_new_labels(
    parts: dict[int, ChunkPart],
    examples: NewExamples,
    tree: LabelTree,
    levels: Sequence[ChunkedWeights],
    added: np.ndarray,
    seed: int,
) -> dict[int, ChunkPart]:
    """Chunks of the last level with their new labels, trained on old and new documents from the beginning."""
    (features, norms, labels), settings, depth = examples.with_old, examples.settings, tree.depth - 1
    targets = tree.aggregate(labels)
    documents = None if depth == 0 else documents_of(targets[-2], None, levels[:-1], features, settings)
    chunks = chunks_of(tree.children_offsets(depth), documents)
    new = [Chunk(c.last - int(n), c.last, c.rows) for c, n in zip(chunks, added, strict=True)]
    trained = _trained(LevelTrainer(features, norms, _weighted(targets[-1], settings), settings, seed), new, depth)
    firsts = {piece.first: chunk.first for chunk, piece in zip(chunks, new, strict=True)}
    grown = {firsts[at]: ChunkPart.side_by_side([parts[firsts[at]], part]) for at, part in trained.items()}
    return parts | grown


def _with_parts(level: ChunkedWeights, parts: dict[int, ChunkPart]) -> ChunkedWeights:
    """The level with some of its chunks, by first child, replaced."""
    firsts = level.children_offsets[:-1].tolist()
    joined = [parts[first] if first in parts else level.part(chunk) for chunk, first in enumerate(firsts)]
    return ChunkedWeights.joined(joined, level.n_features, level.children_offsets)


def _best_leaves(examples: NewExamples, tree: LabelTree, levels: Sequence[ChunkedWeights], n_new: int) -> np.ndarray:
    """For each new label the lowest inner node that ranks highest in a search with the label's documents."""
    sizes = np.diff(tree.children_offsets(tree.depth - 1))
    width, limit = len(sizes), MAX_GROWTH * int(sizes.max())
    if tree.depth == 1:
        return np.zeros(n_new, np.int64)
    post_processor, _, kept = examples.settings.search.upper(tree.depth - 1)
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


# --- retraining ---
# When trees that have learned more documents should be trained from the beginning.

MAX_DOCUMENTS = 0.2
"""Learned documents as a fraction of those of the full training. `benchmarks/learn.py` measures what they cost."""
MAX_LABELS = 0.1
"""New labels as a fraction of those of the full training."""
MAX_LABELS_ALONE = 0.01
"""The same for labels learned without old documents, which are predicted too often."""
MAX_FEATURES = 0.25
"""New features as a fraction of those of the full training."""
MAX_DROP = 0.03
"""Difference in P@5, on documents before they were learned, to the first ones that were learned."""


def retraining_reasons(trees: LinearTrees) -> tuple[str, ...]:
    """Why a full training is due; empty if it is not."""
    statistics = trees.statistics
    if statistics is None or not statistics.learned:
        return ()
    total = Learned(*np.sum(statistics.learned, axis=0))
    n_labels = trees.trees[0][0].n_labels
    reasons = [
        _exceeding("documents", total.documents, int(statistics.documents[0][0]), MAX_DOCUMENTS),
        _exceeding("labels", total.labels, n_labels, MAX_LABELS),
        _exceeding("labels without old documents", total.labels_alone, n_labels, MAX_LABELS_ALONE),
        _exceeding("features", total.features, len(trees.order.original), MAX_FEATURES),
        _full_nodes(trees, int(total.labels)),
        _drop(statistics),
    ]
    return tuple(reason for reason in reasons if reason is not None)


def _exceeding(what: str, learned: float, now: int, limit: float) -> str | None:
    before = now - learned
    if learned <= limit * before:
        return None
    return f"{learned:,.0f} {what} learned since, {learned / max(before, 1):.0%} of {before:,.0f} (limit {limit:.0%})"


def _full_nodes(trees: LinearTrees, n_new: int) -> str | None:
    """Whether all lowest nodes of a tree may have been full: then labels are where they do not belong."""
    for tree, _ in trees.trees:
        if tree.depth == 1 or not n_new:
            continue
        sizes = np.diff(tree.children_offsets(tree.depth - 1))
        mean = (sizes.sum() - n_new) / len(sizes)
        if sizes.max() > 2 * MAX_GROWTH * mean:
            return f"a node has {sizes.max():,} labels, {sizes.max() / mean:.0f} times the mean of the full training"
    return None


def _drop(statistics: TrainingStatistics) -> str | None:
    first, last = statistics.learned[0], statistics.learned[-1]
    if not first.predicted or not last.predicted:
        return None
    before, now = first.hits / first.predicted, last.hits / last.predicted
    fewest = max(min(first.documents, last.documents), 1)
    noise = 2 * math.sqrt(0.25 / fewest)  # at most: half a document's P@5 is its deviation
    if before - now <= max(MAX_DROP, noise):
        return None
    return f"P@5 on new documents before learning them fell from {100 * before:.1f} to {100 * now:.1f}"
