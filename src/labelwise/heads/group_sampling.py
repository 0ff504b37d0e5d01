"""Which groups of labels a step of sampled softmax is trained against.

Groups of the labels themselves always take part; others are drawn uniformly without replacement. A drawn group takes
part with a known probability q; adding -log q to its scores makes the sum of exponentials an unbiased estimate of that
over all labels. Groups that take part in any case have q = 1.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Negatives = Literal["batch", "document", "V0", "V2", "B1"]


def draw_groups(
    documents: Tensor,
    groups: Tensor,
    n_documents: int,
    n_groups: int,
    negatives: Negatives,
    count: int,
    log_q: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The groups of a batch, ascending, and offsets [documents, groups] of their scores; None: all 0.

    Parameters
    ----------
    documents, groups
        The groups of the documents' labels as pairs; pairs may occur several times.
    n_documents, n_groups
        Numbers of documents of the batch and of groups.
    negatives
        `batch`: the same groups for all documents, at least `count`. `document`: groups for each document, at least
        `count`; the offset of other documents' groups is -inf. `V0`, `V2`: `document` with only the label's groups, or
        one random group more. `B1`: `batch` with only the labels' groups.
    count
        Groups in total; with fewer than the labels have, there are no random ones.
    log_q
        Correct for the probability of being drawn.
    """
    if negatives in ("batch", "B1"):
        return _for_batch(groups, n_groups, 0 if negatives == "B1" else count, log_q)
    return _for_documents(documents, groups, n_documents, n_groups, negatives, count, log_q)


def _for_batch(groups: Tensor, n_groups: int, count: int, log_q: bool) -> tuple[Tensor, Tensor | None]:
    own = torch.unique(groups)
    drawn = min(count, n_groups) - len(own)
    if drawn <= 0:
        return own, None
    keys = torch.rand(n_groups, device=groups.device)
    keys[own] = torch.inf
    others = keys.topk(drawn, largest=False, sorted=False).indices
    chosen, order = torch.cat([own, others]).sort()
    if not log_q:
        return chosen, None
    offsets = torch.zeros(len(chosen), device=groups.device)
    offsets[order >= len(own)] = -torch.log(torch.tensor(drawn / (n_groups - len(own))))
    return chosen, offsets[None]


def _for_documents(
    documents: Tensor,
    groups: Tensor,
    n_documents: int,
    n_groups: int,
    negatives: Negatives,
    count: int,
    log_q: bool,
) -> tuple[Tensor, Tensor]:
    own = torch.zeros(n_documents, n_groups, dtype=torch.bool, device=groups.device)
    own[documents, groups] = True
    n_own = own.sum(1, keepdim=True)
    if negatives == "document":
        total = n_own.clamp_min(min(count, n_groups))
    else:
        total = n_own if negatives == "V0" else (n_own + 1).clamp_max(n_groups)
    keys = torch.rand(n_documents, n_groups, device=groups.device).masked_fill_(own, -1.0)
    ranks = torch.empty_like(keys, dtype=torch.long)
    ranks.scatter_(1, keys.argsort(1), torch.arange(n_groups, device=groups.device).expand_as(ranks))
    member = ranks < total
    chosen = torch.nonzero(member.any(0)).squeeze(1)
    offsets = torch.zeros(n_documents, n_groups, device=groups.device)
    if log_q:
        q = (total - n_own) / (n_groups - n_own).clamp_min(1)
        offsets = torch.where(own, 0.0, -torch.log(q))
    offsets = offsets.masked_fill_(~member, -torch.inf)[:, chosen]
    # a document without groups has no target, but its normaliser has to be finite
    return chosen, offsets.masked_fill_((total == 0).expand_as(offsets), 0.0)
