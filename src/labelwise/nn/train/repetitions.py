"""Training of the repetitions of a bucket code, one or several at a time.

A repetition depends on its number, the settings and the data, never on others trained at the same time, so that any
process or machine may train any of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.data.csr import pick_rows
from labelwise.data.dataset import Dataset
from labelwise.features.featurizers import Featurizer, csr_rows
from labelwise.features.rows import as_csr
from labelwise.io.folder import Folder, FolderWriter, get_tensor
from labelwise.io.tensors import counts_of
from labelwise.labelspace.bucket_search import BucketSearch
from labelwise.labelspace.buckets import BucketTables, RepartitionConfig, read_lookups, repartitioned
from labelwise.nn.buckets import NetworkShape, Repetition, feature_rows, label_tables, network_shape, stores_tables
from labelwise.nn.config import TrainingConfig
from labelwise.nn.inputs import training_batches
from labelwise.nn.sparse_mlp import BucketTargets, SparseMLP, SparseRows, bucket_loss
from labelwise.nn.train.loop import Fitting, metrics_to_validate, train, validation_metrics
from labelwise.runtime.budget import Budget
from labelwise.runtime.device import torch_threads
from labelwise.runtime.job import FILE, Job, Stored, flat
from labelwise.runtime.progress import progress
from labelwise.topk import TopK

log = logging.getLogger("labelwise")

VALIDATED_AT_ONCE = 256
SEED_STEP = 7919
"""Difference between the seeds of two rounds."""

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class BucketData:
    """What repetitions are trained on.

    Parameters
    ----------
    features, labels
        CSR, in memory or memory-mapped; batches read their rows.
    valid
        Features and labels of held-out documents, or None.
    config
        The parameters of the method.
    tables
        The buckets of labels.
    """

    features: Any
    labels: Any
    valid: tuple[Any, Any] | None
    config: Any
    tables: BucketTables

    @classmethod
    def of(cls, features: Featurizer, rows: Any, train: Dataset, valid: Dataset | None, config: Any) -> BucketData:
        """From training documents and their features; held-out documents if training validates."""
        held_out = None
        if valid is not None and config.training.validate_every is not None:
            held_out = csr_rows(features, valid), valid.labels
        several = int((np.diff(train.labels.indptr) > 1).sum()) if config.loss == "softmax" else 0
        if several:
            log.warning(
                "loss: softmax is for one label per document; %d have more, whose labels are weighted equally; "
                "bce learns every label separately", several,
            )  # fmt: skip
        numbers, given = range(config.repetitions), None
        if config.lookups is not None:
            given = read_lookups(config.lookups, train.n_labels, config.buckets, numbers)
        tables = label_tables(config, train.n_labels, numbers, given)
        return cls(as_csr(rows), train.labels, held_out, config, tables)

    @property
    def shape(self) -> NetworkShape:
        """The shape of the networks."""
        return network_shape(self.config, self.features.shape[1])

    def hashed(self, numbers: Sequence[int]) -> list[np.ndarray] | None:
        """The rows of features in the networks' tables."""
        return feature_rows(self.config, self.features.shape[1], numbers)

    @property
    def stored(self) -> Stored:
        """How finished repetitions are kept."""
        read = partial(_read, self.shape, self.labels.shape[1], stores_tables(self.config))
        return Stored(_write, read, _content)


def all_repetitions(data: BucketData, numbers: Sequence[int], job: Job) -> list[Repetition]:
    """Some repetitions: finished ones are read, others trained."""
    config, given = data.config, data.tables.given or {}
    found = job.each(
        "repetition", numbers, train_repetitions, data, group=config.at_once,
        of={number: [table] for number, table in given.items()}, folder=config.parts_folder,
        train=config.missing == "train", stored=data.stored,
    )  # fmt: skip
    return [replace(one, number=number) for number, one in found.items()]


def train_repetitions(data: BucketData, job: Job, numbers: Sequence[int]) -> dict[int, Repetition | None]:
    """Train some repetitions stacked; with repartitioning in rounds, between which labels change buckets."""
    shape, rounds = data.shape, rounds_of(data.config)
    tables = [data.tables.table(number) for number in numbers]
    with torch_threads():
        network = SparseMLP(len(numbers), shape.n_features, shape.hidden, shape.n_buckets)
        biases = torch.stack([first_biases(data, table) for table in tables])
        network.initialise([(data.config.training.seed, number) for number in numbers], biases)
        for index, training in enumerate(rounds):
            if index:
                tables = _changed(index, tables, job, partial(_repartition_all, network, data, numbers, tables))
            share = (training.epochs or 1) / sum(later.epochs or 1 for later in rounds[index:])
            one = len(rounds) == 1
            title = "training" if one else f"round {index + 1} of {len(rounds)}"
            with nullcontext(job) if one else job.stage(f"round-{index}", share) as part:
                fitting = RepetitionFitting(data, training, network, numbers, tables)
                train(fitting, training, job=part, title=title)
        own = stores_tables(data.config)
        trained = [network.repetition(row, key, tables[row] if own else None) for row, key in enumerate(numbers)]
    return {one.number: one if one.is_finite else None for one in trained}


def rounds_of(config: Any) -> list[TrainingConfig]:
    """A short training before each repartition and the full one after the last, each with its own seed."""
    training, repartition = config.training, config.repartition
    if repartition is None:
        return [training]
    epochs = [repartition.every] * repartition.times + [int(training.epochs or 1)]
    return [
        training.model_copy(update={"epochs": count, "seed": training.seed + SEED_STEP * index})
        for index, count in enumerate(epochs)
    ]


