"""One linear output per label, for any number of labels: memory beside the weights is bounded by batch x block.

Training: the loss is computed for one block of labels after the other. The gradients of a block's scores are computed
at once, added to those of vectors and weights, and freed with the scores, so that an array of documents x labels never
exists. Prediction: the best k of each block are merged with the best k so far.

Or only candidates are scored: their distinct labels in the batch are one block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labelwise.nn.config import HeadConfig
from labelwise.nn.heads.base import LinearHead, Targets, exact_topk, label_priors, rows_of
from labelwise.nn.heads.losses import (
    Gradients,
    ScoreLoss,
    best_constants,
    constant_loss,
    loss_with_gradients,
    make_loss,
    precisions,
    softmax_constant_loss,
    softmax_constants,
)
from labelwise.nn.heads.sharding import Shard, ShardedRows, best_of_shards, combined_normalisers, whole_batch
from labelwise.runtime.ranks import divisor
from labelwise.topk import NO_LABEL


class Block(NamedTuple):
    """A range of labels, and the range of their targets, which are sorted by label."""

    labels: slice
    targets: slice


def blocks_of(labels: Tensor, n_labels: int, size: int) -> list[Block]:
    """Blocks of at most `size` labels; `labels` are those of the targets."""
    edges = [*range(0, n_labels, size), n_labels]
    cuts = torch.searchsorted(labels, torch.tensor(edges, device=labels.device)).tolist()
    return [Block(slice(*own), slice(*cut)) for own, cut in zip(pairwise(edges), pairwise(cuts), strict=True)]


# --- softmax ---
# Two passes over the blocks: the first computes the normaliser (log-sum-exp) and the scores of the targets, the second
# computes scores again and from them all gradients. Scores of the first pass are kept while they are few.
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
class Sample:
    """The labels that take part in a softmax."""

    rows: Tensor
    """Labels, ascending and distinct."""
    groups: Tensor | None = None
    """The column of `offsets` of each row."""
    offsets: Tensor | None = None
    """Added to the scores of each group [documents, groups]; each document needs one above -inf."""

    def inside(self, shard: Shard) -> Sample:
        """The labels that a shard has, counted from its first; offsets are the same for all documents."""
        chosen = (self.rows >= shard.own.start) & (self.rows < shard.own.stop)
        groups = None if self.groups is None else self.groups[chosen]
        return Sample(self.rows[chosen] - shard.own.start, groups, self.offsets)


@dataclass(frozen=True)
class Cosines:
    """Scores are scale x cosine; vectors must have norm 1, weights are normalised here."""

    scale: float
    margin: Callable[[Tensor], tuple[Tensor, Tensor]]
    """From cosines of targets to those that count instead, and the derivatives."""


@dataclass(frozen=True)
class Softmax:
    """Cross-entropy of softmax(vectors @ weight.T + bias) with target masses, the mean over documents.

    Parameters
    ----------
    targets
        Their weights are the masses; with a sample, their labels are indices into its rows.
    block
        Labels per block.
    sample, cosines
        Which labels take part, and how they are scored, if not all of them by products.
    totals
        Masses of the documents where `targets` are only those of this rank's labels: then normalisers are those of all
        ranks, and the loss is this rank's part of it.
    """

    targets: Targets
    block: int
    sample: Sample | None = None
    cosines: Cosines | None = None
    totals: Tensor | None = None

    def __call__(
        self, vectors: Tensor, weight: Tensor, bias: Tensor | None, learning: bool
    ) -> tuple[Tensor, Gradients | None]:
        """The loss, and if `learning` all gradients."""
        dtype, wide = precisions(vectors, weight)
        scale = 1.0 / max(len(vectors), 1)
        with torch.autocast(vectors.device.type, enabled=False):
            blocks = _Blocks(self, vectors.to(dtype), weight, bias, wide, learning)
            own_totals = torch.zeros(len(vectors), dtype=wide, device=vectors.device)
            own_totals.index_add_(0, self.targets.documents, blocks.masses)
            normaliser = torch.full_like(own_totals, -torch.inf)
            of_targets = torch.zeros((), dtype=torch.float64, device=vectors.device)
            for block in blocks.blocks:
                scores = blocks.scores(block)
                normaliser = torch.logaddexp(normaliser, torch.logsumexp(scores, 1))
                own = scores[blocks.targets(block)]
                of_targets += (own.double() * blocks.masses[block.targets].double()).sum()
            if self.totals is not None:
                normaliser = combined_normalisers(normaliser)
            total = (normaliser.double() * own_totals.double()).sum() - of_targets
            totals = own_totals if self.totals is None else self.totals.to(wide)
            gradients = blocks.gradients(normaliser, totals, scale) if learning else None
        return (total * scale).to(wide), gradients


class _Blocks:
    """Scores and gradients of a softmax, one block of labels after the other."""

    def __init__(
        self, loss: Softmax, inputs: Tensor, weight: Tensor, bias: Tensor | None, wide: torch.dtype, learning: bool
    ) -> None:
        self.loss, self.inputs, self.weight, self.bias, self.wide = loss, inputs, weight, bias, wide
        assert loss.targets.weights is not None
        self.masses = loss.targets.weights.to(wide)
        self.count = len(weight) if loss.sample is None else len(loss.sample.rows)
        self.blocks = blocks_of(loss.targets.labels, self.count, loss.block)
        self.keep = learning and len(inputs) * self.count <= KEPT_SCORES
        self.kept: dict[int, Tensor] = {}
        self.derivatives: dict[int, Tensor] = {}

    def rows(self, block: Block) -> Any:
        """The index of a block's labels in the weights."""
        return block.labels if self.loss.sample is None else self.loss.sample.rows[block.labels]

    def part(self, block: Block) -> Tensor:
        """The factors of the inputs in a block's scores."""
        weight, cosines = self.weight[self.rows(block)], self.loss.cosines
        if cosines is not None:
            weight = weight * (cosines.scale / _norms(weight))
        return weight.to(self.inputs.dtype)

    def targets(self, block: Block) -> tuple[Tensor, Tensor]:
        """Documents and columns of the targets in a block."""
        targets = self.loss.targets
        return targets.documents[block.targets], targets.labels[block.targets] - block.labels.start

    def scores(self, block: Block) -> Tensor:
        """Scores [documents, labels of the block], margins and offsets included."""
        if block.labels.start in self.kept:
            return self.kept.pop(block.labels.start)
        scores = (self.inputs @ self.part(block).T).to(self.wide)
        sample, cosines = self.loss.sample, self.loss.cosines
        if cosines is not None:
            at = self.targets(block)
            changed, self.derivatives[block.labels.start] = cosines.margin(scores[at] / cosines.scale)
            scores[at] = cosines.scale * changed
        if self.bias is not None:
            scores += self.bias[self.rows(block)]
        if sample is not None and sample.offsets is not None and sample.groups is not None:
            scores += sample.offsets.to(self.wide)[:, sample.groups[block.labels]]
        if self.keep:
            self.kept[block.labels.start] = scores
        return scores

    def gradients(self, normaliser: Tensor, totals: Tensor, scale: float) -> Gradients:
        """Gradients of vectors, weights and biases, of the sampled rows if there is a sample."""
        inputs, cosines = self.inputs, self.loss.cosines
        of_vectors = torch.zeros_like(inputs, dtype=self.wide)
        of_weight = torch.empty(self.count, inputs.shape[1], dtype=self.weight.dtype, device=inputs.device)
        of_bias = torch.empty(self.count, dtype=self.weight.dtype, device=inputs.device)
        scaled_totals = (totals * scale)[:, None]
        for block in self.blocks:
            at = self.targets(block)
            gradients = self.scores(block).sub_(normaliser[:, None]).exp_().mul_(scaled_totals)
            gradients.index_put_(at, -scale * self.masses[block.targets], accumulate=True)
            of_bias[block.labels] = gradients.sum(0)
            if cosines is not None:
                gradients[at] *= self.derivatives[block.labels.start]
            gradients = gradients.to(inputs.dtype)
            of_vectors += gradients @ self.part(block)
            of_part = gradients.T @ inputs
            if cosines is not None:
                weight = self.weight[self.rows(block)]
                norms = _norms(weight)
                unit = weight / norms
                of_part = (of_part - unit * (unit * of_part).sum(1, keepdim=True)) * (cosines.scale / norms)
            of_weight[block.labels] = of_part
        return of_vectors, of_weight, of_bias


