"""Buffers that are used again at every step: new memory costs more than arithmetic where page faults are dear."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Room:
    """Named float32 buffers, each as large as the largest ever asked for."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """The buffer of that name in that shape; it holds whatever was left there."""
        count = math.prod(shape)
        held = self._held.get(name)
        if held is None or len(held) < count:
            self._held.pop(name, None)
            held = self._held[name] = torch.empty(count)
        return held[:count].view(shape)


class Rooms:
    """Rooms that are free. Whoever computes takes one and gives it back, so that threads never share one."""

    def __init__(self) -> None:
        self._free: list[Room] = []

    def enter(self) -> Room:
        """A room of one's own."""
        try:
            return self._free.pop()
        except IndexError:
            return Room()

    def leave(self, room: Room) -> None:
        """Give a room back; nothing of it may be read afterwards."""
        self._free.append(room)

    def __deepcopy__(self, _memo: object) -> Rooms:
        return Rooms()
