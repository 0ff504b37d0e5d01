"""One linear output per label, for any number of labels: memory beside the weights is bounded by batch x block.

Training: the loss is computed for one block of labels after the other. The gradients of a block's scores are computed
at once, added to those of vectors and weights, and freed with the scores, so that an array of documents x labels never
exists. This is the whole backward pass of the head; autograd only gets its result. Prediction: the best k of each
block are merged with the best k so far.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from labelwise.nn.config import HeadConfig, LossConfig
from labelwise.nn.heads.base import INITIAL_STD, LinearHead, Targets
from labelwise.nn.heads.losses import (
    ScoreLoss,
    best_constants,
    constant_loss,
    keep_gradients,
    kept_gradients,
    label_priors,
    make_loss,
    precisions,
    softmax_constant_loss,
    softmax_constants,
)
from labelwise.nn.heads.sharding import (
    Gradients,
    Shard,
    ShardedRows,
    WholeBatch,
    best_of_shards,
    combined_normalisers,
    sharded_loss,
    whole_batch,
)
from labelwise.runtime.ranks import divisor
from labelwise.topk import NO_LABEL

# --- blocked softmax ---
# Softmax cross-entropy over blocks of labels: documents x labels never exist, whatever the number of labels.
#
# Two passes over the blocks: the first computes the normaliser (log-sum-exp) and the scores of the targets, the second
# computes scores again and from them all gradients, as the losses of the flat head do. Scores of the first pass are
# kept while they are few.
#
# The labels may be some rows of the weights, as in sampled softmax: then gradients of weights and biases have only
# these rows. Each row belongs to a group of labels, and a document may have an offset per group: -log q of a sampled
# group, -inf for a group that does not take part.
#
# Scores may be cosines times a scale, with a margin: then weights are normalised block by block, and scores of targets
# are changed by a function of the cosine.

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


SCORES_AT_ONCE = 1 << 20
"""Scores computed at a time in prediction: few enough for a processor's cache."""


