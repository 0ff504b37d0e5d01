"""LabelTree: a tree over labels, stored level by level from the top.

Level 0 holds the children of the root; the last level is the labels themselves, in *tree order*. The children of a node
are contiguous, so a level is one non-decreasing vector of parents, and a node's children are a range. Every node has a
label below it. A tree is built by clustering label features, from a user's hierarchy, or without groups (`flat`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import canonical_csr
from labelwise.errors import DataError, ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.io.tensors import are_offsets, are_sizes, in_range
from labelwise.topk import NO_LABEL

MAX_LEVELS = 128


@dataclass(frozen=True, eq=False)
class LabelTree:
    """A tree over labels.

    Parameters
    ----------
    parents
        For each level from the top, int32: the parent of each node, as an index in the level above (0 at level 0).
    label_order
        int32: the label at each index of the last level.
    """

    parents: tuple[np.ndarray, ...]
    label_order: np.ndarray

    def __post_init__(self) -> None:
        fault = _fault(self.parents, self.label_order)
        if fault is not None:
            raise DataError(f"not a label tree: {fault}")

    def __repr__(self) -> str:
        return f"LabelTree({' > '.join(f'{size:,}' for size in self.sizes)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LabelTree):
            return NotImplemented
        mine, theirs = (*self.parents, self.label_order), (*other.parents, other.label_order)
        return len(mine) == len(theirs) and all(map(np.array_equal, mine, theirs))

    __hash__ = None  # type: ignore[assignment]

    @property
    def depth(self) -> int:
        """Number of levels, including the labels' own."""
        return len(self.parents)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of nodes per level."""
        return tuple(len(parents) for parents in self.parents)

    @property
    def n_labels(self) -> int:
        """Number of labels in the tree."""
        return len(self.label_order)

    @cached_property
    def label_positions(self) -> np.ndarray:
        """The index of each label in the last level, int32: the inverse of `label_order`."""
        positions = np.empty(self.n_labels, np.int32)
        positions[self.label_order] = np.arange(self.n_labels, dtype=np.int32)
        return positions

    def children_offsets(self, level: int) -> np.ndarray:
        """Offsets in a level of the children of each node above: node p has ``offsets[p]:offsets[p + 1]``, int64."""
        above = self.sizes[level - 1] if level else 1
        return np.searchsorted(self.parents[level], np.arange(above + 1))

    def ancestors(self, level: int) -> np.ndarray:
        """For each label (by its id) its ancestor in a level, int32; itself at the last level."""
        nodes = self.label_positions
        for parents in self.parents[:level:-1]:
            nodes = parents[nodes]
        return nodes

    def aggregate(self, labels: Any) -> list[sparse.csr_array]:
        """A matrix documents x nodes per level: the sum of the values of a document's labels below each node.

        With values of 1 these are counts. The last matrix is `labels` with its columns in tree order.
        """
        lowest = canonical_csr(labels, "labels")
        if lowest.shape[1] != self.n_labels:
            raise DataError(f"the tree holds {self.n_labels:,} labels, the matrix has {lowest.shape[1]:,} columns")
        levels = [_with_columns(lowest, self.label_positions, self.n_labels)]
        levels[0].sort_indices()
        for level in range(self.depth - 1, 0, -1):
            above = _with_columns(levels[0], self.parents[level], self.sizes[level - 1])
            above.has_sorted_indices = True  # parents are non-decreasing
            above.sum_duplicates()
            levels.insert(0, above)
        return levels

    def with_labels(self, parents: np.ndarray) -> LabelTree:
        """The tree with more labels, numbered after the others: each the last child of one of the lowest nodes.

        `parents` are indices in the level above the labels' own, and 0 in a tree without inner nodes.
        """
        order = np.argsort(parents, kind="stable")
        above = parents[order].astype(np.int32)
        at = self.children_offsets(self.depth - 1)[above + 1]
        lowest = np.insert(self.parents[-1], at, above)
        labels = (self.n_labels + order).astype(np.int32)
        return LabelTree((*self.parents[:-1], lowest), np.insert(self.label_order, at, labels))

    # --- constructors ---

    @classmethod
    def flat(cls, n_labels: int) -> LabelTree:
        """All labels under the root."""
        return cls.from_bounds(np.arange(n_labels), [])

    @classmethod
    def balanced(
        cls, label_features: Any, leaf_size: int = 100, branching: int = 16, seed: int = 0, top_nodes: int | None = None
    ) -> LabelTree:
        """Groups of equal size by balanced spherical 2-means, then every `branching` neighbours under one node.

        Parameters
        ----------
        label_features
            [labels, features]: CSR, dense or `Blocks`, for example from `pifa`.
        leaf_size
            Maximum labels per lowest node; groups may be half as large, because they are halved.
        branching
            Children per node of the other levels.
        seed
            Seed of the initial pairs of labels of each split.
        top_nodes
            Maximum nodes of the top level; None: `branching`.
        """
        from labelwise.labelspace.clustering import check_branching, halve

        check_branching(branching)
        order, edges = halve(label_features, leaf_size, seed)
        levels = [edges]
        while len(levels[0]) - 1 > (top_nodes or branching):
            levels.insert(0, np.append(levels[0][:-1:branching], len(order)))
        return cls.from_bounds(order, levels)

    @classmethod
    def kway(cls, label_features: Any, branching: int = 16, leaf_size: int = 100, seed: int = 0) -> LabelTree:
        """Split every node into `branching` clusters by spherical k-means: shallow trees, for a large `branching`.

        Parameters are those of `balanced`.
        """
        from labelwise.labelspace.clustering import cluster

        return cls.from_bounds(*cluster(label_features, branching, leaf_size, seed))

    @classmethod
    def from_parents(cls, parents: Mapping[str, str | None], label_names: Sequence[str]) -> LabelTree:
        """The tree of a hierarchy given by names: the parent of each child (None or '' for a root).

        Parameters
        ----------
        parents
            Names may be labels, or groups of labels only. Several roots and branches of different depth are possible;
            a name has one parent. `read_hierarchy` reads it from a file.
        label_names
            The label space: label j is called ``label_names[j]``.

        Notes
        -----
        Labels that have children become leaves beside them, under the same node. Shallower branches are filled with
        nodes that have a single child. Names without a label below are left out. Labels missing in the hierarchy
        are put under one extra node at the top.
        """
        from labelwise.labelspace.hierarchy import bounds_from_names

        return cls.from_bounds(*bounds_from_names(parents, label_names))

    @classmethod
    def from_bounds(cls, label_order: np.ndarray, levels: Sequence[np.ndarray]) -> LabelTree:
        """Build a tree from the order of the labels and, level by level from the top, the bounds of the nodes in it.

        The labels' own level is added, and redundant levels are left out: those of one node, and those whose nodes are
        the same as in the level below.
        """
        count = len(label_order)
        if count == 0:
            raise DataError("a label tree needs at least one label")
        kept = [np.arange(count + 1)]
        for bounds in reversed(levels):
            if 2 < len(bounds) < len(kept[0]):
                kept.insert(0, np.asarray(bounds, np.int64))
        above, parents = np.array([0, count]), []
        for bounds in kept:
            parents.append((np.searchsorted(above, bounds[:-1], "right") - 1).astype(np.int32))
            above = bounds
        return cls(tuple(parents), np.asarray(label_order, np.int32))

    # --- files ---

    def to_tensors(self, prefix: str = "tree") -> dict[str, np.ndarray]:
        """The tree as three tensors."""
        return {
            f"{prefix}.sizes": np.array(self.sizes, np.int64),
            f"{prefix}.parents": np.concatenate(self.parents),
            f"{prefix}.label_order": self.label_order,
        }

    @classmethod
    def from_tensors(cls, prefix: str, tensors: Mapping[str, np.ndarray], path: Path) -> LabelTree:
        """Restore what `to_tensors` returned, checked in full: kernels index with it unchecked."""
        sizes, parents, label_order = (
            get_tensor(tensors, f"{prefix}.{part}", path) for part in ("sizes", "parents", "label_order")
        )
        vectors = sizes.ndim == parents.ndim == label_order.ndim == 1 and sizes.dtype == np.int64
        if not (vectors and 0 < len(sizes) <= MAX_LEVELS and (sizes > 0).all() and are_sizes(sizes, len(parents))):
            raise ModelFormatError(f"{path}: the levels of {prefix} are damaged")
        try:
            return cls(tuple(np.split(parents, np.cumsum(sizes)[:-1])), label_order)
        except DataError as error:
            raise ModelFormatError(f"{path}: {prefix} is {error.what}") from None


def _with_columns(matrix: sparse.csr_array, columns: np.ndarray, count: int) -> sparse.csr_array:
    """The matrix with its columns renumbered; values and row offsets are copied."""
    indices = columns[matrix.indices].astype(matrix.indices.dtype, copy=False)
    return sparse.csr_array((matrix.data.copy(), indices, matrix.indptr.copy()), shape=(matrix.shape[0], count))


def _fault(parents: Sequence[np.ndarray], label_order: np.ndarray) -> str | None:
    """The first fault of a tree's arrays, or None."""
    if not 0 < len(parents) <= MAX_LEVELS:
        return f"it has {len(parents)} levels, 1 to {MAX_LEVELS} are possible"
    above = 1
    for level, level_parents in enumerate(parents):
        if level_parents.ndim != 1 or level_parents.dtype != np.int32 or len(level_parents) == 0:
            return f"level {level} is not a vector of int32"
        if not are_offsets(level_parents, above - 1) or (np.diff(level_parents) > 1).any():
            return f"the parents of level {level} do not count from 0 to {above - 1}"
        above = len(level_parents)
    if label_order.ndim != 1 or label_order.dtype != np.int32 or len(label_order) != above:
        return f"the order of labels is not a vector of {above} int32"
    if not in_range(label_order, above) or (np.bincount(label_order, minlength=above) != 1).any():
        return "the order of labels is not a permutation of the labels"
    return None


