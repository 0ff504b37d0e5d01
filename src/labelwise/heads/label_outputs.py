"""From a label's view of a document (a vector) to its score: one small network for all labels, or weights per label.

Both work block by block with an explicit backward pass, like the attention that calls them: gradients are accumulated
while a block is in the cache, and nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.encoders.buffers import Buffers


class SharedOutput(nn.Module):
    """The same layers for all labels, with ReLU between them; the last has one output.

    Parameters
    ----------
    width
        Dimension of a view.
    hidden
        Widths of the hidden layers; without any, the output is linear.
    """

    def __init__(self, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        sizes = [width, *hidden, 1]
        self.weights = nn.ParameterList(torch.empty(after, before) for before, after in pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(after) for after in sizes[1:])

    @torch.no_grad()
    def initialise(self, priors: Any, generator: torch.Generator) -> None:
        """Draw the initial weights; the last bias is the log-odds of the mean prior."""
        for weight in self.weights:
            nn.init.xavier_uniform_(weight, generator=generator)
        for bias in self.biases:
            bias.zero_()
        prior = min(max(float(priors.mean()), 1e-6), 0.5)
        self.biases[-1].fill_(torch.logit(torch.tensor(prior)).item())

    def forward(self, views: Tensor) -> Tensor:
        """Scores [...] of views [..., width], with autograd, for explanations."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            views = torch.relu(nn.functional.linear(views, weight, bias))
        return nn.functional.linear(views, self.weights[-1], self.biases[-1]).squeeze(-1)

    def tensors(self) -> list[Tensor]:
        """All parameters, in the order of `sums` in `block_backward`."""
        return [*self.weights, *self.biases]

    @staticmethod
    def block_forward(tensors: Sequence[Tensor], views: Tensor, labels: slice, buffers: Buffers) -> tuple[Tensor, Any]:
        """Scores [documents, labels] of views [documents, labels, width], and what `block_backward` needs."""
        count = len(tensors) // 2
        kept, layer = [], views.flatten(0, 1)
        for depth in range(count - 1):
            weight, bias = tensors[depth], tensors[count + depth]
            kept.append(layer)
            layer = torch.addmm(bias, layer, weight.T, out=buffers.get(f"layer {depth}", len(layer), len(weight)))
            layer.relu_()
        kept.append(layer)
        return (layer @ tensors[count - 1][0] + tensors[-1]).view(views.shape[:2]), kept

    @staticmethod
    def block_backward(
        tensors: Sequence[Tensor], sums: Sequence[Tensor], gradients: Tensor, kept: Any, labels: slice, buffers: Buffers
    ) -> Tensor:
        """Add the parameters' gradients to `sums`; returns the gradient of the views [documents, labels, width]."""
        count, flat = len(tensors) // 2, gradients.reshape(-1)
        sums[count - 1][0].addmv_(kept[-1].T, flat)
        sums[-1].add_(flat.sum())
        back = torch.outer(flat, tensors[count - 1][0], out=buffers.get(f"back {count - 1}", *kept[-1].shape))
        for depth in range(count - 2, -1, -1):
            back = torch.ops.aten.threshold_backward.grad_input(back, kept[depth + 1], 0, grad_input=back)
            sums[depth].addmm_(back.T, kept[depth])
            sums[count + depth].add_(back.sum(0))
            back = torch.mm(back, tensors[depth], out=buffers.get(f"back {depth}", *kept[depth].shape))
        return back.view(*gradients.shape, -1)


class LabelOutput(nn.Module):
    """Weights and a bias per label."""

    def __init__(self, width: int, n_labels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_labels, width))
        self.bias = nn.Parameter(torch.zeros(n_labels))

    @torch.no_grad()
    def initialise(self, priors: Any, generator: torch.Generator) -> None:
        """Draw the initial weights; biases are the log-odds of the labels' priors."""
        nn.init.xavier_uniform_(self.weight, generator=generator)
        self.bias.copy_(torch.logit(torch.as_tensor(priors).clamp(1e-6, 0.5)))

    def forward(self, views: Tensor, labels: Tensor) -> Tensor:
        """Scores of views [..., width] of the given labels [...]."""
        return (views * self.weight[labels]).sum(-1) + self.bias[labels]

    def tensors(self) -> list[Tensor]:
        """All parameters."""
        return [self.weight, self.bias]

    @staticmethod
    def block_forward(tensors: Sequence[Tensor], views: Tensor, labels: slice, buffers: Buffers) -> tuple[Tensor, Any]:
        """As in `SharedOutput`."""
        products = torch.mul(views, tensors[0][labels], out=buffers.get("products", *views.shape))
        return products.sum(-1) + tensors[1][labels], views

    @staticmethod
    def block_backward(
        tensors: Sequence[Tensor], sums: Sequence[Tensor], gradients: Tensor, kept: Any, labels: slice, buffers: Buffers
    ) -> Tensor:
        """As in `SharedOutput`."""
        scaled = torch.mul(kept, gradients[..., None], out=buffers.get("products", *kept.shape))
        sums[0][labels] += scaled.sum(0)
        sums[1][labels] += gradients.sum(0)
        return torch.mul(gradients[..., None], tensors[0][labels], out=buffers.get("products", *kept.shape))
