"""Losses that compute all gradients in their forward pass: what these functions of autograd share.

The forward pass leaves the gradients of vectors, weights and biases with `keep_gradients`; the backward pass is
`kept_gradients`, which only multiplies them by the gradient of the loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labelwise.encoders.row_gradients import add_row_gradient


def precisions(vectors: Tensor, weight: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """The types of matrix products and of losses: the weights' own, or inside autocast its type and float32."""
    device = vectors.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device), torch.float32
    return weight.dtype, weight.dtype


def keep_gradients(
    ctx: Any, gradients: tuple[Tensor, ...], vectors: Tensor, tables: tuple[Tensor | None, ...], rows: Tensor | None
) -> None:
    """Leave the gradients of vectors and tables, the first inputs, for the backward pass.

    With `rows`, those of the tables have only these rows.
    """
    ctx.gradients, ctx.tables, ctx.rows, ctx.dtype = gradients, tables, rows, vectors.dtype


def kept_gradients(ctx: Any, outer: Tensor) -> list[Tensor | None]:
    """The gradients of vectors and tables for autograd; row-sparse ones are set directly, and None here."""
    gradients, ctx.gradients = ctx.gradients, None  # moved, not copied
    if float(outer) != 1.0:
        gradients = tuple(part.mul_(outer) for part in gradients)
    of_vectors, *of_tables = gradients
    result: list[Tensor | None] = [of_vectors.to(ctx.dtype) if ctx.needs_input_grad[0] else None]
    for table, values, wanted in zip(ctx.tables, of_tables, ctx.needs_input_grad[1:3], strict=True):
        if wanted and ctx.rows is not None:
            add_row_gradient(table, ctx.rows, values)
        result.append(values if wanted and ctx.rows is None else None)
    return result
