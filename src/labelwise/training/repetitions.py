"""Repetitions of a bucket code: networks that are trained alone or several at once, and kept one by one.

A repetition depends on its number, the settings and the data, never on which others are trained beside it, so that any
process or machine may train any of them. A finished one is a folder of its own under the fingerprint of all it depends
on; whoever needs it later finds it, and trains what is missing.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from labelwise.codes.bucket_search import BucketSearch
from labelwise.codes.buckets import BucketTables, checked_table
from labelwise.data.csr import pick_rows
from labelwise.encoders.sparse_mlp import SparseMLP, SparseRows
from labelwise.errors import LabelwiseError, ModelFormatError
from labelwise.heads.bucket_loss import BucketTargets, Loss, bucket_loss
from labelwise.mapped import counts_of
from labelwise.store import Folder, new_folder, stored
from labelwise.topk import TopK
from labelwise.training.batching import training_batches
from labelwise.training.checkpoint import fingerprint
from labelwise.training.loop import train
from labelwise.training.repartition import RepartitionConfig, moved
from labelwise.training.settings import TrainingConfig
from labelwise.training.validation import validated_metrics, validation_numbers

if TYPE_CHECKING:
    from labelwise.methods.base import FitContext

log = logging.getLogger("labelwise")

KIND, FILE = "repetition", "repetition.safetensors"
VALIDATED_AT_ONCE = 256
SEED_STEP = 7919
"""Between the seeds of two rounds."""

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Repetition:
    """What one network has learned.

    Parameters
    ----------
    number
        Which of the repetitions it is: decides its hash tables.
    tensors
        `table` [features, width], `weight0` [width, before] ..., `bias0` ..., all float32.
    buckets
        The bucket of each label if it is not the hash's: after labels have been moved.
    """

    number: int
    tensors: Mapping[str, np.ndarray]
    buckets: np.ndarray | None = None

    @property
    def sound(self) -> bool:
        """Whether all weights are numbers."""
        return all(bool(np.isfinite(array).all()) for array in self.tensors.values())

    def to_tensors(self, prefix: str) -> dict[str, np.ndarray]:
        """All arrays by name."""
        found = {f"{prefix}{name}": array for name, array in self.tensors.items()}
        return found if self.buckets is None else {**found, f"{prefix}buckets": self.buckets}


@dataclass(frozen=True)
class Sizes:
    """The shape of a repetition's network."""

    n_features: int
    hidden: tuple[int, ...]
    n_buckets: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all arrays of one network."""
        widths = [*self.hidden, self.n_buckets]
        shapes: dict[str, tuple[int, ...]] = {"table": (self.n_features, widths[0])}
        shapes |= {f"bias{place}": (width,) for place, width in enumerate(widths)}
        return shapes | {f"weight{place}": (widths[place + 1], widths[place]) for place in range(len(self.hidden))}

    def checked(self, tensors: Mapping[str, np.ndarray], prefix: str, path: Path) -> dict[str, np.ndarray]:
        """The arrays of one network from a file."""
        found = {}
        for name, shape in self.shapes().items():
            array = stored(tensors, f"{prefix}{name}", path)
            if array.shape != shape or array.dtype != np.float32:
                raise ModelFormatError(f"{path}: {prefix}{name} is {array.dtype} {array.shape}, not {shape}")
            found[name] = array
        return found


def networks_of(repetitions: Sequence[Repetition], sizes: Sizes) -> SparseMLP:
    """Stacked networks with what repetitions have learned; a single one shares its arrays."""
    with torch.device("meta"):
        network = SparseMLP(len(repetitions), sizes.n_features, sizes.hidden, sizes.n_buckets)
    held = [repetition.tensors for repetition in repetitions]
    one = len(held) == 1

    def joined(name: str) -> Tensor:
        arrays = [_as_tensor(tensors[name]) for tensors in held]
        return arrays[0][None] if one else torch.stack(arrays)

    values = {"table": joined("table").flatten(0, 1)}
    values |= {f"biases.{place}": joined(f"bias{place}").flatten() for place in range(len(network.biases))}
    values |= {f"weights.{place}": joined(f"weight{place}") for place in range(len(network.weights))}
    network.load_state_dict(values, assign=True)
    return network.requires_grad_(False).eval()


def _as_tensor(array: np.ndarray) -> Tensor:
    import warnings

    with warnings.catch_warnings():  # mapped files are read-only, and nothing here writes
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.asarray(array))


@dataclass(frozen=True)
class RepetitionTraining:
    """How repetitions are trained.

    Parameters
    ----------
    features, labels
        CSR, in memory or mapped: batches pick their rows.
    valid
        Features and labels of held-out documents, or None.
    sizes, loss, training
        The network, what it minimises, and the loop's settings.
    tables
        Hash tables of the labels for all repetitions.
    feature_tables
        Hash tables of the features, or None where each feature has a row of its own.
    settings
        All else that decides the result, for the fingerprint.
    """

    features: Any
    labels: Any
    valid: tuple[Any, Any] | None
    sizes: Sizes
    loss: Loss
    training: TrainingConfig
    tables: BucketTables
    feature_tables: BucketTables | None
    settings: str
    context: FitContext
    repartition: RepartitionConfig | None = None
    _marks: dict[str, str] = field(default_factory=dict)

    def run(self, numbers: Sequence[int], folder: Path | None, at_once: int) -> list[Repetition]:
        """All these repetitions: those found finished in the folder, and the others trained and put there."""
        found = {number: self._finished(folder, number) for number in numbers} if folder is not None else {}
        done = {number: one for number, one in found.items() if one is not None}
        missing = [number for number in dict.fromkeys(numbers) if number not in done]
        if done:
            log.info("%d of %d repetitions were finished before", len(done), len(numbers))
        for begin in range(0, len(missing), at_once):
            group = missing[begin : begin + at_once]
            for one in self._trained(group):
                done[one.number] = one
                if not one.sound:
                    log.warning(
                        "repetition %d has diverged: it finds no labels, and is not kept as finished", one.number
                    )
                elif folder is not None:
                    self._keep(folder, one)
            if folder is not None and self.context.checkpoints is not None:  # kept better now
                shutil.rmtree(self.context.checkpoints / _stage(group), ignore_errors=True)
        return [done[number] for number in numbers]

    def finished(self, numbers: Sequence[int], folder: Path | None) -> list[int]:
        """Those of some repetitions that the folder holds."""
        return [] if folder is None else [number for number in numbers if self._finished(folder, number) is not None]

    def _trained(self, numbers: Sequence[int]) -> list[Repetition]:
        """Train some repetitions side by side; with learned buckets in rounds, between which labels move."""
        tables = [self.tables.table(number) for number in numbers]
        hashed = None if self.feature_tables is None else [self.feature_tables.table(number) for number in numbers]
        sizes = self.sizes
        network = SparseMLP(len(numbers), sizes.n_features, sizes.hidden, sizes.n_buckets)
        biases = torch.stack([self._first_biases(table) for table in tables])
        network.start([(self.training.seed, number) for number in numbers], biases)
        rounds, last = self._rounds(), len(sizes.hidden)
        for place, training in enumerate(rounds):
            fitting = RepetitionFitting(self, training, network, list(numbers), tables, hashed)
            train(
                fitting,
                training,
                context=self.context,
                head=(f"biases.{last}", f"weights.{last - 1}" if last else "table"),
                rows=("table",),
                stage=_stage(numbers) if len(rounds) == 1 else f"{_stage(numbers)}/round-{place}",
                identity=self.identity() + fingerprint(*tables),
            )
            if self.repartition is not None and place + 1 < len(rounds):
                before = tables
                tables = [self._moved(network, row, tables[row], hashed, number) for row, number in enumerate(numbers)]
                stay = np.mean([(old == new).mean() for old, new in zip(before, tables, strict=True)])
                log.info("round %d: %.0f %% of the labels have moved", place + 1, 100 * (1 - stay))
        return [
            _unstacked(network, place, number, tables[place] if self._own_tables else None)
            for place, number in enumerate(numbers)
        ]

    def _rounds(self) -> list[TrainingConfig]:
        """A short training before each move and the whole one after the last, each with a seed of its own."""
        if self.repartition is None:
            return [self.training]
        lengths = [self.repartition.every] * self.repartition.times + [int(self.training.epochs or 1)]
        return [
            self.training.model_copy(update={"epochs": length, "seed": self.training.seed + SEED_STEP * place})
            for place, length in enumerate(lengths)
        ]

    def _moved(
        self,
        network: SparseMLP,
        place: int,
        table: np.ndarray,
        hashed: Sequence[np.ndarray] | None,
        number: int,
    ) -> np.ndarray:
        """New buckets of all labels by what one network has learned."""
        own = networks_of([_unstacked(network, place, 0, None)], self.sizes).to(network.table.device)
        numbers = None if hashed is None else [hashed[place]]

        def scores(documents: np.ndarray) -> np.ndarray:
            rows = sparse_rows(pick_rows(self.features, documents), 1, numbers)
            with torch.inference_mode():
                return own.scores_by_output(rows.to(own.table.device))[0].cpu().numpy()

        settings = self.repartition or RepartitionConfig()
        offers = settings.offered(self.labels.shape[1], self.sizes.n_buckets, self.training.seed, number)
        return moved(self.labels, table, scores, self.sizes.n_buckets, settings.choices, offers)

    def _first_biases(self, table: np.ndarray) -> Tensor:
        """Outputs begin at how frequent buckets are: log-odds, or for softmax logarithms of shares."""
        counts = counts_of(self.labels.indices, self.sizes.n_buckets, table).astype(np.float64)
        if self.loss == "softmax":
            shares = (counts + 0.5) / (counts.sum() + 0.5 * len(counts))
            return torch.from_numpy(np.log(shares).astype(np.float32))
        shares = np.minimum((counts + 0.5) / (self.labels.shape[0] + 1.0), 0.999)
        return torch.from_numpy(np.log(shares / (1 - shares)).astype(np.float32))

    @property
    def _own_tables(self) -> bool:
        """Whether buckets are not the hash's, so that each repetition has to hold its own."""
        return self.repartition is not None or self.tables.given is not None

    def identity(self) -> str:
        """A hash of the data and of all settings but the number and given tables."""
        if "identity" not in self._marks:
            arrays = [getattr(matrix, part) for matrix in self._matrices() for part in ("indptr", "indices", "data")]
            shapes = [list(matrix.shape) for matrix in self._matrices()]
            settings = [self.settings, self.training.part_of_the_result()]
            self._marks["identity"] = fingerprint(*arrays, shapes, settings)
        return self._marks["identity"]

    def mark(self, number: int) -> str:
        """A hash of all that one repetition depends on: what a hash makes of its number needs no look."""
        given = self.tables.given or {}
        return fingerprint(self.identity(), number, *([given[number]] if number in given else []))

    def _matrices(self) -> list[Any]:
        return [self.features, self.labels, *(self.valid or ())]

    # --- finished ones ---

    def _places(self, folder: Path, number: int) -> tuple[Path, Path]:
        """Where a finished repetition may be: under its number, or beside another training's that was there before."""
        path = folder / f"{number:03d}"
        return path, path.with_name(f"{path.name}-{self.mark(number)[:8]}")

    def _finished(self, folder: Path, number: int) -> Repetition | None:
        found = (self._read(path, number) for path in self._places(folder, number) if path.exists())
        return next((one for one in found if one is not None), None)

    def _read(self, path: Path, number: int) -> Repetition | None:
        try:
            held = Folder(path, KIND)
            if held.manifest.get("fingerprint") != self.mark(number):
                log.warning("%s: not used: a repetition of another training, or of other data", path)
                return None
            tensors = held.tensors(FILE)
            buckets = stored(tensors, "buckets", path / FILE) if self._own_tables else None
            if buckets is not None:
                buckets = checked_table(buckets, self.tables.n_items, self.sizes.n_buckets, f"{path / FILE}: buckets")
            return Repetition(number, self.sizes.checked(tensors, "", path / FILE), buckets)
        except LabelwiseError as error:
            log.warning("%s: not used: %s", path, error)
            return None

    def _keep(self, folder: Path, one: Repetition) -> None:
        """Put a finished one into the folder; one of another training that is there stays."""
        mark = self.mark(one.number)
        usual, beside = self._places(folder, one.number)
        path = beside if _mark_of(usual) not in (None, mark) else usual
        with new_folder(path, KIND, {"fingerprint": mark, "number": one.number}, force=True) as new:
            new.write_tensors(FILE, one.to_tensors(""))


