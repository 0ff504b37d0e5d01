"""What the training loop needs of one level of a label tree: batches, loss and validation."""

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
from labelwise.training.validation import validated_metrics, validation_numbers


@dataclass(frozen=True)
class LevelData:
    """Documents of one part of the data as a level sees them."""

    inputs: Inputs
    targets: Any
    """CSR [documents, nodes], columns sorted; may have columns at the end that the level does not know."""
    parents: Parents | None = None
    """Nodes above: to learn from in the training part, as predicted in the held-out one. None at the top."""

    def identity(self) -> str:
        """A hash of all of it."""
        arrays = [*self.inputs.identity(), self.targets.indptr, self.targets.indices]
        if self.parents is not None:
            arrays += [self.parents.nodes, self.parents.scores, self.parents.offsets]
        return fingerprint(*arrays, list(self.targets.shape))


class LevelBatch(NamedTuple):
    """A loaded batch."""

    inputs: tuple[Tensor, ...]
    wanted: Tensor
    """1 for true nodes, of all or of the candidates."""
    candidates: Tensor | None


class LevelFitting:
    """What the loop needs of a level."""

    def __init__(self, level: Level, train: LevelData, valid: LevelData | None, config: TrainingConfig) -> None:
        self.level, self.train, self.valid, self.config = level, train, valid, config
        self.lengths = train.inputs.lengths

    @property
    def module(self) -> nn.Module:
        """The level itself."""
        return self.level

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Documents of like length."""
        return training_batches(self.lengths, self.config, epoch)

    def load(self, item: np.ndarray, epoch: int) -> LevelBatch:
        """Inputs, what is true, and below the top which nodes are scored."""
        batch = self.train.inputs.batch(item)
        targets, parents = self.train.targets, self.train.parents
        if parents is None:
            picked = targets[batch.rows]
            wanted = np.zeros(picked.shape, np.float32)
            wanted[np.repeat(np.arange(len(item)), np.diff(picked.indptr)), picked.indices] = 1
            return LevelBatch(tensors_of(batch), torch.from_numpy(wanted), None)
        candidates = children_of(parents.nodes[batch.rows], parents.offsets)
        wanted = candidate_targets(candidates, targets, batch.rows)
        return LevelBatch(tensors_of(batch), torch.from_numpy(wanted), torch.from_numpy(candidates))

    def loss(self, batch: LevelBatch) -> Tensor:
        """The mean loss."""
        return self.level.loss(*batch)

    def validate(self) -> dict[str, float]:
        """Precision and nDCG on the held-out documents."""
        if self.valid is None or len(self.valid.inputs) == 0:
            return {}
        metrics, k = validated_metrics(self.config.metric)
        top = best_nodes(self.level, self.valid.inputs, k, self.valid.parents, "validating")
        return validation_numbers(top, self.valid.targets, metrics, self.train.targets)

    def identity(self) -> str:
        """A hash of all that is learned from, and of what decides which weights are best."""
        return fingerprint(*(part.identity() for part in (self.train, self.valid) if part is not None))
