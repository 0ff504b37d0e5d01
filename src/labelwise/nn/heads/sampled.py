"""Heads with one output per label that are trained against a sample of the labels: `Sampling`, and `Margin` for faces.

Sampling is the MHS of multi-head encoding (Multi-Head Encoding for Extreme Label Classification, Liang et al., TPAMI
2025). The first digit of a label is its group; a step computes scores, loss and gradients for the labels of a few
groups only, and gradients have only their rows. It is a block-sampled softmax; with all groups it is the full one.
Prediction and validation score all labels, in blocks: parameters and the cost of prediction are those of one output per
label.

Margins are ArcFace and CosFace, over all classes, sampled classes or sampled groups of classes. A class is a vector;
its score is the cosine with the image's vector times a scale. In training the cosine of the right class is made smaller
by a margin, so that classes end up further apart than a softmax needs. Everything is computed in float32. Predictions
are cosines, without a margin.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from labelwise.labelspace.digits import DigitCode, balanced_radices, make_code
from labelwise.nn.config import DigitHeadConfig, MarginConfig
from labelwise.nn.heads.base import Head, Targets
from labelwise.nn.heads.linear import Cosines, Outputs, Sample, best_of_blocks, softmax_loss
from labelwise.nn.heads.sharding import ShardedRows
from labelwise.runtime.ranks import current_share, is_distributed, rows_of_share

# --- group sampling ---
# Which groups of labels a step of sampled softmax is trained against.
#
# Groups of the labels themselves always take part; others are drawn uniformly without replacement. A drawn group takes
# part with a known probability q; adding -log q to its scores makes the sum of exponentials an unbiased estimate of
# that over all labels. Groups that take part in any case have q = 1.

USUAL_GROUPS = 10
"""Groups of a step when the config has no number of them."""
SAME_FOR_ALL = ("batch", "B1")
"""Negatives with which all documents of a batch have the same groups."""


class GroupSampler(nn.Module):
    """Draws the labels of a step: groups are the values of the first digit of a code.

    Parameters
    ----------
    code
        The digits of the labels.
    config
        Which groups are drawn, and how many.
    """

    group_of: Tensor
    label_at: Tensor | None

    def __init__(self, code: DigitCode, config: DigitHeadConfig) -> None:
        super().__init__()
        self.code, self.config, self.n_groups = code, config, code.n_nodes(0)
        self.count = min(config.sampled_groups or USUAL_GROUPS, self.n_groups)
        if config.sampled_fraction is not None:
            self.count = max(1, round(config.sampled_fraction * self.n_groups))
        self.register_buffer("group_of", torch.from_numpy(code.node_of(0)), persistent=False)
        order = None if code.label_at is None else torch.from_numpy(code.label_at.astype(np.int64))
        self.register_buffer("label_at", order, persistent=False)

    def sample(self, targets: Targets, n_documents: int) -> Sample:
        """The labels that a step is trained against, from torch's global random state."""
        groups, offsets = self.draw(targets.documents, self.group_of[targets.labels], n_documents)
        rows, columns = self.labels_of(groups)
        return Sample(rows, columns, offsets)

    def labels_of(self, groups: Tensor) -> tuple[Tensor, Tensor]:
        """The labels of groups, ascending, and for each the index of its group."""
        size = min(self.code.places[0], self.code.n_labels)  # larger only if there is one group
        codes = (groups[:, None] * size + torch.arange(size, device=groups.device)).ravel()
        columns = torch.arange(len(groups), device=groups.device).repeat_interleave(size)
        inside = codes < self.code.n_labels
        codes, columns = codes[inside], columns[inside]
        if self.label_at is None:
            return codes, columns
        labels, order = self.label_at[codes].sort()
        return labels, columns[order]

    def draw(self, documents: Tensor, groups: Tensor, n_documents: int) -> tuple[Tensor, Tensor | None]:
        """The groups of a batch, ascending, and offsets [documents, groups] of their scores; None: all 0.

        `documents` and `groups` are those of the documents' labels as pairs; pairs may occur several times.
        """
        if self.config.negatives in SAME_FOR_ALL:
            return self._for_batch(groups)
        return self._for_documents(documents, groups, n_documents)

    def _for_batch(self, groups: Tensor) -> tuple[Tensor, Tensor | None]:
        own = _of_all_ranks(groups, self.n_groups)
        drawn = self.count - len(own)
        if drawn <= 0 or self.config.negatives == "B1":
            return own, None
        keys = torch.rand(self.n_groups, device=groups.device)
        if is_distributed():
            distributed.broadcast(keys, 0)
        keys[own] = torch.inf
        others = keys.topk(drawn, largest=False, sorted=False).indices
        chosen, order = torch.cat([own, others]).sort()
        if not self.config.log_q:
            return chosen, None
        offsets = torch.zeros(len(chosen), device=groups.device)
        offsets[order >= len(own)] = -torch.log(torch.tensor(drawn / (self.n_groups - len(own))))
        return chosen, offsets[None]

    def _for_documents(self, documents: Tensor, groups: Tensor, n_documents: int) -> tuple[Tensor, Tensor]:
        """With `document` at least `count` groups for each document; V0: its own ones; V2: one random group more."""
        n_groups, negatives = self.n_groups, self.config.negatives
        own = torch.zeros(n_documents, n_groups, dtype=torch.bool, device=groups.device)
        own[documents, groups] = True
        n_own = own.sum(1, keepdim=True)
        if negatives == "document":
            total = n_own.clamp_min(self.count)
        else:
            total = n_own if negatives == "V0" else (n_own + 1).clamp_max(n_groups)
        share = current_share()
        keys = torch.rand(n_documents if share is None else share.total, n_groups, device=groups.device)
        keys = rows_of_share(keys, n_documents).masked_fill(own, -1.0)
        ranks = torch.empty_like(keys, dtype=torch.long)
        ranks.scatter_(1, keys.argsort(1), torch.arange(n_groups, device=groups.device).expand_as(ranks))
        member = ranks < total
        chosen = torch.nonzero(member.any(0)).squeeze(1)
        offsets = torch.zeros(n_documents, n_groups, device=groups.device)
        if self.config.log_q:
            q = (total - n_own) / (n_groups - n_own).clamp_min(1)
            offsets = torch.where(own, 0.0, -torch.log(q))
        offsets = offsets.masked_fill_(~member, -torch.inf)[:, chosen]
        # a document without groups has no target, but its normaliser has to be finite
        return chosen, offsets.masked_fill_((total == 0).expand_as(offsets), 0.0)


