"""What training and prediction cost, before they begin: the shape of data, constants of a machine, and a method's cost.

Operations are counted from the shape of the data and a method's settings (`methods.py`). How long an operation takes
on this machine is measured once by short runs of the same code (`planning/measure.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

BASE_BYTES = 220e6
"""Memory of a process that has loaded the linear path and computed nothing yet."""
TORCH_BYTES = 350e6
"""The same for torch, in addition."""
NAME_BYTES = 24
"""Approximate bytes of a label's name in memory and in a model."""
HASH_BYTES = 16
"""Approximate bytes per training document in a model: hashes of the documents that it was trained on."""
NETWORK_SPEED = 1e9
"""Bytes per second between machines, where nothing else is given."""


@dataclass(frozen=True)
class DataShape:
    """Counts of training data. Means are per document."""

    documents: int
    labels: int
    labels_per_document: float = 5.0
    features: int = 100_000
    """Different words, or columns of features."""
    nonzeros: float = 100.0
    """Different words, or stored features."""
    words: float | None = None
    """Words of a text, repeated ones too; None: the data has features."""
    mapped: bool = False
    """Whether texts and features are in files while a model is trained."""

    @property
    def ones(self) -> float:
        """Labels of all documents."""
        return self.documents * self.labels_per_document

    @property
    def entries(self) -> float:
        """Non-zeros of all documents."""
        return self.documents * self.nonzeros

    @property
    def text_bytes(self) -> float:
        """Bytes of all texts; 0 if the data has features."""
        return 0.0 if self.words is None else 6.5 * self.words * self.documents

    @property
    def feature_bytes(self) -> float:
        """Bytes of sparse features in memory."""
        return 8 * self.entries + 8 * self.documents

    @property
    def label_bytes(self) -> float:
        """Bytes of sparse labels in memory."""
        return 8 * self.ones + 8 * self.documents

    @property
    def bytes(self) -> float:
        """Bytes of the data in memory, and about as many on disk."""
        return self.label_bytes + (self.feature_bytes if self.words is None else self.text_bytes)


@dataclass(frozen=True)
class Constants:
    """Measured on a machine. Times are seconds of one core."""

    tfidf: float
    """Per byte of text."""
    pifa: float
    """Per label of a document and non-zero of the document: label features."""
    cluster: float
    """Per non-zero of the label features and layer of halving."""
    solve: float
    """Per non-zero of a node's documents and 16 of its children."""
    search: float
    """Per non-zero of a document and 16 nodes that are scored, for a single document."""
    lookups: tuple[tuple[float, float], ...]
    """Bytes of weights, and seconds per non-zero of a single document and chunk of children where it is looked up: the
    larger a model, the less of it is in caches."""
    call: float
    """Per prediction of a single document, whatever its model."""
    spread: float
    """Different lowest nodes per further label of a document: 1 if the labels of a document are never siblings."""
    distinct: float
    """Non-zeros of label features per label of a document and non-zero of the document."""
    inner: float
    """Kept weights of inner nodes relative to those of labels, per non-zero of their documents: features are shared."""
    kept: tuple[tuple[float, float], ...]
    """Thresholds, and kept weights of a label per non-zero of its documents."""
    weight_bytes: dict[str, float]
    """Bytes per kept weight on disk, by precision."""
    networks: dict[str, float] = field(default_factory=dict)
    """Operations per second and core in training, by kind of network; empty without torch."""
    measured: str = ""
    """When."""

    def kept_at(self, threshold: float) -> float:
        """Kept weights per non-zero at any threshold, interpolated."""
        import numpy as np

        at, parts = np.array(self.kept).T
        return float(np.interp(threshold, at, parts))

    def lookup_at(self, size: float) -> float:
        """Seconds per look-up in weights of any size, interpolated over the logarithm of the size."""
        import numpy as np

        sizes, seconds = np.array(self.lookups).T
        return float(np.interp(np.log(max(size, 1.0)), np.log(sizes), seconds))

    def rate(self, kind: str) -> float:
        """Operations per second and core of a kind of network."""
        from labelwise.errors import ConfigError

        if kind not in self.networks:
            raise ConfigError(
                "the speed of networks was not measured on this machine: install labelwise[nn], then run "
                "labelwise plan --measure"
            )
        return self.networks[kind]

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Constants:
        """From plain data; fields of other versions are an error of type KeyError, TypeError or ValueError."""
        known = {one.name for one in fields(cls)}
        if set(found) != known:
            raise ValueError(f"expected the fields {', '.join(sorted(known))}")
        curves: Any = {name: tuple((float(at), float(value)) for at, value in found[name]) for name in CURVES}
        for name, curve in curves.items():
            if not curve or any(one <= zero for (zero, _), (one, _) in pairwise(curve)):
                raise ValueError(f"{name}: {CURVES[name]} must increase")
        numbers: Any = {name: float(found[name]) for name in known - {*CURVES, *TABLES, "measured"}}
        tables: Any = {name: {key: float(value) for key, value in found[name].items()} for name in TABLES}
        if missing := {"float32", "float16", "int8"} - set(tables["weight_bytes"]):
            raise ValueError(f"weight_bytes: {', '.join(sorted(missing))} is missing")
        every = [*numbers.values(), *(value for table in tables.values() for value in table.values())]
        every += [number for pair in curves["lookups"] for number in pair]
        if not all(0 < value < float("inf") for value in every):
            raise ValueError("every constant must be above 0")
        return cls(measured=str(found["measured"]), **numbers, **tables, **curves)


