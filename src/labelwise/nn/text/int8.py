"""A transformer with 8-bit linear layers, for encoding on CPUs: nearly the same vectors in less time.

Weights have 7 bits and a scale per output; activations have 8 bits, with an offset and a scale per token that are
computed from the token itself. torch's dynamic quantisation has one scale per batch: a token with large values makes
all others coarse, and vectors depend on the other texts of a batch. 8 times 7 bits is what the 16-bit sums of AVX2 hold
without overflow, so the products are the same on all processors.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 255
"""Steps of an activation between the smallest and the largest value of its token."""
MAX_WEIGHT = 64
"""Largest 8-bit weight. Two products of this with 255 fit into 16 bits."""
SMALLEST = 1e-30
"""Smallest scale: its inverse times any activation is finite."""
X86 = ("AVX2", "AVX512")


def why_not_int8(device: torch.device) -> str | None:
    """What keeps a device from computing with 8-bit layers; None if it can."""
    if device.type != "cpu":
        return f"8-bit layers are computed on a CPU, and this is {device.type}"
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith(X86):
        return f"8-bit layers need an x86 processor with AVX2, and torch uses {capability} here"
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")):
        return "this build of torch has no 8-bit linear layers (oneDNN)"
    return None


class Int8Linear(nn.Module):
    """A linear layer with 8-bit weights and, at run time, 8-bit inputs; it computes outputs in float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scales = (weight.abs().amax(1) / MAX_WEIGHT).clamp_min_(SMALLEST)
        rounded = torch.round(weight / scales.unsqueeze(1))
        self.features = linear.out_features
        self.scales = scales
        self.sums = rounded.sum(1).mul_(scales)
        self.bias = torch.zeros(self.features) if linear.bias is None else linear.bias.detach().float()
        self.zeros = torch.zeros(self.features, dtype=torch.int32)
        self.packed = torch.ops.onednn.qlinear_prepack(rounded.to(torch.int8), None)

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs for inputs [..., features]."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        low = rows.amin(1, keepdim=True)
        scale = rows.amax(1, keepdim=True).sub_(low).div_(LEVELS).clamp_min_(SMALLEST)
        inverse = scale.reciprocal()
        rounded = torch.addcmul((low * inverse).neg_().add_(0.5), rows, inverse).to(torch.uint8)
        products = torch.ops.onednn.qlinear_pointwise(
            rounded, 1.0, 0, self.packed, self.scales, self.zeros, None, 1.0, 0, torch.float32, "none", [], "none"
        )
        # in place: pages of another array of this size would take longer than the additions
        products.addcmul_(low * inverse, self.sums)
        outputs = torch.addcmul(self.bias, products, scale, out=products)
        return outputs.reshape(*inputs.shape[:-1], self.features)


def with_int8_layers(module: Any) -> Any:
    """A copy of a module with 8-bit linear layers; everything else shares memory with the original."""
    parts = [*module.parameters(), *module.buffers()]
    copied = copy.deepcopy(module, {id(part): part for part in parts})
    for parent in list(copied.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, Int8Linear(child))
    return copied.eval()
