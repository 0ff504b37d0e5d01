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
from labelwise.nn.encode import vectors_in_batches
from labelwise.nn.encoder_head import EncoderHead
from labelwise.nn.heads.base import Head, Targets
from labelwise.nn.inputs import InputBatch, Inputs, tensors_of, training_batch, training_batches
from labelwise.nn.levels import Level, Parents, best_nodes
from labelwise.nn.train.loop import metrics_to_validate, validation_metrics
from labelwise.runtime.finished import fingerprint
from labelwise.topk import TopK

FROZEN_AT_ONCE = 2048
"""Vectors of frozen encoders validated at a time."""


@dataclass(frozen=True)
class EncoderData:
    """Inputs and labels of the documents of a split."""

    inputs: Inputs
    """Inputs of the encoder, or with a frozen encoder `Vectors`."""
    labels: Any
    """CSR [documents, labels]; labels unknown to the head may follow at the end."""

    def __len__(self) -> int:
        return self.labels.shape[0]

    def identity(self) -> str:
        """A hash of inputs and labels."""
        labels = self.labels
        return fingerprint(*self.inputs.identity(), labels.indptr, labels.indices, list(labels.shape))


class EncoderBatch(NamedTuple):
    """A loaded batch: the labels of its documents as pairs, and the arguments of the encoder."""

    documents: Tensor
    labels: Tensor
    inputs: tuple[Tensor, ...]

    @property
    def targets(self) -> Targets:
        """The labels as the head's targets."""
        return Targets(self.documents, self.labels)


class EncoderFitting:
    """Fitting of an encoder with a head, or of a head alone on vectors."""

    def __init__(
        self, module: EncoderHead | Head, train: EncoderData, valid: EncoderData | None, config: TrainingConfig
    ) -> None:
        self.module: nn.Module = module
        self.encoder = module.encoder if isinstance(module, EncoderHead) else None
        self.head = module.head if isinstance(module, EncoderHead) else module
        self.train, self.valid, self.config = train, valid, config
        self.lengths = train.inputs.lengths

    @property
    def row_tables(self) -> tuple[str, ...]:
        """Names of the module's parameters with row-sparse gradients, for the training loop."""
        prefix = "" if self.encoder is None else "head."
        return tuple(prefix + name for name in self.head.row_tables())

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Batches of documents of similar length."""
        return training_batches(self.lengths, self.config, epoch)

    def load(self, item: np.ndarray, epoch: int) -> EncoderBatch:
        """Load a batch, with the random changes of the epoch where documents have any."""
        return self._tensors(training_batch(self.train.inputs, item, epoch))

    def load_rows(self, rows: np.ndarray) -> EncoderBatch:
        """The tensors of some training documents, as they are predicted."""
        return self._tensors(self.train.inputs.batch(rows))

    def _tensors(self, batch: InputBatch) -> EncoderBatch:
        targets = Targets.of_rows(self.train.labels, batch.rows)
        return EncoderBatch(targets.documents, targets.labels, tensors_of(batch))

    def loss(self, batch: EncoderBatch) -> Tensor:
        """The mean loss of the documents."""
        return self.head.loss(self.vectors(batch), batch.targets)

    def vectors(self, batch: EncoderBatch) -> Tensor:
        """The documents' vectors of a loaded batch."""
        return self.encoder(*batch.inputs) if self.encoder is not None else batch.inputs[0]

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Precision, nDCG and loss on the held-out documents."""
        if self.valid is None or len(self.valid) == 0:
            return {}
        metrics, k = metrics_to_validate(self.config.metric)
        known = self.valid.labels[:, : self.head.n_labels]
        ids = np.full((len(self.valid), k), -1, np.int32)
        scores = np.full((len(self.valid), k), -np.inf, np.float32)
        count, total = min(k, self.head.n_labels), 0.0
        with closing(self._valid_vectors(self.valid)) as batches:
            for rows, vectors in batches:
                labels, best = self.head.best(vectors, count)
                ids[rows, :count], scores[rows, :count] = labels.cpu().numpy(), best.cpu().numpy()
                total += len(rows) * float(self.head.loss(vectors, Targets.of_rows(known, rows).to(vectors.device)))
        numbers = validation_metrics(TopK(ids, scores), self.valid.labels, metrics, self.train.labels)
        return {**numbers, "valid_loss": total / len(self.valid)}

    def _valid_vectors(self, part: EncoderData) -> Generator[tuple[np.ndarray, Tensor], None, None]:
        if self.encoder is not None:
            yield from vectors_in_batches(self.encoder, part.inputs, "validating")
            return
        for begin in range(0, len(part), FROZEN_AT_ONCE):
            batch = part.inputs.batch(np.arange(begin, min(begin + FROZEN_AT_ONCE, len(part))))
            yield batch.rows, tensors_of(batch, self.head.device)[0]


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