def _norms(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-12)


def softmax_loss(
    head: Any, vectors: Tensor, targets: Targets, sample: Sample | None = None, cosines: Cosines | None = None
) -> Tensor:
    """The mean softmax loss of documents over all labels or a sample, of all ranks if the head is divided.

    With a sample, gradients of weight and bias are row-sparse.
    """
    batch, shard = whole_batch(vectors, targets, head.shard), head.shard
    masses, totals = batch.targets.masses(len(batch.vectors)), None
    own = replace(batch.targets, weights=masses)
    if shard is not None:
        totals = torch.zeros(len(batch.vectors), dtype=masses.dtype, device=masses.device)
        totals.index_add_(0, own.documents, masses)
        own, sample = own.among(shard.own), None if sample is None else sample.inside(shard)
    if sample is not None:
        own = replace(own, labels=torch.searchsorted(sample.rows, own.labels))
    loss = Softmax(own, head.config.block, sample, cosines, totals)
    return batch.loss(vectors, head.weight, head.bias, loss, None if sample is None else sample.rows)


# --- losses of single scores ---


@dataclass(frozen=True)
class BlockedLoss:
    """The sum over documents and labels of a loss of single scores, times `scale`; `block` labels at a time."""

    targets: Targets
    loss: ScoreLoss
    scale: float
    block: int

    def __call__(self, vectors: Tensor, weight: Tensor, bias: Any, learning: bool) -> tuple[Tensor, Gradients | None]:
        """The loss, and if `learning` all gradients."""
        targets, scale = self.targets, self.scale
        dtype, wide = precisions(vectors, weight)
        with torch.autocast(vectors.device.type, enabled=False):
            inputs = vectors.to(dtype)
            scaled = inputs * scale
            total = torch.zeros((), dtype=torch.float64, device=vectors.device)
            of_vectors = torch.zeros_like(vectors, dtype=wide)
            of_weight, of_bias = (torch.empty_like(part) if learning else part for part in (weight, bias))
            for block in blocks_of(targets.labels, len(bias), self.block):
                part = weight[block.labels].to(dtype)
                scores = torch.addmm(bias[block.labels].to(dtype), inputs, part.T).to(wide)
                at = targets.documents[block.targets], targets.labels[block.targets] - block.labels.start
                positive_values, positive_gradients = self.loss.positive(scores[at])
                if targets.weights is not None:
                    own = targets.weights[block.targets].to(wide)
                    positive_values, positive_gradients = positive_values * own, positive_gradients * own
                values, gradients = self.loss.negative(scores)
                del scores
                values[at], gradients[at] = positive_values, positive_gradients
                total += values.sum()
                del values
                if learning:
                    gradients = gradients.to(dtype)
                    of_vectors += gradients @ part
                    of_weight[block.labels] = gradients.T @ scaled
                    of_bias[block.labels] = gradients.sum(0, dtype=wide)
        result = (total * scale).to(wide)
        return result, (of_vectors.mul_(scale), of_weight, of_bias.mul_(scale)) if learning else None


