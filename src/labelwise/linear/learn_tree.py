"""Learn more documents, and labels, with a trained tree, without the documents it was trained on.

The classifiers of a node are the solution of a problem in which every document has a dual variable. With the variables
of the old documents kept as they are, those of the new documents are optimised: the same solver, started from the
trained weights, on the new documents of each node only. The cost follows the number of new documents.

New labels are inserted into the lowest node that the tree itself finds for their documents. Their siblings' mean bias
is where their training starts: it represents the old documents, which are negatives for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.codes.tree import LabelTree
from labelwise.features.rows import FeatureRows
from labelwise.linear.beam import beam_search
from labelwise.linear.initial_weights import InitialWeights
from labelwise.linear.level_trainer import Chunk, LevelTrainer, squared_norms
from labelwise.linear.settings import TrainingSettings
from labelwise.linear.train_tree import chunks_of, documents_of, scaled
from labelwise.linear.weights import ChunkedWeights, ChunkPart

MAX_GROWTH = 2
"""A lowest node accepts new labels up to this multiple of the largest one's size before; then the next best does."""
MIN_BEAM = 10
"""Minimum beam with which nodes for new labels are searched."""


@dataclass(frozen=True)
class NewExamples:
    """New documents, the same for all trees.

    Parameters
    ----------
    features, labels
        In the model's order of features; CSR [documents, old and new labels].
    """

    features: FeatureRows
    labels: Any

    @cached_property
    def occurring(self) -> tuple[FeatureRows, np.ndarray]:
        """The documents with the features that occur numbered without gaps, and the index of each in the model."""
        rows = self.features
        used = np.zeros(rows.shape[1], bool)
        used[rows.indices] = True
        used[rows.first_dense : rows.first_dense + rows.n_dense] = True
        features = np.flatnonzero(used)
        numbers = (np.cumsum(used) - 1).astype(np.int32)
        first_dense = int(numbers[rows.first_dense]) if rows.n_dense else 0
        shape = (rows.shape[0], len(features))
        return rows._replace(indices=numbers[rows.indices], shape=shape, first_dense=first_dense), features

    @cached_property
    def norms(self) -> np.ndarray:
        """Squared norms of the documents."""
        return squared_norms(self.features)


def learn_tree(
    examples: NewExamples, tree: LabelTree, levels: Sequence[ChunkedWeights], settings: TrainingSettings, seed: int = 0
) -> tuple[LabelTree, list[ChunkedWeights]]:
    """The tree with the new labels, and its weights after training on the new documents.

    `seed` is the tree's own. Weights of 16 or 8 bits are converted to 32 bits and back.
    """
    n_features = examples.features.shape[1]
    levels = [replace(level.as_float32(), n_features=n_features) for level in levels]
    n_new = examples.labels.shape[1] - tree.n_labels
    if n_new:
        leaves = _best_leaves(examples, tree, levels, n_new, settings)
        tree, levels[-1] = tree.with_labels(leaves), _with_children(levels[-1], leaves)
    rows, features = examples.occurring
    targets = tree.aggregate(examples.labels)
    for depth, target in enumerate(targets):
        if settings.relevance:
            target = scaled(target)
        documents = None
        if depth > 0:
            documents = documents_of(targets[depth - 1], None, levels[:depth], examples.features, settings)
        chunks = [chunk for chunk in chunks_of(tree.children_offsets(depth), documents) if chunk.rows is None or len(chunk.rows)]
        initial = InitialWeights(levels[depth], features)
        trainer = LevelTrainer(rows, examples.norms, target, settings.solver, settings.relevance, seed, initial)
        parts = trainer.train(chunks, f"level {depth + 1} of {len(targets)}")
        levels[depth] = _with_parts(levels[depth], chunks, parts).filled()
    return tree, [level.stored_as(settings.precision) for level in levels]


def _with_parts(level: ChunkedWeights, chunks: Sequence[Chunk], parts: Sequence[ChunkPart]) -> ChunkedWeights:
    """The level with some of its chunks replaced."""
    trained = {chunk.first: part for chunk, part in zip(chunks, parts, strict=True)}
    offsets = level.children_offsets
    joined = [
        trained[int(first)] if int(first) in trained else level.part(chunk) for chunk, first in enumerate(offsets[:-1])
    ]
    return ChunkedWeights.joined(joined, level.n_features, offsets)


def _with_children(level: ChunkedWeights, chunks: np.ndarray) -> ChunkedWeights:
    """A level with one more child, without weights, at the end of each of these chunks (ascending, may repeat)."""
    offsets = level.children_offsets
    sums = np.add.reduceat(level.bias, offsets[:-1])
    means = (sums / np.diff(offsets)).astype(np.float32)
    bias = np.insert(level.bias, offsets[chunks + 1], means[chunks])
    added = np.bincount(chunks, minlength=len(offsets) - 1)
    offsets = offsets + np.concatenate([[0], np.cumsum(added)])
    return level.with_children(offsets, bias)


def _best_leaves(
    examples: NewExamples, tree: LabelTree, levels: Sequence[ChunkedWeights], n_new: int, settings: TrainingSettings
) -> np.ndarray:
    """For each new label the lowest inner node whose score, summed over the label's documents, is highest."""
    if tree.depth == 1:
        return np.zeros(n_new, np.int64)
    sizes = np.diff(tree.children_offsets(tree.depth - 1))
    limit = MAX_GROWTH * int(sizes.max())
    width = len(sizes)
    beam = min(max(settings.search.beam, MIN_BEAM), width)
    inner = np.arange(width)
    top = beam_search(examples.features, levels[:-1], inner, beam, beam, settings.search.post_processor)
    votes = np.where(top.ids >= 0, 1 / (1 + np.arange(beam)), 0)  # by rank: scores have ties
    documents = sparse.csc_array(examples.labels[:, tree.n_labels :])
    leaves = np.empty(n_new, np.int64)
    for label in range(n_new):
        own = documents.indices[documents.indptr[label] : documents.indptr[label + 1]]
        sums = np.bincount(np.maximum(top.ids[own], 0).ravel(), votes[own].ravel(), width)
        sums[sizes >= limit] = -1
        leaves[label] = np.argmax(sums)
        sizes[leaves[label]] += 1
    return leaves
