"""Fitting of some repetitions of a bucket code: batches, loss and validation for the training loop."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelwise.data.csr import pick_rows
from labelwise.errors import LabelwiseError
from labelwise.io.folder import get_tensor
from labelwise.io.tensors import counts_of
from labelwise.labelspace.bucket_search import BucketSearch
from labelwise.labelspace.buckets import BucketTables, RepartitionConfig, checked_table, repartitioned
from labelwise.nn.buckets import (
    BucketTargets,
    Loss,
    NetworkShape,
    Repetition,
    SparseMLP,
    SparseRows,
    bucket_loss,
    repetition_of,
    sparse_rows,
    stacked_networks,
)
from labelwise.nn.config import TrainingConfig
from labelwise.nn.inputs import training_batches
from labelwise.nn.train.checkpoint import TIME_BUDGET
from labelwise.nn.train.loop import metrics_to_validate, train, validation_metrics
from labelwise.runtime.finished import find_finished, fingerprint, fingerprint_by_budget, fingerprint_in, keep_finished
from labelwise.runtime.job import Job
from labelwise.runtime.progress import progress, stage
from labelwise.runtime.ranks import on_rank_zero, rank
from labelwise.runtime.tasks import current, refuse_time_budget
from labelwise.runtime.time_budget import TimeBudget
from labelwise.topk import TopK

VALIDATED_AT_ONCE = 256

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class RepetitionData:
    """Training and held-out data of repetitions.

    Parameters
    ----------
    features, labels
        CSR, in memory or memory-mapped; batches read their rows.
    valid
        Features and labels of held-out documents, or None.
    """

    features: Any
    labels: Any
    valid: tuple[Any, Any] | None

    def matrices(self) -> list[Any]:
        """All matrices, for fingerprints."""
        return [self.features, self.labels, *(self.valid or ())]


class RepetitionFitting:
    """Fitting of some repetitions.

    Parameters
    ----------
    data, training, loss
        Data, settings and loss.
    network
        The repetitions' networks, stacked.
    numbers, tables, hashed
        Per repetition its number, the buckets of its labels and the rows of its features (None: not hashed).
    """

    def __init__(
        self,
        data: RepetitionData,
        training: TrainingConfig,
        loss: Loss,
        network: SparseMLP,
        numbers: list[int],
        tables: list[np.ndarray],
        hashed: list[np.ndarray] | None,
    ) -> None:
        self.data, self.training, self.loss_name, self.module = data, training, loss, network
        self.numbers, self.tables, self.hashed = numbers, tables, hashed
        self.n_buckets = len(network.biases[-1]) // network.count
        self.ones = np.ones(data.labels.shape[0], np.int64)

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Batches of documents, shuffled in each epoch, equal for all repetitions; sorted within a batch."""
        return [np.sort(rows) for rows in training_batches(self.ones, self.training, epoch)]

    def load(self, item: np.ndarray, epoch: int) -> Batch:
        """Load sparse rows and the buckets of their labels."""
        rows = sparse_rows(pick_rows(self.data.features, item), len(self.tables), self.hashed)
        targets = BucketTargets.of_rows(self.data.labels, item, self.tables, self.n_buckets)
        return rows.indptr, rows.columns, rows.values, targets.indices, targets.fractions

    def loss(self, batch: Batch) -> Tensor:
        """The sum of the repetitions' losses."""
        indptr, columns, values, indices, fractions = batch
        scores = self.module(SparseRows(indptr, columns, values))
        return bucket_loss(scores, BucketTargets(indices, fractions), self.loss_name)

    @cached_property
    def _search(self) -> BucketSearch:
        given = dict(zip(self.numbers, self.tables, strict=True))
        n_labels = self.data.labels.shape[1]
        return BucketSearch(BucketTables(n_labels, self.n_buckets, tuple(self.numbers), given=given))

    def validate(self, budget: TimeBudget) -> dict[str, float]:
        """Precision and nDCG on the held-out documents, with these repetitions only."""
        if self.data.valid is None or self.data.valid[1].shape[0] == 0:
            return {}
        features, labels = self.data.valid
        metrics, k = metrics_to_validate(self.training.metric)
        parts, began, count = [], time.monotonic(), labels.shape[0]
        with progress("validating", count) as step:
            for begin in range(0, count, VALIDATED_AT_ONCE):
                some = pick_rows(features, slice(begin, begin + VALIDATED_AT_ONCE))
                rows = sparse_rows(some, len(self.tables), self.hashed)
                scores = self.module.scores_by_output(rows.to(self.module.table.device))
                parts.append(self._search.best(scores.float().cpu().numpy(), min(k, self.data.labels.shape[1])))
                step(some.shape[0])
                budget.check_pace(began, begin + some.shape[0], count)
        return validation_metrics(TopK.concatenate(parts), labels, metrics, self.data.labels)


