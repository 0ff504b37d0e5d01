"""Linear label tree: TF-IDF, a tree of label clusters, a linear classifier at every node, beam search.

Known from Parabel (Prabhu et al., WWW 2018), Bonsai (Khandagale et al., 2019) and XR-Linear in PECOS (Yu et al., 2020).
Labels are described by the documents that have them, clustered into a balanced tree, and the children of each node are
told apart by linear classifiers trained on the node's documents only.

Cost: training grows with documents x non-zeros x depth, hardly with the number of labels; prediction looks at beam x
children nodes a level. Memory: the features, one copy of the largest node's documents a thread, the weights kept.
What we do differently: 16 siblings are solved at once by explicit vector code, chunks go to threads largest first,
weights may be kept in 16 or 8 bits, and several trees are averaged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from scipy import sparse

from labelwise.codes.beam import POST_PROCESSORS, beam_search
from labelwise.codes.chunked import ChunkedWeights
from labelwise.codes.tree import LabelTree
from labelwise.config import Config as BaseConfig
from labelwise.data.dataset import Dataset
from labelwise.errors import ModelFormatError
from labelwise.features.label_features import pifa
from labelwise.features.tfidf import Tfidf, TfidfConfig
from labelwise.methods.base import FitContext, Method
from labelwise.store import stored
from labelwise.topk import TopK
from labelwise.training.chunks import SolverConfig
from labelwise.training.tree import train_tree

log = logging.getLogger("labelwise")

Tree = tuple[LabelTree, list[ChunkedWeights]]
PostProcessor = Literal[tuple(POST_PROCESSORS)]  # type: ignore[valid-type]


class LinearTree(Method):
    """A tree of linear classifiers over TF-IDF or your own features: fast on a CPU, for any number of labels."""

    name = "linear_tree"
    inputs = ("features", "texts")

    class Config(BaseConfig):
        """Parameters."""

        tfidf: TfidfConfig = TfidfConfig()
        """How texts become features (not used when the data has features)."""
        trees: Annotated[int, Field(ge=1)] = 3
        """Trees whose scores are averaged; each clusters the labels from another seed."""
        leaf_size: Annotated[int, Field(ge=1)] = 100
        """Labels a leaf cluster holds at most."""
        branching: Annotated[int, Field(ge=2)] = 16
        """Children of an inner node."""
        label_features: Annotated[int, Field(ge=1)] | None = 500
        """Features that describe a label when labels are clustered, the largest; null takes all."""
        solver: SolverConfig = SolverConfig()
        """How the classifiers are trained."""
        negatives: Literal["teacher", "matcher"] = "teacher"
        """What a node learns from: the documents of its labels, or also those sent to it by mistake."""
        relevance: bool = False
        """Weigh positive examples by the labels' values in the data."""
        beam: Annotated[int, Field(ge=1)] = 10
        """Nodes kept at each level in prediction."""
        post_processor: PostProcessor = "l3_hinge"
        """How a node's margin becomes a score that is combined with its parent's."""
        precision: Literal["float32", "float16", "int8"] = "float32"
        """How weights are kept."""
        seed: int = 0
        """Seed of clustering and training."""

    tfidf_: Tfidf | None
    trees_: list[Tree]

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, context: FitContext) -> None:
        config = self.config
        self.tfidf_ = Tfidf(config.tfidf) if kind == "texts" else None
        features = self.tfidf_.fit_transform(data.texts or ()) if self.tfidf_ else _as_csr(data.features)
        described = pifa(features, data.labels, keep=config.label_features)
        self.trees_ = []
        for number in range(config.trees):
            seed = config.seed + 1009 * number
            tree = self._make_tree(described, seed)
            levels = train_tree(
                features, data.labels, tree, config.solver,
                negatives=config.negatives, relevance=config.relevance, beam=config.beam,
                post_processor=config.post_processor, seed=seed,
            )  # fmt: skip
            self.trees_.append((tree, [level.stored_as(config.precision) for level in levels]))

    def _make_tree(self, described: Any, seed: int) -> LabelTree:
        config = self.config
        return LabelTree.balanced(described, leaf_size=config.leaf_size, branching=config.branching, seed=seed)

    def _predict(self, data: Dataset, k: int) -> TopK:
        features = self.tfidf_.transform(data.texts or ()) if self.tfidf_ else _as_csr(data.features)
        config = self.config
        each = k if len(self.trees_) == 1 else min(max(2 * k, 20), len(self.label_names_))
        tops = [
            beam_search(features, levels, tree.label_order, config.beam, each, config.post_processor)
            for tree, levels in self.trees_
        ]
        return tops[0] if len(tops) == 1 else _averaged(tops, k, len(self.label_names_))

    def _state(self) -> dict[str, np.ndarray]:
        state = {"trees": np.array([len(self.trees_)], np.int64)}
        if self.tfidf_ is not None:
            state |= {f"tfidf.{key}": value for key, value in self.tfidf_.state().items()}
        for number, (tree, levels) in enumerate(self.trees_):
            state |= tree.to_tensors(f"tree{number}")
            for depth, level in enumerate(levels):
                state |= level.to_tensors(f"tree{number}.level{depth}")
        return state

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        count = stored(tensors, "trees", path)
        if count.shape != (1,) or count.dtype != np.int64 or not 1 <= count[0] <= 10_000:
            raise ModelFormatError(f"{path}: the number of trees is damaged")
        self.tfidf_ = None
        if self.input_ == "texts":
            self.tfidf_ = Tfidf(self.config.tfidf)
            prefix = "tfidf."
            self.tfidf_.restore({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}, path)
        n_features = self.tfidf_.n_features if self.tfidf_ else int(self.n_features_in_ or 0)
        self.trees_ = []
        for number in range(int(count[0])):
            tree = LabelTree.from_tensors(f"tree{number}", tensors, path)
            if len(tree.label_order) != len(self.label_names_):
                raise ModelFormatError(
                    f"{path}: tree {number} has {len(tree.label_order):,} labels, not {len(self.label_names_):,}"
                )
            levels = [
                ChunkedWeights.from_tensors(
                    f"tree{number}.level{depth}", tensors, n_features, tree.children_offsets(depth), path
                )
                for depth in range(tree.depth)
            ]
            self.trees_.append((tree, levels))


def _as_csr(features: Any) -> Any:
    """Features for the kernels: CSR with sorted int32 columns."""
    csr = sparse.csr_array(features)
    if csr.indices.dtype != np.int32:
        csr.indices = csr.indices.astype(np.int32)
    return csr


def _averaged(tops: list[TopK], k: int, n_labels: int) -> TopK:
    """The mean score over trees; a label that a tree does not offer has 0 there."""
    total = sum((top.to_csr(n_labels) for top in tops[1:]), tops[0].to_csr(n_labels))
    return TopK.from_csr(total / len(tops), k)
