"""Checkpoints of a training on disk: safetensors and JSON, no executable content, written atomically.

The folder of a training holds ``last-<step>`` (everything to resume exactly) and ``best-<step>`` (weights), and after
training only ``final`` (weights and history). Names contain the step, and the old folder is removed only after the new
one is written, so that a kill always leaves one. Each has a fingerprint of settings, parameters and data; checkpoints
of other trainings and damaged ones are ignored.
"""

from __future__ import annotations

import logging
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.errors import LabelwiseError
from labelwise.io.folder import Folder
from labelwise.nn.inputs import as_tensor
from labelwise.runtime.job import find_finished, fingerprint, fingerprint_by_budget, finished_folder

if TYPE_CHECKING:
    from labelwise.nn.train.loop import _Loop

log = logging.getLogger("labelwise")

CHECKPOINTS = ("last-*", "best-*", "final")
"""Names of checkpoints: results of the job, such as a ranking, may be in the same folder."""
KIND = "checkpoint"
TIME_BUDGET = "time budget"
"""The reason why a training ended that had no time left."""
STATE_FILE, TENSORS_FILE = "state.json", "tensors.safetensors"

Tensors = Mapping[str, Tensor]


@dataclass
class History:
    """A training so far: all of its state that is not a tensor. Field names are keys in checkpoints."""

    total_steps: int = 0
    epochs: int = 0
    """Number of complete epochs."""
    step_of_epoch: int = 0
    steps: int = 0
    """Steps taken."""
    seconds: float = 0.0
    """Time in the loop, including time before an interruption."""
    loss_sum: float = 0.0  # since the last log line
    logged_step: int = 0
    round_loss: float = 0.0  # since the last round (validation or epoch)
    round_step: int = 0
    best: dict[str, Any] | None = None
    """The best validation so far: `metric`, `value` and `step`."""
    without_gain: int = 0
    averaged: int = 0
    lengths: list[float] = field(default_factory=list)  # last gradient norms, for adaptive clipping
    records: list[dict[str, Any]] = field(default_factory=list)
    """The numbers of every validation (or epoch), in order."""
    monitor: dict[str, Any] = field(default_factory=dict)
    stopped: str = ""
    """Why it ended: `finished`, `early stopping`, `time budget`, `diverged`, or the monitor's reason."""
    round_seconds: float | None = None  # duration of the last round


