"""The contract of every method: fit, predict, save, load, in scikit-learn's manners.

A method is a subclass with a nested ``Config``, a ``name`` and four hooks: `_fit`, `_predict`, `_state`, `_restore`.
Everything else (checking inputs, names of labels, folders on disk, parameters) is here, so that it is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from labelwise import store
from labelwise.config import Config as BaseConfig
from labelwise.config import validated
from labelwise.data.dataset import Dataset
from labelwise.data.label_space import check_distinct
from labelwise.errors import ConfigError, DataError, ModelFormatError, NotFittedError
from labelwise.methods.inputs import as_dataset, as_inputs
from labelwise.registry import method_class
from labelwise.strings import Strings
from labelwise.topk import NOTHING, TopK

LABELS_FILE = "labels.safetensors"
STATE_FILE = "state.safetensors"
CONFIG_FILE = "config.json"
MAX_PLACES = 100_000


def _no_log(**_numbers: Any) -> None:
    pass


@dataclass(frozen=True)
class FitContext:
    """What a run lends to a method while it trains."""

    checkpoints: Path | None = None
    """Folder for unfinished work, so that a killed run resumes; None when nothing is to be kept."""
    log: Callable[..., None] = field(default=_no_log)
    """Takes numbers by name (`log(step=10, loss=0.3)`) for metrics.jsonl."""


class Method:
    """Base class of all methods.

    Parameters are the fields of the nested `Config`, given by keyword and checked at once. After `fit` or `load`:
    ``label_names_``, ``label_texts_`` (or None), ``label_counts_`` (training documents a label), ``n_documents_`` and
    ``n_features_in_`` (None when the model reads texts).
    """

    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]] = ("texts", "features")
    """What a document may be given as, the preferred kind first."""
    learns: ClassVar[bool] = True
    """False for baselines that do not look at the document."""

    Config: ClassVar[type[BaseConfig]] = BaseConfig
    """The parameters; a method replaces it by a nested class."""

    label_names_: Strings
    label_texts_: Strings | None
    label_counts_: np.ndarray
    n_documents_: int
    n_features_in_: int | None
    input_: str

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

    def fit(
        self, data: Any, labels: Any = None, *, valid: Dataset | None = None, context: FitContext | None = None
    ) -> Self:
        """Learn from a `Dataset`, or from documents and their labels.

        Parameters
        ----------
        data
            A `Dataset`, or texts (a list of str), or features (CSR or dense).
        labels
            With anything but a Dataset: CSR [documents, labels], or for each document its labels.
        valid
            Held-out documents for methods that stop early. Never the test set.
        context
            Where to keep unfinished work and log numbers; a run sets it.
        """
        dataset = as_dataset(data, labels)
        if len(dataset) == 0:
            raise DataError(f"{dataset.name}: there is no document to learn from")
        if dataset.n_labels == 0:
            raise DataError(f"{dataset.name}: there is no label to learn")
        kind = self._kind_of(dataset)
        held_out = valid.align(dataset.label_names) if valid is not None else None
        self._fit(dataset, kind, held_out, context or FitContext())
        self.input_ = kind
        self.n_features_in_ = dataset.features.shape[1] if kind == "features" else None  # type: ignore[union-attr]
        self.label_names_ = dataset.label_names
        self.label_texts_ = dataset.label_texts
        self.label_counts_ = dataset.label_counts()
        self.n_documents_ = len(dataset)
        return self

    def predict(self, documents: Any, k: int = 10) -> TopK:
        """The k best labels of each document, best first, equal scores to the lower label id.

        `documents` is a Dataset, a list of texts, one text, or a feature matrix. There are always k places; where the
        model has fewer labels to offer they stay empty.
        """
        self._check_fitted()
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k <= MAX_PLACES:
            raise ConfigError(f"k must be a whole number from 1 to {MAX_PLACES:,}, got {k!r}")
        dataset = as_inputs(documents, self.input_, self.n_features_in_, self.label_names_)
        top = self._predict(dataset, min(int(k), len(self.label_names_)))
        missing = int(k) - top.k
        ids, scores = top.ids, top.scores
        if missing:
            ids = np.pad(ids, ((0, 0), (0, missing)), constant_values=NOTHING)
            scores = np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf)
        return TopK(ids, scores, self.label_names_)

    def score(self, data: Any, labels: Any = None) -> float:
        """P@1 on labelled documents, so that scikit-learn's searches have something to maximise."""
        from labelwise.metrics.evaluate import evaluate

        dataset = as_dataset(data, labels)
        return evaluate(self.predict(dataset, k=1), dataset, metrics=["P@1"])["P@1"]

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
        """Learn; `kind` says which of the data set's texts, features or paths to use."""
        raise NotImplementedError

    def _predict(self, data: Dataset, k: int) -> TopK:
        """The best k labels; k is never above the number of labels."""
        raise NotImplementedError

    def _state(self) -> dict[str, np.ndarray]:
        """What was learned, as named arrays."""
        raise NotImplementedError

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        """Take back what `_state` gave. The arrays may come from a stranger: check all that a kernel relies on."""
        raise NotImplementedError

    # --- files ---

    def save(self, path: str | Path, force: bool = False) -> None:
        """Write a model folder: all that is needed to predict from raw input, and nothing that can run."""
        self._check_fitted()
        about = {
            "method": self.name,
            "input": self.input_,
            "n_labels": len(self.label_names_),
            "n_documents": self.n_documents_,
            "n_features": self.n_features_in_,
        }
        labels = store.strings_to_tensors("names", self.label_names_)
        labels["counts"] = self.label_counts_.astype(np.int64)
        if self.label_texts_ is not None:
            labels |= store.strings_to_tensors("texts", self.label_texts_)
        with store.new_folder(path, "model", about, force) as folder:
            folder.write_json(CONFIG_FILE, self.config.model_dump(mode="json"))
            folder.write_tensors(LABELS_FILE, labels)
            folder.write_tensors(STATE_FILE, self._state())

    @classmethod
    def _from_folder(cls, folder: store.Folder) -> Self:
        config = folder.read_json(CONFIG_FILE)
        if not isinstance(config, dict):
            raise ModelFormatError(f"{folder.path / CONFIG_FILE}: a mapping is needed")
        model = cls()
        try:
            held = validated(cls.Config, config)
            model._configure({key: getattr(held, key) for key in cls.Config.model_fields})
        except ConfigError as error:
            raise ModelFormatError(f"{folder.path / CONFIG_FILE}: {error}") from None
        model._restore_labels(folder)
        model._restore(folder.tensors(STATE_FILE), folder.path / STATE_FILE)
        return model

    def _restore_labels(self, folder: store.Folder) -> None:
        path = folder.path / LABELS_FILE
        tensors = folder.tensors(LABELS_FILE)
        manifest = folder.manifest
        names = store.strings_from_tensors("names", tensors, path)
        texts = store.strings_from_tensors("texts", tensors, path) if "texts.ends" in tensors else None
        counts = store.stored(tensors, "counts", path)
        n_documents, n_features = manifest.get("n_documents"), manifest.get("n_features")
        sound = (
            counts.ndim == 1
            and counts.dtype == np.int64
            and len(names) == manifest.get("n_labels") == len(counts) > 0
            and (texts is None or len(texts) == len(names))
            and type(n_documents) is int
            and (counts >= 0).all()
            and (counts <= n_documents).all()
            and manifest.get("input") in self.inputs
            and (type(n_features) is int and n_features >= 0 if manifest["input"] == "features" else True)
        )
        if not sound:
            raise ModelFormatError(f"{path}: the labels do not fit the manifest")
        try:
            check_distinct(names, str(path))
        except DataError as error:
            raise ModelFormatError(str(error)) from None
        self.label_names_, self.label_texts_, self.label_counts_ = names, texts, counts
        self.n_documents_, self.input_ = n_documents, manifest["input"]
        self.n_features_in_ = n_features if self.input_ == "features" else None


def load(path: str | Path, verify: bool = True) -> Method:
    """Open a model folder written by `Method.save`; its manifest decides the class.

    Weights are mapped, not read. `verify=False` skips comparing hashes, for large models on a disk one trusts.
    """
    folder = store.Folder(path, "model", verify)
    name = folder.manifest.get("method")
    try:
        kind = method_class(name if isinstance(name, str) else repr(name))
    except ConfigError as error:
        raise ModelFormatError(f"{folder.path / store.MANIFEST}: {error}") from None
    return kind._from_folder(folder)
