"""Fitting of one level of a label tree: batches, loss and validation for the training loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.codes.candidates import candidate_targets, children_of
from labelwise.encoders.base import Inputs, tensors_of
from labelwise.finished import fingerprint
from labelwise.networks.levels import Level, Parents, best_nodes
from labelwise.networks.settings import TrainingConfig
from labelwise.training.batching import training_batches
from labelwise.training.validation import metrics_to_validate, validation_metrics


@dataclass(frozen=True)
class LevelData:
    """Inputs, targets and parents of the documents of a split, for one level."""

    inputs: Inputs
    targets: Any
    """CSR [documents, nodes], columns sorted, values above 0; columns unknown to the level may follow at the end."""
    parents: Parents | None = None
    """Parent nodes: those to train on, or in held-out data the predicted ones. None at the top."""

    def identity(self) -> str:
        """A hash of inputs, targets and parents."""
        arrays = [*self.inputs.identity(), self.targets.indptr, self.targets.indices]
        if self.parents is not None:
            arrays += [self.parents.nodes, self.parents.scores, self.parents.offsets]
        return fingerprint(*arrays, list(self.targets.shape))


class LevelBatch(NamedTuple):
    """A loaded batch."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    """The values of true nodes, and 0 for others, over all nodes or the candidates."""
    candidates: Tensor | None


class LevelFitting:
    """Fitting of a level."""

    def __init__(self, level: Level, train: LevelData, valid: LevelData | None, config: TrainingConfig) -> None:
        self.level, self.train, self.valid, self.config = level, train, valid, config
        self.lengths = train.inputs.lengths

    @property
    def module(self) -> nn.Module:
        """The level itself."""
        return self.level

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Batches of documents of similar length."""
        return training_batches(self.lengths, self.config, epoch)

    def load(self, item: np.ndarray, epoch: int) -> LevelBatch:
        """Load inputs, targets, and below the top level the candidates."""
        batch = self.train.inputs.batch(item)
        targets, parents = self.train.targets, self.train.parents
        if parents is None:
            picked = targets[batch.rows]
            true_nodes = np.zeros(picked.shape, np.float32)
            true_nodes[np.repeat(np.arange(len(item)), np.diff(picked.indptr)), picked.indices] = picked.data
            return LevelBatch(tensors_of(batch), torch.from_numpy(true_nodes), None)
        candidates = children_of(parents.nodes[batch.rows], parents.offsets)
        true_nodes = candidate_targets(candidates, targets, batch.rows)
        return LevelBatch(tensors_of(batch), torch.from_numpy(true_nodes), torch.from_numpy(candidates))

    def loss(self, batch: LevelBatch) -> Tensor:
        """The mean loss."""
        return self.level.loss(*batch)

    def validate(self) -> dict[str, float]:
        """Precision and nDCG on the held-out documents."""
        if self.valid is None or len(self.valid.inputs) == 0:
            return {}
        metrics, k = metrics_to_validate(self.config.metric)
        top = best_nodes(self.level, self.valid.inputs, k, self.valid.parents, "validating")
        return validation_metrics(top, self.valid.targets, metrics, self.train.targets)

    def identity(self) -> str:
        """A hash of the training and held-out data."""
        return fingerprint(*(part.identity() for part in (self.train, self.valid) if part is not None))
