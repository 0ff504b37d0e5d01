"""What linear methods learn: a featurizer, and trees of linear classifiers on its features."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from labelwise.data.dataset import Documents
from labelwise.errors import ConfigError, did_you_mean
from labelwise.features.featurizers import saved_featurizer
from labelwise.features.tfidf import Tfidf
from labelwise.labelspace.tree import LabelPath, LabelTree
from labelwise.linear.compile_ahead import compile_ahead
from labelwise.linear.settings import PRECISIONS, SearchSettings, TrainingSettings
from labelwise.linear.trees import SQUARES, Learned, LinearTrees
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.linear.weights import PackedWeights


class LinearRanker:
    """Trees of linear classifiers, and what makes the features of documents: the base of all linear models.

    `features` has what was learned of the documents, `linear` the trees; others hand out parts of them.
    """

    def __init__(self, features: Any, linear: LinearTrees) -> None:
        self.features, self.linear = features, linear

    @property
    def trees(self) -> list[tuple[LabelTree, list[PackedWeights]]]:
        """Each tree with the weights of its levels."""
        return self.linear.trees

    @property
    def tree(self) -> LabelTree:
        """The first tree."""
        return self.trees[0][0]

    @property
    def tfidf(self) -> Tfidf | None:
        """How texts become features; None for a model of features."""
        return getattr(self.features, "tfidf", None)

    def top(self, documents: Documents, k: int, config: Any) -> TopK:
        return self.linear.best(self.features.rows(documents), k, SearchSettings.of(config))

    def top_of(self, documents: Documents, k: int, config: Any, chosen: Any) -> TopK:
        search = SearchSettings.of(config)
        return self.linear.best(self.features.rows(documents), k, search, chosen.allowed, chosen.weights)

    def explain(self, documents: Documents, labels: np.ndarray, config: Any) -> list[list[LabelPath]]:
        return self.linear.explain(self.features.rows(documents), labels, SearchSettings.of(config))

    def contributions(self, documents: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        return self.linear.top_contributions(self.features.rows(documents), labels, count)

    def names(self, columns: np.ndarray) -> list[str] | None:
        return self.features.names(columns)

    def counted(self, words: Sequence[str]) -> list[str]:
        return self.features.counted(words)

    def shrunk(self, precision: str | None, threshold: float | None, config: Any) -> tuple[Self, dict[str, Any]]:
        stored, before = self.trees[0][1][0].precision, config.solver.threshold
        if precision is not None and precision not in PRECISIONS:
            raise ConfigError(f"precision: {did_you_mean(str(precision), PRECISIONS)}")
        same = precision == stored and threshold is not None  # the threshold alone makes it smaller
        if precision is not None and not same and PRECISIONS.index(precision) <= PRECISIONS.index(stored):
            raise ConfigError(f"precision: the weights are stored as {stored} already, {precision} is not smaller")
        if threshold is not None and not before < threshold < np.inf:
            raise ConfigError(
                f"threshold: weights below {before:g} were dropped in training, so a number above that is needed, got "
                f"{threshold}"
            )
        given = {"precision": precision, "solver__threshold": threshold}
        changed = {name: value for name, value in given.items() if value is not None}
        return type(self)(self.features, self.linear.shrunk(precision, threshold)), changed

    def tensors(self) -> dict[str, np.ndarray]:
        return self.features.tensors() | self.linear.state()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Any) -> Self:
        if about.input == "texts":
            compile_ahead(["search", "words"], about.config.precision)
        features = cls._featurizer(tensors, about)
        return cls(features, LinearTrees.restored(tensors, features.n_features, about.n_labels, about.path))

    @classmethod
    def _featurizer(cls, tensors: Mapping[str, np.ndarray], about: Any) -> Any:
        return saved_featurizer(tensors, about)

    def check(self) -> None:
        """Check the weights of all nodes now, not when they are used first."""
        self.linear.check()


class LinearModel(LinearRanker):
    """Trees on features of the data or TF-IDF, which can learn more documents."""

    def learned(self, new: Any, config: Any) -> tuple[Self, int, tuple[str, ...]]:
        from labelwise.linear.learn import learn_trees, retraining_reasons
        from labelwise.linear.settings import check_relevance

        if not hasattr(self.features, "extended"):
            raise ConfigError("a model with vectors next to TF-IDF cannot learn more documents; train it again on all")
        data, old = new.data, new.old
        if config.relevance:
            check_relevance(data)
        features = self.features.extended(data, new.n_documents)
        rows = features.rows(data)
        n_features, n_labels = rows.shape[1] - len(self.linear.order.original), data.n_labels - new.n_labels
        given = None if old is None or not n_labels else (features.rows(old), old.labels)
        alone = n_labels if old is None else 0
        counts = Learned(len(data), n_labels, alone, n_features, new.hits, new.predicted)
        linear = learn_trees(self.linear, rows, data.labels, TrainingSettings.of(config), counts, given, new.removed)
        return type(self)(features, linear), n_features, retraining_reasons(linear)

    @staticmethod
    def saved_lacks(config: Any, arrays: Collection[str], members: Sequence[set[str]]) -> set[str]:
        """It cannot learn with vectors next to TF-IDF, nor without statistics of the training documents."""
        return {"learned"} if config.reads_vectors or SQUARES not in arrays else set()
