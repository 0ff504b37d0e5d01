"""Document vectors of an encoder as features next to TF-IDF: centred, of norm 1, times a factor.

The vectors of a pretrained encoder have a large common component, their mean: it says nothing about a document, acts as
a second bias in every classifier, and makes the sums of vectors that describe labels point in the same direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise.errors import ModelFormatError
from labelwise.store import get_tensor

MEAN = "vectors.mean"
AT_ONCE = 8192
"""Vectors that are scaled at a time."""


@dataclass(frozen=True)
class VectorScaling:
    """The mean of the training vectors, and the norm that scaled vectors have."""

    mean: np.ndarray
    norm: float

    @classmethod
    def learn(cls, vectors: np.ndarray, norm: float) -> VectorScaling:
        """The scaling for these training vectors, of which there is at least one."""
        return cls(vectors.mean(axis=0, dtype=np.float64).astype(np.float32), norm)

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """Scaled vectors, float32; one that equals the mean has the norm 0."""
        scaled = np.empty(vectors.shape, np.float32)
        for begin in range(0, len(vectors), AT_ONCE):
            part = scaled[begin : begin + AT_ONCE]
            np.subtract(vectors[begin : begin + AT_ONCE], self.mean, out=part)
            norms = np.linalg.norm(part, axis=1, keepdims=True)
            part *= np.divide(self.norm, norms, out=np.zeros_like(norms), where=norms > 0)
        return scaled

    def state(self) -> dict[str, np.ndarray]:
        """As named arrays; the norm is a parameter of the method."""
        return {MEAN: self.mean}

    @classmethod
    def restored(cls, tensors: Mapping[str, np.ndarray], width: int, norm: float, path: Path) -> VectorScaling:
        """Restore what `state` returned, for vectors of this width."""
        mean = get_tensor(tensors, MEAN, path)
        if mean.shape != (width,) or mean.dtype != np.float32 or not np.isfinite(mean).all():
            raise ModelFormatError(f"{path}: the mean of the vectors does not fit vectors of {width} numbers")
        return cls(mean, norm)
