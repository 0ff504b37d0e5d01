"""The device that the user wants networks to compute on. Does not import torch; `device` turns it into torch's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from labelwise.errors import ConfigError

AUTO, CPU = "auto", "cpu"
ACCEPTED = "auto (a GPU if there is one), cpu, cuda, or cuda:1 for one GPU of several"
_FORM = re.compile(r"auto|cpu|cuda(:\d{1,3})?")

_chosen: str | None = None


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
