"""Parse and format decimal numbers, for the kernels that read and write sparse text.

Reading: up to 18 digits are collected in an integer and scaled by a power of ten. Where the integer fits a float64 and
the power is exact, one multiplication or division gives the nearest float64; otherwise the power is the sum of two
float64, which leaves an error far below the precision of float32. Writing: the fewest digits that read back to the same
float32.

All functions read a uint8 buffer from a position and require that a byte which belongs to no number (a newline)
follows, so that bounds need not be checked.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from labelwise.kernels.jit import inner, jit

MAX_DIGITS = 18
LITTLE_ENDIAN = sys.byteorder == "little"
"""Whether eight digits can be read as one word."""
MAX_EXPONENT = 40
MIN_EXPONENT = -70
EXACT_POWER = 22
FLOAT32_OVERFLOW = 3.4028235677973366e38
"""The smallest number that rounds to infinity in float32."""
TOO_LARGE = 1 << 40
"""Where integers stop growing; far above any index and far below an overflow."""


def _powers() -> tuple[np.ndarray, np.ndarray]:
    """Powers of ten as sums of two float64."""
    exact = [Fraction(10) ** e for e in range(MIN_EXPONENT, MAX_EXPONENT + 1)]
    high = [float(power) for power in exact]
    low = [float(power - Fraction(part)) for power, part in zip(exact, high, strict=True)]
    return np.array(high), np.array(low)


_POWER_HIGH, _POWER_LOW = _powers()
_INTEGER_POWERS = np.array([10**e for e in range(MAX_DIGITS + 1)], np.int64)


def _load_word(_typing: Any, data: Any, position: Any) -> Any:
    """The next eight bytes as one little-endian integer. All eight must be in the array."""
    if not isinstance(data, types.Array) or data.layout != "C" or data.dtype != types.uint8:
        return None  # Numba then reports that the types do not match

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        index = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(index, align=1)

    return types.uint64(data, position), codegen


def _count_trailing_zeros(_typing: Any, number: Any) -> Any:
    """The number of zero bits below the lowest set bit; 64 if there is none."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(number), codegen


# Two instructions that Numba lacks.
_word_at: Any = intrinsic(_load_word)
_trailing_zeros: Any = intrinsic(_count_trailing_zeros)


