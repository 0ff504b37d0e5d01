"""Sampling head of multi-head encoding (MHS): an output per label, trained against the labels of some groups.

Multi-Head Encoding for Extreme Label Classification, Liang et al., TPAMI 2025. The first digit of a label is its group;
a step computes scores, loss and gradients for the labels of a few groups only, and gradients have only their rows. It
is a block-sampled softmax; with all groups it is the full one. Prediction and validation score all labels, in blocks:
parameters and the cost of prediction are those of one output per label.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.codes.digits import DigitCode
from labelwise.heads.base import LinearHead, Targets
from labelwise.heads.blocked_softmax import Mass, Sample, blocked_softmax, softmax_of_shards
from labelwise.heads.digit_config import DigitHeadConfig
from labelwise.heads.flat import best_of_blocks
from labelwise.heads.group_sampling import GroupSampler
from labelwise.heads.losses import softmax_constant_loss, softmax_constants
from labelwise.heads.sharding import ShardedRows, whole_batch

USUAL_GROUPS = 10
"""Groups of a step when the config has no number of them."""


def groups_per_step(config: DigitHeadConfig, n_groups: int) -> int:
    """Groups of a step, with those of the labels."""
    if config.sampled_fraction is not None:
        return max(1, round(config.sampled_fraction * n_groups))
    return min(config.sampled_groups or USUAL_GROUPS, n_groups)


class SamplingHead(LinearHead, ShardedRows):
    """An output per label and a group of labels per value of the first digit.

    Parameters
    ----------
    width
        Dimension of a vector.
    code
        The digits of the labels; groups are the values of the first one.
    config
        Settings.
    """

    row_tables = ("weight", "bias")
    sharded_tables = ("weight", "bias")
    config: DigitHeadConfig

    def __init__(self, width: int, code: DigitCode, config: DigitHeadConfig) -> None:
        super().__init__(width, code.n_labels, code.n_labels, config)
        self.sampler = GroupSampler(code, config.negatives, groups_per_step(config, code.n_nodes(0)), config.log_q)
        self.code = code

    def _constants(self, counts: np.ndarray, n_documents: int) -> np.ndarray:
        return softmax_constants(counts, n_documents)

    def loss(self, vectors: Tensor, targets: Targets) -> Tensor:
        """The mean loss of the documents: of sampled groups in training, of all labels in evaluation."""
        vectors, masses = self.dropout(vectors), targets.masses(len(vectors))
        if self.shard is not None:
            sample = self.sample(targets, len(vectors)) if self.training else None
            batch, block = whole_batch(vectors, targets), self.config.block
            return softmax_of_shards(vectors, self.weight, self.bias, batch, self.shard, block, sample)
        if not self.training:
            mass = Mass(targets.documents, targets.labels, masses)
            return blocked_softmax(vectors, self.weight, self.bias, mass, self.config.block)
        sample = self.sample(targets, len(vectors))
        if len(sample.rows) == 0:
            return vectors.sum() * 0.0
        mass = Mass(targets.documents, torch.searchsorted(sample.rows, targets.labels), masses)
        return blocked_softmax(vectors, self.weight, self.bias, mass, self.config.block, sample)

    @property
    def can_be_sharded(self) -> bool:
        """Not with groups for each document, whose offsets other ranks do not have."""
        return self.config.negatives in ("batch", "B1")

    def sample(self, targets: Targets, n_documents: int) -> Sample:
        """The labels that a step is trained against."""
        return self.sampler.sample(targets, n_documents)

    def best(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Ids and log-probabilities of the k best labels, of all labels block by block."""
        return best_of_blocks(vectors, self.weight, self.bias, k, self.config.block, normalise=True, shard=self.shard)

    def probabilities(self, scores: Tensor) -> Tensor:
        """The exponential of log-probabilities."""
        return torch.exp(scores)

    def constant_loss(self, labels: Any, rows: np.ndarray) -> float:
        """The lowest mean loss over all labels of `rows` with scores that are equal for all documents."""
        constants = self._constants(np.bincount(labels.indices, minlength=self.n_labels), labels.shape[0])
        return softmax_constant_loss(constants, labels[rows])