# --- candidates ---
# The candidate nodes of a document in a level: the children of a few nodes of the level above. Does not import torch.
#
# For training these are the ancestors of the true labels and the nodes that the level above ranks highest, which give
# hard negatives; for prediction only the latter.

BATCH_DOCUMENTS = 1 << 16
"""Documents processed at a time."""


def training_nodes(true: Any, ranked: np.ndarray, count: int) -> np.ndarray:
    """For each document `count` nodes: its true ones, then the highest ranked others.

    Where there are more than `count` true ones, those that are ranked come first.

    Parameters
    ----------
    true
        CSR [documents, nodes], columns sorted.
    ranked
        Predicted nodes [documents, ranks], best first, padded with NO_LABEL.
    count
        Nodes per document.

    Returns
    -------
    int32 [documents, count], padded with NO_LABEL.
    """
    chosen = np.full((true.shape[0], count), NO_LABEL, np.int32)
    for begin in range(0, true.shape[0], BATCH_DOCUMENTS):
        end = min(begin + BATCH_DOCUMENTS, true.shape[0])
        first, last = true.indptr[begin], true.indptr[end]
        true_rows = np.repeat(np.arange(end - begin), np.diff(true.indptr[begin : end + 1]))
        _choose(true_rows, true.indices[first:last], true.shape[1], ranked[begin:end], chosen[begin:end])
    return chosen


