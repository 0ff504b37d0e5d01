"""Softmax cross-entropy over blocks of labels: documents x labels never exist, whatever the number of labels.

Two passes over the blocks: the first computes the normaliser (log-sum-exp) and the scores of the targets, the second
computes scores again and from them all gradients, as the losses of the flat head do. Scores of the first pass are kept
while they are few.

The labels may be some rows of the weights, as in sampled softmax: then gradients of weights and biases have only these
rows. Each row belongs to a group of labels, and a document may have an offset per group: -log q of a sampled group,
-inf for a group that does not take part.

Scores may be cosines times a scale, with a margin: then weights are normalised block by block, and scores of targets
are changed by a function of the cosine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from labelwise.heads.forward_gradients import keep_gradients, kept_gradients, precisions
from labelwise.heads.sharding import Gradients, Shard, WholeBatch, combined_normalisers, sharded_loss

KEPT_SCORES = 1 << 24
"""Scores of a batch that are kept from the first to the second pass: 64 MB."""


@dataclass(frozen=True)
class Mass:
    """Target masses of documents: pairs sorted by column."""

    documents: Tensor
    columns: Tensor
    """Labels, or indices into `Sample.rows`."""
    values: Tensor


@dataclass(frozen=True)
class Sample:
    """The labels that take part in a softmax."""

    rows: Tensor
    """Labels, ascending and distinct."""
    groups: Tensor | None = None
    """The column of `offsets` of each row."""
    offsets: Tensor | None = None
    """Added to the scores of each group [documents, groups]; each document needs one above -inf."""


@dataclass(frozen=True)
class Cosines:
    """Scores are scale x cosine; vectors must have norm 1, weights are normalised here."""

    scale: float
    margin: Callable[[Tensor], tuple[Tensor, Tensor]]
    """From cosines of targets to those that count instead, and the derivatives."""


def blocked_softmax(
    vectors: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mass: Mass,
    block: int,
    sample: Sample | None = None,
    cosines: Cosines | None = None,
) -> Tensor:
    """Cross-entropy of softmax(vectors @ weight.T + bias) with the target masses, the mean over documents.

    With a sample, gradients of weight and bias are row-sparse.
    """
    # without grad mode, parameters would still require gradients, which are two thirds of the work
    if not torch.is_grad_enabled():
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    loss: Any = _BlockedSoftmax.apply(vectors, weight, bias, mass, block, sample, cosines)
    return loss


@dataclass(frozen=True)
class _Block:
    """A range of labels, and the range of their targets."""

    begin: int
    end: int
    first: int
    last: int

    @property
    def targets(self) -> slice:
        return slice(self.first, self.last)


class _Blocks:
    """Scores of one block of labels after the other."""

    def __init__(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        sample: Sample | None,
        mass: Mass,
        block: int,
        wide: torch.dtype,
        cosines: Cosines | None,
    ) -> None:
        self.inputs, self.weight, self.bias, self.sample, self.mass = inputs, weight, bias, sample, mass
        self.wide, self.cosines = wide, cosines
        count = len(weight) if sample is None else len(sample.rows)
        edges = [(begin, min(begin + block, count)) for begin in range(0, count, block)]
        self.blocks = [_Block(*edge, *cut) for edge, cut in zip(edges, _cuts(mass.columns, edges), strict=True)]
        self.keep = len(inputs) * count <= KEPT_SCORES
        self.kept: dict[int, Tensor] = {}
        self.derivatives: dict[int, Tensor] = {}

    def rows(self, block: _Block) -> Tensor:
        """The weights of a block."""
        inside = slice(block.begin, block.end)
        return self.weight[inside] if self.sample is None else self.weight[self.sample.rows[inside]]

    def part(self, block: _Block) -> Tensor:
        """The factors of the inputs in a block's scores."""
        rows = self.rows(block)
        if self.cosines is not None:
            rows = rows * (self.cosines.scale / _norms(rows))
        return rows.to(self.inputs.dtype)

    def targets(self, block: _Block) -> tuple[Tensor, Tensor]:
        """Documents and columns of the targets in a block."""
        return self.mass.documents[block.targets], self.mass.columns[block.targets] - block.begin

    def scores(self, block: _Block) -> Tensor:
        """Scores [documents, labels of the block], margins and offsets included."""
        if block.begin in self.kept:
            return self.kept.pop(block.begin)
        scores = (self.inputs @ self.part(block).T).to(self.wide)
        sample, inside = self.sample, slice(block.begin, block.end)
        if self.cosines is not None:
            at, scale = self.targets(block), self.cosines.scale
            changed, self.derivatives[block.begin] = self.cosines.margin(scores[at] / scale)
            scores[at] = scale * changed
        if self.bias is not None:
            scores += self.bias[inside] if sample is None else self.bias[sample.rows[inside]]
        if sample is not None and sample.offsets is not None and sample.groups is not None:
            scores += sample.offsets.to(self.wide)[:, sample.groups[inside]]
        if self.keep:
            self.kept[block.begin] = scores
        return scores

    def gradient_of_rows(self, block: _Block, of_part: Tensor) -> Tensor:
        """The gradient of a block's weights from that of the factors."""
        if self.cosines is None:
            return of_part
        rows = self.rows(block)
        norms = _norms(rows)
        unit = rows / norms
        return (of_part - unit * (unit * of_part).sum(1, keepdim=True)) * (self.cosines.scale / norms)


def _norms(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-12)