class Checkpoints:
    """The checkpoints of one training. Without a folder only the best weights are kept, in memory.

    Only rank 0 reads and writes files; it sends to the other ranks what they resume from. A checkpoint does not depend
    on the number of ranks, so any number of them resumes it.

    Parameters
    ----------
    loop
        The training whose state is saved.
    folder
        Where to write them; None writes nothing.
    settings
        JSON that with the module's parameters forms the fingerprint of this training.
    time_budget
        Of this training: a result that a budget ended is only used under the same one.
    """

    def __init__(self, loop: _Loop, folder: Path | None, settings: Any, time_budget: float | None) -> None:
        self.ranks, self.shards, self.module, self.monitor = loop.ranks, loop.shards, loop.module, loop.monitor
        self.optimisers, self.averaging = loop.optimisers, loop.averaging
        self.every, self.restore_best = loop.config.checkpoint_every, loop.config.restore_best
        self.folder = folder if self.ranks.is_rank_zero else None
        self.fingerprint = self.by_budget = ""
        if self.folder is not None:
            self.fingerprint = fingerprint(settings, module_fingerprint(self.module, self.shards.whole_shape))
            self.by_budget = fingerprint_by_budget(self.fingerprint, time_budget)
        self.saved_at, self.saved_step = time.monotonic(), 0
        self._best: Tensors = {}

    def resume(self, name: str) -> History | None:
        """Restore the newest checkpoint, if any, and return its state."""
        newest = self._newest()
        held, tensors = (None, {}) if newest is None else self._read(newest)
        values = self.ranks.on_rank_zero(lambda: held)
        if values is None:
            return None
        state = History(**values)
        self._put_weights(tensors.get("weights", {}))
        if state.stopped:
            log.info("%s: already trained (%s after %d steps)", name, state.stopped, state.steps)
            return state
        log.info("%s: resuming after step %d of %d", name, state.steps, state.total_steps)
        self.optimisers.restore(self.shards.send(tensors.get("optimiser", {})))  # plain SGD has no state
        self.averaging.restore(self.shards.send(tensors.get("average", {})), state.averaged)
        self._restore_random_state(tensors)
        if self.monitor is not None and state.monitor:
            self.monitor.restore(state.monitor)
        best = self._best_of(state)
        if best and not self.ranks.on_rank_zero(lambda: self._is_whole(best)):
            state.best = None
        self._remove(".*.new-*", ".*.old-*")  # half written by a kill
        self._remove("best-*", keep=self._best_of(state))  # of steps that will be repeated
        self.saved_step = state.steps
        return state

    def is_due(self, step: int) -> bool:
        """Whether to write a checkpoint after this step."""
        if self.folder is None:
            return False
        if self.every.steps is not None and step - self.saved_step >= self.every.steps:
            return True
        return self.every.seconds is not None and time.monotonic() - self.saved_at >= self.every.seconds

    def save(self, state: History) -> None:
        """Write everything that is needed to resume from here, then remove what was written before."""
        state.averaged = self.averaging.count
        state.monitor = {} if self.monitor is None else self.monitor.state()
        generators = self.ranks.gather(random_state())
        held = changing_tensors(self.module), self.optimisers.state(), self.averaging.averages
        weights, optimiser, average = (self.shards.gather(tensors) for tensors in held)
        if self.folder is not None:
            name, tensors = f"last-{state.steps:010d}", {"weights": weights, "optimiser": optimiser, "average": average}
            tensors |= {f"random {rank}": own for rank, own in enumerate(generators)}
            self._write(name, asdict(state), tensors)
            self._remove(*CHECKPOINTS, keep=name, or_keep=self._best_of(state))
        self.saved_at, self.saved_step = time.monotonic(), state.steps

    def save_best(self, state: History) -> None:
        """Keep the weights of the module as the best. Those that `last` on disk refers to stay until the next."""
        name = self._best_of(state)
        if not name:
            return
        weights = self.shards.gather(changing_tensors(self.module))
        if self.folder is not None:
            self._write(name, {"step": state.steps}, {"weights": weights})
        elif self.ranks.is_rank_zero:
            self._best = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def finish(self, state: History) -> None:
        """Put the final weights into the module, and on disk in case the run is interrupted later."""
        best = self._best_of(state)
        if self.averaging.config.kind != "none" and self.averaging.count == 0:
            log.warning("averaging: training ended before averaging started, so the plain weights are kept")
        if not best:
            self.averaging.swap()
        else:
            self._put_weights(self._best if self.folder is None else self._read(best)[1]["weights"])
        weights = self.shards.gather(changing_tensors(self.module))
        if self.folder is not None:
            try:
                self._write("final", asdict(state), {"weights": weights})
            except LabelwiseError as error:
                log.warning("%s", error)  # the others stay
            else:
                self._remove(*CHECKPOINTS, keep="final")
        self.ranks.wait()

    # --- small parts ---

    def _best_of(self, state: History) -> str:
        """The name of the best weights so far; empty if there are none to restore."""
        return f"best-{state.best['step']:010d}" if state.best is not None and self.restore_best else ""

    @torch.no_grad()
    def _put_weights(self, weights: Tensors) -> None:
        """Put the weights of rank zero into the modules of all ranks."""
        sent = self.shards.send(weights)
        for name, held in changing_tensors(self.module).items():
            held.copy_(sent[name])

    def _restore_random_state(self, tensors: Mapping[str, Tensors]) -> None:
        """Each rank gets its own generators; ranks that the checkpoint does not know keep those they began with."""
        kept = {name: generators for name, generators in tensors.items() if name.startswith("random ")}
        own = self.ranks.on_rank_zero(lambda: kept).get(f"random {self.ranks.rank}")
        if own is not None:
            set_random_state(own)

    # --- files ---

    def _write(self, name: str, state: dict[str, Any], tensors: Mapping[str, Tensors]) -> None:
        """Write a state, and tensors by group and name."""
        own = self.by_budget if state.get("stopped") == TIME_BUDGET else self.fingerprint
        with finished_folder(Path(str(self.folder)) / name, KIND, own) as folder:
            flat = {f"{kind}/{n}": t for kind, group in tensors.items() for n, t in group.items()}
            half = [name for name, tensor in flat.items() if tensor.dtype == torch.bfloat16]
            folder.write_tensors(TENSORS_FILE, {name: _as_array(tensor) for name, tensor in flat.items()})
            folder.write_json(STATE_FILE, {"state": state, "bfloat16": half})

    def _read(self, name: str) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        """What `_write` has written; the checkpoint is known to be whole."""
        folder = Folder(Path(str(self.folder)) / name, KIND, verify=False)
        about = folder.read_json(STATE_FILE)
        tensors: dict[str, dict[str, Tensor]] = {}
        for path, array in folder.tensors(TENSORS_FILE).items():
            kind, _, rest = path.partition("/")
            tensor = as_tensor(array)
            tensors.setdefault(kind, {})[rest] = tensor.view(torch.bfloat16) if path in about["bfloat16"] else tensor
        return about["state"], tensors

    def _newest(self) -> str | None:
        """The name of the newest whole checkpoint of this training: `final`, or the `last` of the highest step."""
        names = ["final", *sorted((path.name for path in self._folders("last-*")), reverse=True)]
        return next((name for name in names if self._is_whole(name)), None)

    def _is_whole(self, name: str) -> bool:
        """Whether a checkpoint is there, belongs to this training, and all its files match the manifest."""
        if self.folder is None:
            return False
        return find_finished(self.folder / name, KIND, self.fingerprint, self.by_budget) is not None

    def _remove(self, *patterns: str, keep: str = "", or_keep: str = "") -> None:
        for path in (path for pattern in patterns for path in self._folders(pattern)):
            if path.name not in (keep, or_keep):
                shutil.rmtree(path, ignore_errors=True)

    def _folders(self, pattern: str) -> list[Path]:
        return [p for p in self.folder.glob(pattern) if p.is_dir()] if self.folder is not None else []


