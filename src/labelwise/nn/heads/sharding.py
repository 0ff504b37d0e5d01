"""Output layers whose rows are divided over ranks: a rank has a range of labels, with their gradients and moments.

A step gathers the vectors and labels of all ranks' documents, computes scores of its own labels for all of them, and
adds the gradients of the vectors over ranks. For softmax the normalisers of the ranks are combined before gradients are
computed. The best labels are those of all ranks' best. Scores of documents x labels never leave a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from labelwise.nn.heads.base import Targets
from labelwise.nn.heads.losses import Gradients, loss_with_gradients
from labelwise.runtime.ranks import current_share
from labelwise.topk import NO_LABEL


@dataclass(frozen=True)
class Shard:
    """The rows of a rank: ranges of nearly equal size, in the order of ranks."""

    rank: int
    n_ranks: int
    n_rows: int

    @property
    def begin(self) -> int:
        """The first row."""
        return self.begin_of(self.rank)

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.begin_of(self.rank + 1)

    def begin_of(self, rank: int) -> int:
        """The first row of a rank."""
        return rank * self.n_rows // self.n_ranks

    def rows(self, rank: int) -> slice:
        """The rows of a rank."""
        return slice(self.begin_of(rank), self.begin_of(rank + 1))


class ShardedRows(nn.Module):
    """Base of heads whose rows can be divided over ranks."""

    shard: Shard | None = None
    """The rows that this process has; None: all."""
    sharded_tables: tuple[str, ...] = ("weight",)
    """Names of the parameters with a row per label."""

    @property
    def can_be_sharded(self) -> bool:
        """Whether the settings of this head allow it."""
        return True

    def split(self, rank: int, n_ranks: int) -> None:
        """Keep only the rows of one rank."""
        tables = [getattr(self, name) for name in self.sharded_tables]
        self.shard = Shard(rank, n_ranks, len(tables[0]))
        for name, table in zip(self.sharded_tables, tables, strict=True):
            own = table.detach()[self.shard.begin : self.shard.end].clone()
            setattr(self, name, nn.Parameter(own, table.requires_grad))


# --- the batch of all ranks ---


@dataclass(frozen=True)
class WholeBatch:
    """The documents of all ranks, in the order of ranks.

    Parameters
    ----------
    vectors
        Of all documents.
    targets
        Of all documents, sorted by label.
    own
        Where this rank's documents are.
    """

    vectors: Tensor
    targets: Targets
    own: slice

    def inside(self, shard: Shard) -> Targets:
        """The targets among a shard's labels, with labels counted from its first."""
        labels = self.targets.labels
        edges = torch.searchsorted(labels, torch.tensor([shard.begin, shard.end], device=labels.device)).tolist()
        part, weights = slice(*edges), self.targets.weights
        return Targets(
            self.targets.documents[part], labels[part] - shard.begin, None if weights is None else weights[part]
        )


def whole_batch(vectors: Tensor, targets: Targets) -> WholeBatch:
    """Gather a batch; outside of training steps, where all ranks have the same documents, it is the batch itself."""
    share = current_share()
    if share is None:
        return WholeBatch(vectors.detach(), targets, slice(0, len(vectors)))
    count = len(vectors) if share.own else 0
    pairs = len(targets.labels) if share.own else 0
    sizes = torch.tensor([count, pairs], device=vectors.device)
    all_sizes = [torch.empty_like(sizes) for _ in range(share.n_ranks)]
    distributed.all_gather(all_sizes, sizes)
    counts, pair_counts = ([int(one[column]) for one in all_sizes] for column in (0, 1))
    begins = [sum(counts[:rank]) for rank in range(share.n_ranks)]
    gathered = _gather_rows(vectors.detach()[:count], counts)
    documents = _gather_rows(targets.documents[:pairs] + begins[share.rank], pair_counts)
    labels, order = _gather_rows(targets.labels[:pairs], pair_counts).sort(stable=True)
    weights = None if targets.weights is None else _gather_rows(targets.weights[:pairs], pair_counts)[order]
    own = slice(begins[share.rank], begins[share.rank] + count)
    return WholeBatch(gathered, Targets(documents[order], labels, weights), own)


def _gather_rows(values: Tensor, counts: list[int]) -> Tensor:
    """The rows of all ranks, in the order of ranks; each has another number of them."""
    padded = values.new_zeros(max(counts), *values.shape[1:])
    padded[: len(values)] = values
    every = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(every, padded)
    return torch.cat([part[:count] for part, count in zip(every, counts, strict=True)])


# --- loss and gradients ---

ShardLoss = Callable[[Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Gradients | None]]
"""From all vectors, this rank's tables, and whether to learn, to this shard's part of the loss and its gradients."""


def sharded_loss(
    vectors: Tensor, weight: Tensor, bias: Tensor | None, batch: WholeBatch, rows: Tensor | None, compute: ShardLoss
) -> Tensor:
    """The loss of the whole batch, on all ranks; with `rows`, gradients of the shard have only these rows.

    Its gradients of this rank's vectors are multiplied by the number of ranks, for the mean over ranks of the loop.
    """
    share = current_share()

    def computed(own: Tensor, weight: Tensor, bias: Tensor | None, learning: bool) -> tuple[Tensor, Gradients | None]:
        loss, gradients = compute(batch.vectors, weight, bias, learning)
        loss = loss.double().reshape(1)
        distributed.all_reduce(loss)
        if gradients is not None:
            every, of_weight, of_bias = gradients
            distributed.all_reduce(every)
            of_own = torch.zeros_like(own, dtype=every.dtype)
            of_own[: batch.own.stop - batch.own.start] = every[batch.own]
            if share is not None:
                of_own *= share.n_ranks
            gradients = of_own, of_weight, of_bias
        return loss[0].to(weight.dtype), gradients

    return loss_with_gradients(vectors, weight, bias, computed, rows)


def combined_normalisers(normaliser: Tensor) -> Tensor:
    """The logarithm of the sum of exponentials over all shards [documents], from that of this one."""
    every = [torch.empty_like(normaliser) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, normaliser.contiguous())
    return torch.logsumexp(torch.stack(every), 0)


# --- prediction ---


def best_of_shards(ids: Tensor, best: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """The best labels of all shards from those of this one, whose ids begin at 0 there; ties in order of ids."""
    k = ids.shape[1]
    ids = torch.where(ids == NO_LABEL, ids, ids + shard.begin)
    all_ids, all_best = ([torch.empty_like(part) for _ in range(shard.n_ranks)] for part in (ids, best))
    distributed.all_gather(all_ids, ids.contiguous())
    distributed.all_gather(all_best, best.contiguous())
    merged = torch.cat(all_best, 1)
    order = torch.sort(merged, dim=1, descending=True, stable=True).indices[:, :k]
    return torch.cat(all_ids, 1).gather(1, order), merged.gather(1, order)
