"""One step of an LSTM or a GRU for all documents of a batch, forward and backward, between two matrix products.

Tokens are packed: the rows of a step follow those of the step before, documents from the longest to the shortest, so
that the first ``count`` documents of a batch are those which have a token at this step. Kernels work in place: sums
become gates in the forward pass and gradients in the backward pass. Exponentials are polynomials that the compiler
vectorizes; results are within 2e-7 of the exact functions.

Columns of `gates` are those of torch for an LSTM (input, forget, cell, output); for a GRU they are (new, reset, update,
and the hidden state's term of new), so that both matrix products write consecutive columns.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from labelwise.kernels.jit import inner, jit

FAST = {"contract", "nsz", "arcp"}  # without the flags that assume no NaN: divergence must be visible
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": FAST}

ONE, TWO, HALF = np.float32(1), np.float32(2), np.float32(0.5)
MIN_EXPONENT, MAX_EXPONENT = np.float32(-87), np.float32(88)
LOG2_E = np.float32(1.44269504088896341)
# ln 2 in two parts: few enough bits for exact products with integers, and the rest
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(math.log(2) - 0.693359375)
# Taylor coefficients of the exponential from x^7 to x^2; the remainder is below 1e-8 for |x| up to half of ln 2
C0, C1, C2, C3, C4, C5 = (np.float32(1 / math.factorial(n)) for n in (7, 6, 5, 4, 3, 2))


@intrinsic
def _power_of_two(_typing: Any, exponent: Any) -> Any:
    """2 to an integer power (old_added as a float), by setting the exponent bits of a float."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(32)  # Numba would use 64 bits, which do not vectorize
        power = builder.fptosi(arguments[0], integer)
        bits = builder.shl(builder.add(power, ir.Constant(integer, 127)), ir.Constant(integer, 23))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.float32), build


@inner(inline="always", **OPTIONS)
def _exp(x):
    x = min(max(x, MIN_EXPONENT), MAX_EXPONENT)
    power = np.floor(x * LOG2_E + HALF)
    rest = x - power * LN2_HIGH - power * LN2_LOW
    powers = ((((C0 * rest + C1) * rest + C2) * rest + C3) * rest + C4) * rest + C5
    return (powers * rest * rest + rest + ONE) * _power_of_two(power)


@inner(inline="always", **OPTIONS)
def _sigmoid(x):
    return ONE / (ONE + _exp(-x))


@inner(inline="always", **OPTIONS)
def _tanh(x):
    return TWO / (ONE + _exp(-TWO * x)) - ONE


@inner(inline="always", **OPTIONS)
def _apply_sigmoid(values):
    # from 0: with another start Numba tests for negative indices, which prevents vectorization
    for j in range(len(values)):
        values[j] = _sigmoid(values[j])


@jit(**OPTIONS)
def lstm_forward(gates, cells, before, out, begin, count, following, kept, step, column):
    """Compute gates from sums, and write the new state to `out` and, for `kept` documents, to the following step.

    Parameters
    ----------
    gates
        [tokens, 4 x width]: sums of both matrix products; overwritten by the gates.
    cells, before
        [tokens, width]: cells and hidden states before each step.
    out
        [documents, steps, columns]: the hidden states of all directions.
    begin, count
        First row of this step, and its number of rows.
    following, kept
        First row of the next step in this direction, and how many documents continue from this step.
    step, column
        Indices of the new hidden state in `out`.
    """
    w = cells.shape[1]
    for row in range(count):
        own, cell = gates[begin + row], cells[begin + row]
        target = out[row, step, column : column + w]
        in_gate, forget, new, out_gate = own[:w], own[w : 2 * w], own[2 * w : 3 * w], own[3 * w :]
        _apply_sigmoid(own[: 2 * w])
        for j in range(w):
            new[j] = _tanh(new[j])
        _apply_sigmoid(out_gate)
        if row < kept:
            next_cell, next_hidden = cells[following + row], before[following + row]
            for j in range(w):
                next_cell[j] = forget[j] * cell[j] + in_gate[j] * new[j]
            for j in range(w):
                target[j] = out_gate[j] * _tanh(next_cell[j])
            for j in range(w):
                next_hidden[j] = target[j]
        else:
            for j in range(w):
                target[j] = out_gate[j] * _tanh(forget[j] * cell[j] + in_gate[j] * new[j])


