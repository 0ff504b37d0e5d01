"""One level of a label tree as a network, and its best nodes.

The top level scores all its nodes; lower levels the children of a few nodes per document. A flat model is one level.
"""

from __future__ import annotations

import time
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
from labelwise.heads.base import Targets
from labelwise.heads.flat import FlatHead, exact_topk
from labelwise.heads.label_attention import AttentionInputs, LabelAttention
from labelwise.heads.losses import label_priors
from labelwise.progress import progress
from labelwise.time_budget import check_pace
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

LENGTH_AT_ONCE = 16_384
"""Words per batch in prediction, padding included."""
SCORES_AT_ONCE = 1 << 24
"""Documents x nodes per batch in prediction: batches of short texts have many documents."""


@dataclass(frozen=True)
class Parents:
    """Parent nodes whose children are scored.

    Parameters
    ----------
    nodes, scores
        [documents, ranks]: their ids (-1 where there is none) and probabilities.
    offsets
        Node n has the children from ``offsets[n]`` to ``offsets[n + 1]``.
    child_ids
        Ids of the children, which break ties (lower first); None: their indices.
    """

    nodes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray
    child_ids: np.ndarray | None = None

    def of(self, documents: np.ndarray) -> Parents:
        """The parents of some documents."""
        return Parents(self.nodes[documents], self.scores[documents], self.offsets, self.child_ids)


