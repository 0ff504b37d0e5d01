"""Device and ranks through Accelerate: one process or several under torchrun, CPU or GPU.

Accelerate chooses the device, joins the ranks, averages their gradients and exchanges numbers. Steps, gradient
accumulation and precision are the loop's: bf16 needs no loss scaling, and Accelerate would fix one precision for the
whole process. Row-sparse gradients that losses set themselves are not seen by DistributedDataParallel; they are
averaged here, by rows. The documents of a batch are dealt to ranks, and their losses weighted, so that a step is that
of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    broadcast,
    send_to_device,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labelwise.errors import ConfigError
from labelwise.nn.batch_share import BatchShare
from labelwise.nn.row_gradients import average_row_gradient
from labelwise.runtime.device import computing_device
from labelwise.runtime.process_group import join_ranks, n_ranks, on_rank_zero

Loss = Callable[[Any], Tensor]


class _LossModule(nn.Module):
    """The loss as a module for DistributedDataParallel, which must wrap the forward pass."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, batch: Any) -> Tensor:
        return self.loss(batch)


class Ranks:
    """The device and the ranks of this training."""

    def __init__(self, precision: str) -> None:
        if n_ranks() > 1:
            join_ranks()
        unused = DistributedDataParallelKwargs(find_unused_parameters=True)  # poolers that no loss uses
        self.accelerator = Accelerator(cpu=computing_device().type == "cpu", kwargs_handlers=[unused])
        self.device = self.accelerator.device
        self.world_size: int = self.accelerator.num_processes
        self.rank: int = self.accelerator.process_index
        self.is_rank_zero: bool = self.rank == 0
        self.half = _wants_half(precision, self.device)
        self._wrapped: nn.Module | None = None
        self._tables: list[nn.Parameter] = []

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of forward passes: autocast in the configured precision."""
        # also for float32: Accelerate may have been started with another precision
        if not self.half and self.accelerator.mixed_precision == "no":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)

    def loss_function(
        self, module: nn.Module, loss: Loss, rows: Sequence[str] = (), divided: Collection[str] = ()
    ) -> Loss:
        """The loss function of training: in the configured precision, with gradients averaged over ranks.

        `rows` are name prefixes of tables whose gradients `average_rows` averages. All ranks get the weights of rank
        zero, except those that are `divided` over ranks.
        """

        def in_precision(batch: Any) -> Tensor:
            with self.autocast():
                return loss(batch)

        plain = isinstance(self.autocast(), nullcontext)
        function = loss if plain else in_precision
        if self.world_size == 1:
            return function
        learning = {name: p for name, p in module.named_parameters() if p.requires_grad}
        named = {name: p for name, p in learning.items() if name.startswith(tuple(rows)) and name not in divided}
        self._tables = list(named.values())
        constant = _constant_buffers(module)
        for tensor in [*self._tables, *constant.values()]:
            broadcast(tensor.data)
        whole = _LossModule(module, function)
        if len(named) + len(divided) == len(learning):
            return whole  # nothing is left for DistributedDataParallel, which refuses a module without parameters
        ignored = [f"module.{name}" for name in (*named, *divided, *constant)]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(whole, ignored)
        self._wrapped = self.accelerator.prepare_model(whole)
        return self._wrapped

    def average_rows(self) -> None:
        """Replace the gradients of row-sparse tables by their mean over ranks; once per step, after the last batch."""
        for table in self._tables:
            if table.grad is not None and not table.grad.is_sparse:
                raise TypeError("a table with row-sparse gradients has a dense one")
            average_row_gradient(table)

    def no_sync(self) -> AbstractContextManager[Any]:
        """Do not average gradients over ranks inside: for all batches of a step except the last."""
        return nullcontext() if self._wrapped is None else self.accelerator.no_sync(self._wrapped)

    def move(self, batch: Any) -> Any:
        """Move a batch to the device."""
        return batch if self.device.type == "cpu" else send_to_device(batch, self.device, non_blocking=True)

    def share(self, batch: np.ndarray) -> BatchShare | None:
        """The share of this rank in a batch of documents; None without other ranks."""
        if self.world_size == 1:
            return None
        own = len(range(self.rank, len(batch), self.world_size))
        return BatchShare(own, len(batch), self.rank, self.world_size)

    def part(self, batch: np.ndarray) -> np.ndarray:
        """The documents of a batch that this rank computes: every n-th, so that lengths are similar on all ranks.

        A rank for which none is left computes the first, which then counts for nothing (`BatchShare`).
        """
        if self.world_size == 1:
            return batch
        return batch[self.rank :: self.world_size] if self.rank < len(batch) else batch[:1]

    def broadcast_flags(self, *flags: bool, any_rank: bool) -> tuple[bool, ...]:
        """The flags of rank zero, on all ranks, and as the last one whether `any_rank` is true on any of them."""
        if self.world_size == 1:
            return *flags, any_rank
        own = [*(flag and self.is_rank_zero for flag in flags), any_rank]
        values = torch.tensor(own, dtype=torch.int32, device=self.device)
        return tuple(bool(flag) for flag in self._reduce(values, "sum"))

    def mean(self, value: Tensor) -> float:
        """A number averaged over ranks."""
        return float(value) if self.world_size == 1 else float(self._reduce(value.reshape(1).float(), "mean"))

    def _reduce(self, value: Tensor, how: str) -> Tensor:
        reduced: Any = self.accelerator.reduce(value, how)
        return reduced

    def on_rank_zero(self, make: Callable[[], Any]) -> Any:
        """The result of `make` on rank zero, on all ranks; the others wait."""
        return make() if self.world_size == 1 else on_rank_zero(make)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy tensors from rank zero to all ranks, in place."""
        for tensor in tensors if self.world_size > 1 else ():
            on_device = tensor.detach().to(self.device).contiguous()
            broadcast(on_device)
            if not self.is_rank_zero and on_device.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(on_device)

    def send(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors of rank zero by name, on all ranks; the others have no need to know names or shapes."""
        if self.world_size == 1:
            return tensors
        about = self.on_rank_zero(lambda: [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()])
        sent = {name: torch.empty(shape, dtype=dtype) for name, shape, dtype in about}
        if self.is_rank_zero:
            sent = dict(tensors)
        self.broadcast(sent.values())
        return sent

    def gather(self, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """The tensors of all ranks, which must have equal shapes, on all ranks."""
        if self.world_size == 1:
            return [tensors]
        gathered: dict[str, Any] = {
            name: self.accelerator.gather(tensor[None].to(self.device)) for name, tensor in tensors.items()
        }
        return [{name: every[rank].cpu() for name, every in gathered.items()} for rank in range(self.world_size)]

    def wait(self) -> None:
        """Wait for all ranks."""
        self.accelerator.wait_for_everyone()


def _constant_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers that are no part of the weights, such as the codes of all labels: equal on all ranks, and never changed.

    DistributedDataParallel would send them to all ranks in every step.
    """
    names = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }
    return {name: buffer for name, buffer in module.named_buffers() if name in names}


def _wants_half(precision: str, device: torch.device) -> bool:
    able = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and not able:
        raise ConfigError("training.precision: this GPU has no bf16; use float32")
    return precision == "bf16" or (precision == "auto" and device.type == "cuda" and able)
