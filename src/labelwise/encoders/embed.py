"""Encode many texts in batches of similar length; vectors are returned in the order of the texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from labelwise.encoders.base import Encoder, Inputs, SomeInputs, tensors_of
from labelwise.encoders.batches import batches_by_length
from labelwise.progress import progress
from labelwise.strings import Strings
from labelwise.time_budget import TimeBudget, check_pace, timed_blocks

if TYPE_CHECKING:
    from labelwise.encoders.transformer import TransformerEncoder

TOKENS_AT_ONCE = 8192
"""Tokens per encoder batch, padding included."""


@torch.inference_mode()
def vectors_in_batches(encoder: Encoder, inputs: Inputs, what: str) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Encode documents in order of length; yields the indices and vectors [documents, width] of each batch."""
    encoder.eval()
    lengths = inputs.lengths
    begin, done, total = time.monotonic(), 0, int(lengths.sum())
    with progress(what, len(inputs)) as step:
        for documents in batches_by_length(lengths, TOKENS_AT_ONCE):
            batch = inputs.batch(documents)
            yield batch.rows, encoder(*tensors_of(batch, encoder.device)).float()
            step(len(documents))
            done += int(lengths[documents].sum())
            check_pace(begin, done, total)


def encode_texts(encoder: TransformerEncoder, texts: Strings, what: str = "encoding") -> np.ndarray:
    """One vector per text, float32 [texts, width]."""
    return encode_inputs(encoder, encoder.tokenizer.encode(texts, encoder.config), what)


def encode_some(
    encoder: Encoder, inputs: Inputs, what: str, budget: TimeBudget, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices and vectors of as many documents as the time budget allows, drawn at random; all without a limit."""
    if not budget.is_limited:
        return np.arange(len(inputs)), encode_inputs(encoder, inputs, what)
    blocks, parts = [], []
    with progress(what, len(inputs), seconds_left=budget.remaining) as step:
        for rows in timed_blocks(np.random.default_rng(seed).permutation(len(inputs)), budget):
            with step.part(len(rows)):
                parts.append(encode_inputs(encoder, SomeInputs(inputs, rows), what))
            blocks.append(rows)
    rows = np.concatenate(blocks)
    order = np.argsort(rows)
    return rows[order], np.concatenate(parts)[order]


def encode_inputs(encoder: Encoder, inputs: Inputs, what: str) -> np.ndarray:
    """One vector per document, float32 [documents, width]."""
    vectors = np.empty((len(inputs), encoder.width), np.float32)
    for documents, batch in vectors_in_batches(encoder, inputs, what):
        vectors[documents] = batch.cpu().numpy()
    return vectors
