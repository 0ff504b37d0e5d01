"""The contract of every method: fit, predict, save, load, with scikit-learn's conventions (`Estimator`).

A method is a subclass with a nested ``Config``, a ``name`` and four hooks: `_fit`, `_predict`, `_state`, `_restore`.
Everything else (checking inputs, names of labels, probabilities, folders on disk, parameters) is here, so that it is
the same for all. What only some methods can do is in `capabilities.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from labelwise import store
from labelwise.data.dataset import Dataset
from labelwise.data.document_hash import document_hashes
from labelwise.errors import ConfigError, DataError, NotFittedError
from labelwise.fit_context import FitContext, limited_time
from labelwise.methods.calibration import Calibration
from labelwise.methods.capabilities import Capabilities
from labelwise.methods.card import Card, card_of
from labelwise.methods.estimator import Estimator
from labelwise.methods.feature_width import FeatureWidth
from labelwise.methods.inputs import Documents, as_any_documents, as_dataset, as_documents
from labelwise.methods.label_file import ModelLabels
from labelwise.methods.label_filter import LabelFilter
from labelwise.methods.model_folder import (
    SavedModel,
    read_model,
    unknown_method,
    write_calibration,
    write_model,
)
from labelwise.methods.predictions import CALIBRATION_K, all_above, check_scores, checked_limits, k_from_data
from labelwise.methods.training_documents import TrainingDocuments
from labelwise.registry import method_class
from labelwise.run_schema import model_folder
from labelwise.strings import Strings
from labelwise.time_budget import NO_LIMIT, TimeBudget
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.encoders.attention import AttentionMap
    from labelwise.methods.explanation import Explanation
    from labelwise.methods.threshold import CalibrationReport

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
        from labelwise.methods.calibrate import calibrate

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
        from labelwise.methods.explanation import explanations

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
