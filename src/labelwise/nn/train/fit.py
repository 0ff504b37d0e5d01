"""What the training loop needs of an encoder with a head: batches, loss and validation.

With a frozen encoder every text is encoded once and only the head is trained, on the vectors. A level of a label tree
is an encoder with a head too; below the top, its `Part` has the nodes whose children are scored.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.labelspace.tree import candidate_targets
from labelwise.nn.config import TrainingConfig
from labelwise.nn.encode import EncoderHead, vectors_in_batches
from labelwise.nn.heads.base import Head, Targets
from labelwise.nn.heads.sharding import check_head
from labelwise.nn.inputs import Part, tensors_of, training_batches
from labelwise.nn.level_networks import best_nodes
from labelwise.nn.train.loop import Fitting, metrics_to_validate, validation_metrics
from labelwise.runtime.budget import Budget
from labelwise.topk import TopK

FROZEN_AT_ONCE = 2048
"""Vectors of frozen encoders validated at a time."""


class Loaded(NamedTuple):
    """A loaded batch: the arguments of the encoder, the labels of its documents, and the candidates if there are any.

    Without candidates targets are `Targets`, with them a value per candidate.
    """

    inputs: tuple[Tensor, ...]
    targets: Any
    candidates: Tensor | None = None


class NetworkFitting(Fitting):
    """Fitting of an encoder with a head, or of a head alone on vectors.

    Parameters
    ----------
    network
        What is trained.
    train, valid
        Documents to train on, and to validate with.
    config
        Settings of training.
    of_level
        Whether this is a level of a label tree: its nodes are validated as they are ranked, and their loss is not.
    weighted
        Whether the values of labels are weights of the loss; otherwise the weight is 1.
    """

    def __init__(
        self,
        network: EncoderHead | Head,
        train: Part,
        valid: Part | None,
        config: TrainingConfig,
        *,
        of_level: bool = False,
        weighted: bool = False,
    ) -> None:
        if of_level:
            check_head(None, config)  # levels are not divided over ranks
        self.module: nn.Module = network
        self.encoder = network.encoder if isinstance(network, EncoderHead) else None
        self.head: Head = network.head if isinstance(network, EncoderHead) else network
        self.train, self.valid, self.config = train, valid, config
        self.of_level, self.weighted = of_level, weighted
        self.lengths = train.lengths
        prefix = "" if self.encoder is None else "head."
        self.head_names = (prefix,)
        tables = [prefix + name for name in self.head.row_tables(train.parents is not None)]
        self.row_tables = (*(f"encoder.{name}" for name in getattr(self.encoder, "row_tables", ())), *tables)

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Batches of documents of similar length."""
        return training_batches(self.lengths, self.config, epoch)

    def load(self, item: np.ndarray, epoch: int | None = None) -> Loaded:
        """Load a batch, with the random changes of the epoch; without one as documents are predicted."""
        part = self.train
        batch = part.batch(item, epoch)
        if part.parents is None:
            return Loaded(tensors_of(batch), Targets.of_rows(part.labels, batch.rows, self.weighted))
        candidates = part.parents.of(batch.rows).children()
        targets = candidate_targets(candidates, part.labels, batch.rows)
        if not self.weighted:
            targets = (targets > 0).astype(np.float32)
        return Loaded(tensors_of(batch), torch.from_numpy(targets), torch.from_numpy(candidates))

    def loss(self, batch: Loaded) -> Tensor:
        """The mean loss of the documents."""
        return self.head.loss(self.vectors(batch), batch.targets, batch.candidates)

    def vectors(self, batch: Loaded) -> Any:
        """The documents' vectors, or the states of their words, of a loaded batch."""
        return self.encoder(*batch.inputs) if self.encoder is not None else batch.inputs[0]

    def validate(self, budget: Budget) -> dict[str, float]:
        """Precision, nDCG and, but for levels of a tree, loss on the held-out documents."""
        if self.valid is None or len(self.valid) == 0:
            return {}
        metrics, k = metrics_to_validate(self.config.metric)
        if self.of_level:
            top, losses = best_nodes(self.module, self.valid, k, "validating", budget), {}
        else:
            top, losses = self._ranked(self.valid, k, budget)
        return validation_metrics(top, self.valid.labels, metrics, self.train.labels) | losses

    @torch.inference_mode()
    def _ranked(self, part: Part, k: int, budget: Budget) -> tuple[TopK, dict[str, float]]:
        known = part.labels[:, : self.head.n_labels]
        ids = np.full((len(part), k), -1, np.int32)
        scores = np.full((len(part), k), -np.inf, np.float32)
        count, total = min(k, self.head.n_labels), 0.0
        with closing(self._valid_vectors(part, budget)) as batches:
            for rows, vectors in batches:
                labels, best = self.head.best(vectors, count)
                ids[rows, :count], scores[rows, :count] = labels.cpu().numpy(), best.cpu().numpy()
                total += len(rows) * float(self.head.loss(vectors, Targets.of_rows(known, rows).to(vectors.device)))
        return TopK(ids, scores), {"valid_loss": total / len(part)}

    def _valid_vectors(self, part: Part, budget: Budget) -> Generator[tuple[np.ndarray, Tensor], None, None]:
        if self.encoder is not None:
            yield from vectors_in_batches(self.encoder, part, "validating", budget)
            return
        for begin in range(0, len(part), FROZEN_AT_ONCE):
            batch = part.batch(np.arange(begin, min(begin + FROZEN_AT_ONCE, len(part))))
            yield batch.rows, tensors_of(batch, self.head.device)[0]
