"""What the training loop needs of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn


class Fitting(Protocol):
    """What a method passes to the loop.

    Everything that changes during training must be a parameter or a buffer of the module. `loss` may draw from the
    global generators of Python, NumPy and torch; `batches` and `load` draw from generators they seed themselves.
    """

    @property
    def module(self) -> nn.Module:
        """The module to train; if frozen parts must stay in eval mode, its `train()` has to do so."""
        ...

    def batches(self, epoch: int) -> Sequence[Any]:
        """The batches of an epoch, which depend on the seed and the epoch alone."""
        ...

    def load(self, item: Any, epoch: int) -> Any:
        """The tensors of a batch, padded to its longest document; on the CPU, the loop moves them to the device."""
        ...

    def loss(self, batch: Any) -> Tensor:
        """Forward pass and loss, the mean over the documents of the batch."""
        ...

    def validate(self) -> dict[str, float]:
        """Metrics such as P@1 on held-out documents; {} without any. The module is in eval mode.

        It calls `check_pace` as it goes, which ends it when the time budget does not suffice.
        """
        ...
