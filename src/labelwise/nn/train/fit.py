"""Fitting of an encoder with a head: batches, loss and validation for the training loop.

With a frozen encoder every text is encoded once and only the head is trained, on the vectors.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.labelspace.tree import candidate_targets, children_of
from labelwise.nn.config import TrainingConfig
from labelwise.nn.encode import EncoderHead, vectors_in_batches
from labelwise.nn.heads.base import LabelHead, Targets
from labelwise.nn.inputs import Inputs, Part, tensors_of, training_batches
from labelwise.nn.levels import Level, Parents, best_nodes
from labelwise.nn.train.loop import metrics_to_validate, validation_metrics
from labelwise.runtime.budget import Budget
from labelwise.runtime.finished import fingerprint
from labelwise.topk import TopK

FROZEN_AT_ONCE = 2048
"""Vectors of frozen encoders validated at a time."""


class Loaded(NamedTuple):
    """A loaded batch: the arguments of the encoder, and the labels of its documents."""

    inputs: tuple[Tensor, ...]
    targets: Targets


class Fit:
    """Fitting of an encoder with a head, or of a head alone on vectors."""

    def __init__(
        self, network: EncoderHead | LabelHead, train: Part, valid: Part | None, config: TrainingConfig
    ) -> None:
        self.module: nn.Module = network
        self.encoder = network.encoder if isinstance(network, EncoderHead) else None
        self.output: LabelHead = network.head if isinstance(network, EncoderHead) else network
        self.train, self.valid, self.config = train, valid, config
        self.lengths = train.lengths
        prefix = "" if self.encoder is None else "head."
        self.head = (prefix,)
        self.rows = tuple(prefix + name for name in self.output.row_tables)

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Batches of documents of similar length."""
        return training_batches(self.lengths, self.config, epoch)

    def load(self, documents: np.ndarray, epoch: int | None = None) -> Loaded:
        """Load a batch, with the random changes of the epoch; without one as documents are predicted."""
        batch = self.train.batch(documents, epoch)
        return Loaded(tensors_of(batch), Targets.of_rows(self.train.labels, batch.rows))

    def loss(self, batch: Loaded) -> Tensor:
        """The mean loss of the documents."""
        return self.output.loss(self.vectors(batch), batch.targets)

    def vectors(self, batch: Loaded) -> Tensor:
        """The documents' vectors of a loaded batch."""
        return self.encoder(*batch.inputs) if self.encoder is not None else batch.inputs[0]

    @torch.inference_mode()
    def validate(self, budget: Budget) -> dict[str, float]:
        """Precision, nDCG and loss on the held-out documents."""
        part = self.valid
        if part is None or len(part) == 0:
            return {}
        metrics, k = metrics_to_validate(self.config.metric)
        known = part.labels[:, : self.output.n_labels]
        ids = np.full((len(part), k), -1, np.int32)
        scores = np.full((len(part), k), -np.inf, np.float32)
        count, total = min(k, self.output.n_labels), 0.0
        with closing(self._valid_vectors(part, budget)) as batches:
            for rows, vectors in batches:
                labels, best = self.output.best(vectors, count)
                ids[rows, :count], scores[rows, :count] = labels.cpu().numpy(), best.cpu().numpy()
                total += len(rows) * float(self.output.loss(vectors, Targets.of_rows(known, rows).to(vectors.device)))
        numbers = validation_metrics(TopK(ids, scores), part.labels, metrics, self.train.labels)
        return {**numbers, "valid_loss": total / len(part)}

    def _valid_vectors(self, part: Part, budget: Budget) -> Generator[tuple[np.ndarray, Tensor], None, None]:
        if self.encoder is not None:
            yield from vectors_in_batches(self.encoder, part, "validating", budget)
            return
        for begin in range(0, len(part), FROZEN_AT_ONCE):
            batch = part.batch(np.arange(begin, min(begin + FROZEN_AT_ONCE, len(part))))
            yield batch.rows, tensors_of(batch, self.output.device)[0]


# --- level fitting ---
# Fitting of one level of a label tree: batches, loss and validation for the training loop.


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

    def validate(self, budget: Budget) -> dict[str, float]:
        """Precision and nDCG on the held-out documents."""
        if self.valid is None or len(self.valid.inputs) == 0:
            return {}
        metrics, k = metrics_to_validate(self.config.metric)
        top = best_nodes(self.level, self.valid.inputs, k, self.valid.parents, "validating", budget)
        return validation_metrics(top, self.valid.targets, metrics, self.train.targets)

    def identity(self) -> str:
        """A hash of the training and held-out data."""
        return fingerprint(*(part.identity() for part in (self.train, self.valid) if part is not None))
