"""The device that networks compute on and the threads that torch uses. Imports torch where it is needed only."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from labelwise.errors import ConfigError
from labelwise.runtime.threads import threads

if TYPE_CHECKING:
    import torch

log = logging.getLogger("labelwise")

AUTO, CPU = "auto", "cpu"
ACCEPTED = "auto (a GPU if there is one), cpu, cuda, or cuda:1 for one GPU of several"
_FORM = re.compile(r"auto|cpu|cuda(:\d{1,3})?")

_chosen: str | None = None
_forked = False


def requested_device() -> str:
    """What `set_device` or LABELWISE_DEVICE asks for, otherwise `auto`."""
    if _chosen is not None:
        return _chosen
    try:
        return checked_device(os.environ.get("LABELWISE_DEVICE", AUTO))
    except ConfigError as error:
        raise ConfigError(f"LABELWISE_DEVICE is '{os.environ['LABELWISE_DEVICE']}'; {error}") from None


def checked_device(name: str) -> str:
    """The name, or an error that lists what is accepted."""
    if _FORM.fullmatch(name) is None:
        mps = "; Apple's GPUs lack float64, in which losses are summed" if name == "mps" else ""
        raise ConfigError(f"accepted are {ACCEPTED}{mps}")
    return name


def set_device(name: str | None) -> None:
    """Let networks compute on this device from now on: `auto`, `cpu`, `cuda` or `cuda:1`; None restores the default.

    Models move when they are fitted or loaded, so set it before. Linear methods compute on the CPU only.
    """
    global _chosen
    try:
        _chosen = None if name is None else checked_device(name)
    except ConfigError as error:
        raise ConfigError(f"device '{name}': {error}") from None


@contextmanager
def using_device(name: str | None) -> Iterator[None]:
    """Use another device inside a `with` block; None changes nothing."""
    global _chosen
    before = _chosen
    if name is not None:
        set_device(name)
    try:
        yield
    finally:
        _chosen = before


@contextmanager
def torch_threads() -> Iterator[None]:
    """Let torch use as many threads as the rest of the toolkit inside the block.

    One thread in a forked process: torch's OpenMP threads do not survive a fork, and the first operation that waits for
    them would hang. Whether the parent had started any cannot be known here.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if _forked else threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def limited_threads(count: int, usual: int) -> Iterator[None]:
    """Let torch use `count` threads in this worker of a pool, and `usual` afterwards.

    `usual` is the setting of the thread that submits the work. The worker's own setting cannot be used: if it was never
    set, it is whatever any thread set last, and so depends on the order of threads.
    """
    import torch

    torch.get_num_threads()  # the first call in a thread copies the global setting; later it is per thread
    torch.set_num_threads(1 if _forked else count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's random numbers on the CPU start from a seed inside the block, and go on as before afterwards.

    The generators of GPUs are neither seeded nor read: initial weights are drawn on the CPU.
    """
    import torch

    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def _limit_after_fork() -> None:
    global _forked
    torch = sys.modules.get("torch")
    if torch is None:  # it has started no threads
        return
    _forked = True
    torch.set_num_threads(1)
    if threads() > 1:
        log.info("torch uses one thread in a forked process; start processes by spawn or forkserver to use more")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_limit_after_fork)


def computing_device() -> torch.device:
    """The device of this process: what was requested else its GPU, else the CPU.

    Not Apple's GPUs: losses are summed in float64, which they lack.
    """
    import torch

    wanted, rank = requested_device(), os.environ.get("LOCAL_RANK")
    if wanted == CPU:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if wanted != AUTO:
            raise ConfigError(f"device {wanted}: torch finds no CUDA GPU here; use cpu or auto")
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if ":" not in wanted:
        return torch.device("cuda") if rank is None else torch.device("cuda", int(rank) % count)
    if rank is not None:
        raise ConfigError(f"device {wanted}: under torchrun each rank has its own GPU; use cuda or auto")
    device = torch.device(wanted)
    if device.index >= count:
        raise ConfigError(f"device {wanted}: this machine has {count} GPUs, cuda:0 to cuda:{count - 1}")
    torch.cuda.set_device(device)
    return device
