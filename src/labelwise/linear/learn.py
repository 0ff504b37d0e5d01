"""Learn more documents, and more labels, with a trained tree.

The solver starts from the trained weights and sees only the new documents of each node; the old ones are represented
by statistics (`initial_weights.py`), so the cost follows the number of new documents.

New labels are inserted into the lowest node that the tree itself finds for their documents. If old documents are at
hand, a new label is trained against those of its node, as in full training. Otherwise its training starts from the mean
bias of its siblings, and it is known to be predicted too often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from labelwise.errors import ModelFormatError
from labelwise.features.rows import FeatureRows, stacked
from labelwise.io.folder import get_tensor
from labelwise.io.tensors import all_finite, in_pieces, release_pages
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.packed import PackedWeights
from labelwise.linear.search import beam_search
from labelwise.linear.settings import TrainingSettings
from labelwise.linear.solver import Chunk, InitialWeights, LevelTrainer, PassLimit, SolverPace, chunks_of, squared_norms
from labelwise.linear.train import documents_of, scaled
from labelwise.linear.weights import ChunkedWeights, ChunkPart
from labelwise.runtime.time_budget import NO_LIMIT

# --- statistics ---
# What linear trees remember of their training documents, so that more can be learned without them.
#
# Per feature the sum of its squares, per node the number of its documents. From both follows how much a change of a
# weight would change the old documents' losses. Also kept: what has been learned since the last full training.

SQUARES, LEARNED = "feature_squares", "learned"
BLOCK, DENSE_BLOCK = 1 << 22, 1 << 12
MAX_TIMES, MAX_DOCUMENTS = 1 << 20, 1 << 53


class Learned(NamedTuple):
    """One call of `learn`, or the sum of several."""

    documents: float = 0
    labels: float = 0
    """New labels."""
    labels_alone: float = 0
    """New labels that were learned without old documents."""
    features: float = 0
    """New features."""
    hits: float = 0
    """Correct labels among the first five that the model predicted for the documents before it learned them."""
    predicted: float = 0
    """All labels predicted so."""


@dataclass(frozen=True)
class TrainingStatistics:
    """Statistics of the training documents.

    Parameters
    ----------
    squares
        Per feature in the model's order, the sum of its squares over all documents; without the last ones, which do not
        occur.
    documents
        Per tree the documents of each node: the root, then level by level the inner nodes.
    learned
        What was learned since the last full training, a row per call.
    """

    squares: np.ndarray
    documents: tuple[np.ndarray, ...]
    learned: tuple[Learned, ...] = ()

    @classmethod
    def of(cls, features: FeatureRows, documents: Sequence[np.ndarray]) -> TrainingStatistics:
        """Of training documents; `documents` from `document_counts`, for each tree."""
        return cls(sums_of_squares(features).astype(np.float32), tuple(documents))

    def added(self, features: FeatureRows, documents: Sequence[np.ndarray], learned: Learned) -> TrainingStatistics:
        """With more documents, which may have more features."""
        new = sums_of_squares(features)
        sums = np.zeros(max(len(new), len(self.squares)))
        sums[: len(new)] = new
        sums[: len(self.squares)] += self.squares
        counts = tuple(before + new for before, new in zip(self.documents, documents, strict=True))
        return TrainingStatistics(sums.astype(np.float32), counts, (*self.learned, learned))

    def mean_squares(self, features: np.ndarray) -> np.ndarray:
        """The mean square of some features over all documents; 0 for those that do not occur."""
        sums = np.zeros(len(features), np.float32)
        known = features < len(self.squares)
        sums[known] = self.squares[features[known]]
        return sums / max(int(self.documents[0][0]), 1)

    def node_documents(self, tree: int, sizes: Sequence[int], depth: int) -> np.ndarray:
        """The documents of each node whose children are a level: of the root, or of the level above."""
        begins = np.cumsum([0, 1, *sizes[:-1]])
        return self.documents[tree][begins[depth] : begins[depth + 1]]

    def to_tensors(self) -> dict[str, np.ndarray]:
        """The statistics as named arrays."""
        tensors = {SQUARES: self.squares, LEARNED: np.array(self.learned, np.float64).reshape(-1, len(Learned._fields))}
        return tensors | {f"tree{number}.documents": counts for number, counts in enumerate(self.documents)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, np.ndarray], n_features: int, trees: Sequence[LabelTree], path: Path
    ) -> TrainingStatistics | None:
        """Restore what `to_tensors` returned, checked; None for a model that was saved without."""
        if SQUARES not in tensors:
            return None
        squares, learned = get_tensor(tensors, SQUARES, path), get_tensor(tensors, LEARNED, path)
        documents = tuple(get_tensor(tensors, f"tree{number}.documents", path) for number in range(len(trees)))
        valid = (
            squares.dtype == np.float32
            and squares.ndim == 1
            and len(squares) <= n_features
            and learned.dtype == np.float64
            and learned.shape[1:] == (len(Learned._fields),)
            and len(learned) <= MAX_TIMES
            and all(counts.dtype == np.int64 and counts.ndim == 1 for counts in documents)
            and all(len(c) == 1 + sum(tree.sizes[:-1]) for c, tree in zip(documents, trees, strict=True))
            and all(all_finite(array) and (array >= 0).all() for array in (squares, learned, *documents))
            and all((counts <= MAX_DOCUMENTS).all() for counts in documents)
        )
        if not valid:
            raise ModelFormatError(f"{path}: the statistics of the training documents are damaged")
        return cls(squares, documents, tuple(Learned(*row) for row in learned.tolist()))


def document_counts(targets: Sequence[Any]) -> np.ndarray:
    """The number of documents of the root and of each inner node, level by level; `targets` from `aggregate`."""
    counts = [np.array([targets[0].shape[0]])]
    counts += [np.bincount(target.indices, minlength=target.shape[1]) for target in targets[:-1]]
    return np.concatenate(counts).astype(np.int64)


def sums_of_squares(features: FeatureRows) -> np.ndarray:
    """Per feature up to the last that occurs the sum of its squares, float64.

    In blocks, because NumPy converts what it counts.
    """
    dense = slice(features.first_dense, features.first_dense + features.n_dense)
    last = max((int(piece.max(initial=-1)) for piece in in_pieces(features.indices)), default=-1)
    sums = np.zeros(max(last + 1, dense.stop if features.n_dense else 0))
    for begin in range(0, len(features.indices), BLOCK):
        part = slice(begin, begin + BLOCK)
        squares = np.square(features.data[part], dtype=np.float64)
        sums += np.bincount(features.indices[part], squares, len(sums))
        release_pages(features.indices)
        release_pages(features.data)
    for begin in range(0, features.shape[0] if features.n_dense else 0, DENSE_BLOCK):
        block = features.dense[begin : begin + DENSE_BLOCK].astype(np.float64)
        sums[dense] += np.square(block).sum(axis=0)
    return sums


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
