"""Explain a label's score in a tree of linear classifiers: the nodes on its path and the weights of its classifier.

Reads the stored weights (32, 16 or 8 bits) and costs one path through the tree per label; the beam search itself
reports whether the beam reached a node. `top_contributions` does without the paths, for many documents at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from labelwise.data.csr import read_only
from labelwise.kernels import search as kernels
from labelwise.labelspace.tree import LabelPath, LabelTree, PathStep
from labelwise.linear.search import POST_PROCESSORS, TreeSearch, per_level
from labelwise.linear.weights import PackedWeights
from labelwise.runtime.threads import ranges, run_all, threads

BLOCK_SUMS = 1 << 22
"""Contributions that are in memory at a time."""


class TreeExplainer:
    """A tree prepared for explanations: a search for each inner level, which ends there."""

    def __init__(
        self,
        tree: LabelTree,
        levels: Sequence[PackedWeights],
        post_processor: str | tuple[str, ...] = "l3_hinge",
    ) -> None:
        self.tree, self.levels = tree, levels
        self.post_processors = per_level(post_processor, len(levels), "post_processor")
        self._searches = [
            TreeSearch(levels[:end], np.arange(levels[end - 1].n_children), self.post_processors[:end])
            for end in range(1, len(levels))
        ]

    def explain(self, row: Any, labels: Iterable[int], beam: int | tuple[int, ...]) -> list[LabelPath]:
        """The paths of some labels for one document (a CSR matrix of one row, sorted int32 indices)."""
        beams = per_level(beam, len(self.levels) - 1, "beam")
        kept = [
            set(search.best(row, beams[:depth], min(beams[depth], self.levels[depth].n_children)).ids[0].tolist())
            for depth, search in enumerate(self._searches)
        ]
        return [self._path(row, int(label), kept) for label in labels]

    def _path(self, row: Any, label: int, kept: Sequence[set[int]]) -> LabelPath:
        tree, steps = self.tree, []
        nodes = [int(tree.label_positions[label])]
        for parents in tree.parents[:0:-1]:
            nodes.insert(0, int(parents[nodes[0]]))
        below = [tree.label_order[slice(*_labels_below(tree, depth, node))] for depth, node in enumerate(nodes)]
        weights, sums, reached, parent, product = np.empty(0), 0.0, True, 0, True
        for depth, (level, node) in enumerate(zip(self.levels, nodes, strict=True)):
            weights = node_weights(level, parent, node, row.indices)
            bias = float(level.bias[node])
            margin = float(weights @ row.data.astype(np.float64)) + bias
            logarithm, plain = _transformed(margin, self.post_processors[depth])
            product = POST_PROCESSORS[self.post_processors[depth]][2]
            sums = logarithm if plain else sums + logarithm
            score, total = (float(np.exp(one)) if product else one for one in (logarithm, sums))
            reached = reached and (depth == len(self.levels) - 1 or node in kept[depth])
            steps.append(PathStep(node, len(below[depth]), (), margin, bias, score, total, reached))
            parent = node
        used = weights != 0
        given = steps[-1].total if reached or not product else 0.0
        values = row.data[used].astype(np.float64)
        return LabelPath(label, tuple(steps), tuple(below), row.indices[used], values, weights[used], given)


def node_weights(level: PackedWeights, chunk: int, node: int, features: np.ndarray) -> np.ndarray:
    """The weights of some ascending features in a node's classifier, 0 where it has none; float64."""
    weights, count = np.zeros(len(features)), len(features)
    document = np.array([0, count]), np.ascontiguousarray(features, np.int32), np.ones(count, np.float32)
    nodes, chunks = np.full((1, 1), node, np.int64), np.full((1, 1), chunk, np.int64)
    kernels.add_contributions(*document, nodes, chunks, *_tables(level, np.array([chunk])), 1.0, 0, 1, weights)
    return weights


