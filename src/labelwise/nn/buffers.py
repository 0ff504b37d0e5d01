"""Buffers that are reused at every step: new memory costs more than arithmetic where page faults are expensive."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Buffers:
    """Named float32 buffers on a device, each as large as the largest size requested so far."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._held: dict[str, Tensor] = {}

    def get(self, name: str, *shape: int) -> Tensor:
        """The buffer of that name in that shape; its contents are undefined."""
        count = math.prod(shape)
        held = self._held.get(name)
        if held is None or len(held) < count:
            self._held.pop(name, None)
            held = self._held[name] = torch.empty(count, device=self.device)
        return held[:count].view(shape)


class BufferPool:
    """A pool of free `Buffers`. Each computation acquires one and releases it, so that threads never share one."""

    def __init__(self) -> None:
        self._free: list[Buffers] = []

    def acquire(self, device: torch.device) -> Buffers:
        """Buffers for the caller alone."""
        try:
            buffers = self._free.pop()
        except IndexError:
            return Buffers(device)
        return buffers if buffers.device == device else Buffers(device)

    def release(self, buffers: Buffers) -> None:
        """Return buffers to the pool; nothing in them may be read afterwards."""
        self._free.append(buffers)

    def clear(self) -> None:
        """Free all buffers that are not in use."""
        self._free.clear()

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return BufferPool, ()  # copies and pickles of a model leave out its buffers
