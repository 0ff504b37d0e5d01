"""Networks that score buckets, one per repetition of a bucket code: their arrays and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.codes.buckets import BucketTables
from labelwise.device import computing_device, torch_threads
from labelwise.encoders.arrays import as_tensor
from labelwise.encoders.sparse_mlp import SparseMLP, SparseRows
from labelwise.errors import ModelFormatError
from labelwise.store import get_tensor

ScoreForm = Literal["logits", "sigmoid", "softmax"]


@dataclass(frozen=True)
class Repetition:
    """The weights of one repetition's network.

    Parameters
    ----------
    number
        Number of the repetition, which decides its hash tables.
    tensors
        `table` [features, width], `weight0` [width, before] ..., `bias0` ..., all float32.
    buckets
        The bucket of each label, if buckets were given or learned instead of hashed.
    """

    number: int
    tensors: Mapping[str, np.ndarray]
    buckets: np.ndarray | None = None

    @property
    def is_finite(self) -> bool:
        """Whether all weights are finite."""
        return all(bool(np.isfinite(array).all()) for array in self.tensors.values())

    def to_tensors(self, prefix: str) -> dict[str, np.ndarray]:
        """All arrays by name."""
        tensors = {f"{prefix}{name}": array for name, array in self.tensors.items()}
        return tensors if self.buckets is None else {**tensors, f"{prefix}buckets": self.buckets}


@dataclass(frozen=True)
class NetworkShape:
    """The shape of a repetition's network."""

    n_features: int
    hidden: tuple[int, ...]
    n_buckets: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all arrays of one network."""
        widths = [*self.hidden, self.n_buckets]
        shapes: dict[str, tuple[int, ...]] = {"table": (self.n_features, widths[0])}
        shapes |= {f"bias{layer}": (width,) for layer, width in enumerate(widths)}
        return shapes | {f"weight{layer}": (widths[layer + 1], widths[layer]) for layer in range(len(self.hidden))}

    def checked(self, tensors: Mapping[str, np.ndarray], prefix: str, path: Path) -> dict[str, np.ndarray]:
        """The arrays of one network from a file, checked against the shape."""
        arrays = {}
        for name, shape in self.shapes().items():
            array = get_tensor(tensors, f"{prefix}{name}", path)
            if array.shape != shape or array.dtype != np.float32:
                raise ModelFormatError(f"{path}: {prefix}{name} is {array.dtype} {array.shape}, not {shape}")
            arrays[name] = array
        return arrays


class BucketNetworks:
    """The networks of some repetitions on their device, built once.

    Parameters
    ----------
    repetitions, sizes
        The networks' weights and their shape.
    feature_tables
        Hash tables of the features, or None where each feature has its own row.
    """

    def __init__(
        self, repetitions: Sequence[Repetition], sizes: NetworkShape, feature_tables: BucketTables | None
    ) -> None:
        self.repetitions, self.sizes, self.feature_tables = repetitions, sizes, feature_tables
        self.device = computing_device()
        self.networks = [stacked_networks([one], sizes).to(self.device) for one in repetitions]

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketNetworks, (self.repetitions, self.sizes, self.feature_tables)  # pickles hold weights once

    @cached_property
    def _rows_of_features(self) -> list[list[np.ndarray] | None]:
        """The row of every feature in each network's table, or None where they are the features' numbers."""
        tables = self.feature_tables
        return [None if tables is None else [tables.table(one.number)] for one in self.repetitions]

    def scores(self, features: Any, form: ScoreForm) -> np.ndarray:
        """Bucket scores [repetitions, buckets, documents] for the rows of a feature matrix."""
        out = np.empty((len(self.networks), self.sizes.n_buckets, features.shape[0]), np.float32)
        with torch_threads(), torch.inference_mode():
            for index, (network, hashed) in enumerate(zip(self.networks, self._rows_of_features, strict=True)):
                scores = network.scores_by_output(sparse_rows(features, 1, hashed).to(self.device))[0]
                if form != "logits":
                    scores = torch.sigmoid(scores) if form == "sigmoid" else torch.softmax(scores, 0)
                out[index] = scores.cpu().numpy()
        return out


def stacked_networks(repetitions: Sequence[Repetition], sizes: NetworkShape) -> SparseMLP:
    """The networks of some repetitions, stacked; a single one shares its arrays."""
    with torch.device("meta"):
        network = SparseMLP(len(repetitions), sizes.n_features, sizes.hidden, sizes.n_buckets)
    held = [repetition.tensors for repetition in repetitions]
    one = len(held) == 1

    def joined(name: str) -> Tensor:
        arrays = [as_tensor(tensors[name]) for tensors in held]
        return arrays[0][None] if one else torch.stack(arrays)

    values = {"table": joined("table").flatten(0, 1)}
    values |= {f"biases.{layer}": joined(f"bias{layer}").flatten() for layer in range(len(network.biases))}
    values |= {f"weights.{layer}": joined(f"weight{layer}") for layer in range(len(network.weights))}
    network.load_state_dict(values, assign=True)
    return network.requires_grad_(False).eval()


def repetition_of(network: SparseMLP, index: int, number: int, buckets: np.ndarray | None) -> Repetition:
    """One network of the stack as a `Repetition`; its arrays are copied."""
    tensors = {"table": network.of(index, network.table.detach())}
    tensors |= {f"bias{layer}": network.bias(layer).detach()[index] for layer in range(len(network.biases))}
    tensors |= {f"weight{layer}": weight.detach()[index] for layer, weight in enumerate(network.weights)}
    return Repetition(number, {name: part.cpu().numpy().copy() for name, part in tensors.items()}, buckets)


def sparse_rows(features: Any, count: int, hashed: Sequence[np.ndarray] | None) -> SparseRows:
    """Rows of a feature matrix for `count` networks, with each network's own feature ids."""
    columns = features.indices.astype(np.int64)
    every = np.stack([table[columns].astype(np.int64) for table in hashed]) if hashed else columns[None]
    if not hashed and count > 1:
        every = np.broadcast_to(every, (count, len(columns)))
    return SparseRows(
        torch.from_numpy(features.indptr.astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(every)),
        torch.from_numpy(np.ascontiguousarray(features.data, np.float32)),
    )
