"""One level of a label tree as a network: words to states, states to scores of nodes, and what the loop needs of it.

At the top a level scores all its nodes; below, the children of a few nodes a document. A flat model is one level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.codes.candidates import children_of, wanted_among
from labelwise.encoders.embed import batches_by_length
from labelwise.encoders.recurrent import RecurrentEncoder
from labelwise.encoders.words import WordTokens
from labelwise.heads.flat import FlatHead, Targets, exact_topk
from labelwise.heads.label_attention import Attended, LabelAttention
from labelwise.progress import progress
from labelwise.topk import NOTHING, TopK
from labelwise.training.batching import training_batches
from labelwise.training.checkpoint import fingerprint
from labelwise.training.settings import TrainingConfig
from labelwise.training.validation import validated_metrics, validation_numbers

TOKENS_AT_ONCE = 16_384
"""Words that go through a network together when it predicts."""
SCORES_AT_ONCE = 1 << 24
"""Documents x nodes that are scored together when it predicts: short texts would be many."""

Batch = tuple[Tensor, ...]


class AttentionLevel(nn.Module):
    """Recurrent states and label-wise attention."""

    def __init__(self, encoder: RecurrentEncoder, head: LabelAttention) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def free_memory(self) -> None:
        """Give back what is kept for the next batch."""
        self.encoder.rooms.clear()
        self.head.rooms.clear()

    def loss(self, ids: Tensor, lengths: Tensor, wanted: Tensor, candidates: Tensor | None = None) -> Tensor:
        """The mean loss of a batch of packed words."""
        sizes = lengths.cpu()
        return self.head.loss(Attended(self.encoder(ids, sizes), sizes, candidates), wanted)

    @torch.no_grad()
    def best(self, ids: Tensor, lengths: Tensor, k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The k best nodes of each document and their probabilities, times those of the nodes above them."""
        candidates = None
        if parents is not None:
            candidates = torch.from_numpy(children_of(parents.nodes, parents.offsets)).to(ids.device)
        scores = torch.sigmoid(self.head.scores(Attended(self.encoder(ids, lengths), lengths, candidates)))
        if parents is not None and candidates is not None:
            above = torch.from_numpy(parents.scores).to(scores.device)
            scores *= above.repeat_interleave(candidates.shape[1] // above.shape[1], 1)
            scores.masked_fill_(candidates == NOTHING, -torch.inf)
        best, places = exact_topk(scores, min(k, scores.shape[1]))
        found = places if candidates is None else candidates.gather(1, places)
        return found, best


class PooledLevel(nn.Module):
    """Recurrent states, their mean, and one linear output a label: the plain baseline. It has no candidates."""

    def __init__(self, encoder: RecurrentEncoder, head: FlatHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def free_memory(self) -> None:
        """Give back what is kept for the next batch."""
        self.encoder.rooms.clear()

    def vectors(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The mean state of each document."""
        return self.encoder(ids, lengths).sum(1) / lengths[:, None].to(ids.device)

    def loss(self, ids: Tensor, lengths: Tensor, wanted: Tensor) -> Tensor:
        """The mean loss of a batch of packed words."""
        labels, documents = torch.nonzero(wanted.T, as_tuple=True)
        return self.head.loss(self.vectors(ids, lengths.cpu()), Targets(documents, labels))

    @torch.no_grad()
    def best(self, ids: Tensor, lengths: Tensor, k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The k best labels of each document and their probabilities."""
        found, best = self.head.best(self.vectors(ids, lengths), min(k, self.head.n_labels))
        return found, torch.sigmoid(best)


Level = AttentionLevel | PooledLevel


@dataclass(frozen=True)
class Parents:
    """Nodes of the level above that documents look below: ids and scores [documents, places], and all children."""

    nodes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray

    def of(self, documents: np.ndarray) -> Parents:
        """Those of some documents."""
        return Parents(self.nodes[documents], self.scores[documents], self.offsets)


def best_nodes(level: Level, tokens: WordTokens, k: int, parents: Parents | None, what: str) -> TopK:
    """The k best nodes of each document, by score and then by id; empty places where there are fewer."""
    ids = np.full((len(tokens), k), NOTHING, np.int32)
    scores = np.full((len(tokens), k), -np.inf, np.float32)
    device = next(level.parameters()).device
    most = max(1, SCORES_AT_ONCE // level.head.n_labels) if parents is None else None
    with progress(what, len(tokens)) as step:
        for documents in batches_by_length(tokens.lengths, TOKENS_AT_ONCE, most):
            batch = tokens.batch(documents)
            own = None if parents is None else parents.of(batch.documents)
            found, best = level.best(torch.from_numpy(batch.ids).to(device), torch.from_numpy(batch.lengths), k, own)
            places = found.shape[1]
            ids[batch.documents, :places], scores[batch.documents, :places] = found.cpu().numpy(), best.cpu().numpy()
            step(len(documents))
    ids[~np.isfinite(scores)] = NOTHING  # of a model that has diverged nothing is offered
    scores[ids == NOTHING] = -np.inf
    order = np.lexsort((np.where(ids == NOTHING, np.iinfo(np.int32).max, ids), -scores), axis=1)
    return TopK(np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1))


@dataclass(frozen=True)
class LevelPart:
    """Documents of one part of the data as a level sees them."""

    tokens: WordTokens
    targets: Any
    """CSR [documents, nodes], columns sorted; may have columns at the end that the level does not know."""
    parents: Parents | None = None
    """Nodes above: to learn from in the training part, as predicted in the held-out one. None at the top."""


class LevelFitting:
    """What the loop needs of a level."""

    def __init__(self, level: Level, train: LevelPart, valid: LevelPart | None, config: TrainingConfig) -> None:
        self.level, self.train, self.valid, self.config = level, train, valid, config
        self.lengths = train.tokens.lengths

    @property
    def module(self) -> nn.Module:
        """The level itself."""
        return self.level

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Documents of like length."""
        return training_batches(self.lengths, self.config, epoch)

    def load(self, item: np.ndarray) -> Batch:
        """Packed words, lengths, what is true, and below the top which nodes are looked at."""
        batch = self.train.tokens.batch(item)
        targets, parents = self.train.targets, self.train.parents
        words = torch.from_numpy(batch.ids), torch.from_numpy(batch.lengths)
        if parents is None:
            picked = targets[batch.documents]
            wanted = np.zeros(picked.shape, np.float32)
            wanted[np.repeat(np.arange(len(item)), np.diff(picked.indptr)), picked.indices] = 1
            return *words, torch.from_numpy(wanted)
        candidates = children_of(parents.nodes[batch.documents], parents.offsets)
        wanted = wanted_among(candidates, targets, batch.documents)
        return *words, torch.from_numpy(wanted), torch.from_numpy(candidates)

    def loss(self, batch: Batch) -> Tensor:
        """The mean loss."""
        return self.level.loss(*batch)

    def validate(self) -> dict[str, float]:
        """Precision and nDCG on the held-out documents."""
        if self.valid is None or len(self.valid.tokens) == 0:
            return {}
        metrics, k = validated_metrics(self.config.metric)
        top = best_nodes(self.level, self.valid.tokens, k, self.valid.parents, "validating")
        return validation_numbers(top, self.valid.targets, metrics, self.train.targets)

    def identity(self) -> str:
        """A hash of all that is learned from, and of what decides which weights are best."""
        return fingerprint(*(_identity(part) for part in (self.train, self.valid) if part is not None))


def _identity(part: LevelPart) -> str:
    tokens, targets, parents = part.tokens, part.targets, part.parents
    arrays = [tokens.ids, tokens.starts, targets.indptr, targets.indices]
    if parents is not None:
        arrays += [parents.nodes, parents.scores, parents.offsets]
    return fingerprint(*arrays, list(targets.shape))
