"""One step of an LSTM or a GRU for all documents of a batch, forward and backward, between two matrix products.

Tokens are packed: the rows of a step follow those of the step before, documents from the longest to the shortest, so
that the first ``count`` documents of a batch are those which have a token at this step. Kernels overwrite what they
have read: sums become gates on the way forward and gradients on the way back. Exponentials are polynomials that the
compiler turns into vector code; results are within 2e-7 of the exact functions.

Columns of `gates` are those of torch for an LSTM (input, forget, cell, output); for a GRU they are (new, reset, update,
and what the hidden state adds to new), so that both matrix products write neighbouring columns.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from labelwise.kernels.jit import inner, jit

FAST = {"contract", "nsz", "arcp"}  # not the flags that presume there is no NaN: a diverged training must show
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": FAST}

ONE, TWO, HALF = np.float32(1), np.float32(2), np.float32(0.5)
LOWEST, HIGHEST = np.float32(-87), np.float32(88)
LOG2_E = np.float32(1.44269504088896341)
# ln 2 in two parts: few enough bits for exact products with whole numbers, and the rest
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(math.log(2) - 0.693359375)
# the series of the exponential from x^7 to x^2; what follows is below 1e-8 for |x| up to half of ln 2
C0, C1, C2, C3, C4, C5 = (np.float32(1 / math.factorial(n)) for n in (7, 6, 5, 4, 3, 2))


@intrinsic
def _power_of_two(_typing: Any, exponent: Any) -> Any:
    """2 to a whole number (a float), by writing the exponent's bits of a float."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(32)  # Numba itself would go through 64 bits, for which there are no vectors
        whole = builder.fptosi(arguments[0], kind)
        bits = builder.shl(builder.add(whole, ir.Constant(kind, 127)), ir.Constant(kind, 23))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.float32), build


@inner(inline="always", **OPTIONS)
def _exp(x):
    x = min(max(x, LOWEST), HIGHEST)
    whole = np.floor(x * LOG2_E + HALF)
    rest = x - whole * LN2_HIGH - whole * LN2_LOW
    powers = ((((C0 * rest + C1) * rest + C2) * rest + C3) * rest + C4) * rest + C5
    return (powers * rest * rest + rest + ONE) * _power_of_two(whole)


@inner(inline="always", **OPTIONS)
def _sigmoid(x):
    return ONE / (ONE + _exp(-x))


@inner(inline="always", **OPTIONS)
def _tanh(x):
    return TWO / (ONE + _exp(-TWO * x)) - ONE


@inner(inline="always", **OPTIONS)
def _squash(values):
    for j in range(len(values)):  # from 0: with another start Numba tests for negative places, and there is no vector
        values[j] = _sigmoid(values[j])


@jit(**OPTIONS)
def lstm_forward(gates, cells, before, out, begin, count, following, kept, place, column):
    """Gates from sums, and the new state: to `out`, and for `kept` documents to where the following step reads it.

    Parameters
    ----------
    gates
        [tokens, 4 x width]: sums of both products; become the gates.
    cells, before
        [tokens, width]: cells and hidden states before each step.
    out
        [documents, places, columns]: hidden states of all directions.
    begin, count
        Rows of this step.
    following, kept
        Rows of the step that comes next in this direction, and how many of its documents go on from this one.
    place, column
        Where in `out` the new hidden state goes.
    """
    width = cells.shape[1]
    for row in range(count):
        own, cell = gates[begin + row], cells[begin + row]
        target = out[row, place, column : column + width]
        enter, forget, new, leave = own[:width], own[width : 2 * width], own[2 * width : 3 * width], own[3 * width :]
        _squash(own[: 2 * width])
        for j in range(width):
            new[j] = _tanh(new[j])
        _squash(leave)
        if row < kept:
            next_cell, next_hidden = cells[following + row], before[following + row]
            for j in range(width):
                next_cell[j] = forget[j] * cell[j] + enter[j] * new[j]
            for j in range(width):
                target[j] = leave[j] * _tanh(next_cell[j])
            for j in range(width):
                next_hidden[j] = target[j]
        else:
            for j in range(width):
                target[j] = leave[j] * _tanh(forget[j] * cell[j] + enter[j] * new[j])


@jit(**OPTIONS)
def lstm_backward(gates, cells, gradients, hidden, carried, begin, count, kept, place, column):
    """Gradients of the sums in place of the gates.

    Parameters
    ----------
    gates, cells, begin, count, place, column
        As in `lstm_forward`.
    gradients
        [documents, places, columns]: of the hidden states, from above.
    hidden, carried
        [documents, width]: gradients from the following step, of hidden states and cells, for `kept` documents;
        `carried` becomes that of the cells before.
    """
    width = cells.shape[1]
    for row in range(count):
        own, cell = gates[begin + row], cells[begin + row]
        above, from_next, carry = gradients[row, place, column : column + width], hidden[row], carried[row]
        if row >= kept:
            for j in range(width):
                from_next[j] = 0
                carry[j] = 0
        enter, forget, new, leave = own[:width], own[width : 2 * width], own[2 * width : 3 * width], own[3 * width :]
        for j in range(width):
            gradient = above[j] + from_next[j]
            level = _tanh(forget[j] * cell[j] + enter[j] * new[j])
            inside = carry[j] + gradient * leave[j] * (ONE - level * level)
            leave[j] = gradient * level * leave[j] * (ONE - leave[j])
            carry[j] = inside * forget[j]
            forget[j] = inside * cell[j] * forget[j] * (ONE - forget[j])
            entered = enter[j]
            enter[j] = inside * new[j] * entered * (ONE - entered)
            new[j] = inside * entered * (ONE - new[j] * new[j])


@jit(**OPTIONS)
def gru_forward(gates, cells, before, out, begin, count, following, kept, place, column):
    """The same for a GRU, which has no cells."""
    width = before.shape[1]
    for row in range(count):
        own, last = gates[begin + row], before[begin + row]
        target = out[row, place, column : column + width]
        _squash(own[width : 3 * width])
        new, reset, update, added = own[:width], own[width : 2 * width], own[2 * width : 3 * width], own[3 * width :]
        for j in range(width):
            new[j] = _tanh(new[j] + reset[j] * added[j])
        for j in range(width):
            target[j] = new[j] + update[j] * (last[j] - new[j])
        if row < kept:
            next_hidden = before[following + row]
            for j in range(width):
                next_hidden[j] = target[j]


@jit(**OPTIONS)
def gru_backward(gates, before, gradients, hidden, carried, begin, count, kept, place, column):
    """The same for a GRU; `hidden` keeps what goes straight on to the state before, and the product adds the rest."""
    width = before.shape[1]
    for row in range(count):
        own, last = gates[begin + row], before[begin + row]
        above, from_next = gradients[row, place, column : column + width], hidden[row]
        if row >= kept:
            for j in range(width):
                from_next[j] = 0
        new, reset, update, added = own[:width], own[width : 2 * width], own[2 * width : 3 * width], own[3 * width :]
        for j in range(width):
            gradient = above[j] + from_next[j]
            from_next[j] = gradient * update[j]
            inside = gradient * (ONE - update[j]) * (ONE - new[j] * new[j])
            update[j] = gradient * (last[j] - new[j]) * update[j] * (ONE - update[j])
            given = added[j]
            added[j] = inside * reset[j]
            reset[j] = inside * given * reset[j] * (ONE - reset[j])
            new[j] = inside
