"""One linear output per label, of which only a few candidates per document are scored.

Candidates are label ids [documents, candidates], -1 where a document has fewer. Scores are computed for the distinct
candidates of the batch as one matrix product and picked from it: the products that nobody asked for cost less than
copying a row of weights per document and candidate. The backward pass is part of the forward pass, as in the flat head,
and gradients of weights and biases have only the rows of the candidates. A true label that is no candidate is ignored:
who builds the candidates decides whether they have all of them. The softmax loss is over the candidates of a document,
or over segments of them, such as the children of one node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from labelwise.encoders.batch_share import divisor
from labelwise.heads.base import INITIAL_STD
from labelwise.heads.config import LossConfig
from labelwise.heads.flat import exact_topk
from labelwise.heads.forward_gradients import keep_gradients, kept_gradients
from labelwise.heads.losses import ScoreLoss, make_loss

CandidateLosses = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Values and gradients from scores, candidates and targets."""
SCORES_AT_ONCE = 1 << 22
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
        size = max(1, SCORES_AT_ONCE // max(len(self.rows), 1))
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