@jit(**OPTIONS)
def lstm_backward(gates, cells, gradients, hidden, carried, begin, count, kept, step, column):
    """Compute the gradients of the sums, which overwrite the gates.

    Parameters
    ----------
    gates, cells, begin, count, step, column
        As in `lstm_forward`.
    gradients
        [documents, steps, columns]: gradients of the hidden states from the layer above.
    hidden, carried
        [documents, width]: gradients of hidden states and cells from the following step, for `kept` documents;
        `carried` is overwritten by the gradient of the cells before.
    """
    w = cells.shape[1]
    for row in range(count):
        own, cell = gates[begin + row], cells[begin + row]
        above, from_next, carry = gradients[row, step, column : column + w], hidden[row], carried[row]
        if row >= kept:
            for j in range(w):
                from_next[j] = 0
                carry[j] = 0
        in_gate, forget, new, out_gate = own[:w], own[w : 2 * w], own[2 * w : 3 * w], own[3 * w :]
        for j in range(w):
            gradient = above[j] + from_next[j]
            level = _tanh(forget[j] * cell[j] + in_gate[j] * new[j])
            inside = carry[j] + gradient * out_gate[j] * (ONE - level * level)
            out_gate[j] = gradient * level * out_gate[j] * (ONE - out_gate[j])
            carry[j] = inside * forget[j]
            forget[j] = inside * cell[j] * forget[j] * (ONE - forget[j])
            old_in_gate = in_gate[j]
            in_gate[j] = inside * new[j] * old_in_gate * (ONE - old_in_gate)
            new[j] = inside * old_in_gate * (ONE - new[j] * new[j])


@jit(**OPTIONS)
def gru_forward(gates, cells, before, out, begin, count, following, kept, step, column):
    """`lstm_forward` for a GRU, which has no cells."""
    w = before.shape[1]
    for row in range(count):
        own, last = gates[begin + row], before[begin + row]
        target = out[row, step, column : column + w]
        _apply_sigmoid(own[w : 3 * w])
        new, reset, update, added = own[:w], own[w : 2 * w], own[2 * w : 3 * w], own[3 * w :]
        for j in range(w):
            new[j] = _tanh(new[j] + reset[j] * added[j])
        for j in range(w):
            target[j] = new[j] + update[j] * (last[j] - new[j])
        if row < kept:
            next_hidden = before[following + row]
            for j in range(w):
                next_hidden[j] = target[j]


@jit(**OPTIONS)
def gru_backward(gates, before, gradients, hidden, carried, begin, count, kept, step, column):
    """`lstm_backward` for a GRU; `hidden` gets the direct gradient of the state before, the product adds the rest."""
    w = before.shape[1]
    for row in range(count):
        own, last = gates[begin + row], before[begin + row]
        above, from_next = gradients[row, step, column : column + w], hidden[row]
        if row >= kept:
            for j in range(w):
                from_next[j] = 0
        new, reset, update, added = own[:w], own[w : 2 * w], own[2 * w : 3 * w], own[3 * w :]
        for j in range(w):
            gradient = above[j] + from_next[j]
            from_next[j] = gradient * update[j]
            inside = gradient * (ONE - update[j]) * (ONE - new[j] * new[j])
            update[j] = gradient * (last[j] - new[j]) * update[j] * (ONE - update[j])
            old_added = added[j]
            added[j] = inside * reset[j]
            reset[j] = inside * old_added * reset[j] * (ONE - reset[j])
            new[j] = inside
