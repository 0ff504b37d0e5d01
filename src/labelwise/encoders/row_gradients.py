"""Row-sparse gradients of embedding tables."""

from __future__ import annotations

import torch
from torch import Tensor


def add_row_gradient(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add a row-sparse gradient to that of a table; `rows` are ascending and distinct.

    For backward passes, which then return None for the table: autograd would lose the information that rows are
    distinct, and the next reader would sort and copy them all.
    """
    gradient = torch.sparse_coo_tensor(rows[None], values, table.shape, is_coalesced=True, check_invariants=False)
    table.grad = gradient if table.grad is None else table.grad + gradient
