"""Vectors of many texts: batches of texts of like length, given back in the order of the texts."""

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
"""Tokens, padding counted, that go through the encoder together."""


@torch.inference_mode()
def vectors_in_batches(encoder: Encoder, inputs: Inputs, what: str) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Batches of documents with their vectors [documents, width], in order of length."""
    encoder.eval()
    with progress(what, len(inputs)) as step:
        for documents in batches_by_length(inputs.lengths, TOKENS_AT_ONCE):
            batch = inputs.batch(documents)
            yield batch.rows, encoder(*tensors_of(batch, encoder.device)).float()
            step(len(documents))


def encode_texts(encoder: TransformerEncoder, texts: Strings, what: str = "encoding") -> np.ndarray:
    """One vector for each text, as float32 [texts, width]."""
    return encode_inputs(encoder, encoder.tokenizer.encode(texts, encoder.config), what)


def encode_inputs(encoder: Encoder, inputs: Inputs, what: str) -> np.ndarray:
    """One vector for each document."""
    vectors = np.empty((len(inputs), encoder.width), np.float32)
    for documents, found in vectors_in_batches(encoder, inputs, what):
        vectors[documents] = found.cpu().numpy()
    return vectors
