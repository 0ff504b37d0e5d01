"""Encode many texts in batches of similar length; vectors are returned in the order of the texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from labelwise.encoders.base import Encoder, Inputs, tensors_of
from labelwise.encoders.batches import batches_by_length
from labelwise.progress import progress
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.encoders.transformer import TransformerEncoder

TOKENS_AT_ONCE = 8192
"""Tokens per encoder batch, padding included."""


@torch.inference_mode()
def vectors_in_batches(encoder: Encoder, inputs: Inputs, what: str) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Encode documents in order of length; yields the indices and vectors [documents, width] of each batch."""
    encoder.eval()
    with progress(what, len(inputs)) as step:
        for documents in batches_by_length(inputs.lengths, TOKENS_AT_ONCE):
            batch = inputs.batch(documents)
            yield batch.rows, encoder(*tensors_of(batch, encoder.device)).float()
            step(len(documents))


def encode_texts(encoder: TransformerEncoder, texts: Strings, what: str = "encoding") -> np.ndarray:
    """One vector per text, float32 [texts, width]."""
    return encode_inputs(encoder, encoder.tokenizer.encode(texts, encoder.config), what)


def encode_inputs(encoder: Encoder, inputs: Inputs, what: str) -> np.ndarray:
    """One vector per document, float32 [documents, width]."""
    vectors = np.empty((len(inputs), encoder.width), np.float32)
    for documents, batch in vectors_in_batches(encoder, inputs, what):
        vectors[documents] = batch.cpu().numpy()
    return vectors