# --- candidates ---
# Scores are computed for the distinct candidates of the batch as one matrix product and picked from it: the products
# that nobody asked for cost less than copying a row of weights per document and candidate. Gradients of weights and
# biases have only the rows of the candidates.

CandidateLosses = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Values and gradients from scores, candidates and targets."""
CANDIDATES_SCORES_AT_ONCE = 1 << 22
"""Documents x distinct candidates whose scores are computed at a time."""


@dataclass(frozen=True)
class _Few:
    """The candidates of a batch: the rows of the weights that they need, and the index of each in them."""

    candidates: Tensor
    rows: Tensor
    columns: Tensor

    def parts(self) -> list[slice]:
        """Documents to compute at a time."""
        size = max(1, CANDIDATES_SCORES_AT_ONCE // max(len(self.rows), 1))
        return [slice(begin, begin + size) for begin in range(0, len(self.candidates), size)]

    def tables(self, vectors: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = (part.detach().index_select(0, self.rows).to(vectors.dtype) for part in (weight, bias))
        return weight, bias

    def scores(self, vectors: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Scores of the candidates, -inf where there is none."""
        weight, bias = self.tables(vectors, weight, bias)
        scores = vectors.new_empty(self.candidates.shape)
        for some in self.parts():
            scores[some] = torch.addmm(bias, vectors[some], weight.T).gather(1, self.columns[some])
        return scores.masked_fill_(self.candidates < 0, -torch.inf)