def _mark_of(path: Path) -> Any:
    """The fingerprint of what a folder holds; None if it holds no repetition."""
    try:
        return Folder(path, KIND).manifest.get("fingerprint")
    except LabelwiseError:
        return None


class RepetitionFitting:
    """What the loop needs of some repetitions."""

    def __init__(
        self,
        owner: RepetitionTraining,
        training: TrainingConfig,
        network: SparseMLP,
        numbers: list[int],
        tables: list[np.ndarray],
        hashed: list[np.ndarray] | None,
    ) -> None:
        self.owner, self.training, self.module = owner, training, network
        self.numbers, self.tables, self.hashed = numbers, tables, hashed
        self.ones = np.ones(owner.labels.shape[0], np.int64)

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Documents in an order drawn anew each epoch, the same for every repetition; sorted inside a batch."""
        return [np.sort(rows) for rows in training_batches(self.ones, self.training, epoch)]

    def load(self, item: np.ndarray) -> Batch:
        """Sparse rows and the buckets of their labels."""
        rows = sparse_rows(pick_rows(self.owner.features, item), len(self.tables), self.hashed)
        targets = BucketTargets.of_rows(self.owner.labels, item, self.tables, self.owner.sizes.n_buckets)
        return rows.indptr, rows.columns, rows.values, targets.places, targets.shares

    def loss(self, batch: Batch) -> Tensor:
        """The sum of the repetitions' losses."""
        indptr, columns, values, places, shares = batch
        scores = self.module(SparseRows(indptr, columns, values))
        return bucket_loss(scores, BucketTargets(places, shares), self.owner.loss)

    def validate(self) -> dict[str, float]:
        """Precision and nDCG of the labels that these repetitions alone find."""
        if self.owner.valid is None or self.owner.valid[1].shape[0] == 0:
            return {}
        features, labels = self.owner.valid
        metrics, k = validated_metrics(self.training.metric)
        given = dict(zip(self.numbers, self.tables, strict=True))
        tables = BucketTables(self.owner.tables.n_items, self.owner.sizes.n_buckets, tuple(self.numbers), given=given)
        search = BucketSearch(tables)
        parts = []
        for begin in range(0, labels.shape[0], VALIDATED_AT_ONCE):
            some = pick_rows(features, slice(begin, begin + VALIDATED_AT_ONCE))
            rows = sparse_rows(some, len(self.tables), self.hashed)
            scores = self.module.scores_by_output(rows.to(self.module.table.device))
            parts.append(search.best(scores.float().cpu().numpy(), min(k, tables.n_items)))
        return validation_numbers(TopK.concatenate(parts), labels, metrics, self.owner.labels)


