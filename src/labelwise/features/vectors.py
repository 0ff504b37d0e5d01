"""Document vectors of an encoder as features next to TF-IDF: centred, partly whitened, of a given norm.

The vectors of a pretrained encoder have a large common component, their mean: it says nothing about a document, acts as
a second bias in every classifier, and makes the sums of vectors that describe labels point in the same direction. A few
other directions have most of the variance; whitening makes the differences in all others count as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise.errors import ModelFormatError
from labelwise.io.folder import get_tensor

MEAN, WHITENING = "vectors.mean", "vectors.whitening"
AT_ONCE = 8192
"""Vectors that are scaled at a time."""
SMALLEST = 1e-4
"""Variance of a direction, as a fraction of the largest, below which it is not amplified further: the rest is noise."""


@dataclass(frozen=True)
class VectorScaling:
    """The mean of the training vectors, the norm that scaled vectors have, and a matrix to multiply with, or None."""

    mean: np.ndarray
    norm: float
    matrix: np.ndarray | None = None

    @classmethod
    def learn(cls, vectors: np.ndarray, norm: float, whitening: float = 0.0) -> VectorScaling:
        """The scaling for these training vectors, of which there is at least one.

        Every principal direction is divided by its variance to the power of `whitening`: 0 keeps the vectors, 0.5
        makes all directions equal.
        """
        mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        return cls(mean, norm, _whitening_matrix(vectors, mean, whitening) if whitening else None)

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """Scaled vectors, float32; one that equals the mean has the norm 0."""
        scaled = np.empty(vectors.shape, np.float32)
        for begin in range(0, len(vectors), AT_ONCE):
            part = scaled[begin : begin + AT_ONCE]
            np.subtract(vectors[begin : begin + AT_ONCE], self.mean, out=part)
            if self.matrix is not None:
                part[:] = part @ self.matrix
            norms = np.linalg.norm(part, axis=1, keepdims=True)
            part *= np.divide(self.norm, norms, out=np.zeros_like(norms), where=norms > 0)
        return scaled

    def state(self) -> dict[str, np.ndarray]:
        """As named arrays; the norm is a parameter of the method."""
        return {MEAN: self.mean} | ({} if self.matrix is None else {WHITENING: self.matrix})

    @classmethod
    def restored(
        cls, tensors: Mapping[str, np.ndarray], width: int, norm: float, whitened: bool, path: Path
    ) -> VectorScaling:
        """Restore what `state` returned, for vectors of this width."""
        mean = _checked(tensors, MEAN, (width,), path)
        return cls(mean, norm, _checked(tensors, WHITENING, (width, width), path) if whitened else None)


def _whitening_matrix(vectors: np.ndarray, mean: np.ndarray, power: float) -> np.ndarray:
    """Symmetric, so that directions keep their meaning; float32."""
    width = len(mean)
    covariance = np.zeros((width, width))
    for begin in range(0, len(vectors), AT_ONCE):
        centred = vectors[begin : begin + AT_ONCE].astype(np.float64) - mean
        covariance += centred.T @ centred
    variances, directions = np.linalg.eigh(covariance / len(vectors))
    largest = variances[-1]
    if largest <= 0:
        return np.eye(width, dtype=np.float32)  # all vectors are equal
    amplified = np.maximum(variances / largest, SMALLEST) ** -power
    return ((directions * amplified) @ directions.T).astype(np.float32)


def _checked(tensors: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], path: Path) -> np.ndarray:
    array = get_tensor(tensors, name, path)
    if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
        raise ModelFormatError(f"{path}: {name} does not fit vectors of {shape[0]} numbers")
    return array
