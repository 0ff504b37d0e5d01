"""The ranks of torchrun, by torch.distributed: one process or several, on CPUs (gloo) or GPUs (nccl).

Every rank runs the same program on the same data. What depends on a clock or on files, or is expensive and done once,
is done by rank 0 and sent to the others, which wait (`on_rank_zero`). The documents of a batch are dealt to ranks, and
their losses weighted, so that a step is that of one process with the whole batch: after the backward passes of a step
gradients are averaged, dense ones in buckets and row-sparse ones by their rows (`Ranks.average_gradients`).
Functions import torch, because code that never trains asks for ranks too; without torchrun `on_rank_zero` needs none.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from labelwise.errors import ConfigError, LabelwiseError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed import Store

T = TypeVar("T")

PATIENCE = timedelta(days=7)
"""How long ranks wait for each other: rank 0 may train for hours what the others need. A rank that has ended is noticed
by torchrun, which ends the others."""
POLLING_SECONDS = 0.05
BUCKET_BYTES = 25 << 20
"""Dense gradients are averaged in buckets of about so many bytes: few messages, and little memory for copies."""
DENSE, SPARSE = 1, 2

_local = threading.local()
_alone = False


def rank() -> int:
    """The rank of this process under torchrun; 0 without."""
    return _number("RANK", 0) if n_ranks() > 1 else 0


def n_ranks() -> int:
    """Number of processes under torchrun; 1 without. Some clusters set WORLD_SIZE alone, for torchrun to be started."""
    return _number("WORLD_SIZE", 1) if _number("RANK", -1) >= 0 else 1


def is_restarted() -> bool:
    """Whether torchrun has started this process again after a failure on its node; ranks of other nodes may differ."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def _number(variable: str, default: int) -> int:
    """An environment variable that torchrun sets; what is no number was not set by it."""
    try:
        return int(os.environ.get(variable, ""))
    except ValueError:
        return default


def launch_id() -> str | None:
    """Identifies this start of torchrun, also after its restarts: its folder of logs; None without torchrun.

    That folder is one node's, and rank 0 may be on another node after a restart: several nodes share their rendezvous
    id instead, which has to be another one for each start.
    """
    path, found, _attempt = os.environ.get("TORCHELASTIC_ERROR_FILE", "").rpartition(f"{os.sep}attempt_")
    rendezvous = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if found and _number("GROUP_WORLD_SIZE", 1) > 1 and rendezvous != "none":
        return f"rendezvous {rendezvous}"
    return f"{socket.gethostname()}:{path}" if found else None


# --- connecting ---


def join_ranks() -> None:
    """Connect the ranks, unless they are connected: gloo on CPUs, nccl on GPUs."""
    import torch

    # imported later, its functions would have the group as a default, which then outlives the group's end at exit
    import torch.distributed.nn

    from labelwise.runtime.device import computing_device

    if torch.distributed.is_initialized():
        return
    device = computing_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)  # nccl exchanges what is on the current one
    options: dict[str, Any] = {}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        options = {"store": _store_of_torchrun(), "rank": rank(), "world_size": n_ranks()}
    torch.distributed.init_process_group("gloo" if device.type == "cpu" else "nccl", timeout=PATIENCE, **options)
    # at exit: a thread of the connection that needs Python after its end would abort the process
    atexit.register(lambda: torch.distributed.is_initialized() and torch.distributed.destroy_process_group())


def _store_of_torchrun() -> Store:
    """The store of torchrun's own process, under keys that only these ranks use.

    That store outlives restarts. Under torch's own keys a rank may find the addresses of ranks that have ended, and
    then fails to connect or waits forever.
    """
    from torch import distributed

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(address, port, n_ranks(), is_master=False, timeout=PATIENCE)
    return distributed.PrefixStore(_agree_on_keys(distributed.PrefixStore("labelwise", store)), store)


