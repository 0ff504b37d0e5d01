"""One level of a label tree as a network, and its best nodes.

At the top a level scores all its nodes; below, the children of a few nodes per document. A flat model is one level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.codes.candidates import children_of
from labelwise.encoders.base import Inputs, tensors_of
from labelwise.encoders.batches import batches_by_length
from labelwise.encoders.recurrent import RecurrentEncoder
from labelwise.heads.flat import FlatHead, Targets, exact_topk
from labelwise.heads.label_attention import Attended, LabelAttention
from labelwise.heads.losses import label_shares
from labelwise.progress import progress
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

LENGTH_AT_ONCE = 16_384
"""Words that go through a network together when it predicts."""
SCORES_AT_ONCE = 1 << 24
"""Documents x nodes that are scored together when it predicts: short texts would be many."""


@dataclass(frozen=True)
class Parents:
    """Nodes of the level above whose children are scored.

    Parameters
    ----------
    nodes, scores
        [documents, ranks]: their ids (-1 where there is none) and probabilities.
    offsets
        Node n has the children from ``offsets[n]`` to ``offsets[n + 1]``.
    child_ids
        The id of each child that decides between equal scores, the lower first; None: its number.
    """

    nodes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray
    child_ids: np.ndarray | None = None

    def of(self, documents: np.ndarray) -> Parents:
        """Those of some documents."""
        return Parents(self.nodes[documents], self.scores[documents], self.offsets, self.child_ids)


class Level(nn.Module):
    """What training and search ask of a level; `inputs` are the arguments of its encoder."""

    @property
    def n_nodes(self) -> int:
        """Nodes in all."""
        raise NotImplementedError

    def start(self, targets: Any, seed: int) -> None:
        """Draw the first weights of the top level; `targets` is CSR [documents, nodes]."""
        raise NotImplementedError

    def start_below(self, above: Any, seed: int) -> None:
        """The same for a level below another, whose weights it takes but for those of the nodes."""
        raise NotImplementedError

    def row_tables(self, has_candidates: bool) -> list[str]:
        """Names of the parameters whose gradients are row-sparse."""
        raise NotImplementedError

    def loss(self, inputs: Sequence[Tensor], wanted: Tensor, candidates: Tensor | None) -> Tensor:
        """The mean loss of a batch; `wanted` is 1 for true nodes, of all or of the candidates."""
        raise NotImplementedError

    def best(self, inputs: Sequence[Tensor], k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """At most k best nodes of each document and their probabilities, times those of their parents."""
        raise NotImplementedError

    def free_memory(self) -> None:
        """Free what is kept for the next batch."""


class AttentionLevel(Level):
    """Recurrent states and label-wise attention."""

    def __init__(self, encoder: RecurrentEncoder, head: LabelAttention) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    @property
    def n_nodes(self) -> int:
        """Nodes in all."""
        return self.head.n_labels

    def start(self, targets: Any, seed: int) -> None:
        """Draw the first weights of the head."""
        self.head.start(seed, label_shares(_counts(targets), targets.shape[0]))

    def start_below(self, above: AttentionLevel, seed: int) -> None:
        """Encoder and output layers begin as those of the level above; a frozen word table is the same for all."""
        frozen = [] if self.encoder.words.requires_grad else ["words"]
        learned = {name: part for name, part in above.encoder.state_dict().items() if name not in frozen}
        self.encoder.load_state_dict(learned, strict=False)
        self.head.start(seed)
        self.head.output.load_state_dict(above.head.output.state_dict())

    def row_tables(self, has_candidates: bool) -> list[str]:
        """The word table if it is learned, and the label vectors where only candidates are scored."""
        return [*_learned_words(self.encoder), *(["head.weight"] if has_candidates else [])]

    def loss(self, inputs: Sequence[Tensor], wanted: Tensor, candidates: Tensor | None) -> Tensor:
        """The mean loss of a batch of packed words."""
        return self.head.loss(self._attended(inputs, candidates), wanted)

    @torch.no_grad()
    def best(self, inputs: Sequence[Tensor], k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The k best nodes of each document and their probabilities, times those of their parents."""
        if parents is None:
            scores = torch.sigmoid(self.head.scores(self._attended(inputs, None)))
            best, nodes = exact_topk(scores, min(k, scores.shape[1]))
            return nodes, best
        children = children_of(parents.nodes, parents.offsets)
        candidates = torch.from_numpy(children).to(inputs[0].device)
        scores = torch.sigmoid(self.head.scores(self._attended(inputs, candidates)))
        above = torch.from_numpy(parents.scores).to(scores.device)
        scores *= above.repeat_interleave(candidates.shape[1] // above.shape[1], 1)
        scores.masked_fill_(candidates == NO_LABEL, -torch.inf)
        if parents.child_ids is not None:
            order = torch.from_numpy(np.argsort(parents.child_ids[children], axis=1, kind="stable")).to(scores.device)
            scores, candidates = scores.gather(1, order), candidates.gather(1, order)
        best, columns = exact_topk(scores, min(k, scores.shape[1]))
        return candidates.gather(1, columns), best

    def free_memory(self) -> None:
        """Free what is kept for the next batch."""
        self.encoder.pool.clear()
        self.head.pool.clear()

    def _attended(self, inputs: Sequence[Tensor], candidates: Tensor | None) -> Attended:
        ids, lengths = inputs
        sizes = lengths.cpu()
        return Attended(self.encoder(ids, sizes), sizes, candidates)


class PooledLevel(Level):
    """Recurrent states, their mean, and one linear output per label: the plain baseline. It has no candidates."""

    def __init__(self, encoder: RecurrentEncoder, head: FlatHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    @property
    def n_nodes(self) -> int:
        """Labels."""
        return self.head.n_labels

    def start(self, targets: Any, seed: int) -> None:
        """Draw the first weights of the head."""
        self.head.start(_counts(targets), targets.shape[0], seed)

    def row_tables(self, has_candidates: bool) -> list[str]:
        """The word table if it is learned."""
        return _learned_words(self.encoder)

    def loss(self, inputs: Sequence[Tensor], wanted: Tensor, candidates: Tensor | None) -> Tensor:
        """The mean loss of a batch of packed words."""
        labels, documents = torch.nonzero(wanted.T, as_tuple=True)
        return self.head.loss(self._vectors(inputs), Targets(documents, labels))

    @torch.no_grad()
    def best(self, inputs: Sequence[Tensor], k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The k best labels of each document and their probabilities."""
        found, best = self.head.best(self._vectors(inputs), min(k, self.n_nodes))
        return found, torch.sigmoid(best)

    def free_memory(self) -> None:
        """Free what is kept for the next batch."""
        self.encoder.pool.clear()

    def _vectors(self, inputs: Sequence[Tensor]) -> Tensor:
        """The mean state of each document."""
        ids, lengths = inputs
        sizes = lengths.cpu()
        return self.encoder(ids, sizes).sum(1) / sizes[:, None].to(ids.device)


def _counts(targets: Any) -> np.ndarray:
    return np.bincount(targets.indices, minlength=targets.shape[1])


def _learned_words(encoder: RecurrentEncoder) -> list[str]:
    return ["encoder.words"] if encoder.words.requires_grad else []


def best_nodes(level: Level, inputs: Inputs, k: int, parents: Parents | None, what: str) -> TopK:
    """The k best nodes of each document, by score and then by id; empty places where there are fewer."""
    ids = np.full((len(inputs), k), NO_LABEL, np.int32)
    scores = np.full((len(inputs), k), -np.inf, np.float32)
    device = next(level.parameters()).device
    most = max(1, SCORES_AT_ONCE // level.n_nodes) if parents is None else None
    with progress(what, len(inputs)) as step:
        for documents in batches_by_length(inputs.lengths, LENGTH_AT_ONCE, most):
            batch = inputs.batch(documents)
            own = None if parents is None else parents.of(batch.rows)
            found, best = level.best(tensors_of(batch, device), k, own)
            count = found.shape[1]
            ids[batch.rows, :count], scores[batch.rows, :count] = found.cpu().numpy(), best.cpu().numpy()
            step(len(documents))
    ids[~np.isfinite(scores)] = NO_LABEL  # a model that has diverged predicts nothing
    scores[ids == NO_LABEL] = -np.inf
    return sorted_by_score(ids, scores)
