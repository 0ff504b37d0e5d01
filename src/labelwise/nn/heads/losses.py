"""Losses of one score per label, each as two functions of the score: for labels a document has, and for the others.

Nearly all labels are negative, so `negative` is applied to a block of scores and the few positive entries are then
replaced by `positive`: there is never a dense array of targets. Each function returns value and gradient together,
since training needs both and they share most of the computation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from labelwise.nn.config import LossConfig
from labelwise.nn.heads.base import label_priors
from labelwise.runtime.ranks import add_row_gradient

ScoreFunction = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class ScoreLoss:
    """A loss as value and gradient of a score, for labels a document has (`positive`) and has not (`negative`)."""

    positive: ScoreFunction
    negative: ScoreFunction


def make_loss(config: LossConfig) -> ScoreLoss:
    """The loss of a config; softmax is no loss of single scores."""
    if config.name == "bce":
        return ScoreLoss(_bce_positive, _bce_negative)
    if config.name == "asymmetric":
        positive, focus = partial(_focal, focus=config.focus_positive), config.focus_negative
        if config.shift:
            return ScoreLoss(positive, partial(_shifted_negative, focus=focus, shift=config.shift))
        return ScoreLoss(positive, _mirrored(partial(_focal, focus=focus)))
    positives = {"hinge": _hinge, "squared_hinge": _squared_hinge, "focal": partial(_focal, focus=config.focus)}
    return ScoreLoss(positives[config.name], _mirrored(positives[config.name]))


def _mirrored(positive: ScoreFunction) -> ScoreFunction:
    """The loss of a label that a document does not have is that of the negated score."""

    def negative(scores: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = positive(-scores)
        return value, -gradient

    return negative


def _bce_positive(scores: Tensor) -> tuple[Tensor, Tensor]:
    return functional.softplus(-scores), torch.sigmoid(scores) - 1


def _bce_negative(scores: Tensor) -> tuple[Tensor, Tensor]:
    return functional.softplus(scores), torch.sigmoid(scores)


def _hinge(scores: Tensor) -> tuple[Tensor, Tensor]:
    gap = (1 - scores).clamp_min(0)
    return gap, -(gap > 0).to(scores.dtype)


def _squared_hinge(scores: Tensor) -> tuple[Tensor, Tensor]:
    gap = (1 - scores).clamp_min(0)
    return gap * gap, -2 * gap


def _focal(scores: Tensor, focus: float) -> tuple[Tensor, Tensor]:
    cost = functional.softplus(-scores)  # -log p
    missing = torch.sigmoid(-scores)  # 1 - p
    weight = missing**focus
    return weight * cost, -weight * (focus * (1 - missing) * cost + missing)


def _shifted_negative(scores: Tensor, focus: float, shift: float) -> tuple[Tensor, Tensor]:
    """Focal on a probability lowered by `shift`: (p - shift)^focus * -log(1 - p + shift)."""
    probability = torch.sigmoid(scores)
    lowered = (probability - shift).clamp_min(0)
    cost = -torch.log1p(-lowered)
    weight = lowered**focus
    derivative = weight / (1 - lowered)  # by the probability
    if focus:
        derivative = derivative + focus * lowered ** (focus - 1) * cost
    gradient = torch.where(lowered > 0, derivative * probability * (1 - probability), 0.0)
    return weight * cost, gradient


def best_constants(loss: ScoreLoss, priors: np.ndarray) -> np.ndarray:
    """For each label the constant score with the lowest loss, by bisection of the gradient."""
    prior = torch.from_numpy(np.asarray(priors, np.float64))
    low, high = torch.full_like(prior, -30.0), torch.full_like(prior, 30.0)
    for _ in range(60):
        middle = (low + high) / 2
        rising = prior * loss.positive(middle)[1] + (1 - prior) * loss.negative(middle)[1] > 0
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    return ((low + high) / 2).numpy()


def constant_loss(loss: ScoreLoss, constants: np.ndarray, labels: np.ndarray, n_documents: int) -> float:
    """The loss per document, summed over labels, when every document gets the same scores.

    `labels` are the concatenated labels of all documents. With `best_constants` this is the lowest loss of a model that
    ignores the documents; for cross-entropy it is the entropy of the label marginals.
    """
    scores = torch.from_numpy(np.asarray(constants, np.float64))
    absent, present = loss.negative(scores)[0], loss.positive(scores)[0]
    counts = torch.from_numpy(np.bincount(labels, minlength=len(constants)).astype(np.float64))
    total = (counts * present + (n_documents - counts) * absent).sum()
    return float(total) / max(n_documents, 1)


def softmax_constants(counts: np.ndarray, n_documents: int) -> np.ndarray:
    """For each label its constant score with the lowest softmax loss: the logarithm of its fraction of all labels."""
    priors = label_priors(counts, n_documents)
    return np.log(priors / priors.sum())


def softmax_constant_loss(constants: np.ndarray, labels: Any) -> float:
    """The softmax loss of documents (CSR) that all get the same log-probabilities."""
    counts = np.diff(labels.indptr)
    masses = np.repeat(1.0 / np.maximum(counts, 1), counts)
    return float(-(constants[labels.indices] * masses).sum()) / max(labels.shape[0], 1)


# --- losses with gradients ---
# A loss of vectors and tables of weights that computes all gradients together with its value: autograd only gets them.

Gradients = tuple[Tensor, Tensor, Tensor]
"""Of vectors, weights and biases; of losses without biases the last one is ignored."""
Compute = Callable[[Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Gradients | None]]
"""From vectors, weights, biases, and whether to learn, to the loss and its gradients."""


def loss_with_gradients(
    vectors: Tensor, weight: Tensor, bias: Tensor | None, compute: Compute, rows: Tensor | None = None
) -> Tensor:
    """What `compute` returns, as a loss with gradients; with `rows`, those of the tables have only these rows."""
    # without grad mode, parameters would still require gradients, which are two thirds of the work
    if not torch.is_grad_enabled():
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    loss: Any = _LossWithGradients.apply(vectors, weight, bias, compute, rows)
    return loss


class _LossWithGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, weight: Tensor, bias: Tensor | None, compute: Compute, rows: Tensor | None
    ) -> Tensor:
        loss, ctx.gradients = compute(vectors, weight, bias, any(ctx.needs_input_grad[:3]))
        ctx.tables, ctx.rows, ctx.dtype = (weight, bias), rows, vectors.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        (outer,) = grad_outputs
        gradients, ctx.gradients = ctx.gradients, None  # moved, not copied
        if float(outer) != 1.0:
            gradients = tuple(part.mul_(outer) for part in gradients)
        of_vectors, *of_tables = gradients
        result: list[Tensor | None] = [of_vectors.to(ctx.dtype) if ctx.needs_input_grad[0] else None]
        for table, values, wanted in zip(ctx.tables, of_tables, ctx.needs_input_grad[1:3], strict=True):
            if wanted and ctx.rows is not None:
                add_row_gradient(table, ctx.rows, values)
            result.append(values if wanted and ctx.rows is None else None)
        return *result, None, None


def precisions(vectors: Tensor, weight: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """The types of matrix products and of losses: the weights' own, or inside autocast its type and float32."""
    device = vectors.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device), torch.float32
    return weight.dtype, weight.dtype
