"""Stacked networks over sparse rows: a table of feature vectors, hidden layers, one output per bucket.

All weights of `count` networks are stacked, so that a layer of all of them is one batched product. They share only
the documents: each may have its own feature ids (feature hashing), and no sum runs over two networks, so that each
learns what it would learn alone. The input is never a dense matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from labelwise.encoders.row_gradients import add_row_gradient
from labelwise.kernels.networks.sparse_layer import by_column, weighted_rows
from labelwise.parallel import ranges, run_all, threads

INITIAL_STD = 0.05
"""Standard deviation of the initial weights of the table."""


@dataclass(frozen=True)
class SparseRows:
    """Rows of a batch for several networks: CSR with columns [networks, entries], in each network's own feature ids."""

    indptr: Tensor
    columns: Tensor
    values: Tensor

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
        self.word_tables = ("table",) if hidden else ()
        self._slots: np.ndarray | None = None

    @torch.no_grad()
    def initialise(self, seeds: Sequence[Sequence[int]], output_biases: Tensor) -> SparseMLP:
        """Draw the initial weights of each network from its own seed, and set its output biases."""
        for index, seed in enumerate(seeds):
            generator = torch.Generator().manual_seed(int(np.random.SeedSequence(list(seed)).generate_state(1)[0]))
            self.of(index, self.table).normal_(0, INITIAL_STD, generator=generator)
            for weight in self.weights:
                weight[index].normal_(0, math.sqrt(2 / weight.shape[2]), generator=generator)
        if len(self.weights):
            self.weights[-1].mul_(INITIAL_STD)  # initial outputs are close to their biases
        for bias in self.biases[:-1]:
            bias.zero_()
        self.biases[-1].copy_(output_biases.reshape(-1))
        return self

    def of(self, index: int, table: Tensor) -> Tensor:
        """The rows of the table that belong to one network."""
        return table[index * self.n_features : (index + 1) * self.n_features]

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
        target, kernel = out.numpy(), _kernel(weighted_rows)
        run_all(lambda part: kernel(*arrays, *part, target), ranges(len(target), 4 * threads()))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        (gradients,) = grad_outputs
        indptr, columns, values = (part.numpy() for part in ctx.entries)
        used, begins, rows, weights = _kernel(by_column)(indptr, columns, values, ctx.owner.slots())
        out = np.empty((len(used), gradients.shape[1]), np.float32)
        source, kernel = gradients.contiguous().numpy(), _kernel(weighted_rows)
        run_all(lambda part: kernel(begins, rows, weights, source, *part, out), ranges(len(used), 4 * threads()))
        add_row_gradient(ctx.table, torch.from_numpy(used.astype(np.int64)), torch.from_numpy(out))
        return None, None, None, None, None


def _kernel(function: Any) -> Any:
    return function
