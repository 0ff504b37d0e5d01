"""Many arrays as one: a table of where they are and how long they are.

Numba unpacks every array of a call anew, a tenth of a microsecond each, which for the twenty arrays of each level of a
tree is as much as a small level takes to search. A table of numbers is one array, however many it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from labelwise.kernels.jit import jit


def address_row(arrays: Sequence[np.ndarray]) -> list[int]:
    """Address and length of each array in turn. Whoever keeps the numbers must keep the arrays as well."""
    numbers = []
    for array in arrays:
        if array.ndim != 1 or not array.flags.c_contiguous or not array.flags.aligned:
            raise ValueError("only aligned vectors without gaps have an address that a kernel can use")
        numbers += [array.ctypes.data, len(array)]
    return numbers


@intrinsic
def _pointer(_context: Any, address: Any, like: Any) -> Any:
    kind = types.CPointer(like.dtype)

    def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64, like), build


@jit(inline="always")
def array_at(row, place, like):
    """The array that stands at a place of an address row; it must be of the type of `like`."""
    return carray(_pointer(row[2 * place], like), row[2 * place + 1])
