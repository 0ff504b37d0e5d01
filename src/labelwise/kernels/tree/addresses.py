"""Many arrays as one: a table of where they are and how long they are.

Numba unpacks every array of a call anew, a tenth of a microsecond each, which for the twenty arrays of each level of a
tree is as much as a small level takes to search. A table of numbers is one array, however many it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array


def address_row(arrays: Sequence[np.ndarray]) -> list[int]:
    """Address and length of each array in turn. Whoever keeps the numbers must keep the arrays as well."""
    numbers = []
    for array in arrays:
        if array.ndim != 1 or not array.flags.c_contiguous or not array.flags.aligned:
            raise ValueError("only aligned vectors without gaps have an address that a kernel can use")
        numbers += [array.ctypes.data, len(array)]
    return numbers


@intrinsic
def array_at(_context: Any, row: Any, place: Any, like: Any) -> Any:
    """The array that stands at a place of an address row; it must be of the type of `like`."""
    kind = types.Array(like.dtype, 1, "C")

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        entry = builder.gep(numbers, [builder.shl(arguments[1], ir.Constant(arguments[1].type, 1))])
        address = builder.load(entry)
        count = builder.load(builder.gep(entry, [ir.Constant(arguments[1].type, 1)]))
        array = context.make_array(kind)(context, builder)
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        data = builder.inttoptr(address, array.data.type)
        populate_array(array, data, shape=[count], strides=[ir.Constant(count.type, size)], itemsize=size, meminfo=None)
        return array._getvalue()

    return kind(row, types.int64, like), build