@dataclass(frozen=True)
class CandidateLoss:
    """The sum of the losses of all candidates, times `scale`."""

    few: _Few
    targets: Tensor
    losses: CandidateLosses
    scale: float

    def __call__(self, vectors: Tensor, weight: Tensor, bias: Any, learning: bool) -> tuple[Tensor, Gradients | None]:
        """The loss, and if `learning` all gradients."""
        few, scale, dtype = self.few, self.scale, weight.dtype
        with torch.autocast(vectors.device.type, enabled=False):  # in float32: it is a small part of the work
            vectors = vectors.detach().to(dtype)
            weight, bias = few.tables(vectors, weight, bias)
            total = torch.zeros((), dtype=torch.float64, device=vectors.device)
            of_vectors, of_weight, of_bias = torch.empty_like(vectors), torch.zeros_like(weight), torch.zeros_like(bias)
            for some in few.parts():
                columns = few.columns[some]
                scores = torch.addmm(bias, vectors[some], weight.T).gather(1, columns)
                values, gradients = self.losses(scores, few.candidates[some], self.targets[some])
                total += values.sum()
                if learning:
                    dense = gradients.new_zeros(len(gradients), len(few.rows)).scatter_add_(1, columns, gradients)
                    torch.mm(dense, weight, out=of_vectors[some])
                    of_weight.addmm_(dense.T, vectors[some])
                    of_bias += dense.sum(0)
        result = (total * scale).to(dtype)
        return result, (of_vectors.mul_(scale), of_weight.mul_(scale), of_bias.mul_(scale)) if learning else None


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


# --- the head ---

SCORES_AT_ONCE = 1 << 20
"""Scores computed at a time in prediction: few enough for a processor's cache."""


