"""The contract of every method: fit, predict, save, load, with scikit-learn's conventions (`Estimator`).

A method is a subclass with a nested ``Config``, a ``name`` and four hooks: `_fit`, `_predict`, `_state`, `_restore`.
Everything else (checking inputs, names of labels, probabilities, folders on disk, parameters) is here, so that it is
the same for all. What only some methods can do is in `capabilities.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from scipy import sparse

from labelwise.config import Config, validated
from labelwise.config import Config as BaseConfig
from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.dataset import Dataset
from labelwise.data.hashing import document_hashes
from labelwise.errors import ConfigError, DataError, NotFittedError, did_you_mean
from labelwise.io import folder as store
from labelwise.io.run_schema import model_folder
from labelwise.model.calibration import Calibration
from labelwise.model.card import Card, card_of
from labelwise.model.feature_width import FeatureWidth
from labelwise.model.fitted import (
    SavedModel,
    read_model,
    unknown_method,
    write_calibration,
    write_model,
)
from labelwise.model.inputs import Documents, TrainingDocuments, as_any_documents, as_dataset, as_documents
from labelwise.model.label_file import ModelLabels
from labelwise.model.predictions import (
    CALIBRATION_K,
    LabelFilter,
    all_above,
    check_scores,
    checked_k,
    checked_limits,
    k_from_data,
)
from labelwise.model.signature import documented, signature_of
from labelwise.registry import method_class, methods_that
from labelwise.runtime.fit_context import FitContext, limited_time
from labelwise.runtime.time_budget import NO_LIMIT, TimeBudget
from labelwise.strings import Strings
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.labelspace.tree import LabelPath, LabelTree
    from labelwise.model.calibration import CalibrationReport
    from labelwise.model.card import Card
    from labelwise.model.explanation import Explanation
    from labelwise.model.learning import LearningReport, NewDocuments
    from labelwise.nn.images.inputs import ImageInputs
    from labelwise.nn.text.transformer import AttentionMap


# --- capabilities ---
# What only some methods can do: an attribute per capability, and its hook, which raises unless a method overrides it.
#
# The command line and messages use the attributes, never the name of a method.


class Capabilities:
    """Base of `Method`: the optional parts of the contract."""

    name: ClassVar[str]
    card_: Card

    changeable: ClassVar[tuple[str, ...]] = ()
    """Parameters that predictions read each time, so that they may be changed after fitting."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Packages that the method needs in addition to those of the core install."""
    good_for: ClassVar[str] = ""
    """In a few words: the data and the machine that the method suits."""
    speed: ClassVar[str] = ""
    """In a few words: how long training takes."""

    reads_all_inputs: ClassVar[bool] = False
    """Whether a model predicts for every type of `inputs`, whatever it was trained on."""
    chooses_labels: ClassVar[bool] = False
    """Whether predictions can be restricted to some labels, and labels weighted."""

    encodes: ClassVar[bool] = False
    """Whether `encode` works: documents have vectors."""
    attends: ClassVar[bool] = False
    """Whether `attention` works: tokens attend to tokens."""
    verifies: ClassVar[bool] = False
    """Whether vectors of images tell whether two show the same: `labelwise verify`."""
    explains: ClassVar[bool] = False
    """Whether `explain` works."""
    shows_pixels: ClassVar[bool] = False
    """Whether `explain` works for images: it returns a `PixelMap` per label."""
    validates: ClassVar[bool] = False
    """Whether `fit` uses its `valid` documents, to stop early or to keep the best weights."""
    learns_more: ClassVar[bool] = False
    """Whether `learn` works: a fitted model can be trained on more documents, which may have new labels."""
    trains_in_parts: ClassVar[bool] = False
    """Whether `fit_parts` works: parts of a model can be trained by separate processes."""
    trains_in_tasks: ClassVar[bool] = False
    """Whether `fit` has work that shares nothing, which an executor may distribute: `train --launcher`."""
    trains_on_ranks: ClassVar[bool] = False
    """Whether `fit` may run in several processes under torchrun, which then train together."""

    refits: ClassVar[bool] = True
    """Whether training again on more documents makes another model: not of models that are trained already."""

    shrinks: ClassVar[bool] = False
    """Whether `shrink` works: trained weights can be pruned or stored in fewer bits."""

    plans: ClassVar[bool] = False
    """Whether `labelwise plan` can say what it costs."""

    def learn(self, data: Any, labels: Any = None, *, old: Any = None) -> LearningReport:
        """Train a fitted model on more documents, which may have new labels, for methods with `learns_more`.

        Much faster than `fit` on all documents and nearly as good, as long as they are few compared with those of
        `fit`; the report says when a full training is due. New labels are appended, others keep their ids.

        Parameters
        ----------
        data, labels
            Documents with their labels, as in `fit`.
        old
            A Dataset of documents that the model was trained on. Known documents in `data` are then skipped, or
            learned with their changed labels, and new labels are trained against old documents, which makes them as
            good as in `fit`.
        """
        from labelwise.model.learning import learn

        return learn(self, data, labels, old)  # type: ignore[bad-argument-type]

    def shrink(self, *, precision: str | None = None, threshold: float | None = None) -> Self:
        """A smaller model, without training; this one does not change. For methods with `shrinks`.

        Parameters
        ----------
        precision
            Store the weights as `float16` or `int8`.
        threshold
            Drop weights with an absolute value below this.

        Returns
        -------
        Method
            For linear methods the model that training with this `precision` and `solver.threshold` gives (without
            `matcher` negatives, which depend on the weights). The calibration is kept; scores differ slightly.
        """
        self._check_fitted()
        if precision is None and threshold is None:
            raise ConfigError("shrink needs a precision, such as int8, a threshold, such as 0.2, or both")
        smaller = self._shrink(precision, threshold)
        dropped = [] if threshold is None else [f"weights below {threshold:g} dropped"]
        stored = [] if precision is None else [f"weights stored as {precision}"]
        smaller.card_ = self.card_.with_change(f"shrunk: {', '.join(dropped + stored)}")
        return smaller

    def sibling_groups(self) -> np.ndarray | None:
        """For each label (by its id) the group of labels that the first tree separates last; None without a tree."""
        tree = self._label_tree()
        return None if tree is None or tree.depth < 2 else tree.ancestors(tree.depth - 2)

    def _label_tree(self) -> LabelTree | None:
        """The first tree over labels, of methods that have some."""
        return None

    @classmethod
    def saved_learns_more(cls, config: Any, arrays: Collection[str]) -> bool:
        """Whether a saved model with these parameters, and arrays of these names, can `learn`."""
        return cls.learns_more

    def _check_fitted(self) -> None:
        raise NotImplementedError

    # --- hooks ---

    def _predict_chosen(self, data: Documents, k: int, chosen: LabelFilter) -> TopK:
        """The best k labels with some left out or weighted, for methods with `chooses_labels`."""
        raise ConfigError(f"{self.name} cannot leave out or weight labels; {methods_that('chooses_labels')} can")

    def _explain(self, data: Documents, labels: np.ndarray) -> list[list[LabelPath]]:
        """Per tree the paths of some labels (ids), for one document."""
        raise ConfigError(f"{self.name} cannot explain its predictions; {methods_that('explains')} can")

    def _top_contributions(self, data: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Features with the largest positive contributions [documents, k, count], -1 for none, and the amounts.

        For methods with `explains`; a method that can do better than one explanation per document overrides it.
        """
        from labelwise.model.explanation import contributions_one_by_one

        return contributions_one_by_one(self, data, labels, count)

    def _encode(self, data: Documents) -> np.ndarray:
        """The documents' vectors."""
        raise ConfigError(f"{self.name} has no document vectors; {methods_that('encodes')} can")

    def image_vectors(self, data: Documents | ImageInputs) -> np.ndarray:
        """Vectors of images, whatever the model was trained on; their norms have a meaning."""
        raise ConfigError(f"{self.name} has no vectors to compare images by; {methods_that('verifies')} has")

    def _attention(self, data: Documents, tokens: int) -> list[AttentionMap]:
        """The documents' attention."""
        raise ConfigError(f"{self.name} has no attention among tokens; {methods_that('attends')} has")

    def _feature_names(self, columns: np.ndarray) -> list[str] | None:
        """Names of some features, or None if unknown."""
        return None

    def _counted_words(self, words: Sequence[str]) -> list[str]:
        """What each word of a text is counted as, '' if it is not; to find the words of explanations in a text."""
        return [word.lower() for word in words]

    def _shrink(self, precision: str | None, threshold: float | None) -> Self:
        """A smaller model: weights in this precision, and without those below the threshold (None: as they are)."""
        raise ConfigError(f"{self.name} cannot be shrunk after training; {methods_that('shrinks')} can")

    def _check_restored(self) -> None:
        """Check what `_restore` has left to be checked at the first use; not called with `verify=False`."""

    def _learn(self, new: NewDocuments) -> tuple[int, tuple[str, ...]]:
        """Train on more documents, for methods with `learns_more`; an error must leave the model unchanged.

        Returns the number of new features, and the reasons why a full training is due.
        """
        raise NotImplementedError

    def _cost(self, shape: DataShape, constants: Constants) -> Cost:
        """What training and prediction cost with the current parameters, for methods with `plans`."""
        raise ConfigError(f"{self.name} has no model of its cost; {methods_that('plans')} can be planned")

    def check_parts(self, numbers: Sequence[int]) -> Path:
        """Raise unless these parts can be trained alone; returns the folder of finished ones."""
        raise ConfigError(f"{self.name} is not made of repetitions; {methods_that('trains_in_parts')} is")

    def fit_parts(
        self, data: Dataset, numbers: Sequence[int], valid: Dataset | None = None, context: FitContext | None = None
    ) -> Path:
        """Train some parts and write them to the folder of `check_parts`, which is returned."""
        return self.check_parts(numbers)


# --- presets ---
# Presets: named sets of parameters for a purpose, such as `cpu`, that a config or a constructor starts from.
#
# A preset replaces defaults; every parameter that is given besides it wins, and a section that is given in part keeps
# the preset's other fields. Resolved configs and saved models hold the parameters, not the name of the preset.

PRESET = "preset"
"""Key of a config's model section."""


def with_preset(method: type[Method], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a model section, with the defaults of its preset filled in; unchanged without one."""
    given = {key: value for key, value in parameters.items() if key != PRESET}
    name = parameters.get(PRESET)
    if name is None:
        return given
    if not method.presets:
        raise ConfigError(f"{PRESET}: {method.name} has none; leave it out")
    if name not in method.presets:
        raise ConfigError(f"{PRESET}: {method.name} has no preset '{name}'; {did_you_mean(str(name), method.presets)}")
    completed = method.Config(**method.presets[name]).completed(given)
    return {
        key: value.model_dump(mode="json", exclude_unset=True) if isinstance(value, Config) else value
        for key, value in completed.items()
    }


# --- estimator ---
# scikit-learn's conventions for methods: parameters, also nested ones, tags, classes and sparse score matrices.
#
# scikit-learn itself is never imported, except by the one method that only it calls.

NESTED = "__"
"""Between a section and its field in a parameter's name, as scikit-learn writes it: solver__cost_positive."""
SPARSE_K = 100
"""Labels per document in the matrices of `predict_proba` and `decision_function`."""


class Estimator:
    """Base of `Method`: what scikit-learn's searches, pipelines and `clone` use."""

    Config: ClassVar[type[BaseConfig]] = BaseConfig
    """The parameters; each method has its own nested class."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named sets of parameters, such as `cpu`; see `presets.py`."""

    label_names_: Strings
    calibration_: Any = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "Config" in cls.__dict__:  # so that help() and editors show the parameters
            cls.__signature__ = signature_of(cls.Config)  # type: ignore[missing-attribute]
            cls.__doc__ = documented(cls.__doc__, cls.Config)

    def __init__(self, **params: Any) -> None:
        self._params: dict[str, Any] = {}
        self.config: Any = self.Config()
        self._configure(params)

    @classmethod
    def from_preset(cls, preset: str, **params: Any) -> Self:
        """A method with the parameters of a preset, such as `cpu`, and those given, which win."""
        return cls(**with_preset(cls, {**params, PRESET: preset}))  # type: ignore[bad-argument-type]

    # --- parameters ---

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters by name, as given; with `deep` also fields of sections, as ``solver__cost_positive``."""
        params = {key: self._params.get(key, getattr(self.config, key)) for key in self.Config.model_fields}
        return params | (dict(_nested(self.config)) if deep else {})

    def set_params(self, **params: Any) -> Self:
        """Change parameters; unknown names and invalid values raise an error and change nothing."""
        self._configure(params)
        return self

    @classmethod
    def completed_parameters(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The given parameters, with those that follow from files that they name; not called for saved models."""
        return given

    def _configure(self, params: Mapping[str, Any]) -> None:
        """Check and set parameters, those of sections after the sections themselves."""
        merged = self._params | {key: value for key, value in params.items() if NESTED not in key}
        try:
            config = validated(self.Config, self.completed_parameters(merged))
            before = dict(_nested(config))
            changed = {
                key: value
                for key, value in params.items()
                if NESTED in key and (key not in before or not _equal(before[key], value))
            }
            for key, value in changed.items():
                _set_nested(merged, self.Config, key.split(NESTED), value)
            self.config = validated(self.Config, self.completed_parameters(merged)) if changed else config
        except ConfigError as error:
            raise ConfigError(f"{type(self).__name__}: {error}") from None
        self._params = merged

    def __repr__(self) -> str:
        """The parameters that differ from the defaults."""
        default = self.Config()
        changed = [
            f"{key}={value!r}" for key, value in self._params.items()
            if not _equal(getattr(self.config, key), getattr(default, key))
        ]  # fmt: skip
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """Sparse features and texts in, several labels per document out.

        Not a classifier by its tag: scikit-learn refuses lists of labels for classifiers, and stratifies nothing here.
        """
        from sklearn import utils  # only ever called by scikit-learn itself

        return utils.Tags(  # type: ignore[missing-attribute]
            estimator_type=None,
            target_tags=utils.TargetTags(required=True, multi_output=True),  # type: ignore[missing-attribute]
            input_tags=utils.InputTags(sparse=True, string=True),  # type: ignore[missing-attribute]
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "label_names_")

    # --- classes, and scores as matrices ---

    @property
    def classes_(self) -> np.ndarray:
        """The label names, in the order of the columns of `predict_proba` and `decision_function`."""
        return np.array(list(self.label_names_), dtype=object)

    def predict_proba(self, documents: Any, k: int = SPARSE_K) -> sparse.csr_array:
        """Probabilities of the best k labels per document, sparse [documents, labels]; others are not stored.

        Only of a calibrated model: the scores of others are not probabilities. Rows do not sum to 1, because a
        document may have several labels.
        """
        self._check_fitted()
        if self.calibration_ is None:
            raise NotFittedError(
                f"this {type(self).__name__} is not calibrated, so it has no probabilities: call calibrate with "
                "held-out documents first, or use decision_function for its scores"
            )
        return self._scores(documents, k, calibrated=True)

    def decision_function(self, documents: Any, k: int = SPARSE_K) -> sparse.csr_array:
        """Scores of the best k labels per document, before calibration, sparse [documents, labels].

        Labels that are not stored have lower scores. Scores below 0 raise an error, because a sparse matrix would
        rank them below the labels that it does not store; `predict` returns them.
        """
        self._check_fitted()
        scores = self._scores(documents, k, calibrated=False)
        if (scores.data < 0).any():
            raise DataError(
                f"scores of this {type(self).__name__} are below 0, less than what a sparse matrix does not store: "
                "use predict, or predict_proba after calibrate"
            )
        return scores

    def _scores(self, documents: Any, k: int, calibrated: bool) -> sparse.csr_array:
        n_labels = len(self.label_names_)
        top = self._ranked(self._as_documents(documents), min(checked_k(k), n_labels))
        return (self.calibration_.apply(top) if calibrated else top).to_csr(n_labels)

    def _check_fitted(self) -> None:
        raise NotImplementedError

    def _as_documents(self, documents: Any) -> Any:
        raise NotImplementedError

    def _ranked(self, data: Any, k: int) -> TopK:
        raise NotImplementedError


def _nested(config: BaseConfig, prefix: str = "") -> Any:
    """Names and values of the fields of all sections, each section before its own sections."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseConfig):
            for field in type(value).model_fields:
                yield f"{prefix}{name}{NESTED}{field}", getattr(value, field)
            yield from _nested(value, f"{prefix}{name}{NESTED}")


def _set_nested(values: dict[str, Any], owner: type[BaseConfig], path: list[str], value: Any) -> None:
    """Set a field of a section in the given values, where the section may be a mapping, a config or missing."""
    from labelwise.config import sections_of

    name, rest = path[0], path[1:]
    if not rest:
        values[name] = value
        return
    field = owner.model_fields.get(name)
    sections = sections_of(field.annotation) if field is not None else []
    if field is not None and not sections:
        raise ConfigError(f"{NESTED.join(path)}: {name} is not a section with keys of its own")
    given = values.get(name)
    inner = given.given_fields() if isinstance(given, BaseConfig) else dict(given) if isinstance(given, Mapping) else {}
    _set_nested(inner, sections[0] if sections else owner, rest, value)
    values[name] = inner


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


log = logging.getLogger("labelwise")


class Method(Estimator, Capabilities):
    """Base class of all methods.

    Parameters are the fields of the nested `Config`, given by keyword and checked at once. After `fit` or `load`:
    ``label_names_``, ``label_texts_`` (or None), ``label_counts_`` (training documents per label), ``n_documents_``,
    ``n_features_in_`` (None when the model reads texts), ``trained_on_`` (hashes of the training documents; None for
    older folders), ``card_`` (data, date and versions, scores of its run). After `calibrate`: ``calibration_`` and
    ``threshold_``, both None before; setting ``calibration_`` to None restores the plain scores.
    """

    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]] = ("texts", "features")
    """Types of documents the method reads, the preferred one first."""
    learns: ClassVar[bool] = True
    """False for baselines that ignore the document."""
    same_on_any_threads: ClassVar[bool] = True
    """False if the last bits of the result depend on the number of threads, as with torch."""

    label_names_: Strings
    label_texts_: Strings | None
    label_counts_: np.ndarray
    n_documents_: int
    trained_on_: TrainingDocuments | None = None
    feature_width_: FeatureWidth | None
    input_: str
    fitted_config_: Any
    calibration_: Calibration | None = None
    card_: Card
    _loaded_from: Path | None = None

    @property
    def time_budget(self) -> float | None:
        """Wall-clock seconds for all of `fit`, the field `time_budget` of the config or its section `training`."""
        return getattr(getattr(self.config, "training", self.config), "time_budget", None)

    # --- fit and predict ---

    def check_needs(self) -> None:
        """Raise errors that `fit` would raise for any data: missing packages or files. Runs call this first."""

    def resolved_parameters(self) -> dict[str, Any]:
        """All parameters as plain data, and what else identifies the result, such as the files that they name."""
        return self.config.model_dump(mode="json")

    def _documents_behind(self, hashes: np.ndarray) -> np.ndarray:
        """Hashes of all documents that the model will depend on, from those of `fit`; none if it ignores them."""
        return hashes if self.learns else hashes[:0]

    def remarks(self) -> list[str]:
        """What a person should know of this model before relying on its results, besides what any evaluation says."""
        return []

    def fit(
        self, data: Any, labels: Any = None, *, valid: Dataset | None = None, context: FitContext | None = None
    ) -> Self:
        """Train on a `Dataset`, or on documents and their labels.

        Parameters
        ----------
        data
            A `Dataset`, or documents: texts or paths (lists of str), features (CSR, dense or `Blocks`),
            arrays (the first axis is the documents).
        labels
            Unless `data` is a Dataset: CSR [documents, labels], or a list of labels per document.
        valid
            Held-out documents for methods that stop early. Never the test set.
        context
            Where to keep checkpoints and log metrics; a run sets it.
        """
        begin = time.monotonic()
        dataset = as_dataset(data, labels, self.inputs)
        if len(dataset) == 0:
            raise DataError(f"{dataset.name}: there are no documents to train on")
        if dataset.n_labels == 0:
            raise DataError(f"{dataset.name}: there are no labels to learn")
        kind = self._kind_of(dataset)
        both = kind == "features" or self._reads_vectors()
        width = FeatureWidth.of(dataset.features) if both else None
        held_out = valid.align(dataset.label_names) if valid is not None else None
        if held_out is not None and held_out.features is not None and width is not None:
            held_out = replace(held_out, features=width.fitted(held_out.features, held_out.open_columns))
        self.__dict__.pop("label_names_", None)  # a failed fit must not leave the model looking fitted
        with limited_time(context or FitContext(), self.time_budget, begin) as timed:
            hashes = document_hashes(dataset, kind)
            behind = self._documents_behind(hashes)  # before hours of training: it may read files
            self._fit(dataset, kind, held_out, timed)
        self.calibration_, self._loaded_from = None, None
        self.fitted_config_ = self.config
        self.input_ = kind
        self.feature_width_ = width
        self.label_names_ = dataset.label_names
        self.label_texts_ = dataset.label_texts
        self.label_counts_ = dataset.label_counts()
        self.n_documents_ = len(dataset)
        self.trained_on_ = TrainingDocuments.of(dataset.labels, behind)
        self.card_ = card_of(self, dataset, hashes)
        return self

    def predict(
        self,
        documents: Any,
        k: int | None = None,
        *,
        threshold: float | Literal["auto"] | None = None,
        labels: Any = None,
        label_weights: Any = None,
    ) -> TopK:
        """The best labels of each document, best first, ties in order of label ids.

        Parameters
        ----------
        documents
            A Dataset, or documents of the type the model was trained on: texts, paths, features or arrays, or a single
            text or path.
        k
            At most so many labels per document. The result then has k columns; where the model predicts fewer labels
            they are empty. Not given: 10, or with a threshold as many as reach it.
        threshold
            Only labels with at least this score; `auto` is the calibrated threshold. Without k nothing else limits the
            number of labels, and the result has as many columns as its longest row needs.
        labels
            Names, ids or a mask of the only labels to predict, or what `label_filter` returned, which is not checked
            again at each call. For methods with `chooses_labels`.
        label_weights
            A mapping or a vector of factors; scores are multiplied by them before calibration. For the same methods.

        Returns
        -------
        TopK
            Labels and scores. The scores of a calibrated model are probabilities.
        """
        self._check_fitted()
        count, least = checked_limits(k, threshold, self.threshold_)
        data, chosen = self._as_documents(documents), self.label_filter(labels, label_weights)

        def ranked(rows: np.ndarray | None, k: int) -> TopK:
            top = self._ranked(data if rows is None else data.take(rows), k, chosen)
            return top if self.calibration_ is None else self.calibration_.apply(top)

        if count is not None:
            top = ranked(None, count)
            return top if least is None else top.above(least)
        assert least is not None
        first = k_from_data(CALIBRATION_K, self.trained_on_)  # scores of several trees depend on it, so as in calibrate
        return all_above(ranked, least, len(data), len(self.label_names_), first)

    def _ranked(self, data: Documents, k: int, chosen: LabelFilter | None = None) -> TopK:
        """The best k labels, before calibration."""
        count = min(k, len(self.label_names_))
        top = self._predict(data, count) if chosen is None else self._predict_chosen(data, count, chosen)
        if self._loaded_from is not None:
            check_scores(top, self._loaded_from, filtered=chosen is not None)
        return TopK(top.ids, top.scores, self.label_names_).padded(k)

    def _as_documents(self, documents: Any) -> Documents:
        if self.reads_all_inputs:
            return as_any_documents(documents, self.input_, self.inputs)
        return as_documents(documents, self.input_, self.feature_width_)

    def label_filter(self, labels: Any = None, label_weights: Any = None) -> LabelFilter | None:
        """`labels` and `label_weights` of `predict`, checked once for many calls; None when neither is given."""
        self._check_fitted()
        return LabelFilter.of(labels, label_weights, self.label_names_)

    def score(self, data: Any, labels: Any = None) -> float:
        """P@1 on labelled documents, for scikit-learn's hyperparameter searches."""
        from labelwise.metrics.evaluate import evaluate

        self._check_fitted()
        dataset = as_dataset(data, labels, (self.input_, *self.inputs), self.label_names_)
        return evaluate(self.predict(dataset, k=1), dataset, metrics=["P@1"])["P@1"]

    # --- probabilities and explanations ---

    def calibrate(
        self,
        data: Any,
        labels: Any = None,
        *,
        k: int | None = None,
        precision: float | None = None,
        budget: TimeBudget = NO_LIMIT,
    ) -> CalibrationReport:
        """Fit the calibration of scores to probabilities, and choose a threshold; the ranking does not change.

        Parameters
        ----------
        data, labels
            Held-out documents with their labels, as in `fit`; neither training nor test documents.
        k
            Predicted labels per document to calibrate on. None: 20 or, if the training documents have more labels, as
            many as 99 % of them have, and for each document all labels that reach the threshold.
        precision
            Choose the threshold with this precision. None: the one with the best micro-F1.
        budget
            Calibrate on as many of the documents, drawn at random, as there is time for; a run sets it.

        Returns
        -------
        CalibrationReport
            Threshold, expected precision and recall, and calibration error before and after; `print` shows a summary.
        """
        from labelwise.model.calibrate import calibrate

        self._check_fitted()
        dataset = as_dataset(data, labels, (self.input_, *self.inputs), self.label_names_).align(self.label_names_)
        return calibrate(self, dataset, k, precision, budget)

    @property
    def threshold_(self) -> float | None:
        """Labels with at least this probability are to be assigned; None before `calibrate`."""
        return None if self.calibration_ is None else self.calibration_.threshold

    def explain(
        self, document: Any, labels: Sequence[str] | None = None, k: int = 5, terms: int | None = 10
    ) -> list[Explanation]:
        """Why one document gets its labels: the path in each tree, and the contributions of words.

        Parameters
        ----------
        document
            A text, a row of features, or a Dataset with one document.
        labels
            Names of labels to explain, predicted or not. None: the best k.
        k
            Labels to explain when none are named.
        terms
            Words to list per label, by largest contribution; None lists all.
        """
        from labelwise.model.explanation import explanations

        return explanations(self, document, labels, k, terms)

    def encode(self, documents: Any) -> np.ndarray:
        """One vector per document, float32 [documents, width], for methods with `encodes`."""
        self._check_fitted()
        return self._encode(self._as_documents(documents))

    def attention(self, documents: Any, tokens: int = 32) -> list[AttentionMap]:
        """Attention per layer among at most `tokens` tokens per document, for methods with `attends`; slow."""
        self._check_fitted()
        return self._attention(self._as_documents(documents), tokens)

    @property
    def n_features_in_(self) -> int | None:
        """Columns of the training features, None if the model reads something else; scikit-learn's name."""
        return None if self.feature_width_ is None else self.feature_width_.columns

    def _check_fitted(self) -> None:
        if not hasattr(self, "label_names_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit, or labelwise.load")

    def _reads_vectors(self) -> bool:
        """Whether it is to read features next to texts; `feature_width_` is then that of these features."""
        return False

    def _kind_of(self, dataset: Dataset) -> str:
        for kind in self.inputs:
            if getattr(dataset, kind) is not None:
                return kind
        hint = ""
        if self.inputs == ("features",) and dataset.texts is not None:
            hint = "; texts become features with labelwise.features.tfidf.Tfidf, or inside the method with TextFeatures"
        elif "paths" in self.inputs and dataset.texts is not None:
            hint = "; the column of a table with paths of files is named by data.options.path_column"
        raise DataError(f"{dataset.name}: {self.name} needs {' or '.join(self.inputs)}, the data has none{hint}")

    # --- hooks of a method ---

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, context: FitContext) -> None:
        """Train; `kind` is the type of documents to use: texts, features, paths or arrays."""
        raise NotImplementedError

    def _predict(self, data: Documents, k: int) -> TopK:
        """The best k labels; k is at most the number of labels."""
        raise NotImplementedError

    def _state(self) -> dict[str, np.ndarray]:
        """The learned state, as named arrays."""
        raise NotImplementedError

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        """Restore what `_state` returned. The arrays may be untrusted: check all that a kernel relies on."""
        raise NotImplementedError

    # --- files ---

    def save(self, path: str | Path, force: bool = False) -> None:
        """Write a model folder: everything needed to predict from raw input, without executable content."""
        write_model(self.name, self._saved(), path, force)

    def _saved(self) -> SavedModel:
        """What a model folder holds of this model."""
        self._check_fitted()
        labels = ModelLabels(self.label_names_, self.label_texts_, self.label_counts_)
        if self.calibration_ is None:
            self.card_ = self.card_.model_copy(update={"calibration": None})
        now = {field: getattr(self.config, field) for field in self.changeable}  # others take effect in the next fit
        config = self.fitted_config_.model_copy(update=now)
        return SavedModel(
            config, labels, self.input_, self.n_documents_, self.feature_width_, self._state(),
            self.calibration_, self.trained_on_, self.card_,
        )  # fmt: skip

    def save_calibration(self, path: str | Path) -> None:
        """Write only the calibration, into a folder this model was saved to."""
        self._check_fitted()
        if self.calibration_ is None:
            raise NotFittedError(f"this {type(self).__name__} is not calibrated: call calibrate first")
        write_calibration(self.calibration_, self.card_, path)

    @classmethod
    def _from_folder(cls, folder: store.Folder) -> Self:
        model = cls()
        saved = read_model(folder, cls.Config, cls.inputs)
        model.config = model.fitted_config_ = saved.config
        model._params = {key: getattr(saved.config, key) for key in cls.Config.model_fields}
        labels = saved.labels
        model.label_names_, model.label_texts_, model.label_counts_ = labels.names, labels.texts, labels.counts
        model.input_, model.n_documents_, model.feature_width_ = saved.input, saved.n_documents, saved.width
        model._restore(saved.state, folder.file(store.STATE_FILE))
        if folder.verify:
            model._check_restored()
        model.calibration_, model.trained_on_ = saved.calibration, saved.trained_on
        model.card_, model._loaded_from = saved.card, folder.path
        return model


def load(path: str | Path, verify: bool = True) -> Method:
    """Open a model folder written by `Method.save`, or the model of a run folder; its manifest decides the class.

    Weights are memory-mapped. `verify=False` skips the comparison of hashes and the check for weights that are not
    finite, for large models on a trusted disk; indices of linear weights are then checked when they are used first.
    """
    return load_folder(store.Folder(model_folder(path), "model", verify))


def load_folder(folder: store.Folder) -> Method:
    """The model of an opened folder."""
    name = folder.manifest.get("method")
    try:
        method = method_class(name if isinstance(name, str) else repr(name))
    except ConfigError as error:
        raise unknown_method(folder, error) from None
    return method._from_folder(folder)
