"""Linear label tree: TF-IDF, a tree of label clusters, a linear classifier at every node, beam search.

Known from Parabel (Prabhu et al., WWW 2018), Bonsai (Khandagale et al., 2019) and XR-Linear in PECOS (Yu et al., 2020).
Labels are represented by the documents that have them and clustered into a balanced tree; the children of each node
are scored by linear classifiers trained on the node's documents only.

Cost: training grows with documents x non-zeros x depth, hardly with the number of labels; prediction scores beam x
children nodes per level. Memory: the features, per thread one copy of the largest node's documents, the weights.
What we do differently: 16 siblings are solved at once by explicit vector code, chunks go to threads largest first,
weights may be stored in 16 or 8 bits, and several trees are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.dataset import Dataset
from labelwise.features.labels import pifa, with_label_texts
from labelwise.features.tfidf import LINEAR_TFIDF, TfidfConfig
from labelwise.io.folder import csr_to_tensors
from labelwise.labelspace.hierarchy import hierarchy_of_labels
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.compile_ahead import compile_ahead
from labelwise.linear.cost import linear_cost, tree_nodes
from labelwise.linear.memory import bytes_of, check_memory, clustering_need
from labelwise.linear.settings import Ties
from labelwise.linear.solver import SolverConfig, held_bytes
from labelwise.linear.train import ChunkShards
from labelwise.linear.trees import LinearTrees
from labelwise.methods.level_fields import Beam, PostProcessors
from labelwise.methods.linear_base import (
    FeatureNorm,
    LabelDocuments,
    LinearConfig,
    LinearMethod,
    Memory,
    Precision,
    Seed,
    TimeLimit,
    VectorScale,
    check_label_documents,
    check_reads_texts,
    check_relevance,
    finished_work,
    names_of_labels,
    training_documents,
)
from labelwise.model.inputs import read_negatives
from labelwise.runtime.job import Job


class LinearTree(LinearMethod):
    """A tree of linear classifiers over TF-IDF or your own features: fast on a CPU, for any number of labels."""

    name = "linear_tree"
    changeable = ("beam", "labels_per_tree", "post_processor", "ties")
    good_for = "anything first: long texts, thousands to millions of labels, no GPU"
    speed = "seconds to minutes on a CPU"

    class Config(LinearConfig):
        """Parameters."""

        tfidf: TfidfConfig = LINEAR_TFIDF
        """How texts become features (not used when the data has features)."""
        feature_norm: FeatureNorm = None
        """Scale the data's own features to unit L2 norm per document, when training and when predicting."""
        vector_scale: VectorScale = None
        """Read the data's dense vectors next to TF-IDF of its texts, multiplied by this; null: one of both."""
        label_documents: LabelDocuments = None
        """Label names as training documents: `texts` (of the data), or a vocabulary file with other names as well."""
        label_language: str | None = None
        """Language of the names in a SKOS file of `label_documents` or `hierarchy`."""
        label_text_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
        """Weight of a label's names, relative to its documents, when labels are clustered: 0 for documents alone, 1 for
        names alone. Names are those of `label_documents`, or the label texts of the data."""
        tree: Literal["balanced", "kway", "hierarchy"] = "balanced"
        """The tree: labels halved recursively, clustered into `branching` groups at once, or your own hierarchy."""
        hierarchy: str | None = None
        """With `tree: hierarchy`, a file of child<TAB>parent lines, whose children may be labels or groups of them, or
        a vocabulary with broader concepts (SKOS, or a table with a header)."""
        trees: Annotated[int, Field(ge=1, le=1000)] = 3
        """Number of trees whose scores are averaged; each is clustered with another seed. A hierarchy is one tree."""
        leaf_size: Annotated[int, Field(ge=1)] = 100
        """Maximum number of labels per leaf cluster."""
        branching: Annotated[int, Field(ge=2)] = 16
        """Children per inner node."""
        label_features: Annotated[int, Field(ge=1)] | None = 500
        """Largest features per label in clustering; null keeps all."""
        solver: SolverConfig = SolverConfig()
        """How the classifiers are trained."""
        negatives: Literal["teacher", "matcher", "user", "matcher+user"] = "teacher"
        """Training documents of a node: those of its labels; also false positives of levels above; also your own."""
        user_negatives: str | None = None
        """With `user`: a sparse .npz [documents, labels], or data of the same documents with wrong labels."""
        relevance: bool = False
        """Weight positive examples by the labels' values in the data."""
        beam: Beam = 10
        """Beam width: nodes kept per level in prediction, or a list with one for each level above the labels."""
        labels_per_tree: Annotated[int, Field(ge=1)] = 20
        """Labels that each of several trees contributes to the average, at least; more if more are predicted."""
        post_processor: PostProcessors = "l3_hinge"
        """How a node's margin becomes a score that is combined with its parent's, or a list with one for each level."""
        ties: Ties = "label"
        """Order of labels with equal scores: by index in the label space, or by position in the tree, the first of
        several, as PECOS orders them."""
        precision: Precision = "int8"
        """Precision of the stored weights; int8 has one scale per classifier."""
        memory: Memory = "check"
        """Refuse to train what does not fit in memory: `check`, `ignore`, or a limit in GB."""
        time_budget: TimeLimit = None
        """Wall-clock seconds for all of `fit`, including time before an interruption. With less time fewer trees are
        trained, at least one, or the solver makes fewer passes."""
        seed: Seed = 0
        """Seed of clustering and training."""

        @model_validator(mode="after")
        def _files_go_with_their_use(self) -> LinearTree.Config:
            if (self.tree == "hierarchy") != (self.hierarchy is not None):
                raise ValueError("`tree: hierarchy` and the file `hierarchy` go together")
            if ("user" in self.negatives) != (self.user_negatives is not None):
                raise ValueError("`negatives` with `user` and the file `user_negatives` go together")
            if self.user_negatives is not None and self.label_documents is not None:
                raise ValueError(
                    "`user_negatives` has a row per document of the data, so `label_documents` cannot add any"
                )
            if self.tree == "hierarchy" and self.label_text_weight > 0:
                raise ValueError("`label_text_weight` is for clustering, and `tree: hierarchy` clusters nothing")
            check_label_documents(self, "label_documents", "hierarchy")
            return self

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, job: Job) -> None:
        config, texts = self.config, None
        if config.label_text_weight > 0:
            check_reads_texts(data, kind, "label_text_weight")
            texts = [" ".join(names) for names in names_of_labels(data, config)]
        data = training_documents(data, kind, config, job.scratch)
        if config.relevance:
            check_relevance(data)
        # files first: an error in them is reported before TF-IDF is computed
        own_tree, own_negatives = self._given_tree(data), None
        given: dict[str, np.ndarray] = {}
        if own_tree is not None:
            given |= own_tree.to_tensors("hierarchy")
        if "user" in config.negatives:
            own_negatives = read_negatives(config.user_negatives, data)
            given |= csr_to_tensors("negatives", own_negatives)
        if kind == "texts":
            compile_ahead(["search", "words", "solver"], config.precision)
        features, describing = self.training_features(data, kind, job)
        if texts is not None:
            texts = self.label_text_features(texts, features, describing)
            given |= csr_to_tensors("label_texts", texts)
        settings = self.training_settings
        with finished_work(self, job.folder, features.rows, data.labels, given) as shards:
            if own_tree is not None:
                trees = [own_tree]
            else:
                trees = _clustered(describing, data.labels, texts, config, settings.seeds(config.trees), shards)
            del describing  # with vectors next to TF-IDF it is a copy
            self.linear_ = LinearTrees.train(features, data.labels, trees, settings, shards, own_negatives, job.budget)

    def _cost(self, shape: DataShape, constants: Constants, width: int = 0) -> Cost:
        """`width`: dense columns next to TF-IDF."""
        config = self.config
        own = config.tree == "hierarchy"  # its shape is not known before the labels are
        return linear_cost(
            shape, constants, config.solver, nodes=tree_nodes(shape.labels, config.leaf_size, config.branching),
            trees=1 if own else config.trees, beam=int(np.max(config.beam)), precision=config.precision,
            label_features=config.label_features, clusters=not own, width=width,
            at_once=_clusters_at_once(config, shape.labels),
            weighted=config.relevance, memory=config.memory,
        )  # fmt: skip

    def _given_tree(self, data: Dataset) -> LabelTree | None:
        """The tree of the user's hierarchy; None: labels are clustered."""
        if self.config.tree != "hierarchy":
            return None
        names = hierarchy_of_labels(self.config.hierarchy, data.label_names, self.config.label_language)
        return LabelTree.from_parents(*names)

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        if self.input_ == "texts":
            compile_ahead(["search", "words"], self.config.precision)
        super()._restore(tensors, path)


