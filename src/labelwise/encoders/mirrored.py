"""Images seen in a mirror, and vectors of images with their mirror images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labelwise.encoders.base import Encoder, Inputs, SomeBatch
from labelwise.encoders.embed import encode_inputs


@dataclass(frozen=True)
class MirroredInputs:
    """The same images, left and right exchanged."""

    inputs: Inputs

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def lengths(self) -> np.ndarray:
        """Those of the images."""
        return self.inputs.lengths

    def batch(self, documents: np.ndarray) -> SomeBatch:
        """The given images."""
        batch = self.inputs.batch(documents)
        return SomeBatch(batch.rows, tuple(np.ascontiguousarray(array[..., ::-1]) for array in batch.arrays))

    def identity(self) -> tuple[np.ndarray, ...]:
        """The arrays of the images, and a mark."""
        return *self.inputs.identity(), np.array([-1])


def encode_with_mirror(encoder: Encoder, inputs: Inputs, what: str) -> np.ndarray:
    """The sum of the vectors of each image and of its mirror image."""
    return encode_inputs(encoder, inputs, what) + encode_inputs(encoder, MirroredInputs(inputs), what)