def first_biases(data: BucketData, table: np.ndarray) -> Tensor:
    """Initial output biases from bucket frequencies: log-odds, or for softmax log-fractions."""
    counts = counts_of(data.labels.indices, data.config.buckets, table).astype(np.float64)
    if data.config.loss == "softmax":
        fractions = (counts + 0.5) / (counts.sum() + 0.5 * len(counts))
        return torch.from_numpy(np.log(fractions).astype(np.float32))
    fractions = np.minimum((counts + 0.5) / (data.labels.shape[0] + 1.0), 0.999)
    return torch.from_numpy(np.log(fractions / (1 - fractions)).astype(np.float32))


# --- learned buckets ---


def _changed(index: int, before: list[np.ndarray], job: Job, make: Any) -> list[np.ndarray]:
    """New tables, kept, with a word on how many labels move."""
    kept = job.kept(f"tables-{index}", lambda: {str(row): table for row, table in enumerate(make())})
    tables = [kept[str(row)] for row in range(len(before))]
    stay = np.mean([(old == new).mean() for old, new in zip(before, tables, strict=True)])
    log.info("round %d: %.0f %% of the labels changed buckets", index, 100 * (1 - stay))
    return tables


def _repartition_all(
    network: SparseMLP, data: BucketData, numbers: Sequence[int], tables: list[np.ndarray]
) -> list[np.ndarray]:
    """New buckets of all labels in each repetition, by the scores of its network."""
    hashed = data.hashed(numbers)
    settings, labels = data.config.repartition or RepartitionConfig(), data.labels
    changed = []
    for row, number in enumerate(numbers):
        own = SparseMLP.of_repetition(network.repetition(row, 0, None), data.shape).to(network.table.device)
        columns = None if hashed is None else [hashed[row]]

        def scores(documents: np.ndarray, own: SparseMLP = own, columns: Any = columns) -> np.ndarray:
            rows = SparseRows.of(pick_rows(data.features, documents), 1, columns)
            with torch.inference_mode():
                return own.scores_by_output(rows.to(own.table.device))[0].cpu().numpy()

        offers = settings.offered(labels.shape[1], data.config.buckets, data.config.training.seed, number)
        changed.append(repartitioned(labels, tables[row], scores, data.config.buckets, settings.choices, offers))
    return changed


# --- what the training loop fits ---


@dataclass
class RepetitionFitting(Fitting):
    """Fitting of some repetitions.

    Parameters
    ----------
    data, training
        Data, and settings of the loop.
    module
        The repetitions' networks, stacked.
    numbers, tables
        Per repetition its number and the buckets of its labels.
    """

    data: BucketData
    training: TrainingConfig
    module: SparseMLP
    numbers: Sequence[int]
    tables: list[np.ndarray]

    def __post_init__(self) -> None:
        self.hashed, last = self.data.hashed(self.numbers), len(self.module.weights)
        self.head_names = f"biases.{last}", f"weights.{last - 1}" if last else "table"
        self.row_tables = ("table",)

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Batches of documents, shuffled in each epoch, equal for all repetitions; sorted within a batch."""
        ones = np.ones(self.data.labels.shape[0], np.int64)
        return [np.sort(rows) for rows in training_batches(ones, self.training, epoch)]

    def load(self, item: np.ndarray, epoch: int) -> Batch:
        """Load sparse rows and the buckets of their labels."""
        rows = SparseRows.of(pick_rows(self.data.features, item), len(self.tables), self.hashed)
        targets = BucketTargets.of_rows(self.data.labels, item, self.tables, self.data.config.buckets)
        return rows.indptr, rows.columns, rows.values, targets.indices, targets.fractions

    def loss(self, batch: Batch) -> Tensor:
        """The sum of the repetitions' losses."""
        indptr, columns, values, indices, fractions = batch
        scores = self.module(SparseRows(indptr, columns, values))
        return bucket_loss(scores, BucketTargets(indices, fractions), self.data.config.loss)

    @cached_property
    def _search(self) -> BucketSearch:
        given = dict(zip(self.numbers, self.tables, strict=True))
        n_labels = self.data.labels.shape[1]
        return BucketSearch(BucketTables(n_labels, self.data.config.buckets, tuple(self.numbers), given=given))

    def validate(self, budget: Budget) -> dict[str, float]:
        """Precision and nDCG on the held-out documents, with these repetitions only."""
        if self.data.valid is None or self.data.valid[1].shape[0] == 0:
            return {}
        features, labels = self.data.valid
        metrics, k = metrics_to_validate(self.training.metric)
        parts, began, count = [], time.monotonic(), labels.shape[0]
        with progress("validating", count) as step:
            for begin in range(0, count, VALIDATED_AT_ONCE):
                some = pick_rows(features, slice(begin, begin + VALIDATED_AT_ONCE))
                rows = SparseRows.of(some, len(self.tables), self.hashed)
                scores = self.module.scores_by_output(rows.to(self.module.table.device))
                parts.append(self._search.best(scores.float().cpu().numpy(), min(k, self.data.labels.shape[1])))
                step(some.shape[0])
                budget.check_pace(began, begin + some.shape[0], count)
        return validation_metrics(TopK.concatenate(parts), labels, metrics, self.data.labels)


# --- finished repetitions ---


def _write(folder: FolderWriter, one: Repetition) -> None:
    folder.write_tensors(FILE, one.to_tensors(""))


def _read(shape: NetworkShape, n_labels: int, own_tables: bool, folder: Folder) -> Repetition:
    tensors, path = folder.tensors(FILE), folder.file(FILE)
    if own_tables:
        get_tensor(tensors, "buckets", path)
    return Repetition.from_tensors(0, tensors, "", shape, n_labels, path)


def _content(one: Repetition) -> Sequence[Any]:
    return flat(one.to_tensors(""))
