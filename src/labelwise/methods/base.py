"""The contract of every method: fit, predict, save, load, in scikit-learn's manners.

A method is a subclass with a nested ``Config``, a ``name`` and four hooks: `_fit`, `_predict`, `_state`, `_restore`.
Everything else (checking inputs, names of labels, probabilities, folders on disk, parameters) is here, so that it is
the same for all. A method that can say why it predicts a label has a fifth hook, `_explain`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from labelwise import store
from labelwise.config import Config as BaseConfig
from labelwise.config import validated
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError, ModelFormatError, NotFittedError
from labelwise.fit_context import FitContext
from labelwise.methods.calibration import Calibration
from labelwise.methods.inputs import Documents, as_dataset, as_inputs, in_blocks
from labelwise.methods.label_filter import LabelFilter
from labelwise.methods.model_folder import read_model, write_calibration, write_model
from labelwise.registry import method_class, methods_that
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK

if TYPE_CHECKING:
    from labelwise.codes.label_path import LabelPath
    from labelwise.encoders.attention import AttentionMap
    from labelwise.methods.explanation import Explanation
    from labelwise.methods.threshold import CalibrationReport

MAX_PLACES = 100_000


class Method:
    """Base class of all methods.

    Parameters are the fields of the nested `Config`, given by keyword and checked at once. After `fit` or `load`:
    ``label_names_``, ``label_texts_`` (or None), ``label_counts_`` (training documents a label), ``n_documents_`` and
    ``n_features_in_`` (None when the model reads texts). After `calibrate`: ``calibration_`` and ``threshold_``, both
    None before; setting ``calibration_`` to None brings the plain scores back.
    """

    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]] = ("texts", "features")
    """What a document may be given as, the preferred kind first."""
    learns: ClassVar[bool] = True
    """False for baselines that do not look at the document."""
    same_on_any_threads: ClassVar[bool] = True
    """False where the last bits of what is learned depend on the number of threads, as with torch."""

    chooses_labels: ClassVar[bool] = False
    """Whether predictions can be kept to some labels, and labels weighed."""

    encodes: ClassVar[bool] = False
    """Whether documents get vectors: `encode` works."""
    attends: ClassVar[bool] = False
    """Whether tokens attend to tokens: `attention` works."""
    explains: ClassVar[bool] = False
    """Whether predictions can be explained: `explain` works."""
    trains_in_parts: ClassVar[bool] = False
    """Whether parts of a model can be trained alone, by processes of their own: `fit_parts` works."""

    Config: ClassVar[type[BaseConfig]] = BaseConfig
    """The parameters; a method replaces it by a nested class."""

    label_names_: Strings
    label_texts_: Strings | None
    label_counts_: np.ndarray
    n_documents_: int
    n_features_in_: int | None
    input_: str
    calibration_: Calibration | None = None
    _loaded_from: Path | None = None

    def __init__(self, **params: Any) -> None:
        self._params: dict[str, Any] = {}
        self.config: Any = self.Config()
        self._configure(params)

    # --- parameters, as scikit-learn expects them ---

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters by name, as they were given."""
        del deep  # nothing here has parameters of its own
        return {key: self._params.get(key, getattr(self.config, key)) for key in self.Config.model_fields}

    def set_params(self, **params: Any) -> Self:
        """Change parameters; unknown names and bad values are refused and change nothing."""
        self._configure(params)
        return self

    def _configure(self, params: Mapping[str, Any]) -> None:
        merged = {**self._params, **params}
        try:
            self.config = validated(self.Config, merged)
        except ConfigError as error:
            raise ConfigError(f"{type(self).__name__}: {error}") from None
        self._params = merged

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self._params.items())
        return f"{type(self).__name__}({given})"

    def __sklearn_tags__(self) -> Any:
        from sklearn import utils  # only ever called by scikit-learn itself

        return utils.Tags(  # type: ignore[missing-attribute]
            estimator_type=None,
            target_tags=utils.TargetTags(required=True, multi_output=True),  # type: ignore[missing-attribute]
            input_tags=utils.InputTags(sparse=True, string=True),  # type: ignore[missing-attribute]
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "label_names_")

    # --- fit and predict ---

    def check_needs(self) -> None:
        """Raise what `fit` is bound to raise whatever the data: a package or a file is missing. Runs ask this first."""

    def fit(
        self, data: Any, labels: Any = None, *, valid: Dataset | None = None, context: FitContext | None = None
    ) -> Self:
        """Learn from a `Dataset`, or from documents and their labels.

        Parameters
        ----------
        data
            A `Dataset`, or what the method reads: texts or paths (lists of str), features (CSR, dense or `Blocks`),
            arrays (the first axis is the documents).
        labels
            With anything but a Dataset: CSR [documents, labels], or for each document its labels.
        valid
            Held-out documents for methods that stop early. Never the test set.
        context
            Where to keep unfinished work and log numbers; a run sets it.
        """
        dataset = as_dataset(data, labels, self.inputs)
        if len(dataset) == 0:
            raise DataError(f"{dataset.name}: there is no document to learn from")
        if dataset.n_labels == 0:
            raise DataError(f"{dataset.name}: there is no label to learn")
        kind = self._kind_of(dataset)
        held_out = valid.align(dataset.label_names) if valid is not None else None
        self.__dict__.pop("label_names_", None)  # a fit that fails half-way must not be taken for the one before
        self._fit(dataset, kind, held_out, context or FitContext())
        self.calibration_, self._loaded_from = None, None
        self.input_ = kind
        self.n_features_in_ = dataset.features.shape[1] if kind == "features" else None  # type: ignore[union-attr]
        self.label_names_ = dataset.label_names
        self.label_texts_ = dataset.label_texts
        self.label_counts_ = dataset.label_counts()
        self.n_documents_ = len(dataset)
        return self

    def predict(self, documents: Any, k: int = 10, *, labels: Any = None, label_weights: Any = None) -> TopK:
        """The k best labels of each document, best first, equal scores to the lower label id.

        `documents` is a Dataset, or documents of the kind the model was trained on: texts, paths, features or arrays;
        a single text or path may stand alone. There are always k places; where the
        model has fewer labels to offer they stay empty. Of a calibrated model the scores are probabilities.

        `labels` (names, numbers or a mask) are the only ones to choose from; `label_weights` (a mapping or a vector)
        are what scores are multiplied by, before they become probabilities. Methods with `chooses_labels` can do that.
        `labels` may also be what `label_filter` made of both, which is not checked again at each call.
        """
        top = self._scored(documents, k, labels, label_weights)
        return top if self.calibration_ is None else self.calibration_.apply(top)

    def _scored(self, documents: Any, k: int, labels: Any = None, label_weights: Any = None) -> TopK:
        """What `predict` gives before calibration."""
        self._check_fitted()
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k <= MAX_PLACES:
            raise ConfigError(f"k must be a whole number from 1 to {MAX_PLACES:,}, got {k!r}")
        dataset = as_inputs(documents, self.input_, self.n_features_in_)
        most = min(int(k), len(self.label_names_))
        chosen = self.label_filter(labels, label_weights)
        top = self._predict(dataset, most) if chosen is None else self._predict_chosen(dataset, most, chosen)
        if self._loaded_from is not None:
            _check_scores(top, self._loaded_from, filtered=chosen is not None)
        missing = int(k) - top.k
        ids, scores = top.ids, top.scores
        if missing:
            ids = np.pad(ids, ((0, 0), (0, missing)), constant_values=NO_LABEL)
            scores = np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf)
        return TopK(ids, scores, self.label_names_)

    def label_filter(self, labels: Any = None, label_weights: Any = None) -> LabelFilter | None:
        """`labels` and `label_weights` of `predict`, checked once for many calls; None when neither is given."""
        self._check_fitted()
        return LabelFilter.of(labels, label_weights, self.label_names_)

    def score(self, data: Any, labels: Any = None) -> float:
        """P@1 on labelled documents, so that scikit-learn's searches have something to maximise."""
        from labelwise.metrics.evaluate import evaluate

        self._check_fitted()
        dataset = as_dataset(data, labels, (self.input_,))
        return evaluate(self.predict(dataset, k=1), dataset, metrics=["P@1"])["P@1"]

    # --- probabilities and explanations ---

    def calibrate(
        self, data: Any, labels: Any = None, *, k: int = 20, precision: float | None = None
    ) -> CalibrationReport:
        """Learn to turn scores into probabilities, and choose a threshold; the ranking of labels stays as it is.

        Parameters
        ----------
        data, labels
            Held-out documents with their labels, as in `fit`. Neither training nor test documents.
        k
            Predicted labels of each document to learn from.
        precision
            Choose the threshold so that this share of the labels above it is right. None: for the best micro-F1.

        Returns
        -------
        CalibrationReport
            Threshold, what to expect at it, and how far scores were and are from the truth; `print` sums it up.
        """
        from labelwise.methods.threshold import calibrate

        self._check_fitted()
        dataset = as_dataset(data, labels, (self.input_,)).align(self.label_names_)
        if len(dataset) == 0:
            raise DataError(f"{dataset.name}: there is no document to calibrate on")
        top = in_blocks(lambda part: self._scored(part, k), dataset, "calibrating")
        self.calibration_, report = calibrate(top, dataset, precision)
        return report

    @property
    def threshold_(self) -> float | None:
        """The probability from which on a label is worth giving out; None before `calibrate`."""
        return None if self.calibration_ is None else self.calibration_.threshold

    def explain(
        self, document: Any, labels: Sequence[str] | None = None, k: int = 5, terms: int | None = 10
    ) -> list[Explanation]:
        """Why one document gets its labels: the path in each tree, and the words that speak for and against.

        Parameters
        ----------
        document
            A text, a row of features, or a Dataset with one document.
        labels
            Names of labels to explain, predicted or not. None: the best k.
        k
            Labels to explain when none are named.
        terms
            Words to list for each label, the weightiest; None lists all.
        """
        from labelwise.methods.explanation import explanations

        return explanations(self, document, labels, k, terms)

    def encode(self, documents: Any) -> np.ndarray:
        """One vector for each document, float32 [documents, width], from a method that makes some."""
        self._check_fitted()
        return self._encode(as_inputs(documents, self.input_, self.n_features_in_))

    def attention(self, documents: Any, tokens: int = 32) -> list[AttentionMap]:
        """Attention by layer among at most so many tokens of each document, from a method that has some; slow."""
        self._check_fitted()
        return self._attention(as_inputs(documents, self.input_, self.n_features_in_), tokens)

    def _check_fitted(self) -> None:
        if not hasattr(self, "label_names_"):
            raise NotFittedError(
                f"this {type(self).__name__} has not learned anything yet: call fit, or labelwise.load"
            )

    def _kind_of(self, dataset: Dataset) -> str:
        for kind in self.inputs:
            if getattr(dataset, kind) is not None:
                return kind
        raise DataError(f"{dataset.name}: {self.name} needs {' or '.join(self.inputs)}, the data has none")

    # --- hooks of a method ---

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, context: FitContext) -> None:
        """Learn; `kind` says which of the data set's texts, features, paths or arrays to use."""
        raise NotImplementedError

    def _predict(self, data: Documents, k: int) -> TopK:
        """The best k labels; k is never above the number of labels."""
        raise NotImplementedError

    def _predict_chosen(self, data: Documents, k: int, chosen: LabelFilter) -> TopK:
        """The same with labels left out or weighed, for methods with `chooses_labels`."""
        raise ConfigError(f"{self.name} cannot leave out or weigh labels; {methods_that('chooses_labels')} can")

    def _state(self) -> dict[str, np.ndarray]:
        """What was learned, as named arrays."""
        raise NotImplementedError

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        """Take back what `_state` gave. The arrays may come from a stranger: check all that a kernel relies on."""
        raise NotImplementedError

    def _explain(self, data: Documents, labels: np.ndarray) -> list[list[LabelPath]]:
        """For each tree the paths of some labels (ids), for a data set of one document."""
        raise ConfigError(f"{self.name} cannot explain its predictions; {methods_that('explains')} can")

    def _encode(self, data: Documents) -> np.ndarray:
        """The documents' vectors."""
        raise ConfigError(f"{self.name} makes no vectors of documents; {methods_that('encodes')} can")

    def _attention(self, data: Documents, tokens: int) -> list[AttentionMap]:
        """The documents' attention."""
        raise ConfigError(f"{self.name} has no attention among tokens; {methods_that('attends')} has")

    def _feature_names(self, columns: np.ndarray) -> list[str] | None:
        """What some features are called, where the model knows."""
        return None

    # --- parts that are trained alone, for methods with `trains_in_parts` ---

    def check_parts(self, numbers: Sequence[int]) -> Path:
        """Raise unless these parts can be trained alone; the folder where finished ones are kept."""
        raise ConfigError(f"{self.name} is not made of repetitions; {methods_that('trains_in_parts')} is")

    def fit_parts(
        self, data: Dataset, numbers: Sequence[int], valid: Dataset | None = None, context: FitContext | None = None
    ) -> Path:
        """Train some parts alone and put them into the folder of `check_parts`, which is returned."""
        return self.check_parts(numbers)

    # --- files ---

    def save(self, path: str | Path, force: bool = False) -> None:
        """Write a model folder: all that is needed to predict from raw input, and nothing that can run."""
        self._check_fitted()
        write_model(self, path, force)

    def save_calibration(self, path: str | Path) -> None:
        """Put the calibration into a folder this model was saved to, without writing the rest again."""
        self._check_fitted()
        if self.calibration_ is None:
            raise NotFittedError(f"this {type(self).__name__} is not calibrated: call calibrate first")
        write_calibration(self.calibration_, path)

    @classmethod
    def _from_folder(cls, folder: store.Folder) -> Self:
        model = cls()
        read_model(model, folder)
        return model


def _check_scores(top: TopK, folder: Path, filtered: bool) -> None:
    """Refuse scores that are not finite, and documents without any label although none was left out: NaN ends so."""
    if np.isfinite(top.scores).all():
        return
    empty = top.ids == NO_LABEL
    wrong = ~(np.isfinite(top.scores) | empty)
    if not filtered:
        wrong[:, :1] |= empty[:, :1]
    if wrong.any():
        raise ModelFormatError(
            f"{folder}: the scores of document {int(wrong.any(1).argmax())} are not finite numbers; the weights are "
            "damaged, the training has diverged, or features of the document are too large"
        )


def load(path: str | Path, verify: bool = True) -> Method:
    """Open a model folder written by `Method.save`; its manifest decides the class.

    Weights are mapped, not read into memory. `verify=False` neither compares hashes nor looks for weights that are
    not finite, for large models on a disk one trusts.
    """
    folder = store.Folder(path, "model", verify)
    name = folder.manifest.get("method")
    try:
        kind = method_class(name if isinstance(name, str) else repr(name))
    except ConfigError as error:
        raise ModelFormatError(f"{folder.path / store.MANIFEST}: {error}") from None
    return kind._from_folder(folder)
