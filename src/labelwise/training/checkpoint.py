"""Checkpoints on disk: safetensors and JSON, no executable content, written atomically.

A stage's folder holds ``last-<step>`` (everything to resume exactly) and ``best-<step>`` (weights), and after training
only ``final`` (weights and history). Names contain the step, and the old folder is removed only after the new one is
written, so that a kill always leaves one. Each has a fingerprint of settings, parameters and data; checkpoints of other
trainings and damaged ones are ignored.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.encoders.arrays import as_tensor
from labelwise.errors import LabelwiseError
from labelwise.finished import find_finished, fingerprint, fingerprint_by_budget, finished_folder
from labelwise.store import Folder

log = logging.getLogger("labelwise")

KIND = "checkpoint"
TIME_BUDGET = "time budget"
"""The reason why a training ended that had no time left."""
STATE_FILE, TENSORS_FILE = "state.json", "tensors.safetensors"


def module_fingerprint(module: nn.Module, shape_of: Callable[[str, torch.Size], list[int]]) -> str:
    """Hash of names, shapes and dtypes of all parameters, and values of frozen ones, which checkpoints leave out."""
    named = module.named_parameters()
    shapes = [(name, shape_of(name, p.shape), str(p.dtype), p.requires_grad) for name, p in named]
    return fingerprint(shapes, *(p for p in module.parameters() if not p.requires_grad))


def changing_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What training changes: trainable parameters and all buffers, including non-persistent ones."""
    learning = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    return {**learning, **{f"buffer {name}": b for name, b in module.named_buffers()}}


@torch.no_grad()
def put_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy back what `changing_tensors` returned."""
    for name, held in changing_tensors(module).items():
        held.copy_(tensors[name])


@dataclass
class Snapshot:
    """The state of a training at a step."""

    state: dict[str, Any]
    """Counters, best validation, history: JSON."""
    tensors: Mapping[str, Mapping[str, Tensor]]
    """Tensors by group: weights, optimiser, average, random generators."""


class Checkpoints:
    """The checkpoints of one training stage. Without a folder only the best weights are kept, in memory.

    Parameters
    ----------
    folder
        Where to write them; None writes nothing.
    own
        The fingerprint of this training.
    time_budget
        Of this training: a result that a budget ended is only used under the same one.
    """

    def __init__(self, folder: Path | None, own: str, time_budget: float | None = None) -> None:
        self.folder, self.fingerprint = folder, own
        self.fingerprint_by_budget = fingerprint_by_budget(own, time_budget)
        self._best: dict[str, Tensor] | None = None

    # --- writing ---

    def save_last(self, snapshot: Snapshot, best_step: int | None) -> None:
        """Write everything that is needed to resume, then remove the previous one and outdated best ones."""
        if self.folder is None:
            return
        name = f"last-{snapshot.state['step']:010d}"
        self._write(name, snapshot)
        self._remove_all_but({name, _best_name(best_step)})

    def save_best(self, step: int, weights: Mapping[str, Tensor]) -> None:
        """Keep the best weights. The best that `last` on disk refers to stays until the next `last`."""
        if self.folder is None:
            self._best = {name: tensor.detach().clone() for name, tensor in weights.items()}
            return
        self._write(_best_name(step), Snapshot({"step": step}, {"weights": weights}))

    def save_final(self, snapshot: Snapshot) -> None:
        """Write the result of a training and remove all other checkpoints; these stay if it cannot be written."""
        if self.folder is None:
            return
        try:
            self._write("final", snapshot)
        except LabelwiseError as error:
            log.warning("%s", error)
        else:
            self._remove_all_but({"final"})

    def _write(self, name: str, snapshot: Snapshot) -> None:
        path = Path(str(self.folder)) / name
        ended_by_budget = snapshot.state.get("stopped") == TIME_BUDGET
        own = self.fingerprint_by_budget if ended_by_budget else self.fingerprint
        with finished_folder(path, KIND, own) as folder:
            flat = {f"{kind}/{n}": t for kind, tensors in snapshot.tensors.items() for n, t in tensors.items()}
            half = [name for name, tensor in flat.items() if tensor.dtype == torch.bfloat16]
            folder.write_tensors(TENSORS_FILE, {name: _as_array(tensor) for name, tensor in flat.items()})
            folder.write_json(STATE_FILE, {"state": snapshot.state, "bfloat16": half})

    def _remove_all_but(self, names: set[str]) -> None:
        for path in self._folders("*"):
            if path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def remove_leftovers(self, best_step: int | None) -> None:
        """Remove what a kill left: half-written folders, and best weights of steps that will be repeated."""
        for path in self._folders(".*.new-*") + self._folders(".*.old-*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self._folders("best-*"):
            if path.name != _best_name(best_step):
                shutil.rmtree(path, ignore_errors=True)

    # --- reading ---

    def newest(self) -> str | None:
        """The name of the newest whole checkpoint of this training: `final`, or the `last` of the highest step."""
        for path in [*self._folders("final"), *sorted(self._folders("last-*"), reverse=True)]:
            if self._is_whole(path.name):
                return path.name
        return None

    def load(self, name: str) -> Snapshot:
        """Read a checkpoint that `newest` or `has_best` has verified."""
        folder = Folder(Path(str(self.folder)) / name, KIND, verify=False)
        about = folder.read_json(STATE_FILE)
        tensors: dict[str, dict[str, Tensor]] = {}
        for name, array in folder.tensors(TENSORS_FILE).items():
            kind, _, rest = name.partition("/")
            tensor = as_tensor(array)
            tensors.setdefault(kind, {})[rest] = tensor.view(torch.bfloat16) if name in about["bfloat16"] else tensor
        return Snapshot(about["state"], tensors)

    def has_best(self, step: int) -> bool:
        """Whether there are best weights of this step."""
        return self._is_whole(_best_name(step))

    def load_best(self, step: int) -> Mapping[str, Tensor]:
        """The best weights, saved at this step."""
        return self._best if self._best is not None else self.load(_best_name(step)).tensors["weights"]

    def _is_whole(self, name: str) -> bool:
        """Whether a checkpoint belongs to this training and all its files match the manifest."""
        return (
            find_finished(Path(str(self.folder)) / name, KIND, self.fingerprint, self.fingerprint_by_budget) is not None
        )

    def _folders(self, pattern: str) -> list[Path]:
        return [p for p in self.folder.glob(pattern) if p.is_dir()] if self.folder is not None else []


def _best_name(step: int | None) -> str:
    return "" if step is None else f"best-{step:010d}"


def _as_array(tensor: Tensor) -> np.ndarray:
    """A tensor as an array; bfloat16, which NumPy lacks, is stored as its bits."""
    held = tensor.detach().cpu().contiguous()
    return (held.view(torch.int16) if held.dtype == torch.bfloat16 else held).numpy()
