"""The contract of every method: fit, predict, save, load, with scikit-learn's conventions (`Estimator`).

A method is a subclass with a nested `Config`, a `name`, a class `Fitted` for what it learns, and one hook: `_fit`, the
steps from training documents to a `Fitted`. Everything else (checking inputs, names of labels, probabilities, folders
on disk, parameters) is here, the same for all methods.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.data.hashing import document_hashes
from labelwise.errors import ConfigError, DataError, NotFittedError, check_installed
from labelwise.io import folder as store
from labelwise.io.folder import model_folder
from labelwise.model.calibration import Calibration
from labelwise.model.card import Card, card_of
from labelwise.model.estimator import NESTED, Estimator
from labelwise.model.fitted import Fitted, ModelLabels, Saved, require
from labelwise.model.folder import (
    SavedModel,
    member_folders,
    read_model,
    unknown_method,
    write_calibration,
    write_model,
)
from labelwise.model.inputs import (
    Documents,
    FeatureWidth,
    TrainingDocuments,
    as_any_documents,
    as_dataset,
    as_documents,
    as_held_out,
    fit_identity,
    kinds_to_train_on,
)
from labelwise.model.predictions import CALIBRATION_K, LabelFilter, all_above, check_scores, checked_limits, k_from_data
from labelwise.registry import method_class
from labelwise.runtime.budget import NO_LIMIT, Budget
from labelwise.runtime.job import Job, limited_time
from labelwise.strings import Strings
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.model.calibration import CalibrationReport
    from labelwise.model.explanation import Explanation
    from labelwise.model.learning import LearningReport
    from labelwise.nn.text.transformer import AttentionMap


class Prepared(NamedTuple):
    """The documents of a fit."""

    data: Any
    """As they are given."""
    train: Any
    """What the method reads of them."""
    valid: Dataset | None
    """The same of held-out documents."""
    hashes: np.ndarray
    """Of the documents to train on."""
    known: dict[str, Any]
    """What the model will say of them, by attribute."""


class Method(Estimator):
    """Base class of all methods.

    Parameters are the fields of the nested `Config`, given by keyword and checked at once. After `fit` or `load`:
    ``fitted_`` (what was learned; its members are attributes of the model too, as ``trees_`` for ``fitted_.trees``),
    ``label_names_``, ``label_texts_`` (or None), ``label_counts_`` (training documents per label), ``n_documents_``,
    ``n_features_in_`` (None when the model reads texts), ``trained_on_`` (hashes of the training documents; None for
    older folders), ``card_`` (data, date and versions, scores of its run). After `calibrate`: ``calibration_`` and
    ``threshold_``, both None before; setting ``calibration_`` to None restores the plain scores.
    """

    name: ClassVar[str]
    Fitted: ClassVar[type[Fitted]]
    """What `_fit` returns: what a model can do follows from its members (`labelwise.model.fitted`)."""
    inputs: ClassVar[tuple[str, ...]] = ("texts", "features")
    """Types of documents the method reads, the preferred one first."""

    # what pages and checks say about the method; none of it is about what a fitted model can do
    needs: ClassVar[tuple[str, ...]] = ()
    """Packages that the method needs in addition to those of the core install."""
    extra: ClassVar[str] = "nn"
    """The extra of the installation that has these packages."""
    good_for: ClassVar[str] = ""
    """In a few words: the data and the machine that the method suits."""
    speed: ClassVar[str] = ""
    """In a few words: how long training takes."""
    changeable: ClassVar[tuple[str, ...]] = ()
    """Parameters that predictions read each time, so that they may be changed after fitting."""
    learns: ClassVar[bool] = True
    """False for baselines that ignore the document."""
    needs_data: ClassVar[bool] = True
    """Whether `fit` needs documents: not a model of models that may be trained already."""
    reads_all_inputs: ClassVar[bool] = False
    """Whether a model predicts for every type of `inputs`, whatever it was trained on."""
    same_on_any_threads: ClassVar[bool] = True
    """False if the last bits of the result depend on the number of threads, as with torch."""
    validates: ClassVar[bool] = False
    """Whether `fit` uses its `valid` documents, to stop early or to keep the best weights."""
    trains_in_tasks: ClassVar[bool] = False
    """Whether `fit` has work that shares nothing, which may be distributed: `train --launcher`."""
    trains_on_ranks: ClassVar[bool] = False
    """Whether `fit` may run in several processes under torchrun, which then train together."""
    refits: ClassVar[bool] = True
    """Whether training again on more documents makes another model: not of models that are trained already."""
    cost: ClassVar[Callable[..., Any] | None] = None
    """What training and prediction cost, for `labelwise plan`, of a method of another package."""

    fitted_: Any
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

    def __getattr__(self, name: str) -> Any:
        """Members of what was learned under scikit-learn's names: `trees_` is `fitted_.trees`."""
        fitted = self.__dict__.get("fitted_")
        if name.endswith("_") and not name.startswith("_") and hasattr(fitted, name[:-1]):
            return getattr(fitted, name[:-1])
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    # --- the hook ---

    def _fit(self, train: Any, valid: Dataset | None, job: Job) -> Any:
        """Train, and return a `Fitted`; sets nothing on `self`.

        `train` has documents of one type, `train.kind`, and labels as CSR; `valid` the same, in the same label space.
        """
        raise NotImplementedError

    # --- fit and predict ---

    def fact(self, name: str) -> Any:
        """An attribute of the class, such as `needs`, unless the parameters, or what was learned, say otherwise."""
        facts = self.config.facts()
        if "label_names_" in self.__dict__ and hasattr(self.fitted_, "facts"):
            facts |= self.fitted_.facts()
        return facts.get(name, getattr(self, name))

    @property
    def time_budget(self) -> float | None:
        """Wall-clock seconds for all of `fit`, the field `time_budget` of the config or its section `training`."""
        return getattr(getattr(self.config, "training", self.config), "time_budget", None)

    def check_needs(self) -> None:
        """Raise errors that `fit` would raise for any data: missing packages or files. Runs call this first."""
        check_installed(self.name, self.extra, *self.needs)
        self.config.check_files()

    def fit(
        self, data: Any = None, labels: Any = None, *, valid: Dataset | None = None, job: Job | None = None
    ) -> Self:
        """Train on a `Dataset`, or on documents and their labels. Nothing is saved: `save` writes the model.

        Parameters
        ----------
        data
            A `Dataset`, or documents: texts or paths (lists of str), features (CSR, dense or `Blocks`),
            arrays (the first axis is the documents).
        labels
            Unless `data` is a Dataset: CSR [documents, labels], or a list of labels per document.
        valid
            Held-out documents for methods that stop early. Never the test set.
        job
            Where to keep checkpoints and log metrics; a run sets it.
        """
        with self.prepared(data, labels, valid, job) as (given, own):
            self.__dict__.pop("label_names_", None)  # a failed fit must not leave the model looking fitted
            fitted = self._fit(given.train, given.valid, own)
        known = fitted.about(given.known) if hasattr(fitted, "about") else given.known
        self._become(fitted, known)
        if "card_" not in known:
            self.card_ = card_of(self, given.data, given.hashes)
        return self

    def _become(self, fitted: Any, known: Mapping[str, Any]) -> None:
        """Have this learned, with what the model says of its training documents, by attribute."""
        self.__dict__.update(known)
        self.fitted_, self.fitted_config_, self.calibration_, self._loaded_from = fitted, self.config, None, None

    @contextmanager
    def prepared(
        self, data: Any, labels: Any, valid: Dataset | None, job: Job | None
    ) -> Iterator[tuple[Prepared, Job]]:
        """What `_fit` gets, from what `fit` is given: checked documents, and a job with its identity and time."""
        begin = time.monotonic()
        self.check_needs()
        dataset = self._training_data(data, labels)
        with limited_time(job or Job(), self.time_budget, begin) as own:
            given = self._prepared(dataset, valid)
            if own.folder is not None or self.config.parts_folder is not None:
                own = replace(own, identity=fit_identity(self, self.config, given.train, given.valid, given.hashes))
            yield given, own

    def _training_data(self, data: Any, labels: Any) -> Dataset | None:
        """The documents to train on, checked."""
        if data is None and not self.needs_data:
            return None
        inputs = self.config.facts().get("inputs", self.inputs)  # not those of what was learned before
        dataset = as_dataset(data, labels, inputs or self.inputs)
        if len(dataset) == 0:
            raise DataError(f"{dataset.name}: there are no documents to train on")
        if dataset.n_labels == 0:
            raise DataError(f"{dataset.name}: there are no labels to learn")
        return dataset

    def _prepared(self, data: Dataset | None, valid: Dataset | None) -> Prepared:
        if data is None or not self.fact("refits"):  # documents to learn on how to combine models
            return Prepared(data, data, valid, np.empty(0, np.uint64), {})
        kinds = kinds_to_train_on(self, data)
        train = data.only("texts" if "texts" in kinds else min(kinds), "features" in kinds)
        width = None if train.features is None else FeatureWidth.of(train.features)
        hashes = document_hashes(train, train.kind)
        behind = np.concatenate([hashes, *self.config.documents_before()]) if self.learns else hashes[:0]
        known = {
            "input_": train.kind,
            "feature_width_": width,
            "n_documents_": len(data),
            "label_names_": data.label_names,
            "label_texts_": data.label_texts,
            "label_counts_": data.label_counts(),
            "trained_on_": TrainingDocuments.of(data.labels, behind),
        }
        held_out = None if valid is None else as_held_out(valid, train, width)
        return Prepared(data, train, held_out, hashes, known)

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
            again at each call. For methods that can leave out labels.
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
        if chosen is None:
            top = self.fitted_.top(data, count, self.config)
        else:
            require(self, "top_of")
            top = self.fitted_.top_of(data, count, self.config, chosen)
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

    # --- what surrounds predictions ---

    def calibrate(
        self,
        data: Any,
        labels: Any = None,
        *,
        k: int | None = None,
        precision: float | None = None,
        budget: Budget = NO_LIMIT,
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
        from labelwise.model.calibration import calibrate

        self._check_fitted()
        dataset = as_dataset(data, labels, (self.input_, *self.inputs), self.label_names_).align(self.label_names_)
        return calibrate(self, dataset, k, precision, budget)

    @property
    def threshold_(self) -> float | None:
        """Labels with at least this probability are to be assigned; None before `calibrate`."""
        return None if self.calibration_ is None else self.calibration_.threshold

    def explain(
        self,
        document: Any,
        labels: Sequence[str] | None = None,
        k: int = 5,
        terms: int | Literal["auto"] | None = "auto",
    ) -> list[Explanation]:
        """Why one document gets its labels: paths in trees and contributions of words, or parts of an image.

        Parameters
        ----------
        document
            A text, a row of features, a path or array of an image, or a Dataset with one document.
        labels
            Names of labels to explain, predicted or not. None: the best k.
        k
            Labels to explain when none are named.
        terms
            Words to list per label, by largest contribution, or parts per side of an image. None: all words; `auto`: 10
            words, 8 parts.
        """
        from labelwise.model.explanation import explanations

        return explanations(self, document, labels, k, terms)

    def encode(self, documents: Any) -> np.ndarray:
        """One vector per document, float32 [documents, width], for methods that have document vectors."""
        self._check_fitted()
        require(self, "vectors")
        return self.fitted_.vectors(self._as_documents(documents), self.config)

    def attention(self, documents: Any, tokens: int = 32) -> list[AttentionMap]:
        """Attention per layer among at most `tokens` tokens per document, for methods that have it; slow."""
        self._check_fitted()
        require(self, "attention")
        return self.fitted_.attention(self._as_documents(documents), tokens, self.config)

    def learn(self, data: Any, labels: Any = None, *, old: Any = None) -> LearningReport:
        """Train a fitted model on more documents, which may have new labels, for methods that can learn more.

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

        return learn(self, data, labels, old)

    def shrink(self, *, precision: str | None = None, threshold: float | None = None) -> Self:
        """A smaller model, without training; this one does not change. For methods that can be shrunk.

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
        require(self, "shrunk")
        if precision is None and threshold is None:
            raise ConfigError("shrink needs a precision, such as int8, a threshold, such as 0.2, or both")
        fitted, changed = self.fitted_.shrunk(precision, threshold, self.config)
        smaller = copy.copy(self).set_params(**changed)
        sections = {name.partition(NESTED)[0] for name in changed}
        now = {section: getattr(smaller.config, section) for section in sections}
        smaller.fitted_, smaller.fitted_config_ = fitted, self.fitted_config_.model_copy(update=now)
        dropped = [] if threshold is None else [f"weights below {threshold:g} dropped"]
        stored = [] if precision is None else [f"weights stored as {precision}"]
        smaller.card_ = self.card_.with_change(f"shrunk: {', '.join(dropped + stored)}")
        return smaller

    def sibling_groups(self) -> np.ndarray | None:
        """For each label (by its id) the group of labels that the first tree separates last; None without a tree."""
        tree = getattr(self.fitted_, "tree", None)
        return None if tree is None or tree.depth < 2 else tree.ancestors(tree.depth - 2)

    def remarks(self) -> list[str]:
        """What a person should know of this model before relying on its results, besides what any evaluation says."""
        return list(getattr(self.fitted_, "remarks", ()))

    @property
    def n_features_in_(self) -> int | None:
        """Columns of the training features, None if the model reads something else; scikit-learn's name."""
        return None if self.feature_width_ is None else self.feature_width_.columns

    def _check_fitted(self) -> None:
        if "label_names_" not in self.__dict__:
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit, or labelwise.load")

    # --- files ---

    @classmethod
    def of(cls, fitted: Any, saved: SavedModel) -> Self:
        """A model from what was learned elsewhere: from a folder, or imported."""
        model = cls()
        model.config = model.fitted_config_ = saved.config
        model._params = {key: getattr(saved.config, key) for key in cls.Config.model_fields}
        labels = saved.labels
        model.label_names_, model.label_texts_, model.label_counts_ = labels.names, labels.texts, labels.counts
        model.input_, model.n_documents_, model.feature_width_ = saved.input, saved.n_documents, saved.width
        model.calibration_, model.trained_on_, model.card_ = saved.calibration, saved.trained_on, saved.card
        model.fitted_ = fitted
        return model

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
        members = tuple((member.name, member._saved()) for member in getattr(self.fitted_, "members", ()))
        return SavedModel(
            self.fitted_config_.model_copy(update=now), labels, self.input_, self.n_documents_, self.feature_width_,
            self.fitted_.tensors(), self.calibration_, self.trained_on_, self.card_, members,
        )  # fmt: skip

    def save_calibration(self, path: str | Path) -> None:
        """Write only the calibration, into a folder this model was saved to."""
        self._check_fitted()
        if self.calibration_ is None:
            raise NotFittedError(f"this {type(self).__name__} is not calibrated: call calibrate first")
        write_calibration(self.calibration_, self.card_, path)

    @classmethod
    def _from_folder(cls, folder: store.Folder) -> Self:
        saved = read_model(folder, cls.Config, cls.inputs)
        members = tuple(load_folder(member) for member in member_folders(folder))
        path = folder.file(store.STATE_FILE)
        about = Saved(saved.config, saved.input, saved.labels.names, saved.width, path, members)
        fitted = cls.Fitted.from_tensors(saved.state, about)
        if members:
            saved = replace(saved, config=saved.config.with_members(members))
        if folder.verify and hasattr(fitted, "check"):
            fitted.check()
        model = cls.of(fitted, saved)
        model._loaded_from = folder.path
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
