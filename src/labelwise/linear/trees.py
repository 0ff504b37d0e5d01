"""`LinearTrees`: the linear part of a method: the order of features, the trees and their weights.

It trains given trees, saves finished work on disk, searches, explains, and converts to named arrays and back. The
method provides features, trees and negatives; one-versus-rest is a tree without inner nodes.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import ConfigError, ModelFormatError
from labelwise.features.rows import FeatureOrder, OrderedFeatures, as_csr
from labelwise.io.folder import get_tensor
from labelwise.labelspace.tree import LabelPath, LabelTree
from labelwise.linear.explain import TreeExplainer, top_contributions
from labelwise.linear.learn import Learned, NewExamples, TrainingStatistics, document_counts, learn_tree
from labelwise.linear.memory import bytes_of, check_memory, training_need
from labelwise.linear.packed import PackedWeights
from labelwise.linear.search import LabelChoice, TreeSearch, best_of_trees
from labelwise.linear.settings import PRECISIONS, SearchSettings, Ties, TrainingSettings
from labelwise.linear.solver import SolverPace, held_bytes
from labelwise.linear.train import ChunkShards, TrainingExamples, TreeTime, train_tree
from labelwise.linear.weights import is_old, read_old
from labelwise.runtime.progress import stage
from labelwise.runtime.threads import ranges, run_all, threads
from labelwise.runtime.time_budget import NO_LIMIT, TimeBudget
from labelwise.topk import NO_LABEL, TopK

# --- average ---
# Combine the predictions of several models: their mean score, or all their labels side by side.

MISSING = -1
"""The rank of a label that a model does not predict."""


def averaged(tops: Sequence[TopK], k: int, product: bool) -> TopK:
    """The k labels with the highest mean score.

    A label that a model does not predict counts 0 for that model if scores are products of probabilities (`product`),
    otherwise as much as the model's lowest prediction for the document.
    """
    from labelwise.kernels.search import average

    n = len(tops[0])
    ids = np.concatenate([top.ids for top in tops], axis=1)
    scores = np.concatenate([top.scores for top in tops], axis=1)
    out_ids, out_scores = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    parts = ranges(n, threads() if n >= 8 * threads() else 1)
    run_all(lambda part: average(ids, scores, len(tops), product, *part, out_ids, out_scores), parts)
    return TopK(out_ids, out_scores)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The labels that any of several models predicts for a document, with the score and rank in each.

    A row holds its labels in ascending order, then NO_LABEL. Labels that a model does not predict have the rank MISSING
    and its score of the document's last predicted label, or NaN if it predicts none for the document.
    """

    labels: np.ndarray
    """[documents, candidates]"""
    scores: np.ndarray
    """float32 [documents, candidates, models]"""
    ranks: np.ndarray
    """int32 [documents, candidates, models], from 0"""

    @property
    def filled(self) -> np.ndarray:
        """Where there is a label [documents, candidates]."""
        return self.labels != NO_LABEL

    def best(self, values: np.ndarray, k: int) -> TopK:
        """The k candidates with the highest values [documents, candidates], ties by lower id."""
        scores = np.where(self.filled, values, -np.inf).astype(np.float32)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        ids, scores = np.take_along_axis(self.labels, order, 1), np.take_along_axis(scores, order, 1)
        return TopK(ids, scores).padded(k)


def side_by_side(tops: Sequence[TopK]) -> Candidates:
    """All labels of several predictions for the same documents, in one label space."""
    ids = np.concatenate([top.ids for top in tops], axis=1)
    scores = np.concatenate([top.scores for top in tops], axis=1)
    models = np.repeat(np.arange(len(tops)), [top.k for top in tops])
    ranks = np.concatenate([np.arange(top.k) for top in tops])
    last = np.iinfo(np.int64).max
    keys = ids.astype(np.int64)
    keys[ids == NO_LABEL] = last
    order = np.argsort(keys, axis=1, kind="stable")
    keys = np.take_along_axis(keys, order, 1)
    filled = keys != last
    first = filled.copy()
    first[:, 1:] &= keys[:, 1:] != keys[:, :-1]
    column = np.cumsum(first, axis=1) - 1
    shape = (len(ids), max(int(column.max(initial=0)) + 1, 1), len(tops))
    labels = np.full(shape[:2], NO_LABEL, np.int32)
    rows, places = np.nonzero(first)
    labels[rows, column[rows, places]] = keys[rows, places]
    rows, places = np.nonzero(filled)
    where = rows, column[rows, places], models[order[rows, places]]
    found_scores, found_ranks = np.empty(shape, np.float32), np.full(shape, MISSING, np.int32)
    found_scores[:] = _last_scores(tops)[:, None, :]
    found_scores[where] = scores[rows, order[rows, places]]
    found_ranks[where] = ranks[order[rows, places]]
    return Candidates(labels, found_scores, found_ranks)


def _last_scores(tops: Sequence[TopK]) -> np.ndarray:
    """Each model's score of the last label that it predicts for a document [documents, models], NaN if for none."""
    scores = np.full((len(tops[0]), len(tops)), np.nan, np.float32)
    for model, top in enumerate(tops):
        counts = (top.ids != NO_LABEL).sum(1)
        rows = np.flatnonzero(counts)
        scores[rows, model] = top.scores[rows, counts[rows] - 1]
    return scores


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