def _stage(numbers: Sequence[int]) -> str:
    return "repetition-" + "-".join(f"{number:03d}" for number in numbers)


def sparse_rows(features: Any, count: int, hashed: Sequence[np.ndarray] | None) -> SparseRows:
    """Rows of a feature matrix for `count` networks, features under each network's own numbers."""
    columns = features.indices.astype(np.int64)
    every = np.stack([table[columns].astype(np.int64) for table in hashed]) if hashed else columns[None]
    if not hashed and count > 1:
        every = np.broadcast_to(every, (count, len(columns)))
    return SparseRows(
        torch.from_numpy(features.indptr.astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(every)),
        torch.from_numpy(np.ascontiguousarray(features.data, np.float32)),
    )


def _unstacked(network: SparseMLP, place: int, number: int, buckets: np.ndarray | None) -> Repetition:
    """One network's arrays, copied out of the stack."""
    tensors = {"table": network.of(place, network.table.detach())}
    tensors |= {f"bias{layer}": network.bias(layer).detach()[place] for layer in range(len(network.biases))}
    tensors |= {f"weight{layer}": weight.detach()[place] for layer, weight in enumerate(network.weights)}
    return Repetition(number, {name: part.cpu().numpy().copy() for name, part in tensors.items()}, buckets)