def _agree_on_keys(store: Store) -> str:
    """A random string of rank 0 that all ranks of now, and none of an earlier attempt, have received.

    The number of restarts does not identify an attempt: every node counts its own. So rank 0 answers to the random
    string of each rank, until each has confirmed the answer. A rank of an earlier attempt may confirm it too, if its
    agent was killed and could not end it: only the string that a rank has now counts.
    """
    mine, number = secrets.token_hex(8), rank()
    if number == 0:
        deadline = time.monotonic() + PATIENCE.total_seconds()
        while missing := _answer_ranks(store, mine):
            if time.monotonic() > deadline:
                raise LabelwiseError(f"rank {missing[0]} of {n_ranks()} has not connected within {PATIENCE}")
            time.sleep(POLLING_SECONDS)
        return mine
    store.set(f"rank {number}", mine)
    keys = _wait_for_answer(store, f"answer to {mine}")
    store.set(f"{keys} received by {mine}", "")
    return keys


def _answer_ranks(store: Store, keys: str) -> list[int]:
    """Answer to all ranks; returns those that have not confirmed it, or were replaced in the meantime."""
    known = {other: _string_of(store, other) for other in range(1, n_ranks())}
    for string in filter(None, known.values()):
        store.set(f"answer to {string}", keys)
    confirmed = {other for other, string in known.items() if string and store.check([f"{keys} received by {string}"])}
    return [other for other in known if other not in confirmed or _string_of(store, other) != known[other]]


def _string_of(store: Store, other: int) -> str | None:
    return store.get(f"rank {other}").decode() if store.check([f"rank {other}"]) else None


def _wait_for_answer(store: Store, key: str) -> str:
    """The answer of rank 0; an error if the agent of this process has ended, which may have started another for it."""
    agent, deadline = os.getppid(), time.monotonic() + PATIENCE.total_seconds()
    while not store.check([key]):
        if os.getppid() != agent:
            raise LabelwiseError("the process of torchrun that has started this rank has ended; this rank ends too")
        if time.monotonic() > deadline:
            raise LabelwiseError(f"rank 0 of {n_ranks()} has not connected within {PATIENCE}")
        time.sleep(POLLING_SECONDS)
    return store.get(key).decode()


@contextmanager
def noticing_lost_ranks() -> Iterator[None]:
    """Inside the block, the error of an exchange with a rank that has ended is one of ours, without a traceback."""
    try:
        yield
    except RuntimeError as error:
        # gloo raises RuntimeError itself, nccl and the store DistError and its subclasses
        lost = "gloo" in str(error) or any(kind.__name__ == "DistError" for kind in type(error).__mro__)
        if n_ranks() == 1 or not lost:
            raise
        raise LabelwiseError(
            "another rank has ended, for the reason in its output; the same command resumes from the last checkpoint"
        ) from error


def is_distributed() -> bool:
    """Whether this process is connected with other ranks."""
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


# --- what rank 0 decides or computes ---


def work_alone(alone: bool) -> None:
    """Let this process work alone from now on, while other ranks wait or have ended, or with those again that wait."""
    global _alone
    _alone = alone


def on_rank_zero(make: Callable[[], T]) -> T:
    """The result of `make` on rank 0, on all ranks; the others wait. If it fails there, it fails on all.

    `make` may call what itself uses this function: it then runs on rank 0 alone.
    """
    if n_ranks() == 1 or _alone or getattr(_local, "inside", False):
        return make()
    join_ranks()
    from torch.distributed import broadcast_object_list

    if rank() > 0:
        received: list[Any] = [None]
        broadcast_object_list(received)
        succeeded, result = received[0]
        if not succeeded:
            raise LabelwiseError("rank 0 has failed; the reason is in its output")
        return result
    _local.inside = True
    try:
        result = make()
    except Exception:
        broadcast_object_list([(False, None)])
        raise
    finally:
        _local.inside = False
    broadcast_object_list([(True, result)])
    return result


# --- the documents of a batch ---


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


_share: BatchShare | None = None