def _tables(level: PackedWeights, chunks: np.ndarray) -> tuple[Any, ...]:
    """A level as kernels of explanations take it, after some of its chunks have been checked."""
    level.check(chunks)
    return read_only(level.children_offsets), level.sets, level.rows, read_only(level.scales)


def _transformed(margin: float, post_processor: str) -> tuple[float, bool]:
    """A node's term in the logarithm of a path's score, or the score itself and True."""
    if post_processor.endswith("hinge"):
        short = max(1.0 - margin, 0.0)
        if "smooth" in post_processor:
            short = float(np.logaddexp(0.0, kernels.SHARPNESS * (1.0 - margin)) / kernels.SHARPNESS)
        return -(short ** POST_PROCESSORS[post_processor][1]), False
    if post_processor.endswith("sigmoid"):
        return -float(np.logaddexp(0.0, -margin)), False
    return margin, True


def _labels_below(tree: LabelTree, depth: int, node: int) -> tuple[int, int]:
    """The range of the last level that is below a node."""
    begin, end = node, node + 1
    for parents in tree.parents[depth + 1 :]:
        begin, end = np.searchsorted(parents, (begin, end)).tolist()
    return begin, end


def top_contributions(
    rows: Any,
    trees: Sequence[tuple[LabelTree, Sequence[PackedWeights]]],
    labels: np.ndarray,
    count: int,
    together: tuple[int, int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The features with the largest positive contributions to each label's margin, and the contributions.

    `rows` is CSR with sorted int32 indices, `labels` [documents, k] with -1 for none. Contributions are means over the
    trees, in the labels' own classifiers. Returns features [documents, k, count] (-1 for none) and float64 amounts.
    The features in the range `together`, which every row has all of, count as one, the first.
    """
    features = np.full((*labels.shape, count), -1, np.int32)
    amounts = np.zeros(features.shape)
    if features.size == 0:
        return features, amounts
    ends = np.cumsum(np.diff(rows.indptr).astype(np.int64) * labels.shape[1])
    marks = np.arange(BLOCK_SUMS, int(ends[-1]), BLOCK_SUMS)
    edges = np.unique([0, *np.searchsorted(ends, marks, "right"), len(labels)]).tolist()
    for begin, end in itertools.pairwise(edges):
        part = slice(begin, end)
        _fill_block(rows[part], trees, labels[part], features[part], amounts[part], together)
    return features, amounts


def _fill_block(
    rows: Any,
    trees: Sequence[Any],
    labels: np.ndarray,
    features: np.ndarray,
    amounts: np.ndarray,
    together: tuple[int, int] | None,
) -> None:
    indptr = rows.indptr.astype(np.int64)
    sums = np.zeros(int(indptr[-1]) * labels.shape[1])
    prepared = []
    for tree, levels in trees:
        nodes = np.where(labels >= 0, tree.label_positions[labels], -1)
        chunks = np.where(labels >= 0, tree.parents[-1][nodes], 0)
        prepared.append((nodes.astype(np.int64), chunks.astype(np.int64), *_tables(levels[-1], np.unique(chunks))))

    def fill(part: tuple[int, int]) -> None:
        for one in prepared:
            kernels.add_contributions(indptr, rows.indices, rows.data, *one, 1 / len(prepared), *part, sums)
        if together is not None:
            _add_up(rows.indices, indptr, sums, labels.shape[1], part, together)
        kernels.largest_contributions(indptr, rows.indices, sums, *part, features, amounts)

    run_all(fill, ranges(len(labels), threads()))


def _add_up(
    indices: np.ndarray, indptr: np.ndarray, sums: np.ndarray, k: int, part: tuple[int, int], together: tuple[int, int]
) -> None:
    """Move the sums of a range of features to the first of them, for some documents."""
    for document in range(*part):
        begin, end = indptr[document : document + 2].tolist()
        first, last = np.searchsorted(indices[begin:end], together)
        own = sums[k * begin : k * end].reshape(k, end - begin)
        total = own[:, first:last].sum(axis=1)
        own[:, first:last] = 0
        own[:, first] = total
