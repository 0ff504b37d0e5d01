"""Vectors of a corpus: equal texts are encoded once, finished blocks are kept, known texts are not encoded again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from labelwise.data.document_hash import text_hashes
from labelwise.encoders.base import Inputs, SomeInputs
from labelwise.encoders.embed import encoded_blocks
from labelwise.encoders.vector_cache import VectorCache, size_limit
from labelwise.finished import fingerprint
from labelwise.progress import progress
from labelwise.strings import Strings
from labelwise.time_budget import NO_LIMIT, TimeBudget

if TYPE_CHECKING:
    from labelwise.encoders.transformer import TransformerEncoder

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
    encoder: TransformerEncoder, texts: Strings, *, folder: Path | VectorCache | None = None, what: str = "encoding"
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
    budget: TimeBudget = NO_LIMIT,
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
        inputs = encoder.tokenizer.encode(texts[rows], encoder.config) if inputs is None else SomeInputs(inputs, rows)
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
