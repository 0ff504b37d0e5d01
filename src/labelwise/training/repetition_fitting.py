"""Fitting of some repetitions of a bucket code: batches, loss and validation for the training loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from labelwise.codes.bucket_search import BucketSearch
from labelwise.codes.buckets import BucketTables
from labelwise.data.csr import pick_rows
from labelwise.encoders.sparse_mlp import SparseMLP, SparseRows
from labelwise.heads.bucket_loss import BucketTargets, Loss, bucket_loss
from labelwise.networks.bucket_networks import sparse_rows
from labelwise.networks.settings import TrainingConfig
from labelwise.progress import progress
from labelwise.time_budget import check_pace
from labelwise.topk import TopK
from labelwise.training.batching import training_batches
from labelwise.training.validation import metrics_to_validate, validation_metrics

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

    def validate(self) -> dict[str, float]:
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
                check_pace(began, begin + some.shape[0], count)
        return validation_metrics(TopK.concatenate(parts), labels, metrics, self.data.labels)
