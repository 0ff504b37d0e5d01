"""Popularity: every document gets the labels most frequent in training, scored by their frequency.

The baseline: a method that does not beat it by a wide margin has learned nothing.
Cost: counting the labels; the model has one number per label. The documents are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from labelwise.config import Config as BaseConfig
from labelwise.costs import (
    BASE_BYTES,
    HASH_BYTES,
    NAME_BYTES,
    Constants,
    Cost,
    DataShape,
)
from labelwise.data.dataset import Dataset
from labelwise.errors import ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.model.inputs import Documents
from labelwise.model.method import Method
from labelwise.runtime.fit_context import FitContext
from labelwise.topk import TopK


class Popularity(Method):
    """The most frequent labels for every document."""

    name = "popularity"
    good_for = "the baseline that any other method must beat"
    speed = "less than a second"
    inputs = ("texts", "features", "paths", "arrays")
    learns = False
    plans = True

    class Config(BaseConfig):
        """No parameters."""

    frequencies_: np.ndarray

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, context: FitContext) -> None:
        self.frequencies_ = (data.label_counts() / len(data)).astype(np.float32)
        self._rank()

    def _cost(self, shape: DataShape, constants: Constants) -> Cost:
        model = shape.labels * (NAME_BYTES + 12) + shape.documents * HASH_BYTES
        return Cost(
            cpu=constants.pifa * shape.ones, memory=BASE_BYTES + shape.bytes + 2 * model, disk=shape.bytes + model,
            model=model, latency=constants.call,
        )  # fmt: skip

    def _predict(self, data: Documents, k: int) -> TopK:
        best = self._best[:k]
        shape = (len(data), k)
        return TopK(np.broadcast_to(best, shape), np.broadcast_to(self.frequencies_[best], shape))

    def _rank(self) -> None:
        self._best = np.argsort(-self.frequencies_, kind="stable").astype(np.int32)

    def _state(self) -> dict[str, np.ndarray]:
        return {"frequencies": self.frequencies_}

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        frequencies = get_tensor(tensors, "frequencies", path)
        if frequencies.shape != self.label_counts_.shape or frequencies.dtype != np.float32:
            raise ModelFormatError(f"{path}: one frequency per label is needed")
        if not np.isfinite(frequencies).all():
            raise ModelFormatError(f"{path}: frequencies must be finite")
        self.frequencies_ = frequencies
        self._rank()
