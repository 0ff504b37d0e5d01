"""Adam for some rows of a table: one pass over weights, moments and gradient, where torch needs a dozen with copies."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit

ONE = np.float32(1)


@jit(error_model="numpy", fastmath={"contract", "nsz"})
def update_rows(weights, first, second, rows, gradient, begin, end, decay, beta1, beta2, rate, root, eps):
    """Update the rows ``rows[begin:end]`` with the gradient's rows of the same indices; rows must be unique.

    Parameters
    ----------
    weights, first, second
        Table [rows, width] and its moments, float32; changed in index.
    rows, gradient
        The rows (int64), and their gradient [len(rows), width].
    begin, end
        The range of indices to update.
    decay
        L2 weight decay, added to the gradient.
    beta1, beta2
        Decay rates of the moments.
    rate, root, eps
        The step is ``rate * first / (sqrt(second) * root + eps)``, with the bias corrections in rate and root.
    """
    width = weights.shape[1]
    new, new_squares = ONE - beta1, ONE - beta2
    for index in range(begin, end):
        row = rows[index]
        weight, mean, squares, row_gradient = weights[row], first[row], second[row], gradient[index]
        for j in range(width):
            total = row_gradient[j] + decay * weight[j]
            mean[j] += new * (total - mean[j])
            squares[j] = squares[j] * beta2 + new_squares * total * total
            weight[j] -= rate * mean[j] / (np.sqrt(squares[j]) * root + eps)
