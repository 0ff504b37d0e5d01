"""Documents as networks read them, their batches, and what an encoder is. Does not import torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from labelwise.errors import ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.nn.config import TrainingConfig
from labelwise.strings import Strings

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Some documents, ready for an encoder."""

    rows: np.ndarray
    """Indices of the documents, in the order of the batch."""
    arrays: tuple[np.ndarray, ...]
    """The arguments of the encoder's `forward`."""


class Inputs(Protocol):
    """Documents as an encoder reads them: `Tokens`, `WordTokens`, `ImageInputs`, `Vectors`, or a `Part` of some."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> np.ndarray:
        """The length of each document, by which batches are formed."""

    def batch(self, documents: np.ndarray, epoch: int | None = None) -> Any:
        """A `Batch` of the given documents, which may hold them in another order.

        In an epoch of training, documents that are augmented (images) have random changes, which depend on the seed,
        the epoch and each document alone.
        """


class Encoder(Protocol):
    """A torch module that computes a vector per document from the arrays of a batch."""

    @property
    def width(self) -> int:
        """Dimension of the vectors."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""

    def __call__(self, *inputs: Tensor) -> Tensor: ...

    def eval(self) -> Any:
        """Compute without dropout, as `torch.nn.Module.eval`."""

    def state(self) -> dict[str, np.ndarray]:
        """The arrays to write to a model file."""

    @classmethod
    def restored(cls, tensors: Mapping[str, np.ndarray], config: Any, path: Path) -> Encoder:
        """Rebuild the encoder from what `state` returned, without copying weights."""


def texts_of(documents: Any) -> Strings:
    """The texts of a `Dataset` or of `Documents`, of which there may be none."""
    return documents.texts or Strings.of(())


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

    def batch(self, documents: np.ndarray, epoch: int | None = None) -> Batch:
        """The given documents, in that order."""
        return Batch(documents, (self.values[documents],))


@dataclass(frozen=True)
class Part:
    """Documents to train on, or held-out ones, as a network reads them; all of `inputs` or some."""

    inputs: Inputs
    labels: Any = None
    """CSR [documents, labels or nodes], sorted; columns that are unknown to the head may follow at the end."""
    rows: np.ndarray | None = None
    """Which of `inputs`, in ascending order; None: all. The other fields have a row for each of these."""
    parents: Any = None
    """Below the top of a label tree: the nodes whose children are candidates (`Parents`)."""
    features: Any = None
    """CSR of the documents' features, where they are needed next to the inputs."""

    def __len__(self) -> int:
        return len(self.inputs) if self.rows is None else len(self.rows)

    @property
    def lengths(self) -> np.ndarray:
        """The length of each document."""
        return self.inputs.lengths if self.rows is None else self.inputs.lengths[self.rows]

    def batch(self, documents: np.ndarray, epoch: int | None = None) -> Any:
        """A batch of the given documents, with the random changes of an epoch."""
        if self.rows is None:
            return self.inputs.batch(documents, epoch)
        batch = self.inputs.batch(self.rows[documents], epoch)
        return Batch(np.searchsorted(self.rows, batch.rows), batch.arrays)


def tensors_of(batch: Any, device: Any = "cpu") -> tuple[Tensor, ...]:
    """The arrays of a batch as tensors."""
    import torch

    return tuple(torch.from_numpy(array).to(device, non_blocking=True) for array in batch.arrays)


# --- batches of documents of similar length, so that little is padded ---


def cut_batches(
    documents: np.ndarray, lengths: np.ndarray, batch_size: int | None, max_padded_length: int | None
) -> Iterator[np.ndarray]:
    """Cut documents into batches of at most `batch_size`, and at most `max_padded_length` when padded to the longest.

    `lengths` must be ascending, so that the last document of a batch is its longest. A document longer than
    `max_padded_length` forms a batch alone.
    """
    begin, batch_size = 0, batch_size or len(documents)
    while begin < len(documents):
        end = min(begin + batch_size, len(documents))
        if max_padded_length is not None:
            padded = lengths[begin:end] * np.arange(1, end - begin + 1)
            end = begin + max(1, int(np.searchsorted(padded, max_padded_length, side="right")))
        yield documents[begin:end]
        begin = end


