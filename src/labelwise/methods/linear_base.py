"""What the linear methods share: features from texts or as given, training that resumes, prediction, files.

A method says which trees there are and what their nodes learn from; one-versus-rest is a tree without a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from scipy import sparse

from labelwise.codes.average import averaged
from labelwise.codes.tree import LabelTree
from labelwise.data.blocks import Blocks
from labelwise.data.csr import csr_of
from labelwise.data.dataset import CSR, Dataset
from labelwise.errors import DataError, ModelFormatError
from labelwise.features.feature_order import FeatureOrder
from labelwise.features.tfidf import Tfidf, TfidfConfig
from labelwise.linear.beam import POST_PROCESSORS, LabelChoice, TreeSearch
from labelwise.linear.explain import LabelPath, explain_labels
from labelwise.linear.memory_estimate import Memory as Memory
from labelwise.linear.memory_estimate import check_memory, training_need
from labelwise.linear.shards import ChunkShards, fingerprint
from labelwise.linear.train_tree import Negatives, train_tree
from labelwise.linear.weights import ChunkedWeights
from labelwise.methods.base import FitContext, Method
from labelwise.methods.inputs import Documents
from labelwise.methods.label_filter import LabelFilter
from labelwise.result_fields import PART, deciding
from labelwise.store import stored
from labelwise.topk import TopK

Tree = tuple[LabelTree, list[ChunkedWeights]]
PostProcessor = Literal[tuple(POST_PROCESSORS)]  # type: ignore[valid-type]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Precision = Literal["float32", "float16", "int8"]
SEED_STEP = 1009
"""Between the seeds of two trees: each tree draws with a seed of its own."""
WIDE_BEAM, SEARCHED_IN_FULL = 100, 1000
"""Nodes a level, and labels of a tree, that are looked at if a user allows only so few labels."""
OFFERED = 20
"""Labels each of several trees offers to their average: up to so many, the first labels do not depend on `k`."""


class LinearTfidf(TfidfConfig):
    """TF-IDF as linear classifiers like it best."""

    sublinear: bool = True
    """Count a term that occurs n times as 1 + ln(n)."""


class LinearMethod(Method):
    """Base of the linear methods.

    Its Config has `tfidf`, `solver`, `relevance`, `post_processor`, `precision`, `memory` and `seed`.
    """

    inputs = ("features", "texts")
    chooses_labels = True

    tfidf_: Tfidf | None
    order_: FeatureOrder
    trees_: list[Tree]
    _ready: tuple[list[Tree] | None, str, list[TreeSearch]] = (None, "", [])

    def _features(self, data: Dataset | Documents, kind: str, fit: bool) -> Any:
        """The documents as CSR, features by frequency; with `fit` the words and their order are learned."""
        if fit:
            self.tfidf_ = Tfidf(self.config.tfidf) if kind == "texts" else None
        if self.tfidf_ is None:
            found, own = as_csr(data.features), isinstance(data.features, np.ndarray | Blocks)
        else:
            texts = data.texts or ()
            found, own = self.tfidf_.fit_transform(texts) if fit else self.tfidf_.rows(texts), True
        if fit:
            self.order_ = FeatureOrder.by_frequency(found)
        return self.order_.applied(found, own) if fit or own else self.order_.rows(found)

    def _learn(
        self,
        features: Any,
        data: Dataset,
        make_tree: Callable[[int], LabelTree],
        context: FitContext,
        *,
        trees: int = 1,
        negatives: Negatives = "teacher",
        user_negatives: Any = None,
        beam: int = 1,
        given: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Make the trees (from a seed each) and train them. `given` is what else decides the result."""
        config = self.config
        if config.relevance and (data.labels.data < 0).any():
            raise DataError(f"{data.name}: relevance needs values above 0, some labels have a negative one")
        seeds = [config.seed + SEED_STEP * number for number in range(trees)]
        self.trees_, self._ready = [], (None, "", [])
        with self._shards(features, data, given or {}, context) as shards:
            made = [_made_tree(number, seed, make_tree, shards) for number, seed in enumerate(seeds)]
            del make_tree  # and with it what it describes labels by
            need = training_need(
                features, data.labels, made[0], config.solver, trees=trees, weighted=config.relevance,
                matched=beam if negatives == "matcher" else 0, precision=config.precision,
            )  # fmt: skip
            check_memory(need, config.memory, bytes_of(features, data.labels))
            for number, (seed, tree) in enumerate(zip(seeds, made, strict=True)):
                levels = train_tree(
                    features, data.labels, tree, config.solver,
                    negatives=negatives, user_negatives=user_negatives, relevance=config.relevance, beam=beam,
                    post_processor=config.post_processor, seed=seed, shards=shards, number=number,
                )  # fmt: skip
                self.trees_.append((tree, [level.stored_as(config.precision) for level in levels]))

    def _shards(self, features: Any, data: Dataset, given: Mapping[str, np.ndarray], context: FitContext) -> Any:
        """Where finished chunks are kept while training goes on; nothing when nothing is to be kept."""
        if context.checkpoints is None:
            return nullcontext()
        parameters = deciding(self.config, PART)
        arrays = {
            f"{name}.{part}": getattr(matrix, part)
            for name, matrix in (("features", features), ("labels", data.labels))
            for part in ("indptr", "indices", "data")
        }
        training = fingerprint({"method": self.name, **parameters}, {**arrays, **given})
        return ChunkShards(context.checkpoints, training)

    # --- prediction ---

    def _predict(self, data: Documents, k: int) -> TopK:
        each = k if len(self.trees_) == 1 else min(max(k, OFFERED), len(self.label_names_))
        return self._best(data, k, each, getattr(self.config, "beam", 1), [None] * len(self.trees_))

    def _predict_chosen(self, data: Documents, k: int, chosen: LabelFilter) -> TopK:
        """Few labels are searched in full: the beam is as wide as the nodes that can lead to them."""
        each = max(k, min(OFFERED, len(self.label_names_)))
        beam = getattr(self.config, "beam", 1)
        if chosen.allowed is not None:
            few = int(chosen.allowed.sum())
            beam, each = max(beam, min(few, WIDE_BEAM)), max(each, min(few, SEARCHED_IN_FULL))
        extra = None if chosen.weights is None else np.log(chosen.weights)
        choices = [
            LabelChoice(
                None if chosen.allowed is None else chosen.allowed[tree.label_order],
                None if extra is None else extra[tree.label_order],
            )
            for tree, _ in self.trees_
        ]
        return self._best(data, k, each, beam, choices)

    def _best(self, data: Documents, k: int, each: int, beam: int, choices: Sequence[LabelChoice | None]) -> TopK:
        """The best k of the best `each` of every tree."""
        features = self._features(data, self.input_, fit=False)
        post_processor = self.config.post_processor
        searches = self._searches(post_processor)
        if len(searches) == 1:
            return searches[0].best(features, beam, k, choices[0])
        tops = [search.best(features, beam, each, choice) for search, choice in zip(searches, choices, strict=True)]
        return averaged(tops, k, product=POST_PROCESSORS[post_processor][2])

    def _searches(self, post_processor: str) -> list[TreeSearch]:
        """The trees made ready, once."""
        trees, made_for, searches = self._ready
        if trees is not self.trees_ or made_for != post_processor:
            searches = [TreeSearch(levels, tree.label_order, post_processor) for tree, levels in self.trees_]
            self._ready = self.trees_, post_processor, searches
        return searches

    def _explain(self, data: Documents, labels: np.ndarray) -> list[list[LabelPath]]:
        row = self._features(data, self.input_, fit=False)
        beam, post_processor = getattr(self.config, "beam", 1), self.config.post_processor
        paths = [explain_labels(row, tree, levels, labels, beam, post_processor) for tree, levels in self.trees_]
        return [[replace(path, features=self.order_.original[path.features]) for path in found] for found in paths]

    def _feature_names(self, columns: np.ndarray) -> list[str] | None:
        return None if self.tfidf_ is None or self.tfidf_.config.hash_bits else self.tfidf_.terms(columns)

    # --- files ---

    def _state(self) -> dict[str, np.ndarray]:
        state = {"trees": np.array([len(self.trees_)], np.int64), "feature_order": self.order_.original}
        if self.tfidf_ is not None:
            state |= self.tfidf_.for_model()
        for number, (tree, levels) in enumerate(self.trees_):
            state |= tree.to_tensors(f"tree{number}")
            for depth, level in enumerate(levels):
                state |= level.to_tensors(f"tree{number}.level{depth}")
        return state

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        count = stored(tensors, "trees", path)
        if count.shape != (1,) or count.dtype != np.int64 or not 1 <= count[0] <= 10_000:
            raise ModelFormatError(f"{path}: the number of trees is damaged")
        self.tfidf_ = Tfidf.of_model(self.config.tfidf, tensors, path) if self.input_ == "texts" else None
        n_features = self.tfidf_.n_features if self.tfidf_ else int(self.n_features_in_ or 0)
        self.order_ = FeatureOrder.from_tensors(tensors, n_features, path)
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


def bytes_of(features: Any, labels: Any) -> int:
    """Bytes that features (of any kind) and labels hold."""
    blocks = [features.sparse, features.dense] if isinstance(features, Blocks) else [features]
    arrays = [block for block in blocks if isinstance(block, np.ndarray)]
    for matrix in [labels, *(block for block in blocks if sparse.issparse(block))]:
        arrays += [matrix.indptr, matrix.indices, matrix.data]
    return sum(array.nbytes for array in arrays)


def _made_tree(number: int, seed: int, make_tree: Callable[[int], LabelTree], shards: ChunkShards | None) -> LabelTree:
    """A tree, or the very one that an earlier try has made."""
    tree = shards.tree(number) if shards else None
    if tree is None:
        tree = make_tree(seed)
        if shards:
            shards.keep_tree(number, tree)
    return tree


def as_csr(features: Any) -> Any:
    """Features for the kernels: CSR with sorted int32 columns."""
    if isinstance(features, Blocks):
        return features.to_csr()
    csr = features if isinstance(features, CSR) else sparse.csr_array(features)
    if csr.indices.dtype != np.int32:
        csr = csr_of(csr.data, csr.indices.astype(np.int32), csr.indptr, csr.shape)  # what is the user's stays as it is
    return csr
