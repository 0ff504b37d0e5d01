"""The networks of MACH over sparse rows: a table of feature vectors, hidden layers, one output per bucket.

All weights of `count` networks are stacked, so that a layer of all of them is one batched product. They share only
the documents: each may have its own feature ids (feature hashing), and no sum runs over two networks, so that each
learns what it would learn alone. The input is never a dense matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from labelwise.data.csr import pick_rows
from labelwise.kernels.networks import by_column, weighted_rows
from labelwise.nn.buckets import NetworkShape, Repetition
from labelwise.nn.inputs import as_tensor
from labelwise.runtime.ranks import add_row_gradient
from labelwise.runtime.threads import ranges, run_all, threads

INITIAL_STD = 0.05
"""Standard deviation of the initial weights of the table."""


@dataclass(frozen=True)
class SparseRows:
    """Rows of a batch for several networks: CSR with columns [networks, entries], in each network's own feature ids."""

    indptr: Tensor
    columns: Tensor
    values: Tensor

    @classmethod
    def of(cls, features: Any, count: int, hashed: Sequence[np.ndarray] | None) -> SparseRows:
        """Rows of a feature matrix for `count` networks, with each network's own feature ids."""
        columns = features.indices.astype(np.int64)
        every = np.stack([table[columns].astype(np.int64) for table in hashed]) if hashed else columns[None]
        if not hashed and count > 1:
            every = np.broadcast_to(every, (count, len(columns)))
        return cls(
            torch.from_numpy(features.indptr.astype(np.int64)),
            torch.from_numpy(np.ascontiguousarray(every)),
            torch.from_numpy(np.ascontiguousarray(features.data, np.float32)),
        )

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def to(self, device: torch.device) -> SparseRows:
        """The same on another device."""
        return SparseRows(self.indptr.to(device), self.columns.to(device), self.values.to(device))


