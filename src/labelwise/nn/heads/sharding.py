"""Output layers whose rows are divided over ranks: a rank has a range of labels, with their gradients and moments.

A step gathers the vectors and labels of all ranks' documents, computes scores of its own labels for all of them, and
adds the gradients of the vectors over ranks. For softmax the normalisers of the ranks are combined before gradients are
computed. The best labels are those of all ranks' best. Scores of documents x labels never leave a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn

from labelwise.errors import ConfigError
from labelwise.nn.config import TrainingConfig
from labelwise.nn.heads.base import Targets
from labelwise.nn.heads.losses import Compute, Gradients, loss_with_gradients
from labelwise.runtime.device import computing_device
from labelwise.runtime.ranks import Ranks, current_share, gathered, n_ranks, rank
from labelwise.topk import NO_LABEL


@dataclass(frozen=True)
class Shard:
    """The rows of a rank: ranges of nearly equal size, in the order of ranks."""

    rank: int
    n_ranks: int
    n_rows: int

    def rows(self, rank: int) -> slice:
        """The rows of a rank."""
        return slice(rank * self.n_rows // self.n_ranks, (rank + 1) * self.n_rows // self.n_ranks)

    @property
    def own(self) -> slice:
        """The rows of this rank."""
        return self.rows(self.rank)


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
            own = table.detach()[self.shard.own].clone()
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
    shard
        The rows of the head that this rank has; None: all, and the batch is this rank's.
    """

    vectors: Tensor
    targets: Targets
    own: slice
    shard: Shard | None

    def loss(
        self, vectors: Tensor, weight: Tensor, bias: Tensor | None, compute: Compute, rows: Tensor | None = None
    ) -> Tensor:
        """The loss of the whole batch, on all ranks; with `rows`, gradients of the tables have only these rows.

        `compute` returns this shard's part of the loss and its gradients, from the vectors of the batch. Gradients of
        this rank's vectors are multiplied by the number of ranks, for the mean over ranks of the training loop.
        """
        if self.shard is None:
            return loss_with_gradients(vectors, weight, bias, compute, rows)
        share = current_share()

        def computed(
            own: Tensor, weight: Tensor, bias: Tensor | None, learning: bool
        ) -> tuple[Tensor, Gradients | None]:
            loss, gradients = compute(self.vectors, weight, bias, learning)
            loss = loss.double().reshape(1)
            distributed.all_reduce(loss)
            if gradients is not None:
                every, of_weight, of_bias = gradients
                distributed.all_reduce(every)
                of_own = torch.zeros_like(own, dtype=every.dtype)
                of_own[: self.own.stop - self.own.start] = every[self.own]
                if share is not None:
                    of_own *= share.n_ranks
                gradients = of_own, of_weight, of_bias
            return loss[0].to(weight.dtype), gradients

        return loss_with_gradients(vectors, weight, bias, computed, rows)


def whole_batch(vectors: Tensor, targets: Targets, shard: Shard | None) -> WholeBatch:
    """Gather the batch of all ranks if a head is divided over them.

    Outside of training steps all ranks have the same documents.
    """
    share = current_share()
    if shard is None or share is None:
        return WholeBatch(vectors.detach(), targets, slice(0, len(vectors)), shard)
    count = len(vectors) if share.own else 0
    pairs = len(targets.labels) if share.own else 0
    sizes = torch.tensor([count, pairs], device=vectors.device)
    counts, pair_counts = torch.stack(gathered(sizes)).T.tolist()
    begins = [sum(counts[:rank]) for rank in range(share.n_ranks)]
    every = _gather_rows(vectors.detach()[:count], counts)
    documents = _gather_rows(targets.documents[:pairs] + begins[share.rank], pair_counts)
    labels, order = _gather_rows(targets.labels[:pairs], pair_counts).sort(stable=True)
    weights = None if targets.weights is None else _gather_rows(targets.weights[:pairs], pair_counts)[order]
    own = slice(begins[share.rank], begins[share.rank] + count)
    return WholeBatch(every, Targets(documents[order], labels, weights), own, shard)


def _gather_rows(values: Tensor, counts: list[int]) -> Tensor:
    """The rows of all ranks, in the order of ranks; each has another number of them."""
    padded = values.new_zeros(max(counts), *values.shape[1:])
    padded[: len(values)] = values
    return torch.cat([part[:count] for part, count in zip(gathered(padded), counts, strict=True)])


def combined_normalisers(normaliser: Tensor) -> Tensor:
    """The logarithm of the sum of exponentials over all shards [documents], from that of this one."""
    return torch.logsumexp(torch.stack(gathered(normaliser)), 0)


# --- prediction ---


