"""An encoder with any head, and its predictions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.nn.encode import vectors_in_batches
from labelwise.nn.heads.base import Head
from labelwise.nn.inputs import Encoder, Inputs
from labelwise.topk import NO_LABEL, TopK, sorted_by_score


class EncoderHead(nn.Module):
    """An encoder and a head; `forward` returns the documents' vectors."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.head = head

    def forward(self, *inputs: Tensor) -> Tensor:
        """Vectors of a batch."""
        return self.encoder(*inputs)

    def best(self, inputs: Inputs, k: int, what: str) -> TopK:
        """The k best labels of each document, with probabilities as scores."""
        with closing(vectors_in_batches(self.encoder, inputs, what)) as batches:
            return best_labels(self.head, batches, len(inputs), k)


def best_labels(head: Head, batches: Iterable[tuple[np.ndarray, Tensor]], count: int, k: int) -> TopK:
    """The k best labels of documents whose vectors come in batches, in any order."""
    ids = np.empty((count, k), np.int32)
    scores = np.empty((count, k), np.float32)
    for documents, vectors in batches:
        labels, best = head.best(vectors, k)
        scores[documents] = torch.where(labels == NO_LABEL, best, head.probabilities(best)).cpu().numpy()
        ids[documents] = labels.cpu().numpy()
    return sorted_by_score(ids, scores)
