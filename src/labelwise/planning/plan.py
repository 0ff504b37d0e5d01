"""What a run would cost, before it begins: the shape of its data, the cost of its method, and what fits where."""

from __future__ import annotations

import logging
import math
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.data.describe import word_counts
from labelwise.data.out_of_core import scratch_beside
from labelwise.errors import ConfigError
from labelwise.features.tfidf import LINEAR_TFIDF, Tfidf
from labelwise.formatting import duration, size
from labelwise.planning.costs import (
    Constants,
    Cost,
    DataShape,
    Fit,
    Machine,
    on_machine,
)
from labelwise.planning.methods import cost_of
from labelwise.registry import method_package
from labelwise.runs.config import RunConfig
from labelwise.runs.data import load_run_data
from labelwise.runtime.memory import free_memory
from labelwise.runtime.threads import threads

log = logging.getLogger("labelwise")

SAMPLE = 2000
"""Texts from which different words per document and in all documents are estimated."""
COLUMNS = ("machine", "training", "memory", "GPU memory", "disk", "network per step", "model", "one document", "fits")


def this_machine(config: RunConfig) -> Machine:
    """What is free here now for this run, on its threads; GPUs are not counted unless they are given."""
    folder = Path(str(config.run.folder)).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = float(shutil.disk_usage(existing).free)
    return Machine("this machine", free_memory(), config.run.threads or threads(), disk=free)


def shape_of(data: Dataset, tfidf: Any = LINEAR_TFIDF) -> DataShape:
    """The shape of training data; of texts, words are counted in a sample."""
    shape = DataShape(len(data), data.n_labels, data.labels.nnz / max(1, len(data)))
    if data.texts is not None:
        rows = np.unique(np.linspace(0, len(data) - 1, min(SAMPLE, len(data))).astype(np.int64))
        texts = data.texts[rows]
        words = Tfidf(tfidf).fit_transform(texts)
        # a vocabulary grows about as the square root of the text
        features = int(words.shape[1] * (len(data) / len(rows)) ** 0.5)
        mean = float(np.mean(word_counts(texts)))
        return replace(shape, words=mean, nonzeros=max(1.0, words.nnz / len(rows)), features=max(1, features))
    if data.features is not None:
        count = getattr(data.features, "nnz", None)
        each = data.features.shape[1] if count is None else count / max(1, len(data))
        return replace(shape, features=data.features.shape[1], nonzeros=max(1.0, each))
    return shape


def planned_shape(config: RunConfig, given: dict[str, Any]) -> DataShape:
    """The shape of a run's data with what is given in its place; nothing is read if documents and labels are given."""
    chosen = {name: value for name, value in given.items() if value is not None}
    chosen["mapped"] = config.data.mapped
    if {"documents", "labels"} <= set(chosen):
        if "nonzeros" not in chosen and "words" in chosen:
            chosen["nonzeros"] = 0.6 * chosen["words"]  # some words are repeated
        usual = DataShape(chosen["documents"], chosen["labels"])
        fewer: dict[str, Any] = {
            "labels_per_document": min(usual.labels_per_document, usual.labels),
            "nonzeros": min(usual.nonzeros, chosen.get("features", usual.features)),
        }
        return _possible(DataShape(**{**fewer, **chosen}))
    with scratch_beside(Path(str(config.run.folder))) if config.data.mapped else nullcontext() as scratch:
        train = load_run_data(config.data, scratch).train
        found = shape_of(train, getattr(config.make_method().config, "tfidf", LINEAR_TFIDF))
    return _possible(replace(found, **chosen))


def _possible(shape: DataShape) -> DataShape:
    """The shape, if there can be such data."""
    for name in ("labels_per_document", "nonzeros", "words"):
        value = getattr(shape, name)
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"--{name.replace('_', '-')}: a finite number is needed, got {value}")
    if shape.labels_per_document > shape.labels:
        raise ConfigError(
            f"--labels-per-document: {shape.labels_per_document:g} per document are more than {shape.labels:,} labels"
        )
    if shape.nonzeros > shape.features:
        raise ConfigError(
            f"--nonzeros: {shape.nonzeros:g} different features per document of {shape.features:,} features in all"
        )
    return shape


def memory_limit(config: RunConfig) -> float | None:
    """Bytes above which the method itself refuses to train (`model.memory`); None: what is free."""
    memory = getattr(config.make_method().config, "memory", None)
    return memory * 1e9 if isinstance(memory, float | int) and not isinstance(memory, bool) else None


def planned_cost(config: RunConfig, shape: DataShape, constants: Constants) -> Cost:
    """What the method of a run costs on data of this shape."""
    method = config.make_method()
    cost = cost_of(method, shape, constants)
    if cost is None:
        package = method_package(method.name)
        where = "" if package is None else f" of {package[0]} {package[1]}"
        raise ConfigError(
            f"model.method: {method.name}{where} does not say what it costs, so it cannot be planned; a method can "
            "with a function `cost`"
        )
    return cost


def table(cost: Cost, machines: list[Machine]) -> tuple[list[Fit], list[list[str]]]:
    """The cost on each machine, and the cells of a table."""
    fits = [on_machine(cost, machine) for machine in machines]
    return fits, [_cells(fit) for fit in fits]


def _cells(fit: Fit) -> list[str]:
    machine, cost = fit.machine, fit.cost
    free = "" if machine.memory is None else f" of {size(machine.memory)}"
    on_gpu = f"{size(cost.device_memory)} of {size(machine.gpu_memory)}" if machine.gpus else "-"
    exchanged = size(cost.step_bytes) if cost.step_bytes and machine.machines * max(1, machine.gpus) > 1 else "-"
    return [
        machine.name, duration(fit.seconds), size(fit.memory) + free, on_gpu, size(cost.disk), exchanged,
        size(cost.model), f"{1e3 * cost.latency:,.2g} ms", "yes" if fit.fits else f"no: {' and '.join(fit.problems)}",
    ]  # fmt: skip


def described(machine: Machine) -> str:
    """The name of a machine by its parts."""
    parts = [f"{machine.cores} core{'s' * (machine.cores != 1)}"]
    if machine.memory is not None:
        parts.insert(0, size(machine.memory))
    if machine.gpus:
        parts.append(f"{machine.gpus} GPU{'s' * (machine.gpus != 1)}")
    times = f"{machine.machines} x " if machine.machines > 1 else ""
    return times + ", ".join(parts)
