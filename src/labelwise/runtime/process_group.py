"""The ranks of torchrun for code outside the training loop: what one of them decides or computes, and all use.

Every rank runs the same program on the same data. What depends on a clock or on files, or is expensive and done once,
is done by rank 0 and sent to the others, which wait. Without torchrun nothing here imports torch.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from labelwise.errors import LabelwiseError

if TYPE_CHECKING:
    from torch.distributed import Store

T = TypeVar("T")

PATIENCE = timedelta(days=7)
"""How long ranks wait for each other: rank 0 may train for hours what the others need. A rank that has ended is noticed
by torchrun, which ends the others."""
POLLING_SECONDS = 0.05

_local = threading.local()
_left = False


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


def join_ranks() -> None:
    """Connect the ranks, unless they are connected: gloo on CPUs, nccl on GPUs."""
    from accelerate import PartialState
    from torch import distributed

    from labelwise.runtime.device import computing_device

    if not distributed.is_initialized():
        atexit.register(_disconnect)
    on_cpu = computing_device().type == "cpu"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        _join_by_store_of_torchrun("gloo" if on_cpu else "nccl")
    PartialState(cpu=on_cpu, timeout=PATIENCE)


def _disconnect() -> None:
    """End the threads of the connection before Python ends: one that needs it later would abort the process."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def _join_by_store_of_torchrun(backend: str) -> None:
    """Connect the ranks by the store of torchrun's own process, under keys that only they use.

    That store outlives restarts. Under torch's own keys a rank may find the addresses of ranks that have ended, and
    then fails to connect or waits forever.
    """
    from torch import distributed

    if distributed.is_initialized():
        return
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(address, port, n_ranks(), is_master=False, timeout=PATIENCE)
    store = distributed.PrefixStore(_agree_on_keys(distributed.PrefixStore("labelwise", store)), store)
    distributed.init_process_group(backend, store=store, rank=rank(), world_size=n_ranks(), timeout=PATIENCE)


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


def leave_ranks() -> None:
    """Let this process work alone from now on: the other ranks wait, or have ended."""
    global _left
    _left = True


def rejoin_ranks() -> None:
    """Let this process work with the other ranks again, which wait for it."""
    global _left
    _left = False


def on_rank_zero(make: Callable[[], T]) -> T:
    """The result of `make` on rank 0, on all ranks; the others wait. If it fails there, it fails on all.

    `make` may call what itself uses this function: it then runs on rank 0 alone.
    """
    if n_ranks() == 1 or _left or getattr(_local, "inside", False):
        return make()
    join_ranks()
    from accelerate.utils import broadcast_object_list

    if rank() > 0:
        received: list[tuple[bool, T]] = broadcast_object_list([None])
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
