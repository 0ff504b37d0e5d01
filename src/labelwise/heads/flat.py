"""One linear output per label, for any number of labels: memory beside the weights is bounded by batch x block.

Training: the loss is computed for one block of labels after the other. The gradients of a block's scores are computed
at once, added to those of vectors and weights, and freed with the scores, so that an array of documents x labels never
exists. This is the whole backward pass of the head; autograd only gets its result. Prediction: the best k of each
block are merged with the best k so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from labelwise.heads.base import LinearHead, Targets
from labelwise.heads.blocked_softmax import Mass, blocked_softmax, softmax_of_shards
from labelwise.heads.config import HeadConfig
from labelwise.heads.forward_gradients import keep_gradients, kept_gradients, precisions
from labelwise.heads.losses import (
    ScoreLoss,
    best_constants,
    constant_loss,
    label_priors,
    make_loss,
    softmax_constant_loss,
    softmax_constants,
)
from labelwise.heads.sharding import (
    Gradients,
    Shard,
    ShardedRows,
    best_of_shards,
    combined_normalisers,
    sharded_loss,
    whole_batch,
)
from labelwise.topk import NO_LABEL

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
