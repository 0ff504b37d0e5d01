"""Adam for some rows of a table: one pass over weights, moments and gradient, where torch makes a dozen with copies."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit

ONE = np.float32(1)


@jit(error_model="numpy", fastmath={"contract", "nsz"})
def update_rows(weights, first, second, rows, gradient, begin, end, decay, beta1, beta2, rate, root, eps):
    """Move rows ``rows[begin:end]`` by the gradient's rows of the same places; a row stands once.

    Parameters
    ----------
    weights, first, second
        Table [rows, width] and its moments, float32; changed in place.
    rows, gradient
        Which rows (int64), and their gradient [places, width].
    begin, end
        The range of places to do.
    decay
        Pull of the weights that goes through the gradient.
    beta1, beta2
        Memory of the moments.
    rate, root, eps
        The step is ``rate * first / (sqrt(second) * root + eps)``, with the corrections of the start in rate and root.
    """
    width = weights.shape[1]
    new, new_squares = ONE - beta1, ONE - beta2
    for place in range(begin, end):
        row = rows[place]
        own, mean, squares, given = weights[row], first[row], second[row], gradient[place]
        for j in range(width):
            pull = given[j] + decay * own[j]
            mean[j] += new * (pull - mean[j])
            squares[j] = squares[j] * beta2 + new_squares * pull * pull
            own[j] -= rate * mean[j] / (np.sqrt(squares[j]) * root + eps)
