"""Popularity: every document gets the labels most frequent in training, scored by their frequency.

The baseline: a method that does not beat it by a wide margin has learned nothing.
Cost: counting the labels; the model has one number per label. The documents are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from labelwise.config import Config as BaseConfig
from labelwise.data.dataset import Dataset
from labelwise.errors import ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.model.fitted import Saved
from labelwise.model.inputs import Documents
from labelwise.model.method import Method
from labelwise.runtime.job import Job
from labelwise.topk import TopK


class PopularityModel:
    """The frequency of each label."""

    def __init__(self, frequencies: np.ndarray) -> None:
        self.frequencies = frequencies
        self.ranked = np.argsort(-frequencies, kind="stable").astype(np.int32)

    def top(self, documents: Documents, k: int, config: Any) -> TopK:
        best, shape = self.ranked[:k], (len(documents), k)
        return TopK(np.broadcast_to(best, shape), np.broadcast_to(self.frequencies[best], shape))

    def tensors(self) -> dict[str, np.ndarray]:
        return {"frequencies": self.frequencies}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Saved) -> PopularityModel:
        frequencies = get_tensor(tensors, "frequencies", about.path)
        if frequencies.shape != (about.n_labels,) or frequencies.dtype != np.float32:
            raise ModelFormatError(f"{about.path}: one frequency per label is needed")
        if not np.isfinite(frequencies).all():
            raise ModelFormatError(f"{about.path}: frequencies must be finite")
        return cls(frequencies)


class Popularity(Method):
    """The most frequent labels for every document."""

    name = "popularity"
    Fitted = PopularityModel
    good_for = "the baseline that any other method must beat"
    speed = "less than a second"
    inputs = ("texts", "features", "paths", "arrays")
    learns = False

    class Config(BaseConfig):
        """No parameters."""

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> PopularityModel:
        return PopularityModel((train.label_counts() / len(train)).astype(np.float32))