# --- repetition tasks ---
# Repetitions of a bucket code trained by tasks: each trains one or some, and writes them as finished ones.


class RepetitionTask(NamedTuple):
    """Repetitions to train together, the folder of finished ones, and that of unfinished work."""

    numbers: tuple[int, ...]
    folder: Path
    checkpoints: Path | None


class TrainedRepetitions(NamedTuple):
    """What a task returns besides the files it has written."""

    records: list[dict[str, Any]]
    """Numbers for metrics.jsonl."""
    diverged: list[Repetition]
    """Repetitions that are not written as finished."""


def trained_elsewhere(
    training: RepetitionTraining, groups: Sequence[Sequence[int]], folder: Path | None
) -> dict[int, Repetition]:
    """Train groups of repetitions by the tasks of the executor."""
    job, tasks = training.job, current()
    if job.budget.is_limited:
        refuse_time_budget("repetitions")
    if folder is None:
        assert tasks.folder is not None
        folder = tasks.folder / "repetitions"
    kept = folder.absolute()
    kept.mkdir(parents=True, exist_ok=True)
    checkpoints = None if job.folder is None else job.folder.absolute()
    todo = [RepetitionTask(tuple(group), kept, checkpoints) for group in groups]

    def read(task: RepetitionTask, trained: TrainedRepetitions) -> tuple[list[dict[str, Any]], list[Repetition]] | None:
        found = [*training.finished(task.numbers, kept), *trained.diverged]
        return (trained.records, found) if {one.number for one in found} == set(task.numbers) else None

    done: dict[int, Repetition] = {}
    own = training.identity, replace(training, job=Job())
    with progress("repetitions", sum(map(len, groups))) as step, tasks.share(own) as shared:
        for _, (records, found) in tasks.map(train_group, todo, shared, ordered=True, read=read):
            for record in records:
                job.log(**record)
            done |= {one.number: one for one in found}
            step(len(found))
    return done


def train_group(shared: tuple[str, RepetitionTraining], task: RepetitionTask) -> TrainedRepetitions:
    """A task: train repetitions, unless an attempt before has done so."""
    from labelwise.runtime.device import torch_threads

    identity, training = shared
    records: list[dict[str, Any]] = []
    job = Job(task.checkpoints, lambda **numbers: records.append(numbers))
    own = replace(training, job=job)
    vars(own)["identity"] = identity  # computed by the driver: it hashes all data
    with torch_threads():
        trained = own.run(task.numbers, task.folder, len(task.numbers))
    return TrainedRepetitions(records, [one for one in trained if not one.is_finite])


# --- finished repetitions ---
# Finished repetitions of a bucket code on disk: one folder per repetition, with its fingerprint.

log = logging.getLogger("labelwise")

KIND, FILE = "repetition", "repetition.safetensors"