class _BlockedSoftmax(torch.autograd.Function):
    """The loss, with all gradients computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mass: Mass,
        block: int,
        sample: Sample | None,
        cosines: Cosines | None,
    ) -> Tensor:
        learning = any(ctx.needs_input_grad[:3])
        loss, gradients = _softmax(vectors, weight, bias, mass, block, sample, cosines, learning)
        if gradients is not None:
            keep_gradients(ctx, gradients, vectors, (weight, bias), None if sample is None else sample.rows)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        return *kept_gradients(ctx, *grad_outputs), None, None, None, None


def _softmax(
    vectors: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mass: Mass,
    block: int,
    sample: Sample | None,
    cosines: Cosines | None,
    learning: bool,
    totals: Tensor | None = None,
) -> tuple[Tensor, Gradients | None]:
    """The loss, and if `learning` all gradients.

    `totals` are the masses of the documents where `mass` has only targets of this rank's labels: then normalisers are
    those of all ranks, and the loss is this rank's part of it.
    """
    dtype, wide = precisions(vectors, weight)
    scale = 1.0 / max(len(vectors), 1)
    with torch.autocast(vectors.device.type, enabled=False):
        inputs = vectors.to(dtype)
        blocks = _Blocks(inputs, weight, bias, sample, mass, block, wide, cosines)
        blocks.keep = blocks.keep and learning
        values = mass.values.to(wide)
        own_totals = torch.zeros(len(vectors), dtype=wide, device=vectors.device)
        own_totals.index_add_(0, mass.documents, values)
        normaliser = torch.full_like(own_totals, -torch.inf)
        of_targets = torch.zeros((), dtype=torch.float64, device=vectors.device)
        for one in blocks.blocks:
            scores = blocks.scores(one)
            normaliser = torch.logaddexp(normaliser, torch.logsumexp(scores, 1))
            own = scores[blocks.targets(one)]
            of_targets += (own.double() * values[one.targets].double()).sum()
        if totals is not None:
            normaliser = combined_normalisers(normaliser)
        total = (normaliser.double() * own_totals.double()).sum() - of_targets
        gradients = None
        if learning:
            gradients = _gradients(blocks, values, normaliser, own_totals if totals is None else totals, scale)
    return (total * scale).to(wide), gradients


def softmax_of_shards(
    vectors: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    batch: WholeBatch,
    shard: Shard,
    block: int,
    sample: Sample | None = None,
    cosines: Cosines | None = None,
) -> Tensor:
    """`blocked_softmax` over the labels and documents of all ranks; `weight` and `bias` have this rank's rows.

    A sample has the labels of all ranks, with the same offsets for all documents.
    """
    inside = batch.inside(shard)
    masses = batch.targets.masses(len(batch.vectors))
    totals = torch.zeros(len(batch.vectors), dtype=masses.dtype, device=masses.device)
    totals.index_add_(0, batch.targets.documents, masses)
    first = int(torch.searchsorted(batch.targets.labels, shard.begin))
    values, columns, rows = masses[first : first + len(inside.labels)], inside.labels, None
    if sample is not None:
        sample = _inside(sample, shard)
        rows = sample.rows
        columns = torch.searchsorted(rows, columns)
    mass = Mass(inside.documents, columns, values)

    def compute(inputs: Tensor, learning: bool) -> tuple[Tensor, Gradients | None]:
        tables = weight.detach(), None if bias is None else bias.detach()
        wide = precisions(inputs, weight)[1]
        return _softmax(inputs, *tables, mass, block, sample, cosines, learning, totals.to(wide))

    return sharded_loss(vectors, weight, bias, batch, rows, compute)


def _inside(sample: Sample, shard: Shard) -> Sample:
    """The labels of a sample that a shard has, counted from its first."""
    chosen = (sample.rows >= shard.begin) & (sample.rows < shard.end)
    groups = None if sample.groups is None else sample.groups[chosen]
    return Sample(sample.rows[chosen] - shard.begin, groups, sample.offsets)


def _gradients(
    blocks: _Blocks, values: Tensor, normaliser: Tensor, totals: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of vectors, weights and biases, of the sampled rows if there is a sample."""
    inputs, wide = blocks.inputs, blocks.wide
    count = blocks.blocks[-1].end if blocks.blocks else 0
    of_vectors = torch.zeros_like(inputs, dtype=wide)
    of_weight = torch.empty(count, inputs.shape[1], dtype=blocks.weight.dtype, device=inputs.device)
    of_bias = torch.empty(count, dtype=blocks.weight.dtype, device=inputs.device)
    scaled_totals = (totals * scale)[:, None]
    for block in blocks.blocks:
        inside, at = slice(block.begin, block.end), blocks.targets(block)
        gradients = blocks.scores(block).sub_(normaliser[:, None]).exp_().mul_(scaled_totals)
        gradients.index_put_(at, -scale * values[block.targets], accumulate=True)
        of_bias[inside] = gradients.sum(0)
        if blocks.cosines is not None:
            gradients[at] *= blocks.derivatives[block.begin]
        gradients = gradients.to(inputs.dtype)
        of_vectors += gradients @ blocks.part(block)
        of_weight[inside] = blocks.gradient_of_rows(block, gradients.T @ inputs)
    return of_vectors, of_weight, of_bias


def _cuts(columns: Tensor, edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Begin and end of each block's targets."""
    begins = torch.tensor([begin for begin, _ in edges] + [edges[-1][1] if edges else 0], device=columns.device)
    cuts = torch.searchsorted(columns, begins).tolist()
    return list(itertools.pairwise(cuts))
