"""Vectors of documents, and the network of an encoder with a head.

Of a corpus equal texts are encoded once, finished blocks are kept, and known texts are not encoded again. `EncoderHead`
is what predicts and is trained.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.data.hashing import text_hashes
from labelwise.nn.inputs import (
    Batch,
    Encoder,
    Inputs,
    Part,
    batches_by_length,
    tensors_of,
)
from labelwise.nn.vector_cache import VectorCache, size_limit
from labelwise.runtime.budget import NO_LIMIT, Budget
from labelwise.runtime.device import limited_threads
from labelwise.runtime.memory import keep_freed_memory
from labelwise.runtime.progress import Progress, progress
from labelwise.runtime.results import fingerprint
from labelwise.runtime.threads import run_stream
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

if TYPE_CHECKING:
    from labelwise.nn.heads.base import Head
    from labelwise.nn.text.transformer import TransformerEncoder


# --- embed ---
# Encode many documents in batches of similar length; `encode_corpus` is what methods call for texts.

TOKENS_AT_ONCE = 8192
"""Tokens per batch, padding included."""
TOKENS_PER_THREAD = 1024
"""Tokens per batch of a thread on a CPU: its arrays stay in the cache of the processor."""
BLOCK = 1024
"""Documents that are encoded, and kept, at a time."""


def vectors_in_batches(
    encoder: Encoder, inputs: Inputs, what: str, budget: Budget = NO_LIMIT
) -> Generator[tuple[np.ndarray, Tensor], None, None]:
    """Encode documents in order of length; yields the indices and vectors [documents, width] of each batch.

    Raises `OutOfTimeError` as soon as the last batch is expected to end after the budget.

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
            budget.check_pace(begin, done, total)


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
    budget: Budget,
    seed: int,
    find: Callable[[np.ndarray], np.ndarray | None] | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Indices and vectors of documents, block by block: in order, or with a time budget at random until it is used.

    `find` may know the vectors of a block.
    """
    order = np.arange(len(inputs))
    if budget.is_limited:
        blocks = budget.blocks(np.random.default_rng(seed).permutation(order))
    else:
        blocks = (order[begin : begin + BLOCK] for begin in range(0, len(order), BLOCK))
    for rows in blocks:
        with step.part(len(rows)):
            known = None if find is None else find(rows)
            yield rows, encode_inputs(encoder, Part(inputs, rows=rows), what) if known is None else known


log = logging.getLogger("labelwise")


class Distinct(NamedTuple):
    """The different texts of a corpus."""

    rows: np.ndarray
    """Index of the first of each group of equal texts, ascending."""
    copies: np.ndarray
    """For each text of the corpus, which of `rows` is equal to it."""
    hashes: np.ndarray
    """Of the texts in `rows`."""


def distinct_texts(texts: Strings) -> Distinct:
    """Find equal texts, by their hashes."""
    hashes = text_hashes(texts)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    rows = first[order]
    return Distinct(rows, rank[inverse], hashes[rows])


def open_cache(encoder: TransformerEncoder, folder: Path) -> VectorCache:
    """The vectors that an encoder has computed before; for several calls that would each open the folder."""
    return VectorCache(folder, encoder_fingerprint(encoder), encoder.width, size_limit(folder))


def encode_corpus(
    encoder: TransformerEncoder,
    texts: Strings,
    *,
    folder: Path | VectorCache | None = None,
    what: str = "encoding",
) -> np.ndarray:
    """One vector per text, float32 [texts, width], the same to the last bit with and without a folder.

    Equal texts are encoded once. With a folder, texts that this encoder has encoded before are taken from it, and
    finished blocks are kept in it: `vector_cache.cache_folder(len(texts))` for an encoder as it was published, a folder
    of the run's checkpoints for one that was trained, or what `open_cache` returned. Texts that are found among others
    than those they were encoded with may differ in the last bits, as in batches of another shape.
    """
    return encode_some_texts(encoder, texts, folder=folder, what=what)[1]


def encode_some_texts(
    encoder: TransformerEncoder,
    texts: Strings,
    *,
    folder: Path | VectorCache | None = None,
    what: str = "encoding",
    budget: Budget = NO_LIMIT,
    seed: int = 0,
    inputs: Inputs | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """`encode_corpus` within a time budget: indices and vectors of as many texts as it allows, drawn at random.

    Texts that are in the folder take no time. `inputs` are the tokens of the texts, if the caller has them already.
    """
    distinct = distinct_texts(texts)
    vectors = np.empty((len(distinct.rows), encoder.width), np.float32)
    cache, missing = None, np.arange(len(distinct.rows))
    if folder is not None and len(missing):
        cache = open_cache(encoder, folder) if isinstance(folder, Path) else folder
        missing = cache.fill(distinct.hashes, vectors)
        if len(missing) < len(vectors):
            log.info("%s: %s of %s texts are known, in %s", what, f"{len(vectors) - len(missing):,}",
                     f"{len(vectors):,}", cache.folder)  # fmt: skip
    done = np.ones(len(vectors), bool)
    done[missing] = False
    rows = distinct.rows[missing]
    with progress(what, len(vectors), seconds_left=budget.remaining if budget.is_limited else None) as step:
        step.start_at(len(vectors) - len(missing))
        inputs = encoder.tokenizer.encode(texts[rows], encoder.config) if inputs is None else Part(inputs, rows=rows)
        find = None if cache is None else lambda block: cache.known(distinct.hashes[missing[block]])
        for block, encoded in encoded_blocks(encoder, inputs, step, what, budget, seed, find):
            vectors[missing[block]] = encoded
            done[missing[block]] = True
            if cache is not None:
                cache.keep(distinct.hashes[missing[block]], encoded)
    if done.all():
        return np.arange(len(texts)), vectors if len(vectors) == len(texts) else vectors[distinct.copies]
    kept = np.flatnonzero(done[distinct.copies])
    return kept, vectors[distinct.copies[kept]]


def encoder_fingerprint(encoder: TransformerEncoder) -> str:
    """A hash of everything that decides an encoder's vectors: weights, tokenizer, settings, device, torch's version."""
    config = encoder.config
    settings = [config.max_length, config.long_texts, config.windows, config.pooling, config.layers]
    settings += [config.precision] * (config.precision != "float32")  # vectors from before int8 existed stay valid
    state = encoder.state()
    weights = [part for name in sorted(state) for part in (name, state[name])]
    return fingerprint(settings, encoder.device.type, torch.__version__, *weights)


# --- mirrored ---
# Images seen in a mirror, and vectors of images with their mirror images.


@dataclass(frozen=True)
class MirroredInputs:
    """The same images, left and right exchanged."""

    inputs: Inputs

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def lengths(self) -> np.ndarray:
        """Those of the images."""
        return self.inputs.lengths

    def batch(self, documents: np.ndarray, epoch: int | None = None) -> Batch:
        """The given images."""
        batch = self.inputs.batch(documents, epoch)
        return Batch(batch.rows, tuple(np.ascontiguousarray(array[..., ::-1]) for array in batch.arrays))


def encode_with_mirror(encoder: Encoder, inputs: Inputs, what: str) -> np.ndarray:
    """The sum of the vectors of each image and of its mirror image."""
    return encode_inputs(encoder, inputs, what) + encode_inputs(encoder, MirroredInputs(inputs), what)


# --- with a head ---


class EncoderHead(nn.Module):
    """An encoder and a head; `forward` returns the documents' vectors."""

    def __init__(self, encoder: Any, head: Any) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.head: Any = head

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
