"""Vectors of many texts: batches of texts of like length, given back in the order of the texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from labelwise.encoders.tokens import Tokens
from labelwise.progress import progress
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.encoders.transformer import TransformerEncoder

TOKENS_AT_ONCE = 8192
"""Tokens, padding counted, that go through the encoder together."""


def batches_by_length(
    lengths: np.ndarray, tokens_at_once: int = TOKENS_AT_ONCE, most: int | None = None
) -> Iterator[np.ndarray]:
    """Documents in batches of like length, with `most` documents at most; every document is in exactly one."""
    order = np.argsort(lengths, kind="stable")
    begin = 0
    while begin < len(order):
        next_ones = lengths[order[begin : begin + (most or tokens_at_once)]]
        rising = next_ones * np.arange(1, len(next_ones) + 1)
        size = max(1, int(np.searchsorted(rising, tokens_at_once, side="right")))
        yield order[begin : begin + size]
        begin += size


@torch.inference_mode()
def vectors_in_batches(encoder: TransformerEncoder, tokens: Tokens, what: str) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Batches of documents with their vectors [documents, width], in order of length."""
    encoder.eval()
    with progress(what, len(tokens)) as step:
        for documents in batches_by_length(tokens.lengths):
            yield documents, encoder(*encoder.tensors(tokens.batch(documents))).float()
            step(len(documents))


def encode_texts(encoder: TransformerEncoder, texts: Strings, what: str = "encoding") -> np.ndarray:
    """One vector for each text, as float32 [texts, width]."""
    return encode_tokens(encoder, encoder.tokenizer.encode(texts, encoder.config), what)


def encode_tokens(encoder: TransformerEncoder, tokens: Tokens, what: str) -> np.ndarray:
    """One vector for each text that has been cut into tokens."""
    vectors = np.empty((len(tokens), encoder.width), np.float32)
    for documents, found in vectors_in_batches(encoder, tokens, what):
        vectors[documents] = found.cpu().numpy()
    return vectors
