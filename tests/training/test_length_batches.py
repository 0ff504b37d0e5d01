"""Batches by length: every document once, a function of seed and epoch, and a bound on padding that can be proved."""

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labelwise.nn.config import TrainingConfig
from labelwise.nn.inputs import cut_batches, training_batches

LENGTHS = st.lists(st.integers(0, 512), max_size=300).map(np.array)


def batches_of(lengths, batch_size, tokens=None, seed=0, epoch=0, pool=64):
    config = TrainingConfig(batch_size=batch_size, tokens_per_batch=tokens, seed=seed)
    with patch("labelwise.nn.inputs.POOL_BATCHES", pool):
        return training_batches(lengths, config, epoch)


@given(
    LENGTHS,
    st.integers(1, 40),
    st.none() | st.integers(1, 3000),
    st.integers(0, 5),
    st.integers(0, 3),
    st.integers(1, 9),
)
def test_every_document_exactly_once(lengths, batch_size, tokens, seed, epoch, pool):
    batches = batches_of(lengths, batch_size, tokens, seed, epoch, pool)
    assert sorted(np.concatenate([*batches, np.empty(0, int)]).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert 1 <= len(batch) <= batch_size
        if tokens is not None and len(batch) > 1:
            assert lengths[batch].max() * len(batch) <= tokens


@given(LENGTHS, st.integers(1, 40), st.integers(0, 3))
def test_padding_is_at_most_one_batch_a_pool(lengths, batch_size, epoch):
    pool = 4
    batches = batches_of(lengths, batch_size, epoch=epoch, pool=pool)
    padding = sum(int((lengths[batch].max() - lengths[batch]).sum()) for batch in batches)
    pools = -(-len(lengths) // (pool * batch_size))
    assert padding <= pools * batch_size * (int(np.ptp(lengths)) if len(lengths) else 0)


@given(LENGTHS, st.integers(1, 500))
def test_no_batch_could_have_taken_the_next_document_too(lengths, tokens):
    """Batches by tokens are as full as they can be."""
    lengths = np.sort(lengths)
    batches = list(cut_batches(np.arange(len(lengths)), lengths, None, tokens))
    for batch in batches[:-1]:
        assert lengths[batch[-1] + 1] * (len(batch) + 1) > tokens


def test_little_padding_on_texts_of_varied_length():
    lengths = np.random.default_rng(0).lognormal(4, 0.8, 20_000).astype(int).clip(1, 512)
    batches = batches_of(lengths, 32, seed=1)
    padded = sum(lengths[batch].max() * len(batch) for batch in batches)
    assert padded < 1.1 * lengths.sum()
    assert 512 * len(lengths) > 5 * padded


def test_order_is_of_seed_and_epoch_alone():
    lengths = np.random.default_rng(0).integers(1, 100, 500)

    def flat(seed, epoch):
        return np.concatenate(batches_of(lengths, 16, seed=seed, epoch=epoch)).tolist()

    first = flat(0, 0)
    np.random.default_rng().random()
    assert flat(0, 0) == first
    assert len({tuple(first), tuple(flat(0, 1)), tuple(flat(1, 0))}) == 3
    sizes = [lengths[batch].mean() for batch in batches_of(lengths, 16)]
    assert sizes != sorted(sizes)


def test_config_decides_the_batches():
    lengths = np.arange(1, 101)
    by_size = training_batches(lengths, TrainingConfig(batch_size=10, seed=3), epoch=2)
    assert {len(batch) for batch in by_size} == {10}
    by_tokens = training_batches(lengths, TrainingConfig(batch_size=50, tokens_per_batch=200, seed=3), epoch=2)
    assert max(lengths[batch].max() * len(batch) for batch in by_tokens) <= 200
