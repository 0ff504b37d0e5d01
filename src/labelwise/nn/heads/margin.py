"""Heads with margins for faces: ArcFace and CosFace, over all classes, sampled classes or sampled groups of classes.

A class is a vector; its score is the cosine with the image's vector times a scale. In training the cosine of the right
class is made smaller by a margin, so that classes end up further apart than a softmax needs. With sampling, a step
computes scores and gradients of a part of the classes only, and gradients have only their rows. Everything is computed
in float32, blocks of classes at a time. Predictions are cosines, without a margin.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from labelwise.labelspace.digits import DigitCode, make_code
from labelwise.nn.config import MarginConfig
from labelwise.nn.heads.base import LabelHead, Targets
from labelwise.nn.heads.linear import Cosines, Mass, best_of_blocks, blocked_softmax, softmax_of_shards
from labelwise.nn.heads.make_head import radices_of
from labelwise.nn.heads.sampled import GroupSampler, groups_per_step
from labelwise.nn.heads.sharding import ShardedRows, whole_batch

INITIAL_STD = 0.01
"""Standard deviation of initial weights; only their directions matter."""
SMALLEST_SINE = 1e-3
"""The derivative of ArcFace's margin divides by the sine of the angle."""


def arcface(cosines: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """cos(angle + margin) and its derivative; beyond an angle of pi - margin a line that continues to fall."""
    cosines = cosines.clamp(-1.0, 1.0)
    sines = torch.sqrt((1.0 - cosines.square()).clamp_min(SMALLEST_SINE**2))
    values = cosines * math.cos(margin) - sines * math.sin(margin)
    derivatives = math.cos(margin) + cosines / sines * math.sin(margin)
    inside = cosines > math.cos(math.pi - margin)
    line = cosines - margin * math.sin(math.pi - margin)
    return torch.where(inside, values, line), torch.where(inside, derivatives, torch.ones_like(line))


def cosface(cosines: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """The cosine minus the margin, and its derivative."""
    return cosines.clamp(-1.0, 1.0) - margin, torch.ones_like(cosines)


def make_sampler(config: MarginConfig, counts: np.ndarray, seed: int) -> GroupSampler | None:
    """What draws the classes of a step; None for all classes. A sampled class is a group of its own."""
    n_labels = len(counts)
    if config.sampling == "all":
        return None
    if config.sampling == "classes":
        return GroupSampler(DigitCode((n_labels, 1), n_labels), "batch", max(1, round(config.sample_rate * n_labels)))
    settings = config.group_settings()
    code = make_code(radices_of(settings, n_labels), n_labels, settings.order, counts, seed)
    return GroupSampler(code, settings.negatives, groups_per_step(settings, code.n_nodes(0)))


class MarginHead(LabelHead, ShardedRows):
    """One vector per class.

    Parameters
    ----------
    width
        Dimension of the images' vectors.
    n_labels
        Number of classes.
    config
        Margin and sampling.

    `initialise` makes what draws the classes of a step; a head that only predicts has none.
    """

    def __init__(self, width: int, n_labels: int, config: MarginConfig) -> None:
        super().__init__(n_labels)
        self.config = config
        self.sampler: GroupSampler | None = None
        self.row_tables = () if config.sampling == "all" else ("weight",)
        self.weight = nn.Parameter(torch.empty(n_labels, width))

    @property
    def can_be_sharded(self) -> bool:
        """Not with groups for each document, whose offsets other ranks do not have."""
        return self.config.sampling != "groups" or self.config.group_settings().negatives in ("batch", "B1")

    @torch.no_grad()
    def initialise(self, counts: np.ndarray, n_documents: int, seed: int) -> Self:
        """Draw the initial weights, and assign classes to groups."""
        self.sampler = make_sampler(self.config, counts, seed)
        self.weight.normal_(0, INITIAL_STD, generator=torch.Generator().manual_seed(seed))
        return self

    def loss(self, vectors: Tensor, targets: Targets) -> Tensor:
        """The mean loss of the images: against sampled classes in training, against all in evaluation."""
        sample = None if self.sampler is None or not self.training else self.sampler.sample(targets, len(vectors))
        with torch.autocast(vectors.device.type, enabled=False):
            unit = functional.normalize(vectors.to(self.weight.dtype))
            if self.shard is not None:
                batch, block = whole_batch(unit, targets), self.config.block
                return softmax_of_shards(unit, self.weight, None, batch, self.shard, block, sample, self._cosines())
            masses = targets.masses(len(vectors))
            columns = targets.labels if sample is None else torch.searchsorted(sample.rows, targets.labels)
            mass = Mass(targets.documents, columns, masses)
            return blocked_softmax(unit, self.weight, None, mass, self.config.block, sample, self._cosines())

    def _cosines(self) -> Cosines:
        function, size = (arcface if self.config.kind == "arcface" else cosface), self.config.size
        return Cosines(self.config.scale, lambda cosines: function(cosines, size))

    @torch.no_grad()
    def best(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Ids and cosines of the k nearest classes."""
        unit = functional.normalize(vectors.to(self.weight.dtype))
        return best_of_blocks(unit, self.weight, None, k, self.config.block, unit_rows=True, shard=self.shard)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Cosines, mapped from [-1, 1] to [0, 1]: comparable between images, and low for people without a class."""
        return ((1.0 + scores) / 2.0).clamp(0.0, 1.0)
