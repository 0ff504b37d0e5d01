"""Unfinished training on disk: safetensors and JSON, nothing that could run, each written whole or not at all.

A stage's folder holds ``last-<step>`` (all that is needed to resume exactly) and ``best-<step>``
(weights), and once training is over ``final`` (weights and history) alone. Names carry the step, and the old one goes
only after the new one stands: there is no moment at which a kill leaves nothing. A fingerprint of settings, parameters
and data is in each; what belongs to another training or is damaged is ignored.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.encoders.arrays import as_tensor
from labelwise.finished import find_finished, fingerprint, keep_finished
from labelwise.store import Folder

log = logging.getLogger("labelwise")

KIND = "checkpoint"
STATE_FILE, TENSORS_FILE = "state.json", "tensors.safetensors"


def module_fingerprint(module: nn.Module) -> str:
    """Names, shapes and types of all parameters, and the values of the frozen ones, which checkpoints leave out."""
    shapes = [(name, list(p.shape), str(p.dtype), p.requires_grad) for name, p in module.named_parameters()]
    return fingerprint(shapes, *(p for p in module.parameters() if not p.requires_grad))


def changing_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What training changes: parameters that learn, and all buffers, those that a state_dict leaves out too."""
    learning = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    return {**learning, **{f"buffer {name}": b for name, b in module.named_buffers()}}


@torch.no_grad()
def put_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Set what `changing_tensors` gave."""
    for name, held in changing_tensors(module).items():
        held.copy_(tensors[name])


@dataclass
class Snapshot:
    """A training at a step."""

    state: dict[str, Any]
    """Counters, best so far, history: JSON."""
    tensors: Mapping[str, Mapping[str, Tensor]]
    """Tensors by what they are: weights, optimiser, average, random generators."""


class Checkpoints:
    """The checkpoints of one stage of a training. With no folder nothing is kept, but the best weights in memory.

    Parameters
    ----------
    folder
        Where to keep them; None keeps nothing on disk.
    own
        The fingerprint of this training.
    """

    def __init__(self, folder: Path | None, own: str) -> None:
        self.folder, self.fingerprint = folder, own
        self._best: dict[str, Tensor] | None = None

    # --- writing ---

    def save_last(self, snapshot: Snapshot, best_step: int | None) -> None:
        """Write all that is needed to resume; the last one before it and outdated best ones go afterwards."""
        if self.folder is None:
            return
        name = f"last-{snapshot.state['step']:010d}"
        self._write(name, snapshot)
        self._remove_all_but({name, _best_name(best_step)})

    def save_best(self, step: int, weights: Mapping[str, Tensor]) -> None:
        """Keep the best weights. What `last` on disk calls the best stays until the next `last`."""
        if self.folder is None:
            self._best = {name: tensor.detach().clone() for name, tensor in weights.items()}
            return
        self._write(_best_name(step), Snapshot({"step": step}, {"weights": weights}))

    def save_final(self, snapshot: Snapshot) -> None:
        """Write the end of a training; nothing else is needed any more."""
        if self.folder is not None:
            self._write("final", snapshot)
            self._remove_all_but({"final"})

    def _write(self, name: str, snapshot: Snapshot) -> None:
        path = Path(str(self.folder)) / name
        with keep_finished(path, KIND, self.fingerprint) as folder:
            flat = {f"{kind}/{n}": t for kind, tensors in snapshot.tensors.items() for n, t in tensors.items()}
            half = [name for name, tensor in flat.items() if tensor.dtype == torch.bfloat16]
            folder.write_tensors(TENSORS_FILE, {name: _as_array(tensor) for name, tensor in flat.items()})
            folder.write_json(STATE_FILE, {"state": snapshot.state, "bfloat16": half})

    def _remove_all_but(self, names: set[str]) -> None:
        for path in self._found("*"):
            if path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def tidy(self, best_step: int | None) -> None:
        """Remove what a kill left: half-written folders, and best weights of steps that will be taken again."""
        for path in self._found(".*.new-*") + self._found(".*.old-*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self._found("best-*"):
            if path.name != _best_name(best_step):
                shutil.rmtree(path, ignore_errors=True)

    # --- reading ---

    def newest(self) -> str | None:
        """The name of the newest whole checkpoint of this training: `final`, or the `last` of the highest step."""
        for path in [*self._found("final"), *sorted(self._found("last-*"), reverse=True)]:
            if self._whole(path.name):
                return path.name
        return None

    def load(self, name: str) -> Snapshot:
        """A checkpoint that `newest` or `has_best` has found whole."""
        folder = Folder(Path(str(self.folder)) / name, KIND, verify=False)
        about = folder.read_json(STATE_FILE)
        tensors: dict[str, dict[str, Tensor]] = {}
        for name, array in folder.tensors(TENSORS_FILE).items():
            kind, _, rest = name.partition("/")
            tensor = as_tensor(array)
            tensors.setdefault(kind, {})[rest] = tensor.view(torch.bfloat16) if name in about["bfloat16"] else tensor
        return Snapshot(about["state"], tensors)

    def has_best(self, step: int) -> bool:
        """Whether the best weights of this step are there."""
        return self._whole(_best_name(step))

    def load_best(self, step: int) -> Mapping[str, Tensor]:
        """The best weights, kept at this step."""
        return self._best if self._best is not None else self.load(_best_name(step)).tensors["weights"]

    def _whole(self, name: str) -> bool:
        """Whether a checkpoint is this training's and every file has the size and hash that its manifest says."""
        return find_finished(Path(str(self.folder)) / name, KIND, self.fingerprint) is not None

    def _found(self, pattern: str) -> list[Path]:
        return [p for p in self.folder.glob(pattern) if p.is_dir()] if self.folder is not None else []


def _best_name(step: int | None) -> str:
    return "" if step is None else f"best-{step:010d}"


def _as_array(tensor: Tensor) -> np.ndarray:
    """A tensor for the file; NumPy does not know bfloat16, so that is stored as plain bits."""
    held = tensor.detach().cpu().contiguous()
    return (held.view(torch.int16) if held.dtype == torch.bfloat16 else held).numpy()
