"""Row-sparse gradients of embedding tables, and their mean over ranks."""

from __future__ import annotations

import torch
from torch import Tensor, distributed


def add_row_gradient(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add a row-sparse gradient to that of a table; `rows` are ascending and distinct.

    For backward passes, which then return None for the table: autograd would lose the information that rows are
    distinct, and the next reader would sort and copy them all.
    """
    gradient = torch.sparse_coo_tensor(rows[None], values, table.shape, is_coalesced=True, check_invariants=False)
    table.grad = gradient if table.grad is None else table.grad + gradient


def average_row_gradient(table: Tensor) -> None:
    """Replace the row-sparse gradient of a table by its mean over all ranks of torch.distributed.

    Ranks exchange only their rows: their numbers first, then indices and values, padded to the largest number. Every
    rank adds them in the order of ranks, so that all get the same sums.
    """
    world = distributed.get_world_size()
    gradient = table.grad
    rows, values = _rows_of(table, gradient)
    counts = [torch.zeros(1, dtype=torch.long, device=table.device) for _ in range(world)]
    distributed.all_gather(counts, torch.tensor([len(rows)], device=table.device))
    numbers = [int(count) for count in counts]
    most = max(numbers)
    if most == 0:
        return
    padded_rows, padded = rows.new_zeros(most), values.new_zeros(most, *values.shape[1:])
    padded_rows[: len(rows)], padded[: len(rows)] = rows, values
    all_rows, all_values = [torch.empty_like(padded_rows) for _ in counts], [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(all_rows, padded_rows)
    distributed.all_gather(all_values, padded)
    indices = torch.cat([part[:number] for part, number in zip(all_rows, numbers, strict=True)])
    summed = torch.cat([part[:number] for part, number in zip(all_values, numbers, strict=True)])
    distinct, slots = torch.unique(indices, return_inverse=True)
    total = summed.new_zeros(len(distinct), *summed.shape[1:]).index_add_(0, slots, summed).div_(world)
    table.grad = None
    add_row_gradient(table, distinct, total)


def _rows_of(table: Tensor, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    if gradient is None:
        return torch.empty(0, dtype=torch.long, device=table.device), table.detach().new_empty(0, *table.shape[1:])
    gradient = gradient.coalesce()
    return gradient._indices()[0], gradient._values()
