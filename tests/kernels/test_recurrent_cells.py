"""The exponentials of the recurrent cells against exact ones; the cells themselves are compared with torch's layers."""

import numpy as np
from numba import njit

from labelwise.kernels.recurrent_cells import _sigmoid, _tanh

VALUES = np.concatenate([np.linspace(-120, 120, 200_001), np.linspace(-1, 1, 20_001)]).astype(np.float32)


@njit
def applied(values):
    sigmoids, tangents = np.empty_like(values), np.empty_like(values)
    for j in range(len(values)):
        sigmoids[j], tangents[j] = _sigmoid(values[j]), _tanh(values[j])
    return sigmoids, tangents


def test_within_2e_7_of_the_exact_functions():
    sigmoids, tangents = applied(VALUES)
    exact = VALUES.astype(np.float64)
    np.testing.assert_allclose(sigmoids, 1 / (1 + np.exp(-exact)), rtol=0, atol=2e-7)
    np.testing.assert_allclose(tangents, np.tanh(exact), rtol=0, atol=2e-7)
    low = exact > -80
    np.testing.assert_allclose(sigmoids[low], 1 / (1 + np.exp(-exact[low])), rtol=1e-6)


def test_what_is_no_number_stays_none():
    sigmoids, tangents = applied(np.array([np.nan], np.float32))
    assert np.isnan(sigmoids[0])
    assert np.isnan(tangents[0])