def _choose(
    true_rows: np.ndarray, true_nodes: np.ndarray, n_nodes: int, ranked: np.ndarray, chosen: np.ndarray
) -> None:
    """Write to `chosen` the nodes of some documents."""
    n_ranks = ranked.shape[1]
    rows = np.repeat(np.arange(len(ranked)), n_ranks)
    nodes, ranks = ranked.ravel(), np.tile(np.arange(n_ranks), len(ranked))
    rows, ranks, nodes = (part[nodes != NO_LABEL] for part in (rows, ranks, nodes))
    true_keys = true_rows.astype(np.int64) * n_nodes + true_nodes
    keys = rows.astype(np.int64) * n_nodes + nodes
    is_true, was_ranked = np.isin(keys, true_keys), np.isin(true_keys, keys)
    # true and ranked nodes first, then those only true, then those only ranked
    all_rows = np.concatenate([rows, true_rows[~was_ranked]])
    all_nodes = np.concatenate([nodes, true_nodes[~was_ranked]])
    n_others = len(all_rows) - len(rows)
    kinds = np.append(np.where(is_true, 0, 2), np.ones(n_others, np.int64))
    order = np.lexsort((np.append(ranks, np.zeros(n_others, ranks.dtype)), kinds, all_rows))
    all_rows, all_nodes = all_rows[order], all_nodes[order]
    column = np.arange(len(all_rows)) - np.searchsorted(all_rows, np.arange(len(ranked)))[all_rows]
    kept = column < chosen.shape[1]
    chosen[all_rows[kept], column[kept]] = all_nodes[kept]