@inner(forceinline=True)
def read_digits(data: np.ndarray, position: int) -> tuple[int, int]:
    """Up to eight digits as (count, number), all at once where eight bytes are left.

    Numbers differ in length, and a loop over digits would mispredict its end each time. Here eight bytes are loaded as
    one word, the first that is no digit is found by its bits, the digits are shifted to the word's upper end, and
    three multiplications combine pairs, fours and all eight.
    """
    if not LITTLE_ENDIAN or position + 8 > data.size:
        count, number = 0, 0
        while count < 8 and 48 <= data[position + count] <= 57:
            number = number * 10 + (data[position + count] - 48)
            count += 1
        return count, number
    word = _word_at(data, position) ^ np.uint64(0x3030303030303030)
    others = ((word + np.uint64(0x7676767676767676)) | word) & np.uint64(0x8080808080808080)
    count = _trailing_zeros(others) >> 3
    if count == 0:
        return 0, 0
    word <<= np.uint64(64 - 8 * count)
    word = word * np.uint64(10) + (word >> np.uint64(8))
    lower = (word & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    upper = ((word >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    number: Any = np.int64((lower + upper) >> np.uint64(32))
    return count, number


@jit(forceinline=True)
def read_integer(data: np.ndarray, position: int) -> tuple[int, int]:
    """A run of digits as (number, position after it); without a digit the position is unchanged."""
    count, number = read_digits(data, position)
    position += count
    while count == 8:
        count, more = read_digits(data, position)
        for _ in range(count):
            if number < TOO_LARGE:
                number *= 10
        if number < TOO_LARGE:
            number += more
        position += count
    return number, position


@inner(forceinline=True)
def scale(mantissa: int, exponent: int) -> float:
    """mantissa x 10^exponent in float64, mantissa below 10^18; far outside float32's range 0 or infinity."""
    if -EXACT_POWER <= exponent <= EXACT_POWER and mantissa < (1 << 53):
        if exponent < 0:
            return mantissa / _POWER_HIGH[-exponent - MIN_EXPONENT]
        return mantissa * _POWER_HIGH[exponent - MIN_EXPONENT]
    return _scale_exactly(mantissa, exponent)


@inner
def _scale_exactly(mantissa: int, exponent: int) -> float:
    """`scale` where one operation is not exact."""
    if mantissa == 0 or exponent < MIN_EXPONENT:
        return 0.0
    if exponent > MAX_EXPONENT:
        return np.inf
    high = np.float64(mantissa)
    low = np.float64(mantissa - np.int64(high))
    power_high = _POWER_HIGH[exponent - MIN_EXPONENT]
    power_low = _POWER_LOW[exponent - MIN_EXPONENT]
    product = high * power_high
    # The rounding error of the product (Dekker): both factors are split into halves whose products are exact.
    shifted = high * 134217729.0
    high_a = shifted - (shifted - high)
    high_b = high - high_a
    shifted = power_high * 134217729.0
    power_a = shifted - (shifted - power_high)
    power_b = power_high - power_a
    error = ((high_a * power_a - product) + high_a * power_b + high_b * power_a) + high_b * power_b
    return product + (error + (high * power_low + low * power_high))


@inner
def _long_fraction(data: np.ndarray, position: int, mantissa: int, exponent: int) -> tuple[int, int, int]:
    """Append the digits after the point as long as they fit: (position after all, mantissa, exponent)."""
    digit = data[position] - 48
    while 0 <= digit <= 9:
        if mantissa < _INTEGER_POWERS[MAX_DIGITS - 1]:
            mantissa = mantissa * 10 + digit
            exponent -= 1
        position += 1
        digit = data[position] - 48
    return position, mantissa, exponent


@jit(forceinline=True)
def read_number(data: np.ndarray, position: int) -> tuple[float, int]:
    """A decimal number such as 3, -0.25, .5 or 1e-4 as (float64, position after it); no number: position -1."""
    negative = data[position] == 45
    if negative or data[position] == 43:
        position += 1
    found = False
    mantissa = 0
    exponent = 0
    digit = data[position] - 48
    while 0 <= digit <= 9:
        found = True
        if mantissa < _INTEGER_POWERS[MAX_DIGITS - 1]:
            mantissa = mantissa * 10 + digit
        else:
            exponent += 1
        position += 1
        digit = data[position] - 48
    if data[position] == 46:
        count, number = read_digits(data, position + 1)
        position += 1 + count
        found |= count > 0
        if count < 8 and mantissa < _INTEGER_POWERS[MAX_DIGITS - 8]:
            mantissa = mantissa * _INTEGER_POWERS[count] + number
            exponent -= count
        else:
            position, mantissa, exponent = _long_fraction(data, position - count, mantissa, exponent)
    if not found:
        return 0.0, -1
    if data[position] == 101 or data[position] == 69:
        position += 1
        falling = data[position] == 45
        if falling or data[position] == 43:
            position += 1
        power, after = read_integer(data, position)
        if after == position:
            return 0.0, -1
        position = after
        exponent += -power if falling else power
    value = scale(mantissa, exponent)
    return (-value if negative else value), position


@inner
def write_integer(out: np.ndarray, position: int, number: int) -> int:
    """Write the digits of a non-negative integer; returns the position after them."""
    length = 1
    rest = number
    while rest >= 10:
        rest //= 10
        length += 1
    for index in range(position + length - 1, position - 1, -1):
        out[index] = 48 + number % 10
        number //= 10
    return position + length


@inner
def shortest(value: float) -> tuple[int, int]:
    """(mantissa, exponent) with the fewest digits that read back to this positive finite float32."""
    wide = np.float64(value)
    magnitude = int(np.floor(np.log10(wide)))
    for digits in range(1, MAX_DIGITS):
        exponent = magnitude - digits + 1
        mantissa = int(np.rint(scale_back(wide, -exponent)))
        if np.float32(scale(mantissa, exponent)) == value:
            while mantissa % 10 == 0:
                mantissa //= 10
                exponent += 1
            return mantissa, exponent
    return 0, 0


@inner
def scale_back(wide: float, exponent: int) -> float:
    """wide x 10^exponent, accurate enough to round to a few digits."""
    if exponent < 0:
        return wide / _POWER_HIGH[-exponent - MIN_EXPONENT]
    if exponent > MAX_EXPONENT:
        wide *= _POWER_HIGH[MAX_EXPONENT - MIN_EXPONENT]
        exponent -= MAX_EXPONENT
    return wide * _POWER_HIGH[exponent - MIN_EXPONENT]


@jit
def write_number(out: np.ndarray, position: int, value: float) -> int:
    """Write the shortest decimal text of a finite float32, at most 24 bytes; returns the position after it."""
    if value == 0:
        out[position] = 48
        return position + 1
    if value < 0:
        out[position] = 45
        position += 1
        value = -value
    mantissa, exponent = shortest(value)
    if exponent >= 0 and exponent <= 6:
        position = write_integer(out, position, mantissa)
        for _ in range(exponent):
            out[position] = 48
            position += 1
        return position
    if exponent < 0 and exponent >= -12:
        unit = 1
        for _ in range(-exponent):
            unit *= 10
        position = write_integer(out, position, mantissa // unit)
        out[position] = 46
        rest = mantissa % unit
        for index in range(position - exponent, position, -1):
            out[index] = 48 + rest % 10
            rest //= 10
        return position - exponent + 1
    position = write_integer(out, position, mantissa)
    out[position] = 101
    position += 1
    if exponent < 0:
        out[position] = 45
        position += 1
        exponent = -exponent
    return write_integer(out, position, exponent)