def _clusters_at_once(config: Any, n_labels: int) -> int:
    """Clusters of the root, if labels are not halved."""
    return min(config.branching, -(-n_labels // config.leaf_size)) if config.tree == "kway" else 0


def _clustered(
    features: Any, labels: Any, texts: Any, config: Any, seeds: list[int], shards: ChunkShards | None
) -> list[LabelTree]:
    """One tree per seed: that of an earlier attempt, or a new one; `texts` are features of label texts, or None.

    Label features are computed only if a tree is missing, and are freed before training begins.
    """
    kept = [shards.tree(number) if shards else None for number in range(len(seeds))]
    if None not in kept:
        return [tree for tree in kept if tree is not None]
    hold, clusters = held_bytes(config.memory), _clusters_at_once(config, labels.shape[1])
    need_with = partial(clustering_need, features, labels, config.label_features, texts, clusters=clusters)
    check_memory(
        need_with(hold=hold), config.memory, bytes_of(features, labels), report=False,
        need_at=lambda limit: need_with(hold=held_bytes(limit)),
    )  # fmt: skip
    described = pifa(features, labels, keep=config.label_features, hold=hold)
    if texts is not None:
        described = with_label_texts(described, texts, config.label_text_weight)
    make = LabelTree.kway if config.tree == "kway" else LabelTree.balanced
    trees = []
    for number, (seed, tree) in enumerate(zip(seeds, kept, strict=True)):
        if tree is None:
            tree = make(described, leaf_size=config.leaf_size, branching=config.branching, seed=seed)
            if shards:
                shards.keep_tree(number, tree)
        trees.append(tree)
    return trees
