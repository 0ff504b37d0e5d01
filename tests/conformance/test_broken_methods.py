"""The suite can fail: for every check there is a method broken in just that point, and the check catches it.

Each broken method is a nearest-centroid classifier (which passes everything) with one thing done wrong.
"""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from labelwise import registry
from labelwise.config import Config as BaseConfig
from labelwise.errors import DataError, LabelwiseError
from labelwise.io import folder as store
from labelwise.io.tensors import map_tensors, write_tensor_file
from labelwise.model.method import Method
from labelwise.testing.checks import CHECKS
from labelwise.testing.subject import Subject, read_picture
from labelwise.topk import TopK

WIDTH = 512


class CentroidModel:
    """Means of the documents of each label."""

    def __init__(self, weights, kind):
        self.weights, self.kind = weights, kind

    @staticmethod
    def vectors(data, kind):
        if kind == "features":
            return data.features
        rows, columns = [], []
        for row, text in enumerate(data.texts):
            for word in text.split():
                rows.append(row)
                columns.append(sum(ord(c) * 31**i for i, c in enumerate(word)) % WIDTH)
        return sparse.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=(len(data), WIDTH))

    def top(self, documents, k, config):
        top = [self.rows(documents.take(slice(i, i + 64)), k) for i in range(0, len(documents), 64)]
        if not top:
            return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
        return TopK.concatenate(top)

    def rows(self, data, k):
        return TopK.from_csr(self.scores(data), k)

    def scores(self, data):
        vectors = self.vectors(data, self.kind)
        if vectors.shape[1] != self.weights.shape[1]:
            raise DataError(f"documents of another shape than in training: {vectors.shape[1]} numbers")
        return vectors @ self.weights.T

    def tensors(self):
        return store.csr_to_tensors("weights", self.weights)

    @classmethod
    def from_tensors(cls, tensors, about):
        return cls(store.csr_from_tensors("weights", tensors, about.path), about.input)


class ArrayModel(CentroidModel):
    @staticmethod
    def vectors(data, kind):
        arrays = data.arrays
        return sparse.csr_array(arrays.reshape(len(arrays), np.prod(arrays.shape[1:])).astype(np.float32))


class PictureModel(CentroidModel):
    @staticmethod
    def vectors(data, kind):
        try:
            pictures = [read_picture(path) for path in data.paths]
        except OSError as error:
            raise DataError(f"{error.filename}: {error.strerror}") from None
        return sparse.csr_array(np.array(pictures).reshape(len(pictures), -1).astype(np.float32))


class Centroid(Method):
    """Scores a label by the product of the document with the label's mean document. Correct, small, not fast."""

    name = "centroid"
    inputs = ("texts", "features")
    Fitted = CentroidModel

    class Config(BaseConfig):
        """One parameter, so that there is something to clone."""

        power: float = 0.5
        """Label means are divided by the label's count to this power."""

    def _fit(self, train, valid, job):
        counts = np.maximum(train.label_counts(), 1) ** self.config.power
        weights = sparse.csr_array(train.labels.T / counts[:, None]) @ self.Fitted.vectors(train, train.kind)
        return self.Fitted(sparse.csr_array(weights, dtype=np.float32), train.kind)


class ArrayCentroid(Centroid):
    """The same for arrays of numbers."""

    inputs = ("arrays",)
    Fitted = ArrayModel


class PictureCentroid(Centroid):
    """The same for files of pictures."""

    inputs = ("paths",)
    Fitted = PictureModel


class ReadsNothing(Centroid):
    inputs = ()


class ReadsSounds(Centroid):
    inputs = ("sounds",)


class IgnoresTheDocument(Centroid):
    class Fitted(CentroidModel):
        def rows(self, data, k):
            top = super().rows(data, k)
            return TopK(np.roll(top.ids, 1, axis=0), np.roll(top.scores, 1, axis=0))


class WorstFirst(Centroid):
    class Fitted(CentroidModel):
        def rows(self, data, k):
            top = super().rows(data, k)
            return TopK(top.ids[:, ::-1], top.scores[:, ::-1])


class DependsOnTheBatch(Centroid):
    class Fitted(CentroidModel):
        def top(self, documents, k, config):
            top = super().top(documents, k, config)
            return TopK(top.ids, (top.scores * np.float32(1 + 0.01 * len(documents))))


class ForgetsOnSave(Centroid):
    class Fitted(CentroidModel):
        def tensors(self):
            rounded = self.weights.copy()
            rounded.data = np.round(rounded.data, 1)
            return store.csr_to_tensors("weights", rounded)


class ShrinksNothing(Centroid):
    class Fitted(CentroidModel):
        def shrunk(self, precision, threshold, config):
            return self, {}


