"""`LinearTrees`: the order of features, the trees and their weights. They search, explain, and become named arrays.

One-versus-rest is a tree without inner nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labelwise.errors import ModelFormatError
from labelwise.features.rows import FeatureOrder, FeatureRows, as_csr
from labelwise.io.folder import get_tensor
from labelwise.io.tensors import all_finite, in_pieces, release_pages
from labelwise.kernels.search import average
from labelwise.labelspace.tree import LabelPath, LabelTree
from labelwise.linear.explain import TreeExplainer, top_contributions
from labelwise.linear.search import LabelChoice, TreeSearch, best_of_trees
from labelwise.linear.settings import PRECISIONS, SearchSettings, Ties
from labelwise.linear.weights import PackedWeights
from labelwise.runtime.threads import ranges, run_all, threads
from labelwise.topk import NO_LABEL, TopK

# --- average ---
# The mean of the scores of several trees.


def averaged(tops: Sequence[TopK], k: int, product: bool) -> TopK:
    """The k labels with the highest mean score.

    A label that a model does not predict counts 0 for that model if scores are products of probabilities (`product`),
    otherwise as much as the model's lowest prediction for the document.
    """
    n = len(tops[0])
    ids = np.concatenate([top.ids for top in tops], axis=1)
    scores = np.concatenate([top.scores for top in tops], axis=1)
    out_ids, out_scores = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    parts = ranges(n, threads() if n >= 8 * threads() else 1)
    run_all(lambda part: average(ids, scores, len(tops), product, *part, out_ids, out_scores), parts)
    return TopK(out_ids, out_scores)


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


# --- trees ---

WIDE_BEAM, MAX_ALLOWED = 100, 1000
"""Maximum beam, and maximum labels per tree, to which a search is widened if a user allows few labels."""


class LinearTrees:
    """Linear classifiers in trees, over features renumbered by frequency. Callers use the original indices."""

    def __init__(
        self,
        order: FeatureOrder,
        trees: Sequence[tuple[LabelTree, list[PackedWeights]]] = (),
        statistics: TrainingStatistics | None = None,
    ) -> None:
        self.order, self.trees, self.statistics = order, list(trees), statistics
        self._searches: dict[tuple[str | tuple[str, ...], Ties], list[TreeSearch]] = {}
        self._explainers: dict[str | tuple[str, ...], list[TreeExplainer]] = {}

    def shrunk(self, precision: str | None, threshold: float | None) -> LinearTrees:
        """The same trees with weights below the threshold dropped, and stored in fewer bits (None: as they are)."""
        trees = [(tree, [_smaller(level, precision, threshold) for level in levels]) for tree, levels in self.trees]
        return LinearTrees(self.order, trees, self.statistics)

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
        choices = [
            LabelChoice(*(None if given is None else given[tree.label_order] for given in (allowed, extra)))
            for tree, _ in self.trees
        ]
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
                ids = [self.trees[0][0].label_positions[order] for order in ids]
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
        order, trees = FeatureOrder.from_tensors(tensors, n_features, path), []
        for number in range(int(count[0])):
            tree = LabelTree.from_tensors(f"tree{number}", tensors, path)
            if len(tree.label_order) != n_labels:
                raise ModelFormatError(f"{path}: tree {number} has {len(tree.label_order):,} labels, not {n_labels:,}")
            levels = [
                PackedWeights.from_tensors(
                    f"tree{number}.level{depth}", tensors, n_features, tree.children_offsets(depth), path
                )
                for depth in range(tree.depth)
            ]
            trees.append((tree, levels))
        statistics = TrainingStatistics.from_tensors(tensors, n_features, [tree for tree, _ in trees], path)
        return cls(order, trees, statistics)


def _smaller(level: PackedWeights, precision: str | None, threshold: float | None) -> PackedWeights:
    kept = level.unpacked()
    if threshold is not None:
        kept = kept.pruned(threshold)
    if precision is not None and PRECISIONS.index(precision) > PRECISIONS.index(level.precision):
        kept = kept.stored_as(precision)
    return PackedWeights.of(kept)
