"""Adam by rows against a reference implementation."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import reference_kernels as reference
from labelwise.kernels.networks import update_rows


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.sampled_from([0.0, 0.1]))
def test_rows_move_as_the_reference_does(seed, width, decay):
    random = np.random.default_rng(seed)
    table, first, second = (random.normal(size=(7, width)) for _ in range(3))
    rows = random.choice(7, 3, replace=False)
    gradients = random.normal(size=(3, width))
    settings = (decay, 0.9, 0.999, 0.01, 1.3, 1e-8)
    found = [part.astype(np.float32) for part in (table, first, second**2)]
    exact = [part.astype(np.float64) for part in found]
    numbers = [np.float32(number) for number in settings]
    gradients = gradients.astype(np.float32)
    for begin, end in ((0, 1), (1, 3)):
        update_rows(*found, rows, gradients, begin, end, *numbers)
    reference.update_rows(*exact, rows.tolist(), gradients.astype(np.float64), *settings)
    for mine, expected in zip(found, exact, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=5e-6)  # steps of 0.01, in 32 bits