@dataclass(frozen=True)
class FinishedRepetitions:
    """Finished repetitions in a folder, which several processes may share.

    Parameters
    ----------
    folder
        Where they are kept.
    fingerprint
        From the number of a repetition to its fingerprint.
    time_budget
        Of this training: a repetition that a budget ended is only used under the same one.
    sizes, n_labels
        Expected shapes of the arrays.
    own_tables
        Whether each repetition stores the buckets of its labels.
    """

    folder: Path
    fingerprint: Callable[[int], str]
    time_budget: float | None
    sizes: NetworkShape
    n_labels: int
    own_tables: bool

    def find(self, number: int) -> Repetition | None:
        """A finished repetition of this training; None if there is none."""
        finished = (self._read(path, number) for path in self._paths(number) if path.exists())
        return next((one for one in finished if one is not None), None)

    def keep(self, one: Repetition, ended_by_budget: bool) -> None:
        """Write a finished repetition; one of another training in the same folder is not replaced."""
        own = self._fingerprints(one.number)[ended_by_budget]
        usual, *beside = self._paths(one.number)
        path = beside[ended_by_budget] if fingerprint_in(usual, KIND) not in (None, own) else usual
        keep_finished(path, KIND, own, FILE, one.to_tensors(""), {"number": one.number})

    def _fingerprints(self, number: int) -> tuple[str, str]:
        """Fingerprints of a repetition that was trained to its end, and of one that the time budget ended."""
        own = self.fingerprint(number)
        return own, fingerprint_by_budget(own, self.time_budget)

    def _paths(self, number: int) -> list[Path]:
        """Folders of a finished repetition: its number, or with a fingerprint if another training has taken that."""
        path = self.folder / f"{number:03d}"
        return [path, *(path.with_name(f"{path.name}-{own[:8]}") for own in self._fingerprints(number))]

    def _read(self, path: Path, number: int) -> Repetition | None:
        held = find_finished(path, KIND, *self._fingerprints(number))
        if held is None:
            return None
        try:
            tensors = held.tensors(FILE)
            buckets = get_tensor(tensors, "buckets", path / FILE) if self.own_tables else None
            if buckets is not None:
                buckets = checked_table(buckets, self.n_labels, self.sizes.n_buckets, f"{path / FILE}: buckets")
            return Repetition(number, self.sizes.checked(tensors, "", path / FILE), buckets)
        except LabelwiseError as error:
            log.warning("%s: not used: %s", path, error)
            return None


# --- repetitions ---
# Training of the repetitions of a bucket code, one or several at a time.
#
# A repetition depends on its number, the settings and the data, never on others trained at the same time, so that any
# process or machine may train any of them. Finished ones are read from a folder, and missing ones are trained.

SEED_STEP = 7919
"""Difference between the seeds of two rounds."""


