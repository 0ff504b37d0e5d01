"""Heads whose rows are divided over ranks (`training.shard_head`): their files and norms are those of a whole head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn

from labelwise.errors import ConfigError
from labelwise.nn.config import TrainingConfig
from labelwise.nn.heads.sharding import Shard, ShardedRows
from labelwise.runtime.device import computing_device
from labelwise.runtime.ranks import Ranks, n_ranks, rank


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
        setattr(head, name, nn.Parameter(_gathered(table, shard), table.requires_grad))
    network.to("cpu")


def _gathered(table: Tensor, shard: Shard) -> Tensor:
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
            name: tensor if (shard := self._shard(name, tensor.ndim)) is None else _gathered(tensor, shard)
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
