"""`LinearTrees`: the linear part of a method: the order of features, the trees and their weights.

It trains given trees, saves finished work on disk, searches, explains, and converts to named arrays and back. The
method provides features, trees and negatives; one-versus-rest is a tree without inner nodes.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.codes.average import averaged
from labelwise.codes.label_path import LabelPath
from labelwise.codes.tree import LabelTree
from labelwise.errors import ConfigError, ModelFormatError
from labelwise.features.feature_order import FeatureOrder, OrderedFeatures
from labelwise.features.rows import as_csr
from labelwise.linear.beam import LabelChoice, TreeSearch, best_of_trees
from labelwise.linear.explain import TreeExplainer, top_contributions
from labelwise.linear.learn_tree import NewExamples, learn_tree
from labelwise.linear.level_trainer import held_bytes
from labelwise.linear.memory_estimate import bytes_of, check_memory, training_need
from labelwise.linear.old_weights import is_old, read_old
from labelwise.linear.packed import PackedWeights
from labelwise.linear.pass_limit import SolverPace
from labelwise.linear.settings import PRECISIONS, SearchSettings, Ties, TrainingSettings
from labelwise.linear.shards import ChunkShards
from labelwise.linear.statistics import Learned, TrainingStatistics, document_counts
from labelwise.linear.train_tree import TrainingExamples, TreeTime, train_tree
from labelwise.progress import stage
from labelwise.store import get_tensor
from labelwise.time_budget import NO_LIMIT, TimeBudget
from labelwise.topk import NO_LABEL, TopK

log = logging.getLogger("labelwise")

WORTHWHILE = 0.5
"""Fraction of the duration of the last tree that has to be left for another one, which then gets fewer passes."""
WIDE_BEAM, MAX_ALLOWED = 100, 1000
"""Maximum beam, and maximum labels per tree, to which a search is widened if a user allows few labels."""


class LinearTrees:
    """Linear classifiers in trees, over features renumbered by frequency. Callers use the original indices."""

    def __init__(self, order: FeatureOrder) -> None:
        self.order = order
        self.trees: list[tuple[LabelTree, list[PackedWeights]]] = []
        self.statistics: TrainingStatistics | None = None
        self._searches: dict[tuple[str | tuple[str, ...], Ties], list[TreeSearch]] = {}
        self._explainers: dict[str | tuple[str, ...], list[TreeExplainer]] = {}

    # --- training ---

    @classmethod
    def train(
        cls,
        features: OrderedFeatures,
        labels: Any,
        trees: Sequence[LabelTree],
        settings: TrainingSettings,
        shards: ChunkShards | None = None,
        user_negatives: Any = None,
        budget: TimeBudget = NO_LIMIT,
    ) -> LinearTrees:
        """Train the classifiers of all trees.

        `shards` stores finished chunks and has those of an earlier attempt at the same training; `user_negatives`
        [documents, labels] are additional negative documents for the siblings of a label. The time budget decides how
        many trees are trained: there is always one, with fewer passes of the solver if necessary.
        """
        trained = cls(features.order)
        examples = TrainingExamples(features.rows, labels, user_negatives, features.folder)
        targets = trees[0].aggregate(labels)
        for tree in trees:
            settings.search.check(tree.depth)
        need_with = partial(
            training_need, features.rows, targets, trees[0], settings.solver, trees=len(trees),
            weighted=settings.relevance, precision=settings.precision,
            matched=int(np.max(settings.search.beam)) if settings.negatives == "matcher" else 0,
        )  # fmt: skip
        need, held = need_with(hold=held_bytes(settings.memory)), bytes_of(features.rows, labels)
        check_memory(need, settings.memory, held, need_at=lambda limit: need_with(hold=held_bytes(limit)))
        documents = []
        time, seconds = TreeTime(budget, SolverPace(features.rows)), 0.0
        for number, (seed, tree) in enumerate(zip(settings.seeds(len(trees)), trees, strict=True)):
            left = budget.remaining()
            if number > 0:
                if left < WORTHWHILE * seconds:
                    log.info("time budget: %d of %d trees are trained, the others are left out", number, len(trees))
                    budget.end_early()
                    break
                targets = tree.aggregate(labels)
            with stage(f"tree {number + 1} of {len(trees)}" if len(trees) > 1 else ""):
                levels = train_tree(examples, tree, targets, settings, seed, shards, number, time)
            stored = []
            while levels:  # none of them is needed any longer when it is packed, nor while the next tree is trained
                stored.append(PackedWeights.of(levels.pop(0).stored_as(settings.precision)))
            trained.trees.append((tree, stored))
            documents.append(document_counts(targets))
            seconds = left - budget.remaining() if budget.is_limited else 0.0
        examples.remove_shared()
        trained.statistics = TrainingStatistics.of(features.rows, documents)
        return trained

    def learned(
        self,
        features: Any,
        labels: Any,
        settings: TrainingSettings,
        learned: Learned,
        old: Any = None,
        removed: Any = None,
    ) -> LinearTrees:
        """The trees after training on more documents; these trees do not change.

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
        if self.statistics is None:
            raise ConfigError(
                "this model cannot learn more documents: it was imported, or saved by an older version, without "
                "statistics of its training documents; fit it again"
            )
        order = self.order.extended(features.shape[1])
        rows = order.rows(features)
        old_rows, old_labels = (None, None) if old is None else (order.rows(old[0]), old[1])
        examples = NewExamples(rows, labels, removed, old_rows, old_labels)
        result = LinearTrees(order)
        for number, ((tree, levels), seed) in enumerate(zip(self.trees, settings.seeds(len(self.trees)), strict=True)):
            result.trees.append(learn_tree(examples, tree, levels, self.statistics, settings, seed, number))
        counts = [document_counts(tree.aggregate(labels)) for tree, _ in result.trees]
        result.statistics = self.statistics.added(rows, counts, learned)
        return result

    def shrunk(self, precision: str | None, threshold: float | None) -> LinearTrees:
        """The same trees with weights below the threshold dropped, and stored in fewer bits (None: as they are)."""
        smaller = copy.copy(self)
        smaller._searches, smaller._explainers = {}, {}
        smaller.trees = [
            (tree, [_smaller(level, precision, threshold) for level in levels]) for tree, levels in self.trees
        ]
        return smaller

    # --- prediction ---

    def best(
        self,
        features: Any,
        k: int,
        search: SearchSettings,
        allowed: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> TopK:
        """The best k labels per document among the `allowed` ones, with scores multiplied by `weights`.

        If few labels are allowed the beam is widened, so that all of them are reached.
        """
        rows = self.order.rows(features)
        beam, each = search.beam, max(k, min(search.labels_per_tree, len(self.trees[0][0].label_order)))
        if allowed is not None:
            few = int(allowed.sum())
            wide, each = min(few, WIDE_BEAM), max(each, min(few, MAX_ALLOWED))
            beam = tuple(max(one, wide) for one in beam) if isinstance(beam, tuple) else max(beam, wide)
        extra = None if weights is None else np.log(weights)
        choices = [_choice(tree.label_order, allowed, extra) for tree, _ in self.trees]
        searches = self._prepared(search.post_processor, search.ties)
        if len(searches) == 1:
            top = searches[0].best(rows, beam, k, choices[0])
        else:
            top = averaged(best_of_trees(searches, rows, beam, each, choices), k, product=searches[0].product)
        if search.ties == "label":
            return top
        return TopK(np.where(top.ids == NO_LABEL, NO_LABEL, self.trees[0][0].label_order[top.ids]), top.scores)

    def explain(self, features: Any, labels: np.ndarray, search: SearchSettings) -> list[list[LabelPath]]:
        """The paths of some labels in each tree, for one document."""
        row = self.order.rows(as_csr(features))
        by_tree = []
        post_processor = search.post_processor
        if post_processor not in self._explainers:
            self._explainers[post_processor] = [TreeExplainer(*tree, post_processor) for tree in self.trees]
        for explainer in self._explainers[post_processor]:
            paths = explainer.explain(row, labels, search.beam)
            by_tree.append([replace(path, features=self.order.original[path.features]) for path in paths])
        return by_tree

    def top_contributions(
        self, features: Any, labels: np.ndarray, count: int, dense_as_one: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """The features that contribute most to some labels [documents, k], and how much; see `linear.explain`.

        With `dense_as_one` the dense columns of `Blocks` count as one feature, the first of them.
        """
        together = None
        if dense_as_one:
            ranks = self.order.ranks[features.sparse.shape[1] :]
            together = int(ranks.min()), int(ranks.max()) + 1
        rows = self.order.rows(as_csr(features)).sparse
        found, amounts = top_contributions(rows, self.trees, labels, count, together)
        return np.where(found >= 0, self.order.original[found], -1), amounts

    def _prepared(self, post_processor: str | tuple[str, ...], ties: Ties) -> list[TreeSearch]:
        """The trees prepared for searching, once per post-processor and order of ties.

        Kernels let the lower of two tied ids win: with `ties="tree"`, ids are positions in the first tree.
        """
        key = post_processor, ties
        if key not in self._searches:
            ids = [tree.label_order for tree, _ in self.trees]
            if ties == "tree":
                positions = np.argsort(ids[0])
                ids = [positions[order] for order in ids]
            self._searches[key] = [
                TreeSearch(levels, names, post_processor) for names, (_, levels) in zip(ids, self.trees, strict=True)
            ]
        return self._searches[key]

    # --- files ---

    def state(self) -> dict[str, np.ndarray]:
        """Order, trees and weights as named arrays."""
        state = {"trees": np.array([len(self.trees)], np.int64), "feature_order": self.order.original}
        for number, (tree, levels) in enumerate(self.trees):
            state |= tree.to_tensors(f"tree{number}")
            for depth, level in enumerate(levels):
                state |= level.to_tensors(f"tree{number}.level{depth}")
        return state if self.statistics is None else state | self.statistics.to_tensors()

    def check(self) -> None:
        """Check the weights of all nodes of a restored model now, not when they are used first."""
        for _, levels in self.trees:
            for level in levels:
                level.check()

    @classmethod
    def restored(cls, tensors: Mapping[str, np.ndarray], n_features: int, n_labels: int, path: Path) -> LinearTrees:
        """Restore what `state` returned; what kernels rely on is checked, weights when they are used first."""
        count = get_tensor(tensors, "trees", path)
        if count.shape != (1,) or count.dtype != np.int64 or not 1 <= count[0] <= 10_000:
            raise ModelFormatError(f"{path}: the number of trees is damaged")
        restored = cls(FeatureOrder.from_tensors(tensors, n_features, path))
        for number in range(int(count[0])):
            tree = LabelTree.from_tensors(f"tree{number}", tensors, path)
            if len(tree.label_order) != n_labels:
                raise ModelFormatError(f"{path}: tree {number} has {len(tree.label_order):,} labels, not {n_labels:,}")
            levels = [
                _restored(f"tree{number}.level{depth}", tensors, n_features, tree.children_offsets(depth), path)
                for depth in range(tree.depth)
            ]
            restored.trees.append((tree, levels))
        trees = [tree for tree, _ in restored.trees]
        restored.statistics = TrainingStatistics.from_tensors(tensors, n_features, trees, path)
        return restored


def _restored(
    prefix: str, tensors: Mapping[str, np.ndarray], n_features: int, children_offsets: np.ndarray, path: Path
) -> PackedWeights:
    """A level's weights; those of an older layout are converted."""
    arguments = prefix, tensors, n_features, children_offsets, path
    return PackedWeights.of(read_old(*arguments)) if is_old(prefix, tensors) else PackedWeights.from_tensors(*arguments)


def _smaller(level: PackedWeights, precision: str | None, threshold: float | None) -> PackedWeights:
    kept = level.unpacked()
    if threshold is not None:
        kept = kept.pruned(threshold)
    if precision is not None and PRECISIONS.index(precision) > PRECISIONS.index(level.precision):
        kept = kept.stored_as(precision)
    return PackedWeights.of(kept)


def _choice(label_order: np.ndarray, allowed: np.ndarray | None, extra: np.ndarray | None) -> LabelChoice | None:
    if allowed is None and extra is None:
        return None
    return LabelChoice(None if allowed is None else allowed[label_order], None if extra is None else extra[label_order])
