"""Linear trees of other toolkits, and their conversion to ours: the same nodes with the same scores.

Ours need the children of a node next to each other, all labels at the same depth, and a label below every node. So
nodes are renumbered, nodes without a label below are left out, and a label that is in none of a tree's leaves is added
to the last one with a bias so low that it ranks last. Features are ordered by their number of weights, as the training
documents are not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.errors import DataError
from labelwise.features.rows import FeatureOrder
from labelwise.io.tensors import are_weights, in_range
from labelwise.labelspace.tree import MAX_LEVELS, LabelTree
from labelwise.linear.trees import LinearTrees
from labelwise.linear.weights import ChunkedWeights, PackedWeights
from labelwise.strings import Strings

MAX_FEATURES = 1 << 26
"""A few arrays of this length are built, whether the file holds so many weights or not."""
MAX_LABELS, MAX_MISSING = 1 << 28, 1 << 22
"""Labels in all, and labels that are in no leaf of a tree: each takes memory, whether the file holds weights or not."""
NO_PARENT = -1
ALWAYS, NEVER = 1e4, -1e8
"""Biases: a node of one child that passes its score on unchanged, and a label that is not in a tree."""


@dataclass(frozen=True)
class ForeignLevel:
    """One level of a tree, its nodes in any order."""

    parents: np.ndarray
    """Each node's parent, as an index in the level above (0 at the first level), or NO_PARENT."""
    weights: Any
    """Sparse [features, nodes], without duplicates."""
    bias: np.ndarray
    """What is added to each node's margin."""


@dataclass(frozen=True)
class ForeignTree:
    """Levels from the top, and the label of each node of the last level."""

    levels: Sequence[ForeignLevel]
    labels: np.ndarray


@dataclass(frozen=True)
class ForeignModel:
    """What was read from the folder of another toolkit."""

    origin: str
    """Which toolkit wrote it."""
    trees: Sequence[ForeignTree]
    n_features: int
    n_labels: int
    """The highest number of a label in a tree, plus 1."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Fields of our Config that are known."""
    names: Strings | None = None
    """Of the labels."""
    fixed_labels: bool = False
    """Whether there are exactly `n_labels` labels; else some that are in no tree may follow."""
    notes: tuple[str, ...] = ()
    """What a user has to know, one sentence each."""


def linear_trees(model: ForeignModel, n_labels: int) -> LinearTrees:
    """The trees in our format, for a label space of so many labels."""
    counts = np.zeros(model.n_features, np.int64)
    for tree in model.trees:
        for level in tree.levels:
            counts += np.bincount(sparse.coo_array(level.weights).row, minlength=model.n_features)
    order = FeatureOrder(np.argsort(-counts, kind="stable").astype(np.int32))
    return LinearTrees(order, [_converted(tree, n_labels, order) for tree in model.trees])


def _converted(tree: ForeignTree, n_labels: int, order: FeatureOrder) -> tuple[LabelTree, list[PackedWeights]]:
    kept, labels = _kept_nodes(tree), tree.labels
    above = np.zeros(1, np.int64)  # the new index of each node of the level above
    parents, levels = [], []
    for depth, (level, keep) in enumerate(zip(tree.levels, kept, strict=True)):
        nodes = np.flatnonzero(keep)
        nodes = nodes[np.argsort(above[level.parents[nodes]], kind="stable")]
        new_parents = above[level.parents[nodes]]
        weights: Any = sparse.csc_array(level.weights)[:, nodes]
        bias = level.bias[nodes]
        if depth == len(tree.levels) - 1:
            labels = labels[nodes]
            missing = np.setdiff1d(np.arange(n_labels), labels)
            labels = np.append(labels, missing)
            new_parents = np.append(new_parents, np.full(len(missing), new_parents[-1]))
            bias = np.append(bias, np.full(len(missing), NEVER))
            weights.resize((weights.shape[0], len(labels)))
        offsets = np.searchsorted(new_parents, np.arange(new_parents[-1] + 2))
        renumbered = sparse.csc_array((weights.data, order.ranks[weights.indices], weights.indptr), shape=weights.shape)
        levels.append(PackedWeights.of(ChunkedWeights.from_matrix(renumbered, bias, offsets)))
        parents.append(new_parents.astype(np.int32))
        above = np.full(len(keep), NO_PARENT)
        above[nodes] = np.arange(len(nodes))
    return LabelTree(tuple(parents), labels.astype(np.int32)), levels


def _kept_nodes(tree: ForeignTree) -> list[np.ndarray]:
    """For each level a mask of the nodes that can be reached from the root and have a label below."""
    reachable = [np.ones(1, bool)]
    for level in tree.levels:
        reachable.append((level.parents != NO_PARENT) & reachable[-1][level.parents])
    kept = [reachable[-1]]
    for level, above in zip(tree.levels[:0:-1], reachable[-2:0:-1], strict=True):
        used = np.zeros(len(above), bool)
        used[level.parents[kept[0]]] = True
        kept.insert(0, used & above)
    return kept


def check_model(model: ForeignModel, where: str) -> None:
    """Refuse arrays that do not fit each other: conversion and kernels rely on them."""
    if not 0 < model.n_features <= MAX_FEATURES:
        raise DataError(f"{where}: {model.n_features:,} features; 1 to {MAX_FEATURES:,} can be imported")
    if not 0 < model.n_labels <= MAX_LABELS:
        raise DataError(f"{where}: {model.n_labels:,} labels; 1 to {MAX_LABELS:,} can be imported")
    for number, tree in enumerate(model.trees):
        what = f"{where}: tree {number}"
        if not 0 < len(tree.levels) <= MAX_LEVELS:
            raise DataError(f"{what}: {len(tree.levels)} levels; 1 to {MAX_LEVELS} can be imported")
        above = 1
        for depth, level in enumerate(tree.levels):
            nodes = len(level.parents)
            if level.weights.shape != (model.n_features, nodes) or len(level.bias) != nodes or nodes == 0:
                raise DataError(f"{what}: the numbers of features or nodes of level {depth} do not match")
            if not in_range(level.parents - NO_PARENT, above + 1):
                raise DataError(f"{what}: level {depth} names parents that are not there")
            if not are_weights(level.weights.data) or not are_weights(level.bias):
                raise DataError(f"{what}: weights of level {depth} are NaN, infinite or too large; the file is damaged")
            above = nodes
        if len(tree.labels) != above or not in_range(tree.labels, model.n_labels):
            raise DataError(f"{what}: the labels of its leaves are damaged")
        if model.n_labels > above + MAX_MISSING:
            raise DataError(f"{what}: it has {above:,} of {model.n_labels:,} labels; the file is damaged")
        if len(np.unique(tree.labels)) != above:
            raise DataError(f"{what}: a label occurs in more than one leaf, which is not supported")
        if not _kept_nodes(tree)[-1].any():
            raise DataError(f"{what}: no label can be reached from the root")


def smallest_weight(trees: LinearTrees) -> float:
    """The smallest absolute value of a weight, rounded down to three digits: what training may have dropped is less."""
    values = [np.abs(level.unpacked().values) for _, levels in trees.trees for level in levels]
    smallest = min((float(one.min()) for one in values if len(one)), default=0.0)
    return float(f"{smallest * (1 - 5e-4):.3g}")
