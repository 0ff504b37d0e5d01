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

from labelwise.data.dataset import Dataset
from labelwise.features.featurizers import featurizer_of
from labelwise.features.tfidf import LINEAR_TFIDF, TfidfConfig
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.model import LinearModel
from labelwise.linear.settings import (
    FeatureNorm,
    LabelDocuments,
    LinearConfig,
    Memory,
    PostProcessor,
    Precision,
    Seed,
    TimeLimit,
    UserInput,
    VectorScale,
    check_label_documents,
    training_documents,
)
from labelwise.linear.solver import SolverConfig
from labelwise.linear.train import fit_trees
from labelwise.model.learning import fit_or_learn
from labelwise.model.method import Method
from labelwise.runtime.job import Job


class LinearFlat(Method):
    """A linear classifier per label over TF-IDF or your own features: exact, for up to tens of thousands of labels."""

    name = "linear_flat"
    Fitted = LinearModel
    inputs = ("features", "texts")
    good_for = "up to some ten thousand labels, the best accuracy on a CPU"
    speed = "minutes on a CPU"
    changeable = ("post_processor",)
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

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> LinearModel:
        config = self.config
        train = training_documents(config, train, job)
        features, rows = featurizer_of(config, train).learn(config, train, job)
        given = UserInput([LabelTree.flat(train.n_labels)])
        return LinearModel(features, fit_trees(features, rows, train.labels, given, config, job))
