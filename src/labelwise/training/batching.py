"""Batches of documents of similar length, for little padding. Does not import torch.

The order depends on (seed, epoch) alone, so that a resumed run gets the same batches.
"""

from __future__ import annotations

import numpy as np

from labelwise.encoders.batches import cut_batches
from labelwise.errors import ConfigError
from labelwise.networks.settings import TrainingConfig

POOL_BATCHES = 64


def length_batches(
    lengths: np.ndarray,
    batch_size: int | None = None,
    tokens_per_batch: int | None = None,
    *,
    seed: int,
    epoch: int,
    pool_batches: int = POOL_BATCHES,
) -> list[np.ndarray]:
    """Cut documents into batches of similar length; every document is in exactly one.

    Documents are shuffled and cut into pools, each pool is sorted by length and cut into batches, and the batches are
    shuffled. The padding of a pool is at most one batch of its longest minus its shortest document.

    Parameters
    ----------
    lengths
        Tokens of each document.
    batch_size
        Maximum number of documents per batch.
    tokens_per_batch
        Maximum of longest document x documents per batch; a longer document forms a batch alone.
    seed, epoch
        Decide the order.
    pool_batches
        Batches per pool: larger pools pad less and shuffle less.
    """
    lengths = np.asarray(lengths)
    if batch_size is None and tokens_per_batch is None:
        raise ConfigError("batches need a batch_size, a tokens_per_batch or both")
    random = np.random.default_rng([seed % 2**64, epoch])
    order = random.permutation(len(lengths))
    if tokens_per_batch is None:
        pool = pool_batches * int(batch_size or 1)
    else:
        typical = max(1, int(tokens_per_batch // max(1.0, float(lengths.mean()) if len(lengths) else 1.0)))
        pool = pool_batches * min(typical, batch_size or typical)
    batches: list[np.ndarray] = []
    for begin in range(0, len(order), pool):
        some = order[begin : begin + pool]
        some = some[np.argsort(lengths[some], kind="stable")]
        batches += cut_batches(some, lengths[some], batch_size, tokens_per_batch)
    return [batches[index] for index in random.permutation(len(batches))]


def training_batches(lengths: np.ndarray, config: TrainingConfig, epoch: int) -> list[np.ndarray]:
    """The batches of an epoch by the training config."""
    return length_batches(lengths, config.batch_size, config.tokens_per_batch, seed=config.seed, epoch=epoch)
