"""Losses of scores of buckets, for several networks at once: cross-entropy per bucket, or one softmax over all buckets.

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
    """The buckets of each document's labels as (network, document, bucket, share), none of them twice.

    The shares of a document add up to 1 in each network: what softmax wants. Cross-entropy per bucket ignores them.
    """

    places: Tensor
    """[3, entries]: network, document, bucket."""
    shares: Tensor

    @classmethod
    def of_rows(cls, labels: Any, rows: np.ndarray, tables: list[np.ndarray], n_buckets: int) -> BucketTargets:
        """Those of some rows of a label matrix, as the tables of some repetitions put them."""
        picked = pick_rows(labels, rows)
        counts = np.diff(picked.indptr)
        documents = np.repeat(np.arange(len(rows)), counts)
        weights = np.repeat(1 / np.maximum(counts, 1), counts)
        networks, where, shares = [], [], []
        for network, table in enumerate(tables):
            found, inverse = np.unique(documents * n_buckets + table[picked.indices], return_inverse=True)
            networks.append(np.full(len(found), network))
            where.append(found)
            shares.append(np.bincount(inverse, weights, len(found)))
        every = np.concatenate(where)
        places = np.stack([np.concatenate(networks), every // n_buckets, every % n_buckets])
        return cls(torch.from_numpy(places), torch.from_numpy(np.concatenate(shares).astype(np.float32)))


def bucket_loss(scores: Tensor, targets: BucketTargets, kind: Loss) -> Tensor:
    """The mean over documents of the loss, summed over buckets and networks: no network changes another's gradients."""
    found: Any = _BucketLoss.apply(scores, targets.places, targets.shares, kind)
    return found


class _BucketLoss(torch.autograd.Function):
    """Value and gradients in one pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, places: Tensor, shares: Tensor, kind: Loss) -> Tensor:
        at = tuple(places)
        if kind == "bce":
            value = functional.softplus(scores).sum(dtype=torch.float64) - scores[at].sum(dtype=torch.float64)
            gradients = torch.sigmoid(scores)
            gradients[at] -= 1
        else:
            normal = torch.logsumexp(scores, 2)
            there = torch.zeros_like(normal)
            there[at[0], at[1]] = 1  # documents without labels say nothing
            value = (normal * there).sum(dtype=torch.float64) - (shares * scores[at]).sum(dtype=torch.float64)
            gradients = torch.exp(scores - normal[:, :, None]).mul_(there[:, :, None])
            gradients[at] -= shares
        count = max(scores.shape[1], 1)
        ctx.gradients = gradients.mul_(1 / count)
        return (value / count).to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        gradients, ctx.gradients = ctx.gradients, None
        (outer,) = grad_outputs
        return (gradients if float(outer) == 1.0 else gradients.mul_(outer)), None, None, None