class FlatHead(LinearHead, ShardedRows):
    """Scores of all labels from a document's vector, in blocks of labels."""

    config: HeadConfig
    sharded_tables = ("weight", "bias")

    def __init__(self, width: int, n_labels: int, config: HeadConfig) -> None:
        super().__init__(width, n_labels, n_labels, config)
        self.loss_function: ScoreLoss | None = None if config.loss.name == "softmax" else make_loss(config.loss)

    def _constants(self, counts: np.ndarray, n_documents: int) -> np.ndarray:
        if self.loss_function is None:
            return softmax_constants(counts, n_documents)
        return best_constants(self.loss_function, label_priors(counts, n_documents))

    def loss(self, vectors: Tensor, targets: Targets) -> Tensor:
        """The mean loss of the documents."""
        vectors = self.dropout(vectors)
        if self.shard is not None:
            return self._loss_of_shards(vectors, targets, self.shard)
        if self.loss_function is None:
            mass = Mass(targets.documents, targets.labels, targets.masses(len(vectors)))
            return blocked_softmax(vectors, self.weight, self.bias, mass, self.config.block)
        # without grad mode, parameters would still require gradients, which are two thirds of the work
        weight, bias = (part if torch.is_grad_enabled() else part.detach() for part in (self.weight, self.bias))
        scale = self._scale(len(vectors))
        loss: Any = _BlockedLoss.apply(vectors, weight, bias, targets, self.loss_function, scale, self.config.block)
        return loss

    def _scale(self, n_documents: int) -> float:
        """The factor of the sum over documents and labels."""
        return 1.0 / max(n_documents, 1) / (self.n_labels if self.config.loss.reduction == "mean" else 1)

    def _loss_of_shards(self, vectors: Tensor, targets: Targets, shard: Shard) -> Tensor:
        """The mean loss of the documents of all ranks, from the labels of all ranks."""
        batch = whole_batch(vectors, targets)
        function = self.loss_function
        if function is None:
            return softmax_of_shards(vectors, self.weight, self.bias, batch, shard, self.config.block)
        inside, scale = batch.inside(shard), self._scale(len(batch.vectors))

        def compute(inputs: Tensor, learning: bool) -> Any:
            weight, bias = self.weight.detach(), self.bias.detach()
            return blocked_loss(inputs, weight, bias, inside, function, scale, self.config.block, learning)

        return sharded_loss(vectors, self.weight, self.bias, batch, None, compute)

    @torch.no_grad()
    def best(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Ids and scores of the k best labels of each document, best first, ties in order of ids.

        NaN scores are never among the best: a head that has diverged returns empty ids. Scores are computed in the
        precision of the weights, also inside autocast: in bfloat16 many of them would be tied.
        """
        normalise = self.loss_function is None
        return best_of_blocks(vectors, self.weight, self.bias, k, self.config.block, normalise, shard=self.shard)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Log-odds as probabilities; margins of other losses are only mapped into [0, 1]."""
        return torch.exp(scores) if self.loss_function is None else torch.sigmoid(scores)

    def constant_loss(self, labels: Any, rows: np.ndarray) -> float:
        """The lowest mean loss of `rows` with scores that are equal for all documents of `labels`."""
        counts = np.bincount(labels.indices, minlength=self.n_labels)
        constants, own = self._constants(counts, labels.shape[0]), labels[rows]
        if self.loss_function is None:
            return softmax_constant_loss(constants, own)
        floor = constant_loss(self.loss_function, constants, own.indices, len(rows))
        return floor / self.n_labels if self.config.loss.reduction == "mean" else floor


@torch.no_grad()
def best_of_blocks(
    vectors: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    k: int,
    block: int,
    normalise: bool = False,
    unit_rows: bool = False,
    shard: Shard | None = None,
) -> tuple[Tensor, Tensor]:
    """Ids and scores of the k best rows of `weight` for each vector, best first, ties in order of ids.

    Scores are computed block by block, in the precision of the weights; `normalise` makes them the logarithms of the
    softmax over all rows, and `unit_rows` divides rows by their norms. With a shard, `weight` has its rows, and all
    ranks get the best of all.
    """
    rows = max(1, SCORES_AT_ONCE // block)
    with torch.autocast(vectors.device.type, enabled=False):
        vectors = vectors.to(weight.dtype)
        parts = [
            _best_of_few(vectors[begin : begin + rows], weight, bias, k, block, normalise, unit_rows)
            for begin in range(0, len(vectors), rows)
        ]
    if not parts:
        return torch.empty(0, k, dtype=torch.long, device=vectors.device), vectors.new_empty(0, k)
    ids, best, normaliser = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    if shard is not None:
        ids, best = best_of_shards(ids, best, shard)
        normaliser = combined_normalisers(normaliser) if normalise else normaliser
    return ids, best - normaliser[:, None] if normalise else best


def _best_of_few(
    vectors: Tensor, weight: Tensor, bias: Tensor | None, k: int, block: int, normalise: bool, unit_rows: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and scores of the best rows, and with `normalise` the logarithm of the sum of all exponentials."""
    best = vectors.new_full((len(vectors), k), -torch.inf)
    ids = torch.full((len(vectors), k), NO_LABEL, device=vectors.device)
    normaliser = vectors.new_full((len(vectors),), -torch.inf)
    for begin in range(0, len(weight), block):
        part = weight[begin : begin + block]
        part = (functional.normalize(part) if unit_rows else part).T
        scores = vectors @ part if bias is None else torch.addmm(bias[begin : begin + block], vectors, part)
        if normalise:
            normaliser = torch.logaddexp(normaliser, torch.logsumexp(scores, 1))
        # most blocks have no better label for most documents; ties keep the label of the earlier block
        better = torch.nonzero(scores.amax(1) > best[:, -1]).squeeze(1)
        if len(better) == 0:
            continue
        block_best, columns = exact_topk(scores[better], min(k, scores.shape[1]))
        merged = torch.cat([best[better], block_best], 1)
        order = torch.sort(merged, dim=1, descending=True, stable=True).indices[:, :k]
        best[better] = merged.gather(1, order)
        ids[better] = torch.cat([ids[better], columns + begin], 1).gather(1, order)
    return ids, best, normaliser


def exact_topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`torch.topk` with deterministic ties: the lower index comes first."""
    best, indices = scores.topk(k, dim=1)
    indices, by_index = indices.sort(dim=1)
    best, by_score = best.gather(1, by_index).sort(dim=1, descending=True, stable=True)
    indices = indices.gather(1, by_score)
    tied = torch.nonzero((scores >= best[:, -1:]).sum(1) > k).squeeze(1)
    if len(tied):
        best[tied], indices[tied] = (
            part[:, :k] for part in torch.sort(scores[tied], dim=1, descending=True, stable=True)
        )
    return best, indices


class _BlockedLoss(torch.autograd.Function):
    """Sum over documents and labels of a loss, times `scale`, with all gradients computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Targets,
        loss: ScoreLoss,
        scale: float,
        block: int,
    ) -> Tensor:
        learning = any(ctx.needs_input_grad[:3])
        total, gradients = blocked_loss(vectors, weight, bias, targets, loss, scale, block, learning)
        if gradients is not None:
            keep_gradients(ctx, gradients, vectors, (weight, bias), rows=None)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        return *kept_gradients(ctx, *grad_outputs), None, None, None, None


def blocked_loss(
    vectors: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Targets,
    loss: ScoreLoss,
    scale: float,
    block: int,
    learning: bool,
) -> tuple[Tensor, Gradients | None]:
    """Sum over documents and labels of a loss, times `scale`, and if `learning` all gradients."""
    dtype, wide = precisions(vectors, weight)
    with torch.autocast(vectors.device.type, enabled=False):
        inputs = vectors.to(dtype)
        scaled = inputs * scale
        total = torch.zeros((), dtype=torch.float64, device=vectors.device)
        gradient_vectors = torch.zeros_like(vectors, dtype=wide)
        gradient_weight, gradient_bias = (torch.empty_like(part) if learning else part for part in (weight, bias))
        for begin, end, first, last in _edges(targets.labels, len(bias), block):
            part = weight[begin:end].to(dtype)
            scores = torch.addmm(bias[begin:end].to(dtype), inputs, part.T).to(wide)
            positive = targets.documents[first:last], targets.labels[first:last] - begin
            positive_values, positive_gradients = loss.positive(scores[positive])
            if targets.weights is not None:
                own = targets.weights[first:last].to(wide)
                positive_values, positive_gradients = positive_values * own, positive_gradients * own
            values, gradients = loss.negative(scores)
            del scores
            values[positive], gradients[positive] = positive_values, positive_gradients
            total += values.sum()
            del values
            if learning:
                gradients = gradients.to(dtype)
                gradient_vectors += gradients @ part
                gradient_weight[begin:end] = gradients.T @ scaled
                gradient_bias[begin:end] = gradients.sum(0, dtype=wide)
    result = (total * scale).to(wide)
    return result, (gradient_vectors.mul_(scale), gradient_weight, gradient_bias.mul_(scale)) if learning else None


def _edges(labels: Tensor, n_labels: int, block: int) -> list[tuple[int, int, int, int]]:
    """Begin and end of each block of labels, and of its targets."""
    begins = list(range(0, n_labels, block))
    ends = [*begins[1:], n_labels]
    cuts = torch.searchsorted(labels, torch.tensor([*begins, n_labels], device=labels.device)).tolist()
    return list(zip(begins, ends, cuts[:-1], cuts[1:], strict=True))


# --- candidates ---
# One linear output per label, of which only a few candidates per document are scored.
#
# Candidates are label ids [documents, candidates], -1 where a document has fewer. Scores are computed for the distinct
# candidates of the batch as one matrix product and picked from it: the products that nobody asked for cost less than
# copying a row of weights per document and candidate. The backward pass is part of the forward pass, as in the flat
# head, and gradients of weights and biases have only the rows of the candidates. A true label that is no candidate is
# ignored: who builds the candidates decides whether they have all of them. The softmax loss is over the candidates of a
# document, or over segments of them, such as the children of one node.

CandidateLosses = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Values and gradients from scores, candidates and targets."""
CANDIDATES_SCORES_AT_ONCE = 1 << 22
"""Documents x distinct candidates whose scores are computed at a time."""


class CandidateHead(nn.Module):
    """Scores of candidate labels from a document's vector.

    `train` needs the names of `weight` and `bias` in `rows`: their gradients are row-sparse.

    Parameters
    ----------
    width
        Dimension of a vector.
    n_labels
        Number of labels.
    loss
        The loss of a score. Its reduction is over the candidates of the batch: their sum per document, or their mean.
    dropout
        Dropout rate of the vector.
    """

    def __init__(self, width: int, n_labels: int, loss: LossConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.reduction = loss.reduction
        self.loss_function = None if loss.name == "softmax" else make_loss(loss)
        self.dropout = nn.Dropout(dropout)
        self.weight = nn.Parameter(torch.empty(n_labels, width))
        self.bias = nn.Parameter(torch.zeros(n_labels))

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return len(self.bias)

    @torch.no_grad()
    def initialise(self, seed: int) -> CandidateHead:
        """Draw the initial weights; biases are 0."""
        self.weight.normal_(0, INITIAL_STD, generator=torch.Generator().manual_seed(seed))
        self.bias.zero_()
        return self

    @torch.no_grad()
    def load(self, weight: np.ndarray, bias: np.ndarray) -> CandidateHead:
        """Copy given weights [labels, width] and biases."""
        self.weight.copy_(torch.from_numpy(weight))
        self.bias.copy_(torch.from_numpy(bias))
        return self

    def loss(self, vectors: Tensor, candidates: Tensor, targets: Tensor, segment: int | None = None) -> Tensor:
        """The mean loss of the documents.

        `targets` [documents, candidates] is 0 for candidates that a document does not have, and the weight of the
        loss, usually 1, for those it has. With softmax these are the masses of a target distribution, and each
        `segment` candidates have a softmax of their own; None: all candidates of a document.
        """
        count = max(len(vectors), 1) if self.reduction == "sum" else self._divisor(candidates)
        weight, bias = (part if torch.is_grad_enabled() else part.detach() for part in (self.weight, self.bias))
        loss: Any = _CandidateLoss.apply(
            self.dropout(vectors), weight, bias, candidates, targets, self._losses(segment), 1.0 / count
        )
        return loss

    def _divisor(self, candidates: Tensor) -> float:
        return divisor(int((candidates >= 0).sum()), candidates.device)

    def without_candidates(self, candidates: Tensor) -> None:
        """A step in which no document of this rank has candidates: other ranks may wait for their number."""
        if self.reduction == "mean":
            self._divisor(candidates)

    def _losses(self, segment: int | None) -> CandidateLosses:
        if self.loss_function is None:
            return partial(_softmax_losses, segment=segment)
        return partial(_score_losses, loss=self.loss_function)

    @torch.no_grad()
    def scores(self, vectors: Tensor, candidates: Tensor) -> Tensor:
        """Scores [documents, candidates]; -inf where there is no candidate. In the precision of the weights."""
        with torch.autocast(vectors.device.type, enabled=False):
            batch = _Batch(vectors.to(self.weight.dtype), self.weight, self.bias, candidates)
            scores = vectors.new_empty(candidates.shape, dtype=self.weight.dtype)
            for documents in batch.blocks():
                scores[documents] = batch.scores(documents)
        return scores.masked_fill_(candidates < 0, -torch.inf)

    @torch.no_grad()
    def best(self, vectors: Tensor, candidates: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Ids and scores of the k best candidates, best first, ties in the order of the candidates."""
        best, columns = exact_topk(self.scores(vectors, candidates), min(k, candidates.shape[1]))
        return candidates.gather(1, columns), best


class _Batch:
    """The vectors of a batch, and the rows of the weights that its candidates need."""

    def __init__(self, vectors: Tensor, weight: Tensor, bias: Tensor, candidates: Tensor) -> None:
        self.vectors = vectors
        # padding has the row of one of the document's own candidates, so that no other row is read
        filled = torch.where(candidates < 0, candidates.amax(1, keepdim=True).clamp_min(0), candidates)
        self.rows, self.columns = torch.unique(filled, return_inverse=True)
        self.weight = weight.detach().index_select(0, self.rows).to(vectors.dtype)
        self.bias = bias.detach().index_select(0, self.rows).to(vectors.dtype)

    def blocks(self) -> list[slice]:
        """Documents to compute at a time."""
        size = max(1, CANDIDATES_SCORES_AT_ONCE // max(len(self.rows), 1))
        return [slice(begin, begin + size) for begin in range(0, len(self.vectors), size)]

    def scores(self, documents: slice) -> Tensor:
        """The scores of some documents' candidates; those of padding have no meaning."""
        return torch.addmm(self.bias, self.vectors[documents], self.weight.T).gather(1, self.columns[documents])


class _CandidateLoss(torch.autograd.Function):
    """Sum of the losses of all candidates, times `scale`, with all gradients computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        weight: Tensor,
        bias: Tensor,
        candidates: Tensor,
        targets: Tensor,
        losses: CandidateLosses,
        scale: float,
    ) -> Tensor:
        learning = any(ctx.needs_input_grad[:3])
        with torch.autocast(vectors.device.type, enabled=False):  # in float32: it is a small part of the work
            batch = _Batch(vectors.detach().to(weight.dtype), weight, bias, candidates)
            total = torch.zeros((), dtype=torch.float64, device=vectors.device)
            vector_gradients, row_gradients = torch.empty_like(batch.vectors), torch.zeros_like(batch.weight)
            bias_gradients = torch.zeros_like(batch.bias)
            for documents in batch.blocks():
                values, gradients = losses(batch.scores(documents), candidates[documents], targets[documents])
                total += values.sum()
                if learning:
                    columns = batch.columns[documents]
                    dense = gradients.new_zeros(len(gradients), len(batch.rows)).scatter_add_(1, columns, gradients)
                    torch.mm(dense, batch.weight, out=vector_gradients[documents])
                    row_gradients.addmm_(dense.T, batch.vectors[documents])
                    bias_gradients += dense.sum(0)
        if learning:
            gradients = tuple(part.mul_(scale) for part in (vector_gradients, row_gradients, bias_gradients))
            keep_gradients(ctx, gradients, vectors, (weight, bias), batch.rows)
        return (total * scale).to(weight.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        return *kept_gradients(ctx, *grad_outputs), *[None] * 4


def _score_losses(scores: Tensor, candidates: Tensor, targets: Tensor, loss: ScoreLoss) -> tuple[Tensor, Tensor]:
    """Values and gradients of the scores; 0 where there is no candidate."""
    (positive, of_positive), (negative, of_negative) = loss.positive(scores), loss.negative(scores)
    has, missing = targets > 0, candidates < 0
    values = torch.where(has, positive * targets, negative).masked_fill_(missing, 0)
    return values, torch.where(has, of_positive * targets, of_negative).masked_fill_(missing, 0)


def _softmax_losses(scores: Tensor, candidates: Tensor, targets: Tensor, segment: int | None) -> tuple[Tensor, Tensor]:
    """Values and gradients of softmax cross-entropy in each segment; 0 where there is no candidate."""
    shape = (len(scores), -1, segment or scores.shape[1])
    missing = (candidates < 0).view(shape)
    logs = torch.log_softmax(scores.view(shape).masked_fill(missing, torch.finfo(scores.dtype).min), -1)
    masses = targets.to(scores.dtype).view(shape)
    values = (-logs * masses).masked_fill_(missing, 0)
    gradients = (logs.exp() * masses.sum(-1, keepdim=True) - masses).masked_fill_(missing, 0)
    return values.view_as(scores), gradients.view_as(scores)
