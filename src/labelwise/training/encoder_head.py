"""A text encoder with a flat head as the training loop wants it: batches, loss and validation.

With a frozen encoder every text is encoded once and only the head is trained, on the vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.encoders.embed import vectors_in_batches
from labelwise.encoders.tokens import Tokens
from labelwise.encoders.transformer import TransformerEncoder
from labelwise.heads.flat import FlatHead, Targets
from labelwise.topk import NOTHING, TopK, in_order
from labelwise.training.batching import training_batches
from labelwise.training.checkpoint import fingerprint
from labelwise.training.settings import TrainingConfig
from labelwise.training.validation import validated_metrics, validation_numbers

FROZEN_AT_ONCE = 2048
"""Vectors of frozen encoders that are validated together."""

Batch = tuple[Tensor, ...]


class EncoderHead(nn.Module):
    """An encoder and a head; `forward` gives the documents' vectors."""

    def __init__(self, encoder: TransformerEncoder, head: FlatHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, *arguments: Tensor) -> Tensor:
        """Vectors of a batch of token rows."""
        return self.encoder(*arguments)

    def best(self, tokens: Tokens, k: int, what: str) -> TopK:
        """The k best labels of each document, with probabilities as scores."""
        return best_labels(self.head, vectors_in_batches(self.encoder, tokens, what), len(tokens), k)


def best_labels(head: FlatHead, batches: Any, count: int, k: int) -> TopK:
    """The k best labels of documents whose vectors come in batches, in any order."""
    ids = np.empty((count, k), np.int32)
    scores = np.empty((count, k), np.float32)
    for documents, vectors in batches:
        found, best = head.best(vectors, k)
        scores[documents] = torch.where(found == NOTHING, best, torch.sigmoid(best)).cpu().numpy()
        ids[documents] = found.cpu().numpy()
    return in_order(ids, scores)


@dataclass(frozen=True)
class Part:
    """Documents of one part of the data: what the head or the encoder reads of them, and their labels."""

    inputs: Any
    """`Tokens`, or with a frozen encoder an array of vectors."""
    labels: Any
    """CSR [documents, labels]; may have labels that the head does not know, at the end."""

    def __len__(self) -> int:
        return self.labels.shape[0]

    @property
    def lengths(self) -> np.ndarray:
        """What batches are made by."""
        return self.inputs.lengths if isinstance(self.inputs, Tokens) else np.ones(len(self), np.int64)

    def identity(self) -> str:
        """A hash of all of it."""
        held = (self.inputs.ids, self.inputs.starts) if isinstance(self.inputs, Tokens) else (self.inputs,)
        return fingerprint(*held, self.labels.indptr, self.labels.indices, list(self.labels.shape))


class EncoderFitting:
    """What the loop needs of an encoder with a head, or of a head alone when the vectors are there already."""

    def __init__(self, module: EncoderHead | FlatHead, train: Part, valid: Part | None, config: TrainingConfig) -> None:
        self.module: nn.Module = module
        self.encoder = module.encoder if isinstance(module, EncoderHead) else None
        self.head = module.head if isinstance(module, EncoderHead) else module
        self.train, self.valid, self.config = train, valid, config
        self.lengths = train.lengths

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Rows of documents of like length."""
        return training_batches(self.lengths, self.config, epoch)

    def load(self, item: np.ndarray) -> Batch:
        """The tensors of some training documents."""
        return self._loaded(self.train, item)

    def _loaded(self, part: Part, rows: np.ndarray) -> Batch:
        targets = Targets.of_rows(part.labels, rows)
        if isinstance(part.inputs, Tokens):
            batch = part.inputs.batch(rows)
            arrays: tuple[np.ndarray, ...] = (batch.ids, batch.mask, batch.documents)
        else:
            arrays = (part.inputs[rows],)
        return targets.documents, targets.labels, *map(torch.from_numpy, arrays)

    def loss(self, batch: Batch) -> Tensor:
        """The mean loss of the documents."""
        documents, labels, *inputs = batch
        return self.head.loss(self.vectors(inputs), Targets(documents, labels))

    def vectors(self, inputs: Sequence[Tensor]) -> Tensor:
        """The documents' vectors of a loaded batch, labels taken off."""
        return self.encoder(*inputs) if self.encoder is not None else inputs[0]

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Precision, nDCG and loss on the held-out documents."""
        if self.valid is None or len(self.valid) == 0:
            return {}
        metrics, k = validated_metrics(self.config.metric)
        known = self.valid.labels[:, : self.head.n_labels]
        ids = np.full((len(self.valid), k), -1, np.int32)
        scores = np.full((len(self.valid), k), -np.inf, np.float32)
        places, total = min(k, self.head.n_labels), 0.0
        for rows, vectors in self._valid_vectors(self.valid):
            found, best = self.head.best(vectors, places)
            ids[rows, :places], scores[rows, :places] = found.cpu().numpy(), best.cpu().numpy()
            total += len(rows) * float(self.head.loss(vectors, Targets.of_rows(known, rows).to(vectors.device)))
        numbers = validation_numbers(TopK(ids, scores), self.valid.labels, metrics, self.train.labels)
        return {**numbers, "valid_loss": total / len(self.valid)}

    def _valid_vectors(self, part: Part) -> Iterator[tuple[np.ndarray, Tensor]]:
        if self.encoder is not None:
            yield from vectors_in_batches(self.encoder, part.inputs, "validating")
            return
        for begin in range(0, len(part), FROZEN_AT_ONCE):
            rows = np.arange(begin, min(begin + FROZEN_AT_ONCE, len(part)))
            yield rows, torch.from_numpy(part.inputs[rows]).to(self.head.weight.device)
