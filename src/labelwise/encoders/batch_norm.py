"""Batch normalisation over the batches of all ranks, on any device, and for batches of one.

With several ranks, torch's own layers would normalise each rank's part of a batch by itself: the result would depend on
the number of ranks. `torch.nn.SyncBatchNorm` does not run on CPUs. Here sums are added over ranks, and so are their
gradients. On a single process this is torch's layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn

from labelwise.encoders.batch_share import current_share


class BatchNorm(nn.Module):
    """Batch normalisation of maps [documents, channels, height, width] or of vectors [documents, channels]."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.channels, self.eps, self.momentum = channels, eps, momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, values: Tensor) -> Tensor:
        """Normalised values: by the batch in training, by running means otherwise."""
        count = values.numel() // self.channels
        if self.training and is_distributed():
            return self._over_ranks(values, count)
        # a single vector has no variance; it is normalised as in predictions, and changes no running mean
        by_batch = self.training and count > 1
        return nn.functional.batch_norm(
            values, self.running_mean, self.running_var, self.weight, self.bias, by_batch, self.momentum, self.eps
        )

    def _over_ranks(self, values: Tensor, count: int) -> Tensor:
        from torch.distributed.nn.functional import all_reduce

        wide = values.to(torch.promote_types(values.dtype, torch.float32))
        others = [axis for axis in range(values.ndim) if axis != 1]
        shape = [1, -1, *[1] * (values.ndim - 2)]
        share = current_share()
        counts = 1.0 if share is None or share.own else 0.0  # a rank without documents computes one of another rank
        own = torch.cat([wide.sum(others), wide.new_full((1,), float(count))]) * counts
        sums: Any = all_reduce(own)
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = wide - mean.reshape(shape)
        squares: Any = all_reduce(centred.square().sum(others) * counts)  # of differences: no cancellation
        variance = squares / total
        if float(total) > 1:
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                unbiased = variance * (total / (total - 1))
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        normalised = centred * torch.rsqrt(variance + self.eps).reshape(shape)
        result = torch.addcmul(self.bias.reshape(shape), normalised, self.weight.reshape(shape))
        return result.to(values.dtype)


def is_distributed() -> bool:
    """Whether several ranks train together."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