def current_share() -> BatchShare | None:
    """The share of this rank in the batch of the current step; None if this process computes all of it.

    The training loop sets it for the forward pass. Layers and losses that depend on the whole batch read it.
    """
    return _share


@contextmanager
def sharing(share: BatchShare | None) -> Iterator[None]:
    """Set the share for the block."""
    global _share
    before, _share = _share, share
    try:
        yield
    finally:
        _share = before


def divisor(count: int, device: torch.device) -> float:
    """What a sum over `count` terms is divided by, so that the loop's mean over ranks is the mean over all terms.

    For losses that are a mean over something else than documents, such as over scored labels.
    """
    import torch

    share = _share
    if share is None:
        return float(max(count, 1))
    total = torch.tensor([float(count if share.own else 0)], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(total)
    return max(float(total), 1.0) * (share.own or 1) / share.total


def rows_of_share(make_rows: Tensor, n_documents: int) -> Tensor:
    """Of rows that rank 0 has drawn for the whole batch, those of this rank's documents."""
    from torch import distributed

    share = _share
    if share is None:
        return make_rows
    distributed.broadcast(make_rows, 0)
    return make_rows[share.rank :: share.n_ranks] if share.own else make_rows[:n_documents]


# --- gradients ---


def add_row_gradient(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add a row-sparse gradient to that of a table; `rows` are ascending and distinct.

    For backward passes, which then return None for the table: autograd would lose the information that rows are
    distinct, and the next reader would sort and copy them all.
    """
    import torch

    gradient = torch.sparse_coo_tensor(rows[None], values, table.shape, is_coalesced=True, check_invariants=False)
    table.grad = gradient if table.grad is None else table.grad + gradient


def average_row_gradient(table: Tensor) -> None:
    """Replace the row-sparse gradient of a table by its mean over ranks.

    Ranks exchange only their rows: their numbers first, then indices and values, padded to the largest number. Every
    rank adds them in the order of ranks, so that all get the same sums.
    """
    import torch

    gradient = table.grad
    if gradient is None:
        rows, values = torch.empty(0, dtype=torch.long, device=table.device), table.detach()[:0]
    else:
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
    numbers = [int(count) for count in gathered(torch.tensor([len(rows)], device=table.device))]
    most = max(numbers)
    if most == 0:
        return
    padded_rows, padded = rows.new_zeros(most), values.new_zeros(most, *values.shape[1:])
    padded_rows[: len(rows)], padded[: len(rows)] = rows, values
    parts = zip(gathered(padded_rows), gathered(padded), numbers, strict=True)
    indices, summed = (torch.cat(every) for every in zip(*((r[:n], v[:n]) for r, v, n in parts), strict=True))
    distinct, slots = torch.unique(indices, return_inverse=True)
    total = summed.new_zeros(len(distinct), *summed.shape[1:]).index_add_(0, slots, summed)
    table.grad = None
    add_row_gradient(table, distinct, total.div_(torch.distributed.get_world_size()))


def _average_dense(parameters: Sequence[Tensor]) -> None:
    """Replace dense gradients by their mean over ranks, bucket by bucket; a rank without one adds zeros."""
    import torch

    bucket: list[Tensor] = []
    for number, parameter in enumerate(parameters, 1):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        bucket.append(parameter.grad)
        following = None if number == len(parameters) else parameters[number]
        full = sum(gradient.nbytes for gradient in bucket) >= BUCKET_BYTES
        if full or following is None or following.dtype != parameter.dtype:
            flat = bucket[0].reshape(-1) if len(bucket) == 1 else torch.cat([one.reshape(-1) for one in bucket])
            torch.distributed.all_reduce(flat.div_(torch.distributed.get_world_size()))
            for gradient, mean in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                gradient.copy_(mean.view_as(gradient))
            bucket = []


def gathered(tensor: Tensor) -> list[Tensor]:
    """A tensor of equal shape on all ranks, by rank."""
    import torch

    every = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(every, tensor.contiguous())
    return every


# --- a training ---


class Ranks:
    """The device and the ranks of a training, and the precision of its forward passes."""

    def __init__(self, precision: str) -> None:
        import torch

        from labelwise.runtime.device import computing_device

        self.world_size, self.rank = n_ranks(), rank()
        self.is_rank_zero: bool = self.rank == 0
        if self.world_size > 1:
            join_ranks()
        self.device = computing_device()
        able = self.device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
        if precision == "bf16" and not able:
            raise ConfigError("training.precision: this GPU has no bf16; use float32")
        self.half = precision == "bf16" or (precision == "auto" and self.device.type == "cuda" and able)
        self._parameters: list[nn.Parameter] = []

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of forward passes: autocast in the configured precision. bf16 needs no scaling of losses."""
        import torch

        return torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext()

    def begin(self, module: nn.Module, divided: Collection[str] = ()) -> None:
        """Give all ranks the weights of rank 0, except parameters that are divided over ranks."""
        if self.world_size == 1:
            return
        named = {name: p for name, p in module.named_parameters() if name not in divided}
        self._parameters = [parameter for parameter in named.values() if parameter.requires_grad]
        self.broadcast([*named.values(), *module.buffers()])

    def average_gradients(self) -> None:
        """Replace gradients by their mean over ranks; once per step, after its last backward pass.

        Not every rank has a gradient of each parameter: its part of the batch may not have used it.
        """
        if self.world_size == 1:
            return
        import torch

        own = [0 if p.grad is None else SPARSE if p.grad.is_sparse else DENSE for p in self._parameters]
        kinds = torch.tensor(own, dtype=torch.uint8, device=self.device)
        torch.distributed.all_reduce(kinds, torch.distributed.ReduceOp.MAX)
        found = list(zip(self._parameters, kinds.tolist(), strict=True))
        _average_dense([parameter for parameter, kind in found if kind == DENSE])
        for table in [parameter for parameter, kind in found if kind == SPARSE]:
            average_row_gradient(table)

    def move(self, batch: Any) -> Any:
        """Move a batch to the device: tensors and what can be moved like them, in tuples, lists and dicts."""
        import torch

        if self.device.type == "cpu":
            return batch
        if isinstance(batch, dict):
            return {name: self.move(part) for name, part in batch.items()}
        if isinstance(batch, list | tuple) and not hasattr(batch, "to"):
            parts = [self.move(part) for part in batch]
            return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
        if isinstance(batch, torch.Tensor):
            return batch.to(self.device, non_blocking=True)
        return batch.to(self.device) if hasattr(batch, "to") else batch

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
        import torch

        if self.world_size == 1:
            return *flags, any_rank
        own = torch.tensor([*(flag and self.is_rank_zero for flag in flags), any_rank], dtype=torch.int32)
        return tuple(bool(flag) for flag in self._sum(own))

    def mean(self, value: Tensor) -> float:
        """A number averaged over ranks."""
        return float(value) if self.world_size == 1 else float(self._sum(value.reshape(1).float())) / self.world_size

    def _sum(self, values: Tensor) -> Tensor:
        from torch import distributed

        total = values.detach().to(self.device, copy=True)
        distributed.all_reduce(total)
        return total

    on_rank_zero = staticmethod(on_rank_zero)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy tensors from rank zero to all ranks, in place."""
        from torch import distributed

        for tensor in tensors if self.world_size > 1 else ():
            on_device = tensor.detach().to(self.device).contiguous()
            distributed.broadcast(on_device, 0)
            if not self.is_rank_zero and on_device.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(on_device)

    def send(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors of rank zero by name, on all ranks; the others have no need to know names or shapes."""
        import torch

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
        every = {name: gathered(tensor.to(self.device)) for name, tensor in tensors.items()}
        return [{name: parts[number].cpu() for name, parts in every.items()} for number in range(self.world_size)]

    def wait(self) -> None:
        """Wait for all ranks."""
        from torch import distributed

        if self.world_size > 1:
            distributed.barrier()