def best_of_shards(ids: Tensor, best: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """The best labels of all shards from those of this one, whose ids begin at 0 there; ties in order of ids."""
    k = ids.shape[1]
    ids = torch.where(ids == NO_LABEL, ids, ids + shard.own.start)
    all_ids, merged = torch.cat(gathered(ids), 1), torch.cat(gathered(best), 1)
    order = torch.sort(merged, dim=1, descending=True, stable=True).indices[:, :k]
    return all_ids.gather(1, order), merged.gather(1, order)


# --- training with a head that is divided over ranks (`training.shard_head`) ---
# Its files and norms are those of a whole head.


def check_head(head: Any, config: TrainingConfig) -> None:
    """Raise if the rows of a head are to be divided over ranks, and cannot be."""
    if config.shard_head and not (isinstance(head, ShardedRows) and head.can_be_sharded):
        raise ConfigError(
            "training.shard_head: only heads with one output per label are divided over ranks: text_encoder, one_hot "
            "and sampling heads (negatives batch or B1) of mhe_text and mhe_image, and mhe_face; leave it out"
        )


@contextmanager
def sharded(network: Any, config: TrainingConfig) -> Iterator[None]:
    """Inside the block an encoder and a head are on the device, each rank with its rows of the head, if so configured.

    Afterwards every rank has the whole head.
    """
    split_head(network.head, config)
    network.to(computing_device())
    yield
    join_head(network)


def split_head(head: Any, config: TrainingConfig) -> None:
    """Keep this rank's rows of a head that has its initial weights, if the config says so and there are other ranks."""
    check_head(head, config)
    if config.shard_head and n_ranks() > 1:
        head.split(rank(), n_ranks())


@torch.no_grad()
def join_head(network: Any) -> None:
    """After training, give every rank the whole head, in the memory of the CPU: a GPU may not have enough."""
    head = network.head
    if not isinstance(head, ShardedRows) or head.shard is None:
        return
    shard, head.shard = head.shard, None
    for name in head.sharded_tables:
        table = getattr(head, name)
        setattr(head, name, nn.Parameter(_whole(table, shard), table.requires_grad))
    network.to("cpu")


def _whole(table: Tensor, shard: Shard) -> Tensor:
    """All rows of a table, on the CPU of every rank; one rank's rows after the other."""
    whole = torch.empty(shard.n_rows, *table.shape[1:], dtype=table.dtype)
    for source in range(shard.n_ranks):
        rows = shard.rows(source)
        part = table.detach().contiguous()
        if source != shard.rank:
            part = table.new_empty(rows.stop - rows.start, *table.shape[1:])
        distributed.broadcast(part, source)
        whole[rows] = part.cpu()
    return whole


class HeadShards:
    """The parameters of a module that are divided over ranks; usually none.

    Parameters
    ----------
    module
        What is trained.
    ranks
        The ranks of the training.
    """

    def __init__(self, module: nn.Module, ranks: Ranks) -> None:
        self.ranks = ranks
        self.tables: dict[str, Shard] = {
            f"{prefix}.{name}".lstrip("."): part.shard
            for prefix, part in module.named_modules()
            if isinstance(part, ShardedRows) and part.shard is not None
            for name in part.sharded_tables
        }
        named = dict(module.named_parameters())
        self.parameters = [named[name] for name in self.tables]

    def __bool__(self) -> bool:
        return bool(self.tables)

    def whole_shape(self, name: str, shape: torch.Size) -> list[int]:
        """The shape that a parameter has in one process."""
        return [self.tables[name].n_rows, *shape[1:]] if name in self.tables else list(shape)

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a checkpoint (`parameter`, or `parameter/moment`) with all rows, on all ranks."""
        return {
            name: tensor if (shard := self._shard(name, tensor.ndim)) is None else _whole(tensor, shard)
            for name, tensor in tensors.items()
        }

    def send(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """From the tensors of a checkpoint, which rank 0 has, to those of each rank."""
        divided = {name: tensor for name, tensor in tensors.items() if self._shard(name, tensor.ndim) is not None}
        own = dict(self.ranks.send({name: tensor for name, tensor in tensors.items() if name not in divided}))
        for name, shape, dtype in self.ranks.on_rank_zero(lambda: [(n, t.shape, t.dtype) for n, t in divided.items()]):
            shard = self.tables.get(name) or self.tables[name.rpartition("/")[0]]
            for target in range(shard.n_ranks):
                rows = shard.rows(target)
                part = torch.empty(rows.stop - rows.start, *shape[1:], dtype=dtype)
                if self.ranks.is_rank_zero:
                    part.copy_(divided[name][rows])
                self.ranks.broadcast([part])
                if target == shard.rank:
                    own[name] = part
        return own

    def _shard(self, name: str, n_dimensions: int) -> Shard | None:
        """The rows of a tensor of a checkpoint; None for one that all ranks have, such as a number of steps."""
        if n_dimensions == 0:
            return None
        return self.tables.get(name) or self.tables.get(name.rpartition("/")[0])