class Outputs(LinearHead, ShardedRows):
    """Scores of all labels from a document's vector in blocks of labels, or of candidates.

    With softmax, each `segment` candidates, such as the children of one node, have a softmax of their own; None: all
    candidates of a document.
    """

    config: HeadConfig
    sharded_tables = ("weight", "bias")

    def __init__(self, width: int, n_labels: int, config: HeadConfig, segment: int | None = None) -> None:
        super().__init__(width, n_labels, n_labels, config)
        self.segment = segment
        self.loss_function: ScoreLoss | None = None if config.loss.name == "softmax" else make_loss(config.loss)

    def _constants(self, counts: np.ndarray, n_documents: int) -> np.ndarray:
        if self.loss_function is None:
            return softmax_constants(counts, n_documents)
        return best_constants(self.loss_function, label_priors(counts, n_documents))

    def row_tables(self, candidates: bool = False) -> tuple[str, ...]:
        """Weights and biases if only candidates are scored."""
        return ("weight", "bias") if candidates else ()

    @torch.no_grad()
    def load(self, weight: np.ndarray, bias: np.ndarray) -> Outputs:
        """Copy given weights [labels, width] and biases."""
        self.weight.copy_(torch.tensor(weight))
        self.bias.copy_(torch.tensor(bias))
        return self

    def loss(self, states: Tensor, targets: Any, candidates: Tensor | None = None) -> Tensor:
        """The mean loss of the documents.

        With softmax, targets of candidates are the masses of a target distribution.
        """
        vectors = self.dropout(states)
        if candidates is not None:
            return self._loss_of_candidates(vectors, targets, candidates)
        if self.loss_function is None:
            return softmax_loss(self, vectors, targets)
        batch, shard = whole_batch(vectors, targets, self.shard), self.shard
        own = batch.targets if shard is None else batch.targets.among(shard.own)
        scale = 1.0 / max(len(batch.vectors), 1) / (self.n_labels if self.config.loss.reduction == "mean" else 1)
        loss = BlockedLoss(own, self.loss_function, scale, self.config.block)
        return batch.loss(vectors, self.weight, self.bias, loss)

    # --- candidates ---

    def _loss_of_candidates(self, vectors: Tensor, targets: Tensor, candidates: Tensor) -> Tensor:
        count = max(len(vectors), 1)
        if self.config.loss.reduction == "mean":
            count = divisor(int((candidates >= 0).sum()), candidates.device)
        if self.loss_function is None:
            losses: CandidateLosses = partial(_softmax_losses, segment=self.segment)
        else:
            losses = partial(_score_losses, loss=self.loss_function)
        few = _Few(candidates, *rows_of(candidates))
        loss = CandidateLoss(few, targets, losses, 1.0 / count)
        return loss_with_gradients(vectors, self.weight, self.bias, loss, few.rows)

    def without_candidates(self) -> None:
        """A step in which no document of this rank has candidates: other ranks may wait for their number."""
        if self.config.loss.reduction == "mean":
            divisor(0, self.device)

    @torch.no_grad()
    def scores(self, states: Tensor, candidates: Tensor) -> Tensor:
        """Scores [documents, candidates]; -inf where there is no candidate. In the precision of the weights."""
        with torch.autocast(states.device.type, enabled=False):
            return _Few(candidates, *rows_of(candidates)).scores(states.to(self.weight.dtype), self.weight, self.bias)

    # --- prediction ---

    @torch.no_grad()
    def best(self, states: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Ids and scores of the k best labels of each document, best first, ties in order of ids.

        NaN scores are never among the best: a head that has diverged returns empty ids. Scores are computed in the
        precision of the weights, also inside autocast: in bfloat16 many of them would be tied.
        """
        return best_of_blocks(self, states, k, normalise=self.loss_function is None)

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
    head: Any, vectors: Tensor, k: int, normalise: bool = False, unit_rows: bool = False
) -> tuple[Tensor, Tensor]:
    """Ids and scores of the k best rows of a head's weights for each vector, best first, ties in order of ids.

    Scores are computed block by block, in the precision of the weights; `normalise` makes them the logarithms of the
    softmax over all rows, and `unit_rows` divides rows by their norms. If the head is divided over ranks, all of them
    get the best of all.
    """
    rows = max(1, SCORES_AT_ONCE // head.config.block)
    with torch.autocast(vectors.device.type, enabled=False):
        vectors = vectors.to(head.weight.dtype)
        parts = [_best_of_few(head, some, k, normalise, unit_rows) for some in vectors.split(rows)]
    ids, best, normaliser = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    if head.shard is not None:
        ids, best = best_of_shards(ids, best, head.shard)
        normaliser = combined_normalisers(normaliser) if normalise else normaliser
    return ids, best - normaliser[:, None] if normalise else best


def _best_of_few(head: Any, vectors: Tensor, k: int, normalise: bool, unit_rows: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and scores of the best rows, and with `normalise` the logarithm of the sum of all exponentials."""
    weight, bias, block = head.weight, head.bias, head.config.block
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