def _of_all_ranks(groups: Tensor, n_groups: int) -> Tensor:
    """The distinct groups of the batches of all ranks, ascending: all ranks train against the same groups."""
    if not is_distributed():
        return torch.unique(groups)
    present = torch.zeros(n_groups, dtype=torch.uint8, device=groups.device)
    present[groups] = 1
    distributed.all_reduce(present, distributed.ReduceOp.MAX)
    return torch.nonzero(present).squeeze(1)


def radices_of(config: DigitHeadConfig, n_labels: int) -> tuple[int, ...]:
    """The radices of a config, near equal unless given."""
    return balanced_radices(n_labels, config.heads) if config.radices is None else config.radices


class Sampling(Outputs):
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

    def __init__(self, width: int, code: DigitCode, config: DigitHeadConfig) -> None:
        super().__init__(width, code.n_labels, config.flat())
        self.sampler = GroupSampler(code, config)
        self.code = code

    def row_tables(self, candidates: bool = False) -> tuple[str, ...]:
        """Weights and biases: gradients have the rows of the sample."""
        return "weight", "bias"

    def loss(self, states: Tensor, targets: Targets, candidates: Tensor | None = None) -> Tensor:
        """The mean loss of the documents: of sampled groups in training, of all labels in evaluation."""
        vectors = self.dropout(states)
        sample = self.sampler.sample(targets, len(vectors)) if self.training else None
        if sample is not None and self.shard is None and len(sample.rows) == 0:
            return vectors.sum() * 0.0
        return softmax_loss(self, vectors, targets, sample)

    @property
    def can_be_sharded(self) -> bool:
        """Not with groups for each document, whose offsets other ranks do not have."""
        return self.sampler.config.negatives in SAME_FOR_ALL


# --- margins ---

MARGIN_STD = 0.01
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


class Margin(Head, ShardedRows):
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
        self.weight, self.bias = nn.Parameter(torch.empty(n_labels, width)), None

    @property
    def can_be_sharded(self) -> bool:
        """Not with groups for each document, whose offsets other ranks do not have."""
        return self.config.negatives in SAME_FOR_ALL

    @torch.no_grad()
    def initialise(self, counts: np.ndarray, n_documents: int, seed: int) -> Self:
        """Draw the initial weights, and assign classes to groups; a sampled class is a group of its own."""
        n_labels, config = len(counts), self.config
        if config.sampling == "classes":
            settings = DigitHeadConfig(kind="sampling", sampled_fraction=config.sample_rate)
            self.sampler = GroupSampler(DigitCode((n_labels, 1), n_labels), settings)
        elif config.sampling == "groups":
            settings = config.group_settings()
            code = make_code(radices_of(settings, n_labels), n_labels, settings.order, counts, seed)
            self.sampler = GroupSampler(code, settings)
        self.weight.normal_(0, MARGIN_STD, generator=torch.Generator().manual_seed(seed))
        return self

    def row_tables(self, candidates: bool = False) -> tuple[str, ...]:
        """The classes' vectors, unless all take part."""
        return () if self.config.sampling == "all" else ("weight",)

    def loss(self, states: Tensor, targets: Targets, candidates: Tensor | None = None) -> Tensor:
        """The mean loss of the images: against sampled classes in training, against all in evaluation."""
        sample = None if self.sampler is None or not self.training else self.sampler.sample(targets, len(states))
        margin = partial(arcface if self.config.kind == "arcface" else cosface, margin=self.config.size)
        with torch.autocast(states.device.type, enabled=False):
            unit = functional.normalize(states.to(self.weight.dtype))
            return softmax_loss(self, unit, targets, sample, Cosines(self.config.scale, margin))

    @torch.no_grad()
    def best(self, states: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Ids and cosines of the k nearest classes."""
        unit = functional.normalize(states.to(self.weight.dtype))
        return best_of_blocks(self, unit, k, unit_rows=True)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Cosines, mapped from [-1, 1] to [0, 1]: comparable between images, and low for people without a class."""
        return ((1.0 + scores) / 2.0).clamp(0.0, 1.0)
