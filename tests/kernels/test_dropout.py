"""The dropout kernel against a reference implementation, and the statistics of its mask."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import reference_kernels as reference
from labelwise.kernels.networks import drop_out

WORDS = st.integers(0, 2**32 - 1)


@given(st.integers(0, 200), st.integers(0, 2**33), WORDS, WORDS, WORDS)
def test_the_mask_is_that_of_the_reference(count, first, key, other_key, threshold):
    values = np.arange(1, count + 1, dtype=np.float32)
    expected = reference.drop_out(values.tolist(), first, key, other_key, threshold, 2.0)
    drop_out(values, first, np.uint32(key), np.uint32(other_key), np.uint32(threshold), np.float32(2))
    assert values.tolist() == expected


def masked(key, other_key, count=200_000):
    values = np.ones(count, np.float32)
    drop_out(values, 0, np.uint32(key), np.uint32(other_key), np.uint32(0.3 * 2**32), np.float32(1))
    return values


def test_masks_look_random_along_indices_and_keys():
    one = masked(1, 2)
    assert abs(one.mean() - 0.7) < 0.005
    for shift in (1, 2, 64, 300, 512):
        assert abs(np.corrcoef(one[shift:], one[:-shift])[0, 1]) < 0.012
    for other in (masked(2, 2), masked(1, 3), masked(1 << 31, 2), masked(1, 1 << 16)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.012
