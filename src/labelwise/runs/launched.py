"""Runs with `--launcher`: what it cannot be combined with, and models and documents on their way to tasks."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError
from labelwise.executors.launcher import Launcher
from labelwise.process_group import n_ranks
from labelwise.registry import methods_that
from labelwise.store import MANIFEST
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.methods.base import Method
    from labelwise.runs.config import RunConfig


def check_launcher(config: RunConfig, method: Method, launcher: Launcher) -> None:
    """Refuse tasks for a method that has none, and with what decides by the clock of one process."""
    if launcher.is_local:
        return
    option = f"--launcher {launcher.name}"
    if n_ranks() > 1:
        raise ConfigError(f"{option}: not under torchrun; use one of the two")
    if not method.refits:
        raise ConfigError(f"{option}: the members of this ensemble are trained already; leave the option out")
    if not method.trains_in_tasks:
        raise ConfigError(
            f"{option}: training {method.name} has no parts that share nothing, as {methods_that('trains_in_tasks')} "
            "have. Leave the option out; several processes train a network together under torchrun"
        )
    given = {"run.time_budget": config.run.time_budget, "model's time_budget": method.time_budget}
    for name, seconds in given.items():
        if seconds is not None:
            raise ConfigError(f"{name}: not with {option}, because one process has to measure its pace; leave out one")


def manifest_hash(folder: Path) -> str:
    """A hash that changes with any file of a model folder."""
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()


class OpenModel:
    """A model of a folder; tasks in other processes get the path and load it once."""

    def __init__(self, folder: Path, model: Method) -> None:
        self.folder, self.model = folder.absolute(), model

    def __reduce__(self) -> tuple:
        return _opened, (self.folder, manifest_hash(self.folder))


def _opened(folder: Path, expected: str) -> OpenModel:
    from labelwise.methods.base import load

    try:
        found = manifest_hash(folder)
    except OSError:
        found = None
    if found != expected:
        raise ConfigError(
            f"{folder}: a worker does not see this model, or sees another: it must be on a file system that all nodes "
            "share, under the same path"
        )
    return OpenModel(folder, load(folder))


def to_send(documents: Any) -> Any:
    """Documents without the texts of others, with which they may share a buffer."""
    if isinstance(documents, Strings):
        return documents.compact()
    if isinstance(documents, Dataset):
        texts, ids, paths = (_compact(given) for given in (documents.texts, documents.ids, documents.paths))
        return replace(documents, texts=texts, ids=ids, paths=paths)
    return documents


def _compact(given: Strings | None) -> Strings | None:
    return None if given is None else given.compact()
