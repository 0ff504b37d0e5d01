"""Pass many arrays to a kernel as one: a table of their addresses and lengths.

Numba unpacks every array in each call, a tenth of a microsecond each, which for the twenty arrays of each level of a
tree takes as long as the search of a small level. A table of addresses is a single array.
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
    """Address and length of each array in turn. The caller must keep the arrays alive as long as the addresses."""
    numbers = []
    for array in arrays:
        if array.ndim != 1 or not array.flags.c_contiguous or not array.flags.aligned:
            raise ValueError("a kernel can use the addresses of aligned, contiguous vectors only")
        numbers += [array.ctypes.data, len(array)]
    return numbers


@intrinsic
def array_at(_context: Any, row: Any, index: Any, like: Any) -> Any:
    """The array at an index of an address row; it must have the type of `like`."""
    array_type = types.Array(like.dtype, 1, "C")

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        entry = builder.gep(numbers, [builder.shl(arguments[1], ir.Constant(arguments[1].type, 1))])
        address = builder.load(entry)
        count = builder.load(builder.gep(entry, [ir.Constant(arguments[1].type, 1)]))
        array = context.make_array(array_type)(context, builder)
        size = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
        data = builder.inttoptr(address, array.data.type)
        populate_array(array, data, shape=[count], strides=[ir.Constant(count.type, size)], itemsize=size, meminfo=None)
        return array._getvalue()

    return array_type(row, types.int64, like), build
