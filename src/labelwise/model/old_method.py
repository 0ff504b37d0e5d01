"""Methods with hooks for everything, until each has a `Fitted` and `_fit` alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.dataset import Dataset
from labelwise.data.hashing import document_hashes
from labelwise.errors import ConfigError, DataError
from labelwise.io import folder as store
from labelwise.model.card import card_of
from labelwise.model.feature_width import FeatureWidth
from labelwise.model.folder import read_model
from labelwise.model.identity import fit_identity
from labelwise.model.inputs import Documents, TrainingDocuments, as_dataset, training_kind
from labelwise.model.method import Method
from labelwise.model.predictions import LabelFilter
from labelwise.registry import methods_that
from labelwise.runtime.job import Job, limited_time
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.labelspace.tree import LabelPath, LabelTree
    from labelwise.model.learning import NewDocuments
    from labelwise.nn.images.inputs import ImageInputs
    from labelwise.nn.text.transformer import AttentionMap


class OldFitted:
    """The hooks of an old method as a `Fitted`."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def tree(self) -> Any:
        return self.model._label_tree()

    @property
    def remarks(self) -> Any:
        return self.model._remarks()

    def top(self, documents: Documents, k: int, config: Any) -> TopK:
        return self.model._predict(documents, k)

    def top_of(self, documents: Documents, k: int, config: Any, chosen: LabelFilter) -> TopK:
        return self.model._predict_chosen(documents, k, chosen)

    def explain(self, documents: Documents, labels: np.ndarray, config: Any) -> list[list[LabelPath]]:
        return self.model._explain(documents, labels)

    def contributions(self, documents: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        return self.model._top_contributions(documents, labels, count)

    def names(self, columns: np.ndarray) -> list[str] | None:
        return self.model._feature_names(columns)

    def counted(self, words: Sequence[str]) -> list[str]:
        return self.model._counted_words(words)

    def vectors(self, documents: Documents, config: Any) -> np.ndarray:
        return self.model._encode(documents)

    def attention(self, documents: Documents, tokens: int, config: Any) -> list[AttentionMap]:
        return self.model._attention(documents, tokens)

    def tensors(self) -> dict[str, np.ndarray]:
        return self.model._state()


class OldMethod(Method):
    """Base of the methods that do not return a `Fitted`."""

    Fitted: ClassVar[Any] = OldFitted
    OLD_FLAGS: ClassVar[dict[str, str]] = {
        "top_of": "chooses_labels", "explain": "explains", "pixels": "shows_pixels", "vectors": "encodes",
        "attention": "attends", "image_vectors": "verifies", "learned": "learns_more", "shrunk": "shrinks",
    }  # fmt: skip
    chooses_labels: ClassVar[bool] = False
    encodes: ClassVar[bool] = False
    attends: ClassVar[bool] = False
    verifies: ClassVar[bool] = False
    explains: ClassVar[bool] = False
    shows_pixels: ClassVar[bool] = False
    learns_more: ClassVar[bool] = False
    shrinks: ClassVar[bool] = False
    trains_in_parts: ClassVar[bool] = False
    plans: ClassVar[bool] = False

    @property
    def fitted_(self) -> Any:  # type: ignore[bad-override]
        return OldFitted(self)

    @property
    def cost(self) -> Callable[..., Cost] | None:  # type: ignore[bad-override]
        return (lambda config, shape, constants: self._cost(shape, constants)) if self.plans else None

    def fit(
        self, data: Any = None, labels: Any = None, *, valid: Dataset | None = None, job: Job | None = None
    ) -> Self:
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
        with limited_time(job or Job(), self.time_budget, begin) as timed:
            hashes = document_hashes(dataset, kind)
            before = self.config.documents_before()  # before hours of training: it may read files
            behind = np.concatenate([hashes, *before]) if self.learns else hashes[:0]
            if timed.folder is not None:
                timed = replace(timed, identity=fit_identity(self, self.config, dataset, held_out))
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

    def shrink(self, *, precision: str | None = None, threshold: float | None = None) -> Self:
        self._check_fitted()
        if precision is None and threshold is None:
            raise ConfigError("shrink needs a precision, such as int8, a threshold, such as 0.2, or both")
        smaller = self._shrink(precision, threshold)
        dropped = [] if threshold is None else [f"weights below {threshold:g} dropped"]
        stored = [] if precision is None else [f"weights stored as {precision}"]
        smaller.card_ = self.card_.with_change(f"shrunk: {', '.join(dropped + stored)}")
        return smaller

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

    def _reads_vectors(self) -> bool:
        return False

    def _kind_of(self, dataset: Dataset) -> str:
        return training_kind(dataset, self.inputs, self.name)

    def _remarks(self) -> list[str]:
        return []

    # --- hooks ---

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, job: Job) -> None:  # type: ignore[bad-override]
        raise NotImplementedError

    def _predict(self, data: Documents, k: int) -> TopK:
        raise NotImplementedError

    def _state(self) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        raise NotImplementedError

    def _label_tree(self) -> LabelTree | None:
        return None

    @classmethod
    def saved_learns_more(cls, config: Any, arrays: Collection[str]) -> bool:
        return cls.learns_more

    def _predict_chosen(self, data: Documents, k: int, chosen: LabelFilter) -> TopK:
        raise NotImplementedError

    def _explain(self, data: Documents, labels: np.ndarray) -> list[list[LabelPath]]:
        raise NotImplementedError

    def _top_contributions(self, data: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        from labelwise.model.explanation import contributions_one_by_one

        return contributions_one_by_one(self, data, labels, count)

    def _encode(self, data: Documents) -> np.ndarray:
        raise NotImplementedError

    def image_vectors(self, data: Documents | ImageInputs) -> np.ndarray:
        raise ConfigError(f"{self.name} has no vectors to compare images by; {methods_that('image_vectors')} has")

    def _attention(self, data: Documents, tokens: int) -> list[AttentionMap]:
        raise NotImplementedError

    def _feature_names(self, columns: np.ndarray) -> list[str] | None:
        return None

    def _counted_words(self, words: Sequence[str]) -> list[str]:
        return [word.lower() for word in words]

    def _shrink(self, precision: str | None, threshold: float | None) -> Self:
        raise ConfigError(f"{self.name} cannot be shrunk after training; {methods_that('shrunk')} can")

    def _check_restored(self) -> None:
        pass

    def _learn(self, new: NewDocuments) -> tuple[int, tuple[str, ...]]:
        raise NotImplementedError

    def _cost(self, shape: DataShape, constants: Constants) -> Cost:
        raise NotImplementedError

    def check_parts(self, numbers: Sequence[int]) -> Path:
        raise ConfigError(f"{self.name} is not made of repetitions; mach is")

    def fit_parts(
        self, data: Dataset, numbers: Sequence[int], valid: Dataset | None = None, job: Job | None = None
    ) -> Path:
        return self.check_parts(numbers)
