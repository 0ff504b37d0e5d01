"""Losses of bucket scores for several stacked networks: cross-entropy per bucket, or one softmax over all buckets.

Value and gradients are computed together, so that autograd keeps one array of scores and not four.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from labelwise.data.csr import pick_rows

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