def _as_array(tensor: Tensor) -> np.ndarray:
    """A tensor as an array; bfloat16, which NumPy lacks, is stored as its bits."""
    held = tensor.detach().cpu().contiguous()
    return (held.view(torch.int16) if held.dtype == torch.bfloat16 else held).numpy()


def module_fingerprint(module: nn.Module, shape_of: Callable[[str, torch.Size], list[int]]) -> str:
    """Hash of names, shapes and dtypes of all parameters, and values of frozen ones, which checkpoints leave out."""
    named = module.named_parameters()
    shapes = [(name, shape_of(name, p.shape), str(p.dtype), p.requires_grad) for name, p in named]
    return fingerprint(shapes, *(p for p in module.parameters() if not p.requires_grad))


def changing_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What training changes: trainable parameters and all buffers, including non-persistent ones."""
    learning = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    return {**learning, **{f"buffer {name}": b for name, b in module.named_buffers()}}


# --- randomness ---
# The state of every random generator (Python, NumPy, torch, the GPU) as tensors that can be stored without pickle.
#
# NumPy's legacy global generator is included because other libraries draw from it.


def random_state() -> dict[str, Tensor]:
    """The state of all generators of this process, including its GPU."""
    version, words, gauss = random.getstate()
    of_numpy: Any = np.random.get_state()  # noqa: NPY002
    _, key, *position, normal = of_numpy
    state = {
        "python": torch.tensor([version, *words]),
        "python_gauss": torch.tensor([np.nan if gauss is None else gauss], dtype=torch.float64),
        "numpy": torch.tensor([*key.tolist(), *position]),
        "numpy_gauss": torch.tensor([normal], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Tensors) -> None:
    """Restore what `random_state` returned."""
    version, *words = state["python"].tolist()
    gauss = float(state["python_gauss"])
    random.setstate((version, tuple(words), None if np.isnan(gauss) else gauss))
    *key, position, has_gauss = state["numpy"].tolist()
    of_numpy = "MT19937", np.array(key, np.uint32), position, has_gauss, float(state["numpy_gauss"])
    np.random.set_state(of_numpy)  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the state of all generators after the block."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


@contextmanager
def seed_random_state(seed: int) -> Iterator[None]:
    """Seed all generators inside the block, and restore their state afterwards."""
    with preserve_random_state():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.manual_seed(seed % 2**63)
        yield
