"""One-versus-rest: TF-IDF and a linear classifier per label, all of which are scored.

Known from DiSMEC (Babbar & Schölkopf, WSDM 2017); the classifiers are those of LIBLINEAR (Fan et al., 2008). Every
classifier is trained on all documents, and no label can be missed by a search, as it can in a tree.

Cost: training grows with documents x non-zeros x labels, prediction with non-zeros x weights per feature. Memory:
the features, per thread a table of features x 16 and about 110 bytes per document, the weights.
What we do differently: 16 labels are solved at once by explicit vector code, prediction skips pruned weights, and a
stopped training resumes at the next 16 labels.
"""

from __future__ import annotations

from pydantic import model_validator

from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.dataset import Dataset
from labelwise.features.tfidf import LINEAR_TFIDF, TfidfConfig
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.cost import linear_cost
from labelwise.linear.solver import SolverConfig
from labelwise.linear.trees import LinearTrees
from labelwise.methods.linear_base import (
    FeatureNorm,
    LabelDocuments,
    LinearConfig,
    LinearMethod,
    Memory,
    PostProcessor,
    Precision,
    Seed,
    TimeLimit,
    VectorScale,
    check_label_documents,
    check_relevance,
    finished_work,
    training_documents,
)
from labelwise.runtime.job import Job


class LinearFlat(LinearMethod):
    """A linear classifier per label over TF-IDF or your own features: exact, for up to tens of thousands of labels."""

    name = "linear_flat"
    good_for = "up to some ten thousand labels, the best accuracy on a CPU"
    speed = "minutes on a CPU"

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
        """Language of the names in a SKOS file of `label_documents`."""
        solver: SolverConfig = SolverConfig()
        """How the classifiers are trained."""
        relevance: bool = False
        """Weight positive examples by the labels' values in the data."""
        post_processor: PostProcessor = "sigmoid"
        """How margins become scores; none changes the order, but hinges make all above 1 equal."""
        precision: Precision = "int8"
        """Precision of the stored weights; int8 has one scale per classifier."""
        memory: Memory = "check"
        """Refuse to train what does not fit in memory: `check`, `ignore`, or a limit in GB."""
        time_budget: TimeLimit = None
        """Wall-clock seconds for all of `fit`, including time before an interruption. With less time the solver
        makes fewer passes."""
        seed: Seed = 0
        """Seed of training."""

        @model_validator(mode="after")
        def _languages_go_with_files(self) -> LinearFlat.Config:
            check_label_documents(self, "label_documents")
            return self

    def _cost(self, shape: DataShape, constants: Constants) -> Cost:
        config = self.config
        return linear_cost(
            shape, constants, config.solver, nodes=[1, shape.labels], trees=1, beam=1, precision=config.precision,
            label_features=None, clusters=False,
            weighted=config.relevance, memory=config.memory,
        )  # fmt: skip

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, job: Job) -> None:
        data = training_documents(data, kind, self.config, job.scratch)
        if self.config.relevance:
            check_relevance(data)
        features, _ = self.training_features(data, kind, job)
        settings = self.training_settings
        with finished_work(self, job.folder, features.rows, data.labels, {}) as shards:
            tree = LabelTree.flat(data.n_labels)
            self.linear_ = LinearTrees.train(features, data.labels, [tree], settings, shards, budget=job.budget)
