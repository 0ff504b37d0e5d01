"""One level of a label tree over an encoder that all levels share: one vector per document, one linear output per node.

The encoder is carried over from level to level, so the levels of a tree hold the same module, with the weights of the
last training. The top level scores all nodes, lower ones the children of a few parents per document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.codes.candidates import children_of
from labelwise.heads.base import Targets
from labelwise.heads.candidates import CandidateHead
from labelwise.heads.config import HeadConfig, LossConfig
from labelwise.heads.flat import FlatHead, exact_topk
from labelwise.networks.levels import Level, Parents
from labelwise.topk import NO_LABEL


class EncoderLevel(Level):
    """An encoder and a head.

    Parameters
    ----------
    encoder
        A module that returns one vector per document; `torch.nn.Identity` for documents that are vectors.
    head
        Of all nodes, or of candidates.
    hinge
        Whether scores are margins, trained by a hinge loss; otherwise they are log-odds.
    weighted
        Whether the values of targets are weights of the loss of true nodes; otherwise the weight is 1.
    """

    def __init__(self, encoder: Any, head: FlatHead | CandidateHead, hinge: bool, weighted: bool) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.head, self.hinge, self.weighted = head, hinge, weighted

    @classmethod
    def new(
        cls, encoder: Any, n_nodes: int, loss: LossConfig, weighted: bool, dropout: float, has_candidates: bool
    ) -> EncoderLevel:
        """A level whose head has no weights yet."""
        if has_candidates:
            head: FlatHead | CandidateHead = CandidateHead(encoder.width, n_nodes, loss, dropout)
        else:
            head = FlatHead(encoder.width, n_nodes, HeadConfig(loss=loss, dropout=dropout))
        return cls(encoder, head, "hinge" in loss.name, weighted)

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return self.head.n_labels

    def initialise(self, targets: Any, seed: int) -> None:
        """Draw the initial weights of the head."""
        if isinstance(self.head, CandidateHead):
            self.head.initialise(seed)
        else:
            counts = np.bincount(targets.indices, minlength=targets.shape[1])[: self.n_nodes]
            self.head.initialise(counts, targets.shape[0], seed)

    @torch.no_grad()
    def initialise_head(self, weight: np.ndarray, bias: np.ndarray) -> None:
        """Copy given weights [nodes, width] and biases."""
        self.head.weight.copy_(torch.from_numpy(weight))
        self.head.bias.copy_(torch.from_numpy(bias))

    def row_tables(self, has_candidates: bool) -> list[str]:
        """Weights and biases of the nodes if only candidates are scored."""
        return ["head.weight", "head.bias"] if has_candidates else []

    def loss(self, inputs: Sequence[Tensor], targets: Tensor, candidates: Tensor | None) -> Tensor:
        """The mean loss of a batch; `targets` is above 0 for true nodes."""
        vectors = self.encoder(*inputs)
        if not self.weighted:
            targets = (targets > 0).to(targets.dtype)
        if candidates is None:
            assert isinstance(self.head, FlatHead)
            nodes, documents = torch.nonzero(targets.T, as_tuple=True)
            return self.head.loss(vectors, Targets(documents, nodes, targets[documents, nodes]))
        assert isinstance(self.head, CandidateHead)
        used = (candidates >= 0).any(0)
        return self.head.loss(vectors, candidates[:, used], targets[:, used])

    @torch.no_grad()
    def best(self, inputs: Sequence[Tensor], k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The k best nodes of each document and their scores between 0 and 1, times those of their parents."""
        vectors = self.encoder(*inputs).float()
        if parents is None:
            assert isinstance(self.head, FlatHead)
            nodes, best = self.head.best(vectors, min(k, self.n_nodes))
            return nodes, self._probabilities(best)
        assert isinstance(self.head, CandidateHead)
        candidates = torch.from_numpy(children_of(parents.nodes, parents.offsets)).to(vectors.device)
        scores = self._probabilities(self.head.scores(vectors, candidates))
        above = torch.from_numpy(parents.scores).to(scores.device)
        scores *= above.repeat_interleave(candidates.shape[1] // above.shape[1], 1)
        scores.masked_fill_(candidates == NO_LABEL, -torch.inf)
        best, columns = exact_topk(scores, min(k, scores.shape[1]))
        return candidates.gather(1, columns), best

    def _probabilities(self, scores: Tensor) -> Tensor:
        """Margins as exp(-max(0, 1 - margin)^3), as the linear trees do; log-odds as probabilities."""
        return torch.exp(-((1 - scores).clamp_min(0) ** 3)) if self.hinge else torch.sigmoid(scores)
