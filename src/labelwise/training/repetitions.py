"""Training of the repetitions of a bucket code, one or several at a time.

A repetition depends on its number, the settings and the data, never on others trained at the same time, so that any
process or machine may train any of them. Finished ones are read from a folder, and missing ones are trained.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelwise.codes.buckets import BucketTables
from labelwise.codes.repartition import RepartitionConfig, repartitioned
from labelwise.data.csr import pick_rows
from labelwise.encoders.sparse_mlp import SparseMLP
from labelwise.executors.base import executor
from labelwise.finished import fingerprint
from labelwise.fit_context import FitContext
from labelwise.heads.bucket_loss import Loss
from labelwise.mapped import counts_of
from labelwise.networks.bucket_networks import NetworkShape, Repetition, repetition_of, sparse_rows, stacked_networks
from labelwise.networks.settings import TrainingConfig
from labelwise.process_group import on_rank_zero, rank
from labelwise.progress import stage
from labelwise.training.checkpoint import TIME_BUDGET
from labelwise.training.finished_repetitions import FinishedRepetitions
from labelwise.training.loop import train
from labelwise.training.repetition_fitting import RepetitionData, RepetitionFitting
from labelwise.training.repetition_tasks import trained_elsewhere

log = logging.getLogger("labelwise")

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
    context
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
    context: FitContext
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
        if groups and not executor().shares_memory:
            done |= trained_elsewhere(self, groups, folder)
            return [done[number] for number in numbers]
        late = 0.0  # seconds that the last group took after the end of its training, which the next one reserves
        for index, group in enumerate(groups):
            if done and on_rank_zero(self.context.budget.expired):
                log.warning(
                    "time budget: %d of %d repetitions are trained, the others are left out", len(done), len(numbers)
                )
                self.context.budget.end_early()
                break
            first, last = numbers.index(group[0]) + 1, numbers.index(group[-1]) + 1
            which = f"repetition {first}" if first == last else f"repetitions {first} to {last}"
            with stage(f"{which} of {len(numbers)}"):
                part = self.context.budget.part(1 / (len(groups) - index))
                budget = part.reserving(min(late, part.remaining() / 2) if part.is_limited else 0.0)
                trained, ended_by_budget = self._train(group, self.context.within(budget))
            for one in trained:
                done[one.number] = one
                if not one.is_finite:
                    log.warning(
                        "repetition %d has diverged: it predicts no labels and is not saved as finished", one.number
                    )
                elif store is not None and rank() == 0:
                    store.keep(one, ended_by_budget)
            if store is not None and self.context.checkpoints is not None and rank() == 0:  # no longer needed
                shutil.rmtree(self.context.checkpoints / _stage(group), ignore_errors=True)
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
        own, budget = self.training.time_budget, self.context.budget
        return budget.seconds if own is None and budget.is_limited else own

    # --- training ---

    def _train(self, numbers: Sequence[int], context: FitContext) -> tuple[list[Repetition], bool]:
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
                context=context.within(context.budget.part(part)),
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
