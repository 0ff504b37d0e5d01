"""Encode many documents in batches of similar length; `corpus.encode_corpus` is what methods call for texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext

import numpy as np
import torch
from torch import Tensor

from labelwise.device import limited_threads
from labelwise.encoders.base import Encoder, Inputs, SomeInputs, tensors_of
from labelwise.encoders.batches import batches_by_length
from labelwise.kept_memory import keep_freed_memory
from labelwise.parallel import run_stream
from labelwise.progress import Progress, progress
from labelwise.time_budget import TimeBudget, check_pace, timed_blocks

TOKENS_AT_ONCE = 8192
"""Tokens per batch, padding included."""
TOKENS_PER_THREAD = 1024
"""Tokens per batch of a thread on a CPU: its arrays stay in the cache of the processor."""
BLOCK = 1024
"""Documents that are encoded, and kept, at a time."""


def vectors_in_batches(encoder: Encoder, inputs: Inputs, what: str) -> Generator[tuple[np.ndarray, Tensor], None, None]:
    """Encode documents in order of length; yields the indices and vectors [documents, width] of each batch.

    On a CPU every thread encodes batches of its own: layers of small encoders are over before threads have divided them
    among themselves, and vectors do not depend on the number of threads. Fewer batches than threads share all threads.
    Callers close it, because a traceback may keep it: until then the process keeps freed memory.
    """
    encoder.eval()
    lengths, usual = inputs.lengths, torch.get_num_threads()
    on_cpu = torch.device(encoder.device).type == "cpu"
    batches = list(batches_by_length(lengths, TOKENS_PER_THREAD if on_cpu else TOKENS_AT_ONCE))
    alone = on_cpu and len(batches) >= usual > 1

    @torch.inference_mode()
    def encode(documents: np.ndarray) -> tuple[np.ndarray, Tensor]:
        batch = inputs.batch(documents)
        with limited_threads(1, usual) if alone else nullcontext():
            return batch.rows, encoder(*tensors_of(batch, encoder.device)).float()

    begin, done, total = time.monotonic(), 0, int(lengths.sum())
    with progress(what, len(inputs)) as step, keep_freed_memory() if len(batches) > 1 else nullcontext():
        for rows, vectors in run_stream(encode, batches) if alone else map(encode, batches):
            yield rows, vectors
            step(len(rows))
            done += int(lengths[rows].sum())
            check_pace(begin, done, total)


def encode_inputs(encoder: Encoder, inputs: Inputs, what: str) -> np.ndarray:
    """One vector per document, float32 [documents, width]."""
    vectors = np.empty((len(inputs), encoder.width), np.float32)
    with closing(vectors_in_batches(encoder, inputs, what)) as batches:
        for documents, batch in batches:
            vectors[documents] = batch.cpu().numpy()
    return vectors


def encoded_blocks(
    encoder: Encoder,
    inputs: Inputs,
    step: Progress,
    what: str,
    budget: TimeBudget,
    seed: int,
    find: Callable[[np.ndarray], np.ndarray | None] | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Indices and vectors of documents, block by block: in order, or with a time budget at random until it is used.

    `find` may know the vectors of a block.
    """
    order = np.arange(len(inputs))
    if budget.is_limited:
        blocks = timed_blocks(np.random.default_rng(seed).permutation(order), budget)
    else:
        blocks = (order[begin : begin + BLOCK] for begin in range(0, len(order), BLOCK))
    for rows in blocks:
        with step.part(len(rows)):
            known = None if find is None else find(rows)
            yield rows, encode_inputs(encoder, SomeInputs(inputs, rows), what) if known is None else known