@dataclass(frozen=True)
class RepetitionTraining:
    """How repetitions are trained.

    Parameters
    ----------
    data
        Training and held-out data.
    sizes, loss, training
        Shape of the networks, loss, and settings of the loop.
    tables
        Hash tables of the labels for all repetitions.
    feature_tables
        Hash tables of the features, or None where each feature has its own row.
    settings
        All other settings that affect the result, for the fingerprint.
    job
        Where checkpoints are kept and metrics are logged.
    repartition
        Settings of repartitioning; None: labels keep their buckets.
    """

    data: RepetitionData
    sizes: NetworkShape
    loss: Loss
    training: TrainingConfig
    tables: BucketTables
    feature_tables: BucketTables | None
    settings: str
    job: Job
    repartition: RepartitionConfig | None = None

    def run(self, numbers: Sequence[int], folder: Path | None, at_once: int) -> list[Repetition]:
        """Return these repetitions: finished ones are read from the folder, others are trained and written to it.

        Those to train have equal parts of the time budget; where it is spent, the others are left out.
        """
        store = self._store(folder)
        done = {one.number: one for one in self.finished(numbers, folder)}
        missing = [number for number in dict.fromkeys(numbers) if number not in done]
        if done:
            log.info("%d of %d repetitions are already finished", len(done), len(numbers))
        groups = [missing[begin : begin + at_once] for begin in range(0, len(missing), at_once)]
        if groups and not current().shares_memory:
            done |= trained_elsewhere(self, groups, folder)
            return [done[number] for number in numbers]
        late = 0.0  # seconds that the last group took after the end of its training, which the next one reserves
        for index, group in enumerate(groups):
            if done and on_rank_zero(self.job.budget.expired):
                log.warning(
                    "time budget: %d of %d repetitions are trained, the others are left out", len(done), len(numbers)
                )
                self.job.budget.end_early()
                break
            first, last = numbers.index(group[0]) + 1, numbers.index(group[-1]) + 1
            which = f"repetition {first}" if first == last else f"repetitions {first} to {last}"
            with stage(f"{which} of {len(numbers)}"):
                part = self.job.budget.part(1 / (len(groups) - index))
                budget = part.reserving(min(late, part.remaining() / 2) if part.is_limited else 0.0)
                trained, ended_by_budget = self._train(group, self.job.within(budget))
            for one in trained:
                done[one.number] = one
                if not one.is_finite:
                    log.warning(
                        "repetition %d has diverged: it predicts no labels and is not saved as finished", one.number
                    )
                elif store is not None and rank() == 0:
                    store.keep(one, ended_by_budget)
            if store is not None and self.job.folder is not None and rank() == 0:  # no longer needed
                shutil.rmtree(self.job.folder / _stage(group), ignore_errors=True)
            late = budget.exceeded()
        return [done[number] for number in numbers if number in done]

    def finished(self, numbers: Sequence[int], folder: Path | None) -> list[Repetition]:
        """Those of some repetitions that the folder holds."""
        store = self._store(folder)

        def find() -> list[Repetition]:
            kept = [] if store is None else [store.find(number) for number in numbers]
            return [one for one in kept if one is not None]

        return on_rank_zero(find)

    def _store(self, folder: Path | None) -> FinishedRepetitions | None:
        if folder is None:
            return None
        return FinishedRepetitions(
            folder, self.fingerprint, self._time_budget, self.sizes, self.tables.n_items, self._own_tables
        )

    @property
    def _time_budget(self) -> float | None:
        """The time budget that the user has set, of this training or of the run."""
        own, budget = self.training.time_budget, self.job.budget
        return budget.seconds if own is None and budget.is_limited else own

    # --- training ---

    def _train(self, numbers: Sequence[int], job: Job) -> tuple[list[Repetition], bool]:
        """Train some repetitions stacked; with repartitioning in rounds, between which labels change buckets.

        Returns them, and whether the time budget has ended their training.
        """
        tables = [self.tables.table(number) for number in numbers]
        hashed = None if self.feature_tables is None else [self.feature_tables.table(number) for number in numbers]
        sizes = self.sizes
        network = SparseMLP(len(numbers), sizes.n_features, sizes.hidden, sizes.n_buckets)
        biases = torch.stack([self._first_biases(table) for table in tables])
        network.initialise([(self.training.seed, number) for number in numbers], biases)
        rounds, last, ended_by_budget = self._rounds(), len(sizes.hidden), False
        for index, training in enumerate(rounds):
            part = (training.epochs or 1) / sum(later.epochs or 1 for later in rounds[index:])
            history = train(
                RepetitionFitting(self.data, training, self.loss, network, list(numbers), tables, hashed),
                training,
                job=job.within(job.budget.part(part)),
                head=(f"biases.{last}", f"weights.{last - 1}" if last else "table"),
                rows=("table",),
                stage=_stage(numbers) if len(rounds) == 1 else f"{_stage(numbers)}/round-{index}",
                title="training" if len(rounds) == 1 else f"round {index + 1} of {len(rounds)}",
                identity=self.identity + fingerprint(*tables),
            )
            ended_by_budget |= history.stopped == TIME_BUDGET
            if self.repartition is not None and index + 1 < len(rounds):
                before = tables
                tables = on_rank_zero(partial(self._repartition_all, network, before, hashed, numbers))
                stay = np.mean([(old == new).mean() for old, new in zip(before, tables, strict=True)])
                log.info("round %d: %.0f %% of the labels changed buckets", index + 1, 100 * (1 - stay))
        trained = [
            repetition_of(network, index, number, tables[index] if self._own_tables else None)
            for index, number in enumerate(numbers)
        ]
        return trained, ended_by_budget

    def _rounds(self) -> list[TrainingConfig]:
        """A short training before each repartition and the full one after the last, each with its own seed."""
        if self.repartition is None:
            return [self.training]
        epochs = [self.repartition.every] * self.repartition.times + [int(self.training.epochs or 1)]
        return [
            self.training.model_copy(update={"epochs": count, "seed": self.training.seed + SEED_STEP * index})
            for index, count in enumerate(epochs)
        ]

    def _repartition_all(
        self,
        network: SparseMLP,
        tables: list[np.ndarray],
        hashed: Sequence[np.ndarray] | None,
        numbers: Sequence[int],
    ) -> list[np.ndarray]:
        return [self._repartition(network, row, tables[row], hashed, number) for row, number in enumerate(numbers)]

    def _repartition(
        self, network: SparseMLP, index: int, table: np.ndarray, hashed: Sequence[np.ndarray] | None, number: int
    ) -> np.ndarray:
        """New buckets of all labels, by the scores of one network."""
        own = stacked_networks([repetition_of(network, index, 0, None)], self.sizes).to(network.table.device)
        numbers = None if hashed is None else [hashed[index]]

        def scores(documents: np.ndarray) -> np.ndarray:
            rows = sparse_rows(pick_rows(self.data.features, documents), 1, numbers)
            with torch.inference_mode():
                return own.scores_by_output(rows.to(own.table.device))[0].cpu().numpy()

        settings, labels = self.repartition or RepartitionConfig(), self.data.labels
        offers = settings.offered(labels.shape[1], self.sizes.n_buckets, self.training.seed, number)
        return repartitioned(labels, table, scores, self.sizes.n_buckets, settings.choices, offers)

    def _first_biases(self, table: np.ndarray) -> Tensor:
        """Initial output biases from bucket frequencies: log-odds, or for softmax log-fractions."""
        labels = self.data.labels
        counts = counts_of(labels.indices, self.sizes.n_buckets, table).astype(np.float64)
        if self.loss == "softmax":
            fractions = (counts + 0.5) / (counts.sum() + 0.5 * len(counts))
            return torch.from_numpy(np.log(fractions).astype(np.float32))
        fractions = np.minimum((counts + 0.5) / (labels.shape[0] + 1.0), 0.999)
        return torch.from_numpy(np.log(fractions / (1 - fractions)).astype(np.float32))

    @property
    def _own_tables(self) -> bool:
        """Whether buckets are given or learned, so that each repetition stores its own."""
        return self.repartition is not None or self.tables.given is not None

    # --- fingerprints ---

    @cached_property
    def identity(self) -> str:
        """A hash of the data and all settings, except the number and given tables."""
        matrices = self.data.matrices()
        arrays = [getattr(matrix, part) for matrix in matrices for part in ("indptr", "indices", "data")]
        settings = [self.settings, self.training.part_of_the_result()]
        return fingerprint(*arrays, [list(matrix.shape) for matrix in matrices], settings)

    def fingerprint(self, number: int) -> str:
        """A hash of all that one repetition depends on; hashed buckets follow from its number."""
        given = self.tables.given or {}
        return fingerprint(self.identity, number, *([given[number]] if number in given else []))


def _stage(numbers: Sequence[int]) -> str:
    return "repetition-" + "-".join(f"{number:03d}" for number in numbers)