TABLES = ("weight_bytes", "networks")
CURVES = {"kept": "thresholds", "lookups": "sizes"}


@dataclass(frozen=True)
class Scratch:
    """Memory that threads need in a stage of training."""

    per_thread: float
    threads: int
    """Threads that the stage can use."""
    below: float = 0.0
    """Bytes by which the stage needs less than `Cost.memory` without its threads."""


@dataclass(frozen=True)
class Cost:
    """What a method costs on data of some shape; times are seconds of one core of the measured machine."""

    cpu: float = 0.0
    """Training that only processors do."""
    network: float = 0.0
    """Training of networks, in seconds of one core; GPUs do it if there are any."""
    operations: float = 0.0
    """The operations of that training, for machines with GPUs."""
    memory: float = BASE_BYTES
    """Peak memory of training, on the host, without `scratch`."""
    scratch: tuple[Scratch, ...] = ()
    """What threads need in addition, by stage."""
    device_memory: float = 0.0
    """Further memory of training, on the GPU if there is one, otherwise on the host."""
    disk: float = 0.0
    """While training: data and unfinished work."""
    model: float = 0.0
    """Bytes of the saved model."""
    latency: float = 0.0
    """Prediction of a single document."""
    step_bytes: float = 0.0
    """Gradients that ranks exchange per step, each way; 0 if they exchange none."""
    steps: float = 0.0
    shares: int = 1
    """Machines among which the training can be divided."""
    changes: tuple[str, ...] = ()
    """What makes it smaller, the most effective first."""

    def memory_with(self, threads: int) -> float:
        """Peak memory of training on the host with so many threads."""
        needs = (min(threads, stage.threads) * stage.per_thread - stage.below for stage in self.scratch)
        return self.memory + max(0.0, *needs, 0.0)

    def __add__(self, other: Cost) -> Cost:
        """One after the other in one process: times and models add up, peaks do not."""
        larger, smaller = sorted((self, other), key=lambda cost: -cost.memory - cost.device_memory)
        lower = larger.memory - smaller.memory
        scratch = larger.scratch + tuple(replace(stage, below=stage.below + lower) for stage in smaller.scratch)
        return replace(
            self,
            cpu=self.cpu + other.cpu, network=self.network + other.network,
            operations=self.operations + other.operations, memory=larger.memory, scratch=scratch,
            device_memory=larger.device_memory, disk=max(self.disk, other.disk),
            model=self.model + other.model, latency=self.latency + other.latency,
            step_bytes=max(self.step_bytes, other.step_bytes), steps=self.steps + other.steps,
            shares=min(self.shares, other.shares), changes=tuple(dict.fromkeys(larger.changes + self.changes)),
        )  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """One of some equal machines."""

    name: str
    memory: float | None
    """Bytes; None: not known."""
    cores: int
    machines: int = 1
    gpus: int = 0
    """Per machine."""
    gpu_memory: float = 24e9
    gpu_speed: float = 30e12
    """Operations per second that training reaches on one GPU."""
    network_speed: float = NETWORK_SPEED
    disk: float | None = None
    """Free bytes."""


@dataclass(frozen=True)
class Fit:
    """A method on a machine."""

    machine: Machine
    cost: Cost
    seconds: float
    network_seconds: float
    memory: float
    """Per machine, on the host."""
    problems: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether it can be trained there."""
        return not self.problems


def on_machine(cost: Cost, machine: Machine) -> Fit:
    """The cost on a machine, and why it does not fit, if so."""
    share = min(machine.machines, cost.shares)
    memory = cost.memory_with(machine.cores) + (0 if machine.gpus else cost.device_memory)
    seconds = cost.cpu / (machine.cores * share)
    if machine.gpus:
        seconds += cost.operations / (machine.gpus * machine.gpu_speed * share)
    else:
        seconds += cost.network / (machine.cores * share)
    ranks = share * max(1, machine.gpus)
    # of a ring: every rank sends and receives all gradients twice, but for its own part
    exchanged = cost.steps / ranks * 2 * cost.step_bytes * (ranks - 1) / ranks / machine.network_speed
    seconds += exchanged
    problems = []
    if machine.memory is not None and memory > machine.memory:
        problems.append("memory")
    if machine.gpus and cost.device_memory > machine.gpu_memory:
        problems.append("GPU memory")
    if machine.disk is not None and cost.disk + cost.model > machine.disk:
        problems.append("disk")
    return Fit(machine, cost, seconds, exchanged, memory, tuple(problems))
