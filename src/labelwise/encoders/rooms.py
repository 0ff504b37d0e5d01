"""Buffers that are used again at every step: new memory costs more than arithmetic where page faults are dear."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def hand_over_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add a row-sparse gradient to that of a table; rows rise and stand once.

    For backward passes, which then return None for the table: autograd would forget that rows stand once, and the next
    reader would sort and copy them all.
    """
    gradient = torch.sparse_coo_tensor(rows[None], values, table.shape, is_coalesced=True, check_invariants=False)
    table.grad = gradient if table.grad is None else table.grad + gradient


class Room:
    """Named float32 buffers on a device, each as large as the largest ever asked for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """The buffer of that name in that shape; it holds whatever was left there."""
        count = math.prod(shape)
        held = self._held.get(name)
        if held is None or len(held) < count:
            self._held.pop(name, None)
            held = self._held[name] = torch.empty(count, device=self.device)
        return held[:count].view(shape)


class Rooms:
    """Rooms that are free. Whoever computes takes one and gives it back, so that threads never share one."""

    def __init__(self) -> None:
        self._free: list[Room] = []

    def enter(self, device: torch.device) -> Room:
        """A room of one's own."""
        try:
            room = self._free.pop()
        except IndexError:
            return Room(device)
        return room if room.device == device else Room(device)

    def leave(self, room: Room) -> None:
        """Give a room back; nothing of it may be read afterwards."""
        self._free.append(room)

    def clear(self) -> None:
        """Free all that is not in use."""
        self._free.clear()

    def __reduce__(self) -> tuple[type[Rooms], tuple[()]]:
        return Rooms, ()  # copies and pickles of a model go without what it calculates in