class Level(nn.Module):
    """Interface of a level for training and search; `inputs` are the arguments of its encoder."""

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        raise NotImplementedError

    def initialise(self, targets: Any, seed: int) -> None:
        """Draw the initial weights of the top level; `targets` is CSR [documents, nodes]."""
        raise NotImplementedError

    def initialise_from(self, above: Any, seed: int) -> None:
        """Copy all weights from the level above, except those of the nodes, which are drawn."""
        raise NotImplementedError

    def row_tables(self, has_candidates: bool) -> list[str]:
        """Names of the parameters whose gradients are row-sparse."""
        raise NotImplementedError

    def loss(self, inputs: Sequence[Tensor], targets: Tensor, candidates: Tensor | None) -> Tensor:
        """The mean loss of a batch; `targets` is 1 for true nodes, over all nodes or the candidates."""
        raise NotImplementedError

    def best(self, inputs: Sequence[Tensor], k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The best nodes of each document, at most k, and their probabilities times those of their parents."""
        raise NotImplementedError

    def free_memory(self) -> None:
        """Free the buffers that are kept for the next batch."""


class AttentionLevel(Level):
    """Recurrent states and label-wise attention."""

    def __init__(self, encoder: RecurrentEncoder, head: LabelAttention) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return self.head.n_labels

    def initialise(self, targets: Any, seed: int) -> None:
        """Draw the initial weights of the head."""
        self.head.initialise(seed, label_priors(_counts(targets), targets.shape[0]))

    def initialise_from(self, above: AttentionLevel, seed: int) -> None:
        """Copy encoder and output layers from the level above; a frozen word table is shared by all levels."""
        frozen = [] if self.encoder.words.requires_grad else ["words"]
        learned = {name: part for name, part in above.encoder.state_dict().items() if name not in frozen}
        self.encoder.load_state_dict(learned, strict=False)
        self.head.initialise(seed)
        self.head.output.load_state_dict(above.head.output.state_dict())

    def row_tables(self, has_candidates: bool) -> list[str]:
        """The word table if it is trained, and the label vectors if only candidates are scored."""
        return [*_learned_words(self.encoder), *(["head.weight"] if has_candidates else [])]

    def loss(self, inputs: Sequence[Tensor], targets: Tensor, candidates: Tensor | None) -> Tensor:
        """The mean loss of a batch of packed words."""
        return self.head.loss(self._attention_inputs(inputs, candidates), targets)

    @torch.no_grad()
    def best(self, inputs: Sequence[Tensor], k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The k best nodes of each document and their probabilities, times those of their parents."""
        if parents is None:
            scores = torch.sigmoid(self.head.scores(self._attention_inputs(inputs, None)))
            best, nodes = exact_topk(scores, min(k, scores.shape[1]))
            return nodes, best
        children = children_of(parents.nodes, parents.offsets)
        candidates = torch.from_numpy(children).to(inputs[0].device)
        scores = torch.sigmoid(self.head.scores(self._attention_inputs(inputs, candidates)))
        above = torch.from_numpy(parents.scores).to(scores.device)
        scores *= above.repeat_interleave(candidates.shape[1] // above.shape[1], 1)
        scores.masked_fill_(candidates == NO_LABEL, -torch.inf)
        if parents.child_ids is not None:
            order = torch.from_numpy(np.argsort(parents.child_ids[children], axis=1, kind="stable")).to(scores.device)
            scores, candidates = scores.gather(1, order), candidates.gather(1, order)
        best, columns = exact_topk(scores, min(k, scores.shape[1]))
        return candidates.gather(1, columns), best

    def free_memory(self) -> None:
        """Free the buffers that are kept for the next batch."""
        self.encoder.pool.clear()
        self.head.pool.clear()

    def _attention_inputs(self, inputs: Sequence[Tensor], candidates: Tensor | None) -> AttentionInputs:
        ids, lengths = inputs
        sizes = lengths.cpu()
        return AttentionInputs(self.encoder(ids, sizes), sizes, candidates)


class PooledLevel(Level):
    """Recurrent states, their mean, and one linear output per label: a baseline. It scores all labels."""

    def __init__(self, encoder: RecurrentEncoder, head: FlatHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    @property
    def n_nodes(self) -> int:
        """Number of labels."""
        return self.head.n_labels

    def initialise(self, targets: Any, seed: int) -> None:
        """Draw the initial weights of the head."""
        self.head.initialise(_counts(targets), targets.shape[0], seed)

    def row_tables(self, has_candidates: bool) -> list[str]:
        """The word table if it is trained."""
        return _learned_words(self.encoder)

    def loss(self, inputs: Sequence[Tensor], targets: Tensor, candidates: Tensor | None) -> Tensor:
        """The mean loss of a batch of packed words."""
        labels, documents = torch.nonzero(targets.T, as_tuple=True)
        return self.head.loss(self._vectors(inputs), Targets(documents, labels))

    @torch.no_grad()
    def best(self, inputs: Sequence[Tensor], k: int, parents: Parents | None) -> tuple[Tensor, Tensor]:
        """The k best labels of each document and their probabilities."""
        labels, best = self.head.best(self._vectors(inputs), min(k, self.n_nodes))
        return labels, torch.sigmoid(best)

    def free_memory(self) -> None:
        """Free the buffers that are kept for the next batch."""
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
    """The k best nodes of each document, ordered by score and then by id; NO_LABEL where there are fewer."""
    ids = np.full((len(inputs), k), NO_LABEL, np.int32)
    scores = np.full((len(inputs), k), -np.inf, np.float32)
    device = next(level.parameters()).device
    batch_size = max(1, SCORES_AT_ONCE // level.n_nodes) if parents is None else None
    lengths = inputs.lengths
    begin, done, total = time.monotonic(), 0, int(lengths.sum())
    with progress(what, len(inputs)) as step:
        for documents in batches_by_length(lengths, LENGTH_AT_ONCE, batch_size):
            batch = inputs.batch(documents)
            own = None if parents is None else parents.of(batch.rows)
            nodes, best = level.best(tensors_of(batch, device), k, own)
            count = nodes.shape[1]
            ids[batch.rows, :count], scores[batch.rows, :count] = nodes.cpu().numpy(), best.cpu().numpy()
            step(len(documents))
            done += int(lengths[documents].sum())
            check_pace(begin, done, total)
    ids[~np.isfinite(scores)] = NO_LABEL  # a model that has diverged predicts nothing
    scores[ids == NO_LABEL] = -np.inf
    return sorted_by_score(ids, scores)
