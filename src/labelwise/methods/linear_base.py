"""Base of the linear methods: documents as features; prediction, explanation and state by `LinearTrees`."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field
from scipy import sparse

from labelwise.config import PART, Decides, deciding_fields
from labelwise.config import Config as BaseConfig
from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset
from labelwise.data.label_texts import with_label_documents
from labelwise.data.vocabulary import read_thesaurus
from labelwise.errors import ConfigError, DataError, did_you_mean
from labelwise.features.rows import FeatureOrder, FeatureRows, OrderedFeatures, unit_rows, unit_rows_on_disk
from labelwise.features.tfidf import Tfidf
from labelwise.labelspace.tree import LabelPath
from labelwise.linear.learn import SQUARES, Learned
from labelwise.linear.memory import Memory as Memory
from labelwise.linear.retraining import retraining_reasons
from labelwise.linear.search import POST_PROCESSORS
from labelwise.linear.settings import PRECISIONS, SearchSettings, TrainingSettings
from labelwise.linear.settings import Precision as Precision
from labelwise.linear.train import ChunkShards
from labelwise.linear.trees import LinearTrees
from labelwise.methods.text_features import TextFeatures
from labelwise.model.card import CORE_PACKAGES, Card, TrainingData, now
from labelwise.model.feature_width import FeatureWidth
from labelwise.model.inputs import Documents
from labelwise.model.old_method import OldMethod as Method
from labelwise.model.predictions import LabelFilter
from labelwise.registry import installed_versions
from labelwise.runtime.finished import fingerprint
from labelwise.runtime.job import Job
from labelwise.runtime.memory import block_bytes
from labelwise.strings import Strings
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.labelspace.tree import LabelTree
    from labelwise.model.learning import NewDocuments

PostProcessor = Literal[tuple(POST_PROCESSORS)]  # type: ignore[valid-type]
FeatureNorm = Literal["l2"] | None
Seed = Annotated[int, Field(ge=0, lt=2**31)]
VectorScale = Annotated[float, Field(gt=0, le=1e6)] | None
COUNTED = 0.3
"""Fraction of the free memory for counts of terms, if texts are larger than memory."""
TimeLimit = Annotated[Annotated[float, Field(gt=0)] | None, Decides.END]


class LinearConfig(BaseConfig):
    """Base of the parameters of linear methods."""

    @property
    def reads_vectors(self) -> bool:
        """Whether documents are texts with dense features next to them."""
        return getattr(self, "vector_scale", None) is not None


class LinearMethod(TextFeatures, Method):
    """A method with `LinearTrees`; its `_fit` trains them, and fits the TF-IDF if it reads texts.

    Its Config has `tfidf`, `feature_norm`, `vector_scale`, `solver`, `relevance`, `post_processor`, `precision`,
    `memory` and `seed`.
    """

    inputs = ("features", "texts")
    chooses_labels = True
    explains = True
    changeable = ("post_processor",)
    learns_more = True
    trains_in_tasks = True
    shrinks = True
    plans = True

    linear_: LinearTrees
    vector_scale_: float | None
    """With which dense features next to TF-IDF were multiplied; None if there were none."""

    @property
    def trees_(self) -> list:
        """Each tree with the weights of its levels."""
        return self.linear_.trees

    def _label_tree(self) -> LabelTree:
        return self.trees_[0][0]

    @property
    def search_settings(self) -> SearchSettings:
        """From the current parameters, which may be changed after fitting."""
        config = self.config
        if not hasattr(config, "beam"):
            return SearchSettings(config.post_processor)
        return SearchSettings(config.post_processor, config.beam, config.labels_per_tree, config.ties)

    @property
    def training_settings(self) -> TrainingSettings:
        """From the current parameters."""
        config = self.config
        return TrainingSettings(
            solver=config.solver, search=self.search_settings, relevance=config.relevance, precision=config.precision,
            memory=config.memory, seed=config.seed,
            negatives="matcher" if "matcher" in getattr(config, "negatives", "") else "teacher",
        )  # fmt: skip

    @classmethod
    def of_trees(
        cls, linear: LinearTrees, params: Mapping[str, Any], names: Strings, tfidf: Tfidf | None, origin: str
    ) -> Self:
        """A fitted model from trees that were trained elsewhere, on documents that are not known.

        With `tfidf`, whose columns the trees' features are, it reads texts; `origin` becomes part of its card.
        """
        model = cls(**params)
        model.linear_, model.tfidf_, model.vector_scale_ = linear, tfidf, None
        model.fitted_config_ = model.config
        model.input_ = "features" if tfidf is None else "texts"
        model.feature_width_ = FeatureWidth(len(linear.order.original)) if tfidf is None else None
        model.label_names_, model.label_texts_ = names, None
        model.label_counts_, model.n_documents_ = np.zeros(len(names), np.int64), 0
        about = TrainingData(labels=len(names))
        model.card_ = Card(created=now(), data=about, packages=installed_versions(CORE_PACKAGES)).with_change(origin)
        return model

    def partial_fit(self, data: Any, labels: Any = None) -> Self:
        """`fit` at the first call, then `learn`: scikit-learn's name for training in steps."""
        if hasattr(self, "label_names_"):
            self.learn(data, labels)
            return self
        return self.fit(data, labels)

    def _learn(self, new: NewDocuments) -> tuple[int, tuple[str, ...]]:
        if self.vector_scale_ is not None:
            raise ConfigError("a model with vectors next to TF-IDF cannot learn more documents; train it again on all")
        data, old, tfidf = new.data, new.old, self.tfidf_
        if self.config.relevance:
            check_relevance(data)
        if tfidf is not None:
            tfidf = tfidf.extended(data.texts or (), self.n_documents_)
        features: Any = self._given(data.features) if tfidf is None else tfidf.rows(data.texts or ())
        n_features = features.shape[1] - len(self.linear_.order.original)
        n_labels = data.n_labels - len(self.label_names_)
        given = None
        if old is not None and n_labels:
            given = (self._given(old.features) if tfidf is None else tfidf.rows(old.texts or ())), old.labels
        alone = n_labels if old is None else 0
        counts = Learned(len(data), n_labels, alone, n_features, new.hits, new.predicted)
        self.linear_ = self.linear_.learned(features, data.labels, self.training_settings, counts, given, new.removed)
        self.tfidf_ = tfidf
        return n_features, retraining_reasons(self.linear_)

    @classmethod
    def saved_learns_more(cls, config: Any, arrays: Collection[str]) -> bool:
        """Not with vectors next to TF-IDF, and not without statistics of the training documents."""
        return cls.learns_more and not config.reads_vectors and SQUARES in arrays

    def _predict(self, data: Documents, k: int) -> TopK:
        return self.linear_.best(self._features(data), k, self.search_settings)

    def _predict_chosen(self, data: Documents, k: int, chosen: LabelFilter) -> TopK:
        return self.linear_.best(self._features(data), k, self.search_settings, chosen.allowed, chosen.weights)

    def _explain(self, data: Documents, labels: np.ndarray) -> list[list[LabelPath]]:
        return self.linear_.explain(self._features(data), labels, self.search_settings)

    def _top_contributions(self, data: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        return self.linear_.top_contributions(self._features(data), labels, count)

    def _shrink(self, precision: str | None, threshold: float | None) -> Self:
        stored, before = self.trees_[0][1][0].precision, self.config.solver.threshold
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
        smaller = copy.copy(self).set_params(**{key: value for key, value in given.items() if value is not None})
        stored_now = {"precision": smaller.config.precision, "solver": smaller.config.solver}
        smaller.fitted_config_ = self.fitted_config_.model_copy(update=stored_now)
        smaller.linear_ = self.linear_.shrunk(precision, threshold)
        return smaller

    def _reads_vectors(self) -> bool:
        return self.config.reads_vectors

    def _kind_of(self, dataset: Dataset) -> str:
        if not self._reads_vectors():
            return super()._kind_of(dataset)
        if dataset.texts is None or not isinstance(dataset.features, np.ndarray):
            raise DataError(
                f"{dataset.name}: vector_scale is for texts with dense features next to them; give a Dataset with both "
                "(in a config data.features: [tfidf, vectors-{split}.npy])"
            )
        return "texts"

    def training_features(self, data: Dataset, kind: str, job: Job) -> tuple[OrderedFeatures, Any]:
        """Training features renumbered by frequency, and those that describe labels when they are clustered.

        Features are those given, or those of TF-IDF, which is fitted here, with dense ones next to them if wanted.
        """
        if kind == "texts" and self.config.feature_norm is not None:
            raise ConfigError(
                f"feature_norm is for features that the data has, and {data.name} is read as texts; the norm of TF-IDF "
                "is tfidf.norm"
            )
        self.vector_scale_ = self.config.vector_scale if kind == "texts" else None
        if kind != "texts":
            self.tfidf_ = None
            features, folder = data.features, job.scratch
            if folder is not None and sparse.issparse(features):
                features = unit_rows_on_disk(features, folder) if self.config.feature_norm == "l2" else features
                return FeatureOrder.learn(features, folder=folder), features
            features = self._given(features)
            return FeatureOrder.learn(features), features
        self.tfidf_ = Tfidf(self.config.tfidf)
        if job.scratch is not None:
            return self._mapped_features(data, job.scratch)
        words = self.tfidf_.fit_transform(data.texts or ())
        if self.vector_scale_ is not None:
            both = Blocks(words, scaled(data.features, self.vector_scale_))
            return FeatureOrder.learn(both), both
        ordered = FeatureOrder.learn(words, in_place=True)
        return ordered, ordered.rows.sparse

    def _mapped_features(self, data: Dataset, folder: Path) -> tuple[OrderedFeatures, Any]:
        """`training_features` of texts larger than memory: the same, in files of the folder."""
        if self.vector_scale_ is not None:
            raise ConfigError("vector_scale: vectors next to texts are held in memory; leave out data.mapped")
        limit = block_bytes(self.config.memory, COUNTED)
        words = self.tfidf_.fit_transform_mapped(data.texts, folder, limit)  # type: ignore[missing-attribute]
        ordered = FeatureOrder.learn(words, folder=folder)
        return ordered, ordered.rows.sparse

    def label_text_features(self, texts: Sequence[str], features: OrderedFeatures, describing: Any) -> Any:
        """TF-IDF of label texts, after `training_features`: CSR with the sparse columns of what describes labels."""
        words = self.tfidf_.transform(texts)  # type: ignore[missing-attribute]
        return words if isinstance(describing, Blocks) else features.order.apply(words)

    def _features(self, data: Documents) -> Any:
        if self.tfidf_ is None:
            return self._given(data.features)
        if self.vector_scale_ is None:
            return self.tfidf_.rows(data.texts or ())
        return Blocks(self.tfidf_.transform(data.texts or ()), scaled(data.features, self.vector_scale_))

    def _given(self, features: Any) -> Any:
        """Features of the data as the classifiers take them."""
        return unit_rows(features) if self.config.feature_norm == "l2" else features

    def _feature_names(self, columns: np.ndarray) -> list[str] | None:
        if self.tfidf_ is None or self.tfidf_.config.hash_bits:
            return None
        count = self.tfidf_.n_features
        terms = iter(self.tfidf_.readable_terms(columns[columns < count]))
        return [next(terms) if column < count else f"vector[{column - count}]" for column in columns.tolist()]

    def _counted_words(self, words: Sequence[str]) -> list[str]:
        return super()._counted_words(words) if self.tfidf_ is None else self.tfidf_.counted_words(words)

    def _state(self) -> dict[str, np.ndarray]:
        return self.features_state() | self.linear_.state()

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        self.restore_features(tensors, path)
        self.vector_scale_ = self.config.vector_scale if self.input_ == "texts" else None
        n_dense = int(self.n_features_in_ or 0) if self.vector_scale_ is not None else 0
        self.linear_ = LinearTrees.restored(tensors, self.feature_count + n_dense, len(self.label_names_), path)

    def _check_restored(self) -> None:
        self.linear_.check()


def scaled(vectors: Any, factor: float) -> np.ndarray:
    """Dense features times a factor."""
    if not isinstance(vectors, np.ndarray):
        raise DataError("features next to texts must be dense vectors")
    return vectors if factor == 1 else vectors * vectors.dtype.type(factor)


LabelDocuments = Annotated[str, Field(min_length=1)] | None
"""`texts`, or a vocabulary file."""


def training_documents(data: Dataset, kind: str, config: Any, scratch: Path | None = None) -> Dataset:
    """The documents to train on: those given and, with `label_documents`, one per name of a label.

    With a `scratch` folder all texts are in a file there.
    """
    if config.label_documents is None:
        return data
    check_reads_texts(data, kind, "label_documents")
    return with_label_documents(data, names_of_labels(data, config), scratch)


def names_of_labels(data: Dataset, config: Any) -> list[tuple[str, ...]]:
    """The names of each label: all names in the vocabulary of `label_documents`, else its text or name in the data."""
    if config.label_documents in (None, "texts"):
        return [(text,) for text in (data.label_names if data.label_texts is None else data.label_texts)]
    thesaurus = read_thesaurus(config.label_documents, config.label_language)
    thesaurus.check_language()
    found = thesaurus.match(data.label_names)
    return [() if one is None else tuple(one.all_names(thesaurus.language)) for one in found]


def check_reads_texts(data: Dataset, kind: str, option: str) -> None:
    """Refuse an option that reads label names unless documents are read as texts."""
    if kind != "texts":
        raise ConfigError(f"{option}: label names are texts, but {data.name} is read as {kind}")


def check_label_documents(config: Any, *files: str) -> None:
    """Refuse label names as documents next to vectors, and a language without a vocabulary file it could apply to."""
    if config.label_documents is not None and config.reads_vectors:
        raise ValueError("label names have no vectors, so label_documents cannot be used with vector_scale")
    if config.label_language is not None and all(getattr(config, name) in (None, "texts") for name in files):
        raise ValueError(f"label_language chooses names of a vocabulary; it needs a file in {' or '.join(files)}")


def check_relevance(data: Dataset) -> None:
    """Raise unless labels' values can be used as weights of examples."""
    if (data.labels.data < 0).any():
        raise DataError(f"{data.name}: relevance needs values above 0, some labels have a negative one")


def finished_work(
    method: LinearMethod, folder: Path | None, features: FeatureRows, labels: Any, given: Mapping[str, np.ndarray]
) -> AbstractContextManager[ChunkShards | None]:
    """Shards of an earlier attempt at the same training, to read and to add to; None without a folder.

    `given` are other arrays that affect the result, besides parameters, features and labels.
    """
    if folder is None:
        return nullcontext()
    parameters = deciding_fields(method.config, PART)
    arrays = {
        f"{name}.{part}": array
        for name, rows in (("features", features), ("labels", FeatureRows.of(labels)))
        for part, array in rows.arrays.items()
    }
    named = [part for item in {**arrays, **given}.items() for part in item]
    shapes = [list(map(int, shape)) for shape in (features.shape, labels.shape)]  # columns may have no entries
    own = fingerprint({"method": method.name, **parameters}, shapes, *named)
    return ChunkShards(folder, own, labels.shape[1])
