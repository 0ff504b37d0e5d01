"""Protocols of documents and encoders, for texts, images and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class InputBatch(Protocol):
    """Some documents, ready for an encoder."""

    @property
    def rows(self) -> np.ndarray:
        """Indices of the documents, in the order of the batch."""
        ...

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The arguments of the encoder's `forward`."""
        ...


class Inputs(Protocol):
    """Documents as an encoder reads them: `Tokens`, `WordTokens`, `ImageInputs`, `Vectors`."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> np.ndarray:
        """The length of each document, by which batches are formed."""
        ...

    def batch(self, documents: np.ndarray) -> InputBatch:
        """A batch of the given documents; it may hold them in another order."""
        ...

    def identity(self) -> tuple[np.ndarray, ...]:
        """The arrays that identify these documents, for fingerprints."""
        ...


@runtime_checkable
class AugmentedInputs(Protocol):
    """Documents that are changed at random in training, such as images."""

    def training_batch(self, documents: np.ndarray, epoch: int) -> InputBatch:
        """A batch of the given documents, with changes that depend on the seed, the epoch and each document alone."""
        ...


def training_batch(inputs: Inputs, documents: np.ndarray, epoch: int) -> InputBatch:
    """A batch to train on: with the random changes of the epoch, if there are any."""
    if isinstance(inputs, AugmentedInputs):
        return inputs.training_batch(documents, epoch)
    return inputs.batch(documents)


class Encoder(Protocol):
    """A torch module that computes a vector per document from the arrays of a batch."""

    @property
    def width(self) -> int:
        """Dimension of the vectors."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        ...

    def __call__(self, *inputs: Tensor) -> Tensor: ...

    def eval(self) -> Any:
        """Compute without dropout, as `torch.nn.Module.eval`."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """The arrays to write to a model file."""
        ...

    @classmethod
    def restored(cls, tensors: Mapping[str, np.ndarray], config: Any, path: Path) -> Encoder:
        """Rebuild the encoder from what `state` returned, without copying weights."""
        ...


@dataclass(frozen=True)
class VectorBatch:
    """Vectors of some documents."""

    rows: np.ndarray
    vectors: np.ndarray

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The vectors."""
        return (self.vectors,)


@dataclass(frozen=True)
class Vectors:
    """Documents given as vectors [documents, width], for example those of a frozen encoder."""

    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    @property
    def lengths(self) -> np.ndarray:
        """1 for each document."""
        return np.ones(len(self), np.int64)

    def batch(self, documents: np.ndarray) -> VectorBatch:
        """The given documents, in that order."""
        return VectorBatch(documents, self.values[documents])

    def identity(self) -> tuple[np.ndarray, ...]:
        """The vectors."""
        return (self.values,)


@dataclass(frozen=True)
class SomeBatch:
    """A batch of some documents of others."""

    rows: np.ndarray
    arrays: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class SomeInputs:
    """Some documents of others, by their indices in ascending order."""

    inputs: Inputs
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> np.ndarray:
        """The length of each document."""
        return self.inputs.lengths[self.rows]

    def batch(self, documents: np.ndarray) -> SomeBatch:
        """A batch of the given documents."""
        batch = self.inputs.batch(self.rows[documents])
        return SomeBatch(np.searchsorted(self.rows, batch.rows), batch.arrays)

    def training_batch(self, documents: np.ndarray, epoch: int) -> SomeBatch:
        """A batch of the given documents, with the random changes of an epoch."""
        batch = training_batch(self.inputs, self.rows[documents], epoch)
        return SomeBatch(np.searchsorted(self.rows, batch.rows), batch.arrays)

    def identity(self) -> tuple[np.ndarray, ...]:
        """The arrays of all documents, and the indices of these."""
        return *self.inputs.identity(), self.rows


def tensors_of(batch: InputBatch, device: Any = "cpu") -> tuple[Tensor, ...]:
    """The arrays of a batch as tensors."""
    import torch

    return tuple(torch.from_numpy(array).to(device, non_blocking=True) for array in batch.arrays)
