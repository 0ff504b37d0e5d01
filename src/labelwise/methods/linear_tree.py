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

from typing import Annotated, Literal

from pydantic import Field, model_validator

from labelwise.data.dataset import Dataset
from labelwise.features.featurizers import featurizer_of
from labelwise.features.tfidf import LINEAR_TFIDF, TfidfConfig
from labelwise.linear.compile_ahead import compile_ahead
from labelwise.linear.model import LinearModel
from labelwise.linear.settings import (
    Beam,
    FeatureNorm,
    LabelDocuments,
    LinearConfig,
    Memory,
    PostProcessors,
    Precision,
    Seed,
    Ties,
    TimeLimit,
    VectorScale,
    check_label_documents,
    user_input,
)
from labelwise.linear.solver import SolverConfig
from labelwise.linear.train import fit_trees
from labelwise.model.learning import fit_or_learn
from labelwise.model.method import Method
from labelwise.runtime.job import Job


class LinearTree(Method):
    """A tree of linear classifiers over TF-IDF or your own features: fast on a CPU, for any number of labels."""

    name = "linear_tree"
    Fitted = LinearModel
    inputs = ("features", "texts")
    good_for = "anything first: long texts, thousands to millions of labels, no GPU"
    speed = "seconds to minutes on a CPU"
    changeable = ("beam", "labels_per_tree", "post_processor", "ties")
    trains_in_tasks = True
    partial_fit = fit_or_learn

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

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> LinearModel:
        config = self.config
        given, train = user_input(config, train, job)
        if train.kind == "texts":
            compile_ahead(["search", "words", "solver"], config.precision)
        features, rows = featurizer_of(config, train).learn(config, train, job)
        return LinearModel(features, fit_trees(features, rows, train.labels, given, config, job))
