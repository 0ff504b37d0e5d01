"""The documents of a batch that this rank computes, when several ranks compute it together.

The training loop sets it for the forward pass of a step. Layers and losses that depend on the whole batch read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class BatchShare:
    """Numbers of documents of this rank and of all ranks, and which rank this is.

    Rank r has the documents r, r + ranks, r + 2 ranks, ... of the batch. A rank without any computes a document of
    another rank, which counts for nothing: `own` is 0 then.
    """

    own: int
    total: int
    rank: int
    n_ranks: int

    @property
    def weight(self) -> float:
        """The factor of this rank's mean loss, so that the mean over ranks is the mean over all documents."""
        return self.own * self.n_ranks / self.total


_current: BatchShare | None = None


def current_share() -> BatchShare | None:
    """The share of this rank in the batch of the current step; None if this process computes all of it."""
    return _current


@contextmanager
def sharing(share: BatchShare | None) -> Iterator[None]:
    """Set the share for the block."""
    global _current
    before, _current = _current, share
    try:
        yield
    finally:
        _current = before


def divisor(count: int, device: torch.device) -> float:
    """What a sum over `count` terms is divided by, so that the loop's mean over ranks is the mean over all terms.

    For losses that are a mean over something else than documents, such as over scored labels.
    """
    share = _current
    if share is None:
        return float(max(count, 1))
    if share.own == 0:
        count = 0
    total = torch.tensor([float(count)], dtype=torch.float64, device=device)
    distributed.all_reduce(total)
    return max(float(total), 1.0) * (share.own or 1) / share.total


def rows_of_share(make_rows: Tensor, n_documents: int) -> Tensor:
    """Of rows that rank 0 has drawn for the whole batch, those of this rank's documents."""
    share = _current
    if share is None:
        return make_rows
    distributed.broadcast(make_rows, 0)
    return make_rows[share.rank :: share.n_ranks] if share.own else make_rows[:n_documents]