def batches_by_length(
    lengths: np.ndarray, max_padded_length: int, batch_size: int | None = None
) -> Iterator[np.ndarray]:
    """Batches of all documents, shortest first; every document is in exactly one."""
    order = np.argsort(lengths, kind="stable")
    return cut_batches(order, lengths[order], batch_size or max_padded_length, max_padded_length)


POOL_BATCHES = 64
"""Batches per pool: larger pools pad less and shuffle less."""


def training_batches(lengths: np.ndarray, config: TrainingConfig, epoch: int) -> list[np.ndarray]:
    """Cut documents into batches of similar length for an epoch of training; every document is in exactly one.

    The order depends on seed and epoch alone, so that a resumed run gets the same batches. Documents are shuffled and
    cut into pools, each pool is sorted by length and cut into batches, and the batches are shuffled. The padding of a
    pool is at most one batch of its longest minus its shortest document.
    """
    random = np.random.default_rng([config.seed, epoch])
    order = random.permutation(len(lengths))
    typical = config.batch_size
    if config.tokens_per_batch is not None:
        mean = max(1.0, float(lengths.mean()) if len(lengths) else 1.0)
        typical = min(max(1, int(config.tokens_per_batch // mean)), typical)
    pool = POOL_BATCHES * typical
    batches: list[np.ndarray] = []
    for begin in range(0, len(order), pool):
        some = order[begin : begin + pool]
        some = some[np.argsort(lengths[some], kind="stable")]
        batches += cut_batches(some, lengths[some], config.batch_size, config.tokens_per_batch)
    return [batches[index] for index in random.permutation(len(batches))]


# --- arrays and tensors ---


def as_array(tensor: Tensor) -> np.ndarray:
    """A weight as a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    import torch

    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def as_tensor(array: np.ndarray) -> Tensor:
    """A stored array as a tensor over the same memory. It is never written to, so torch's warning is silenced."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array))


def take_weights(module: Any, tensors: Mapping[str, np.ndarray], path: Path, fault: str) -> None:
    """Give a module, which may have been built on the meta device, saved arrays as its weights, without copying them.

    `fault` is what it means if one has another shape or type than the module needs.
    """
    weights = {}
    for name, expected in module.state_dict().items():
        array, wanted = get_tensor(tensors, name, path), str(expected.dtype).removeprefix("torch.")
        if array.shape != tuple(expected.shape) or array.dtype != wanted:
            raise ModelFormatError(
                f"{path}: {fault}: {name} is {array.dtype} {array.shape}, expected {wanted} {tuple(expected.shape)}"
            )
        weights[name] = as_tensor(array)
    module.load_state_dict(weights, assign=True)


# --- buffers ---
# Memory that is reused at every step: new memory costs more than arithmetic where page faults are expensive.


class Buffers:
    """Named float32 buffers on a device, each as large as the largest size requested so far."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._held: dict[str, Tensor] = {}

    def get(self, name: str, *shape: int) -> Tensor:
        """The buffer of that name in that shape; its contents are undefined."""
        import torch

        count = math.prod(shape)
        held = self._held.get(name)
        if held is None or len(held) < count:
            self._held.pop(name, None)
            held = self._held[name] = torch.empty(count, device=self.device)
        return held[:count].view(shape)


class BufferPool:
    """A pool of free `Buffers`. Each computation acquires one and releases it, so that threads never share one."""

    def __init__(self) -> None:
        self._free: list[Buffers] = []

    def acquire(self, device: torch.device) -> Buffers:
        """Buffers for the caller alone."""
        try:
            buffers = self._free.pop()
        except IndexError:
            return Buffers(device)
        return buffers if buffers.device == device else Buffers(device)

    def release(self, buffers: Buffers) -> None:
        """Return buffers to the pool; nothing in them may be read afterwards."""
        self._free.append(buffers)

    def clear(self) -> None:
        """Free all buffers that are not in use."""
        self._free.clear()

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return BufferPool, ()  # copies and pickles of a model leave out its buffers