class SparseMLP(nn.Module):
    """`count` networks from sparse rows to `outputs` scores.

    Parameters
    ----------
    count
        Number of stacked networks.
    n_features
        Columns of each network's rows.
    hidden
        Widths of the hidden layers; without any, the networks are linear.
    outputs
        Scores per network.
    """

    def __init__(self, count: int, n_features: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        widths = [*hidden, outputs]
        self.count, self.n_features = count, n_features
        self.table = nn.Parameter(torch.empty(count * n_features, widths[0]))
        # one-dimensional: weight decay distinguishes biases from matrices by their number of dimensions
        self.biases = nn.ParameterList(torch.zeros(count * width) for width in widths)
        self.weights = nn.ParameterList(torch.empty(count, width, before) for before, width in pairwise(widths))
        self.embedding_tables = ("table",) if hidden else ()
        self._slots: np.ndarray | None = None

    @classmethod
    def of_repetition(cls, one: Repetition, shape: NetworkShape) -> SparseMLP:
        """The network of one repetition, which shares its arrays."""
        with torch.device("meta"):
            network = cls(1, shape.n_features, shape.hidden, shape.n_buckets)
        held = {name: as_tensor(array) for name, array in one.tensors.items()}
        values = {"table": held["table"]}
        values |= {f"biases.{layer}": held[f"bias{layer}"] for layer in range(len(network.biases))}
        values |= {f"weights.{layer}": held[f"weight{layer}"][None] for layer in range(len(network.weights))}
        network.load_state_dict(values, assign=True)
        return network.requires_grad_(False).eval()

    def repetition(self, index: int, number: int, buckets: np.ndarray | None) -> Repetition:
        """One network of the stack as a `Repetition`; its arrays are copied."""
        tensors = {"table": self.rows_of(index).detach()}
        tensors |= {f"bias{layer}": self.bias(layer).detach()[index] for layer in range(len(self.biases))}
        tensors |= {f"weight{layer}": weight.detach()[index] for layer, weight in enumerate(self.weights)}
        return Repetition(number, {name: part.cpu().numpy().copy() for name, part in tensors.items()}, buckets)

    @torch.no_grad()
    def initialise(self, seeds: Sequence[Sequence[int]], output_biases: Tensor) -> SparseMLP:
        """Draw the initial weights of each network from its own seed, and set its output biases."""
        for index, seed in enumerate(seeds):
            generator = torch.Generator().manual_seed(int(np.random.SeedSequence(list(seed)).generate_state(1)[0]))
            self.rows_of(index).normal_(0, INITIAL_STD, generator=generator)
            for weight in self.weights:
                weight[index].normal_(0, math.sqrt(2 / weight.shape[2]), generator=generator)
        if len(self.weights):
            self.weights[-1].mul_(INITIAL_STD)  # initial outputs are close to their biases
        for bias in self.biases[:-1]:
            bias.zero_()
        self.biases[-1].copy_(output_biases.reshape(-1))
        return self

    def rows_of(self, index: int) -> Tensor:
        """The rows of the table that belong to one network."""
        return self.table[index * self.n_features : (index + 1) * self.n_features]

    def bias(self, layer: int) -> Tensor:
        """The biases of a layer, [networks, width]."""
        return self.biases[layer].view(self.count, -1)

    def forward(self, rows: SparseRows) -> Tensor:
        """Scores [networks, documents, outputs]."""
        layer = self._first(rows) + self.bias(0)[:, None]
        for depth, weight in enumerate(self.weights, 1):
            layer = torch.baddbmm(self.bias(depth)[:, None], functional.relu(layer), weight.mT)
        return layer

    def scores_by_output(self, rows: SparseRows) -> Tensor:
        """Scores [networks, outputs, documents], the order that decoding reads."""
        layer = self._first(rows) + self.bias(0)[:, None]
        if not len(self.weights):
            return layer.mT.contiguous()
        for depth, weight in enumerate(self.weights[:-1], 1):
            layer = torch.baddbmm(self.bias(depth)[:, None], functional.relu(layer), weight.mT)
        return torch.baddbmm(self.bias(-1)[:, :, None], self.weights[-1], functional.relu(layer).mT)

    def _first(self, rows: SparseRows) -> Tensor:
        """The first layer [networks, documents, width]: weighted sums of table rows."""
        width = self.table.shape[1]
        offsets = torch.arange(self.count, device=rows.columns.device)[:, None] * self.n_features
        columns = (rows.columns + offsets).reshape(-1)
        entries = rows.columns.shape[1]
        begins = torch.arange(self.count, device=rows.indptr.device)[:, None] * entries + rows.indptr[None, :-1]
        values = rows.values.expand(self.count, -1).reshape(-1)
        if self.table.device.type == "cpu":
            indptr = torch.cat([begins.reshape(-1), torch.tensor([self.count * entries])])
            sums: Any = _FirstLayer.apply(self.table, indptr, columns, values, self)
        else:
            sums = functional.embedding_bag(
                columns, self.table, begins.reshape(-1), mode="sum", sparse=True, per_sample_weights=values
            )
        return sums.reshape(self.count, len(rows), width)

    def slots(self) -> np.ndarray:
        """Working memory of one integer per table row, for sorting entries by column."""
        if self._slots is None or len(self._slots) != len(self.table):
            self._slots = np.full(len(self.table), -1, np.int32)
        return self._slots


class _FirstLayer(torch.autograd.Function):
    """Weighted sums of table rows; the gradient has only the rows that were read."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, indptr: Tensor, columns: Tensor, values: Tensor, owner: SparseMLP) -> Tensor:
        ctx.entries = indptr, columns, values
        ctx.table, ctx.owner = table, owner
        out = table.new_empty(len(indptr) - 1, table.shape[1])
        arrays = [part.detach().numpy() for part in (indptr, columns, values, table)]
        target = out.numpy()
        run_all(lambda part: weighted_rows(*arrays, *part, target), ranges(len(target), 4 * threads()))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        (gradients,) = grad_outputs
        indptr, columns, values = (part.numpy() for part in ctx.entries)
        used, begins, rows, weights = by_column(indptr, columns, values, ctx.owner.slots())
        out = np.empty((len(used), gradients.shape[1]), np.float32)
        source = gradients.contiguous().numpy()
        run_all(lambda part: weighted_rows(begins, rows, weights, source, *part, out), ranges(len(used), 4 * threads()))
        add_row_gradient(ctx.table, torch.from_numpy(used.astype(np.int64)), torch.from_numpy(out))
        return None, None, None, None, None


# --- bucket loss ---
# Losses of bucket scores for several stacked networks: cross-entropy per bucket, or one softmax over all buckets.
#
# Value and gradients are computed together, so that autograd keeps one array of scores and not four.

Loss = Literal["bce", "softmax"]


@dataclass(frozen=True)
class BucketTargets:
    """The buckets of each document's labels as (network, document, bucket, fraction) without duplicates.

    The fractions of a document add up to 1 in each network, for softmax. Cross-entropy per bucket ignores them.
    """

    indices: Tensor
    """[3, entries]: network, document, bucket."""
    fractions: Tensor

    @classmethod
    def of_rows(cls, labels: Any, rows: np.ndarray, tables: list[np.ndarray], n_buckets: int) -> BucketTargets:
        """The buckets of some rows of a label matrix, by the bucket tables of some repetitions."""
        picked = pick_rows(labels, rows)
        counts = np.diff(picked.indptr)
        documents = np.repeat(np.arange(len(rows)), counts)
        weights = np.repeat(1 / np.maximum(counts, 1), counts)
        networks, where, fractions = [], [], []
        for network, table in enumerate(tables):
            keys, inverse = np.unique(documents * n_buckets + table[picked.indices], return_inverse=True)
            networks.append(np.full(len(keys), network))
            where.append(keys)
            fractions.append(np.bincount(inverse, weights, len(keys)))
        every = np.concatenate(where)
        indices = np.stack([np.concatenate(networks), every // n_buckets, every % n_buckets])
        return cls(torch.from_numpy(indices), torch.from_numpy(np.concatenate(fractions).astype(np.float32)))


def bucket_loss(scores: Tensor, targets: BucketTargets, name: Loss) -> Tensor:
    """The mean loss over documents, summed over buckets and networks; networks do not affect each other's gradients."""
    loss: Any = _BucketLoss.apply(scores, targets.indices, targets.fractions, name)
    return loss


class _BucketLoss(torch.autograd.Function):
    """Value and gradients in one pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, indices: Tensor, fractions: Tensor, name: Loss) -> Tensor:
        at = tuple(indices)
        if name == "bce":
            value = functional.softplus(scores).sum(dtype=torch.float64) - scores[at].sum(dtype=torch.float64)
            gradients = torch.sigmoid(scores)
            gradients[at] -= 1
        else:
            normal = torch.logsumexp(scores, 2)
            has_labels = torch.zeros_like(normal)
            has_labels[at[0], at[1]] = 1  # documents without labels have no loss
            value = (normal * has_labels).sum(dtype=torch.float64) - (fractions * scores[at]).sum(dtype=torch.float64)
            gradients = torch.exp(scores - normal[:, :, None]).mul_(has_labels[:, :, None])
            gradients[at] -= fractions
        count = max(scores.shape[1], 1)
        ctx.gradients = gradients.mul_(1 / count)
        return (value / count).to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        gradients, ctx.gradients = ctx.gradients, None
        (outer,) = grad_outputs
        return (gradients if float(outer) == 1.0 else gradients.mul_(outer)), None, None, None