class CopiesOnLoad(Centroid):
    class Fitted(CentroidModel):
        @classmethod
        def from_tensors(cls, tensors, about):
            return super().from_tensors({key: np.array(value) for key, value in tensors.items()}, about)


class Moody(Centroid):
    calls = itertools.count()

    def _fit(self, train, valid, job):
        fitted = super()._fit(train, valid, job)
        fitted.weights.data *= np.random.default_rng(next(self.calls)).uniform(0.5, 1, len(fitted.weights.data))
        return fitted


class Remembers(Centroid):
    def _fit(self, train, valid, job):
        fitted = super()._fit(train, valid, job)
        if "fitted_" in vars(self):
            fitted.weights.data *= 0.5
        return fitted


class TooFewPlaces(Centroid):
    def predict(self, documents, k=10):
        return super().predict(documents, k).head(min(k, len(self.label_names_)))


class ChokesOnEmpty(Centroid):
    class Fitted(CentroidModel):
        def top(self, documents, k, config):
            if self.kind == "texts" and not all(text.split() for text in documents.texts):
                raise ZeroDivisionError
            return super().top(documents, k, config)


class RenamesLabels(Centroid):
    def predict(self, documents, k=10):
        if hasattr(documents, "label_names"):
            self.label_names_ = documents.label_names
        return super().predict(documents, k)


class PredictsUnfitted(Centroid):
    def _check_fitted(self):
        if not hasattr(self, "label_names_"):
            raise AttributeError("label_names_")


class NotCloneable(Centroid):
    def get_params(self, deep=True):
        return {"strength": 1}


class SwallowsUnknown(Centroid):
    def __init__(self, **params):
        super().__init__(**{k: v for k, v in params.items() if k in self.Config.model_fields})


class ScribblesOnInputs(Centroid):
    def _fit(self, train, valid, job):
        fitted = super()._fit(train, valid, job)
        train.labels.data *= 2
        return fitted


class Dense(Centroid):
    class Fitted(CentroidModel):
        def top(self, documents, k, config):
            return TopK.from_csr(sparse.csr_array(self.scores(documents).toarray() + np.float32(0)), k)


class DenseFit(Centroid):
    def _fit(self, train, valid, job):
        train.labels.toarray()
        return super()._fit(train, valid, job)


class DenseOutOfSight(Centroid):
    class Fitted(CentroidModel):
        def top(self, documents, k, config):
            torch.zeros(len(documents), self.weights.shape[0]).add_(1)
            return super().top(documents, k, config)


class UnmapsQuietly(Centroid):
    class Fitted(CentroidModel):
        @classmethod
        def from_tensors(cls, tensors, about):
            copies = {key: np.array(value) for key, value in tensors.items()}
            for copy in copies.values():
                copy.flags.writeable = False
            return super().from_tensors(copies, about)


class RoundsProbabilities(Centroid):
    def predict(self, documents, k=10):
        top = super().predict(documents, k)
        if self.calibration_ is None:
            return top
        scores = top.to_csr()
        scores.data = np.maximum(np.round(scores.data, 1), np.float32(0.01))
        return TopK.from_csr(scores, k, top.label_names)


class TakesAnything(Centroid):
    def predict(self, documents, k=10):
        try:
            return super().predict(documents, k)
        except Exception:
            return TopK(np.zeros((1, k), np.int32), np.zeros((1, k), np.float32), self.label_names_)


class LearnsNothing(Centroid):
    class Fitted(CentroidModel):
        def learned(self, new, config):
            return self, 0, ()


class Trusting(Centroid):
    @classmethod
    def _from_folder(cls, folder):
        folder.verify = False
        return super()._from_folder(folder)


class Unpickles(Centroid):
    @classmethod
    def _from_folder(cls, folder):
        content = Path(folder.path / "state.safetensors").read_bytes()
        if content.startswith(b"\x80"):
            pickle.loads(content)
        return super()._from_folder(folder)


class ResumesInexactly(Centroid):
    """Adds a second half of its weights to what it finds, which may have it already."""

    def _fit(self, train, valid, job):
        fitted = super()._fit(train, valid, job)
        if job.folder is None:
            return fitted
        job.folder.mkdir(parents=True, exist_ok=True)
        path = job.folder / "sum.safetensors"
        done = np.array(map_tensors(path)["sum"]) if path.exists() else np.zeros_like(fitted.weights.data)
        for _half in range(2):
            done += fitted.weights.data / 2
            write_tensor_file(path, {"sum": done})
        fitted.weights.data = done
        return fitted


