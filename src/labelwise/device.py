"""Where torch computes and with how many threads; all that prediction needs of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from labelwise.parallel import threads

TRUE = ("1", "true", "yes", "on", "y", "t")


@contextmanager
def torch_threads() -> Iterator[None]:
    """Torch computes with as many threads as the rest of the toolkit inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def computing_device() -> torch.device:
    """Where this process computes: its own GPU, else the CPU.

    Losses are summed in float64, which Apple's GPUs lack. ACCELERATE_USE_CPU, as training reads it, keeps off the GPU.
    """
    if not torch.cuda.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() in TRUE:
        return torch.device("cpu")
    rank = os.environ.get("LOCAL_RANK")
    return torch.device("cuda") if rank is None else torch.device("cuda", int(rank) % torch.cuda.device_count())
