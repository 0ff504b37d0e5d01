"""Where torch computes and with how many threads; all that prediction needs of the machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from labelwise.parallel import threads

log = logging.getLogger("labelwise")

TRUE = ("1", "true", "yes", "on", "y", "t")

_forked = False


@contextmanager
def torch_threads() -> Iterator[None]:
    """Torch computes with as many threads as the rest of the toolkit inside the block.

    With one in a forked process: torch's threads are OpenMP's, which do not survive a fork, and the first operation
    that waits for them would wait for ever. Whether the parent had started any is not ours to know.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if _forked else threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def limited_threads(count: int, usual: int) -> Iterator[None]:
    """Torch computes with `count` threads in this thread of a pool, and with `usual` afterwards.

    `usual` is the number of the thread that hands out the work. A thread's own number would not do: where it was never
    set, it is the one that any thread has set last, and so depends on which came first.
    """
    torch.get_num_threads()  # a thread's first question sets its number to the one set last by any; later it is its own
    torch.set_num_threads(1 if _forked else count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def _limit_after_fork() -> None:
    global _forked
    _forked = True
    torch.set_num_threads(1)
    if threads() > 1:
        log.info("torch computes with one thread in a forked process; start it by spawn or forkserver to use more")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_limit_after_fork)


def computing_device() -> torch.device:
    """Where this process computes: its own GPU, else the CPU.

    Losses are summed in float64, which Apple's GPUs lack. ACCELERATE_USE_CPU, as training reads it, keeps off the GPU.
    """
    if not torch.cuda.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() in TRUE:
        return torch.device("cpu")
    rank = os.environ.get("LOCAL_RANK")
    return torch.device("cuda") if rank is None else torch.device("cuda", int(rank) % torch.cuda.device_count())
