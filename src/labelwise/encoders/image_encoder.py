"""An image network as an encoder: pixels are normalised on the device, then a backbone computes a vector per image.

A backbone is any module from float images [documents, channels, height, width] to vectors, with their `width`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.encoders.arrays import as_array, as_tensor
from labelwise.errors import ModelFormatError
from labelwise.store import get_tensor

COUNTER = "num_batches_tracked"
"""A buffer of batch normalisation that neither training nor prediction reads."""


class ImageEncoder(nn.Module):
    """uint8 images [documents, channels, height, width] to vectors.

    Parameters
    ----------
    backbone
        From normalised images to vectors; has the attribute `width`, and `channels_last` if that layout is faster.
    mean, std
        Per channel, for pixels from 0 to 1.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, mean: np.ndarray, std: np.ndarray) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.register_buffer("mean", torch.as_tensor(np.asarray(mean, np.float32)))
        self.register_buffer("std", torch.as_tensor(np.asarray(std, np.float32)))

    @property
    def width(self) -> int:
        """Dimension of the vectors."""
        return self.backbone.width

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.mean.device

    def normalised(self, pixels: Tensor) -> Tensor:
        """Floats of mean 0 and standard deviation 1, channel by channel of each pixel, as convolutions read them."""
        last = getattr(self.backbone, "channels_last", False)
        images = pixels.to(memory_format=torch.channels_last if last else torch.contiguous_format).float()
        mean, std = self.mean[:, None, None], self.std[:, None, None]
        return (images - 255 * mean) / (255 * std)

    def forward(self, pixels: Tensor) -> Tensor:
        """Vectors [documents, width]."""
        return self.backbone(self.normalised(pixels))

    # --- files ---

    def state(self) -> dict[str, np.ndarray]:
        """All weights, running means and variances, and the settings of a network that has its own."""
        weights = {name: value for name, value in self.state_dict().items() if not name.endswith(COUNTER)}
        state = {name: np.ascontiguousarray(as_array(value)) for name, value in weights.items()}
        settings = getattr(self.backbone, "settings", None)
        return state if settings is None else {**state, "settings": settings}

    def restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> Self:
        """Restore what `state` returned, without copying; the encoder may have been built on the meta device."""
        restored = {}
        for name, expected in self.state_dict().items():
            if name.endswith(COUNTER):
                restored[name] = torch.zeros((), dtype=expected.dtype)
                continue
            array = get_tensor(tensors, name, path)
            wanted = np.dtype(str(expected.dtype).removeprefix("torch."))
            if array.shape != tuple(expected.shape) or array.dtype != wanted:
                raise ModelFormatError(
                    f"{path}: the weights do not fit the network of the config: {name} is {array.dtype} "
                    f"{list(array.shape)}, expected {wanted} {list(expected.shape)}"
                )
            restored[name] = as_tensor(array)
        if np.any(np.asarray(tensors["std"]) <= 0):
            raise ModelFormatError(f"{path}: std must be above 0")
        variances = [name for name in restored if name.endswith("running_var")]
        if any(bool((restored[name] < 0).any()) for name in variances):
            raise ModelFormatError(f"{path}: a variance is below 0")
        self.load_state_dict(restored, assign=True)
        return self