class UsesAnyWork(Centroid):
    """Takes whatever it finds, of the right size or not."""

    def _fit(self, train, valid, job):
        fitted = super()._fit(train, valid, job)
        if job.folder is None:
            return fitted
        path = job.folder / "weights.safetensors"
        if path.exists():
            fitted.weights = store.csr_from_tensors("weights", map_tensors(path), path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensor_file(path, store.csr_to_tensors("weights", fitted.weights))
            job.log(done=1)
        return fitted


BROKEN = {
    "solves_planted_data": IgnoresTheDocument,
    "predictions_are_well_formed": WorstFirst,
    "batch_equals_single": DependsOnTheBatch,
    "save_and_load_are_exact": CopiesOnLoad,
    "shrinks_or_refuses": ShrinksNothing,
    "is_deterministic": Moody,
    "fit_again_forgets": Remembers,
    "more_places_than_labels": TooFewPlaces,
    "empty_rows": ChokesOnEmpty,
    "unseen_labels": RenamesLabels,
    "unfitted_is_refused": PredictsUnfitted,
    "sklearn_manners": NotCloneable,
    "unknown_parameters_are_refused": SwallowsUnknown,
    "inputs_are_left_alone": ScribblesOnInputs,
    "never_dense": Dense,
    "calibration_keeps_the_ranking": RoundsProbabilities,
    "learns_more": LearnsNothing,
    "wrong_inputs_are_refused": TakesAnything,
    "damaged_folders_are_refused": Trusting,
    "strangers_cannot_run_code": Unpickles,
    "resumes_exactly": ResumesInexactly,
    "never_reuses": UsesAnyWork,
}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    def register(kind):
        monkeypatch.setitem(registry.METHODS, "centroid", f"{__name__}:{kind.__name__}")
        return kind

    return register


@pytest.fixture(scope="module")
def sound():
    """Methods that pass everything, each with the fitted model that its checks read."""
    return {method: Subject(method) for method in (Centroid, ArrayCentroid, PictureCentroid)}


def test_every_check_has_a_broken_method():
    assert set(BROKEN) == set(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("method", [Centroid, ArrayCentroid, PictureCentroid])
def test_sound_methods_of_all_kinds_pass(method, check, tmp_path, registered, sound):
    registered(method)
    CHECKS[check](sound[method], tmp_path)


@pytest.mark.parametrize("check", CHECKS)
def test_the_broken_method_is_caught(check, tmp_path, registered):
    with pytest.raises((AssertionError, ArithmeticError, AttributeError, LabelwiseError, pytest.fail.Exception)):
        CHECKS[check](Subject(registered(BROKEN[check])), tmp_path)


BY_DOCUMENTS = set(CHECKS) - {"unfitted_is_refused", "unknown_parameters_are_refused"}


@pytest.mark.parametrize("check", sorted(BY_DOCUMENTS))
def test_a_method_without_planted_documents_fails_instead_of_passing_unseen(check, tmp_path, registered):
    with pytest.raises(AssertionError, match="declares no kind"):
        CHECKS[check](Subject(registered(ReadsNothing)), tmp_path)
    with pytest.raises(AssertionError, match=r"no planted data for .*sounds"):
        CHECKS[check](Subject(registered(ReadsSounds)), tmp_path)


@pytest.mark.parametrize("base", [ArrayCentroid, PictureCentroid])
@pytest.mark.parametrize("check", sorted(BY_DOCUMENTS - {"empty_rows"}))  # its broken method chokes on texts
def test_methods_of_arrays_and_files_are_caught_too(base, check, tmp_path, registered, monkeypatch):
    one = BROKEN[check].Fitted
    model = base.Fitted if one is CentroidModel else type("BrokenModel", (one, base.Fitted), {})
    broken = type("Broken", (BROKEN[check], base), {"inputs": base.inputs, "Fitted": model})
    monkeypatch.setitem(globals(), "Broken", broken)
    with pytest.raises((AssertionError, ArithmeticError, AttributeError, LabelwiseError, pytest.fail.Exception)):
        CHECKS[check](Subject(registered(broken)), tmp_path)


@pytest.mark.parametrize(
    ("check", "kind", "message"),
    [
        ("save_and_load_are_exact", ForgetsOnSave, "not equal"),
        ("save_and_load_are_exact", UnmapsQuietly, "mapped"),
        ("never_dense", DenseFit, "bytes for"),
        ("never_dense", DenseOutOfSight, "the process grew by"),
        ("resumes_exactly", ResumesInexactly, r"stopped before its writes or log lines \[2\]"),
        ("never_reuses", UsesAnyWork, "used after them: document, .*power"),
    ],
)
def test_further_ways_of_being_broken_are_caught(check, kind, message, tmp_path, registered):
    with pytest.raises(AssertionError, match=message):
        CHECKS[check](Subject(registered(kind)), tmp_path)