def children_of(nodes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The children of each document's nodes: int64 [documents, nodes x maximum children], padded with NO_LABEL.

    The children of node p are ``offsets[p]`` to ``offsets[p + 1]``; each node is padded to the maximum.
    """
    max_children = int(np.diff(offsets).max())
    known = np.maximum(nodes, 0)
    begins, ends = offsets[known], np.where(nodes == NO_LABEL, 0, offsets[known + 1])
    grid = begins[..., None] + np.arange(max_children)
    return np.where(grid < ends[..., None], grid, NO_LABEL).reshape(len(nodes), nodes.shape[1] * max_children)


def candidate_targets(candidates: np.ndarray, true: Any, documents: np.ndarray) -> np.ndarray:
    """Targets, float32, of candidates [documents, n]: the values of the rows `documents` of the CSR matrix `true`."""
    picked = true[documents]
    if len(picked.indices) == 0:
        return np.zeros(candidates.shape, np.float32)
    rows = np.repeat(np.arange(len(documents)), np.diff(picked.indptr))
    n_nodes = true.shape[1]
    keys = np.arange(len(documents))[:, None] * n_nodes + candidates
    true_keys = rows.astype(np.int64) * n_nodes + picked.indices
    indices = np.minimum(np.searchsorted(true_keys, keys), len(true_keys) - 1)
    is_true = (true_keys[indices] == keys) & (candidates != NO_LABEL)
    return np.where(is_true, picked.data[indices], 0).astype(np.float32)


# --- label path ---
# The path to a label through a tree, as data for explanations.


@dataclass(frozen=True)
class PathStep:
    """A node on the path to a label."""

    node: int
    """Its index in its level."""
    n_labels: int
    """Labels below it."""
    examples: tuple[str, ...]
    """The most frequent of them, by their texts where known."""
    margin: float
    """The output of the node's classifier: all its terms and the bias."""
    bias: float
    score: float
    """The margin after the post-processor, of this node alone."""
    total: float
    """The score of the path so far."""
    kept: bool
    """Whether the beam search kept the node; at the label itself: whether it was scored."""


@dataclass(frozen=True)
class LabelPath:
    """The path to one label in one tree, and the document's features that its own classifier has weights for."""

    label: int
    steps: tuple[PathStep, ...]
    """From the top to the label itself; the examples are not filled in yet."""
    below: tuple[np.ndarray, ...]
    """The labels (ids) below each step."""
    features: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    given: float
    """The label's score from the tree: the last step's total, or 0 where scores are products and it was not reached."""

    @property
    def reached(self) -> bool:
        """Whether the beam search scored the label."""
        return self.steps[-1].kept
