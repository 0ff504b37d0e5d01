"""The networks of the levels of a label tree: an encoder and a head each, and the best nodes of documents.

The top level scores all its nodes; lower levels the children of a few nodes per document. A flat model is one level.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.labelspace.tree import LabelPath, PathStep
from labelwise.nn.config import HeadConfig
from labelwise.nn.encode import TOKENS_AT_ONCE, EncoderHead
from labelwise.nn.heads.attention import Attention, LabelOutput, SharedOutput
from labelwise.nn.heads.base import exact_topk
from labelwise.nn.heads.linear import Outputs
from labelwise.nn.inputs import Inputs, as_tensor, batches_by_length, tensors_of
from labelwise.nn.levels import WORDS, LevelTree
from labelwise.nn.words.recurrent import RecurrentEncoder
from labelwise.nn.words.vocabulary import WordTokens
from labelwise.runtime.budget import NO_LIMIT, Budget
from labelwise.runtime.device import computing_device
from labelwise.runtime.progress import progress
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

LENGTH_AT_ONCE = 16_384
"""Words per batch in prediction, padding included."""
SCORES_AT_ONCE = 1 << 24
"""Documents x nodes per batch in prediction: batches of short texts have many documents."""


def best_nodes(network: Any, part: Inputs, k: int, what: str, budget: Budget = NO_LIMIT) -> TopK:
    """The k best nodes of each document, ordered by score and then by id; NO_LABEL where there are fewer.

    A `Part` with parents: among their children, with probabilities times those of the parents.
    """
    ids = np.full((len(part), k), NO_LABEL, np.int32)
    scores = np.full((len(part), k), -np.inf, np.float32)
    parents, head = getattr(part, "parents", None), network.head
    batch_size = max(1, SCORES_AT_ONCE // head.n_labels) if parents is None else None
    lengths = part.lengths
    begin, done, total = time.monotonic(), 0, int(lengths.sum())
    with progress(what, len(part)) as step:
        for documents in batches_by_length(lengths, LENGTH_AT_ONCE, batch_size):
            batch = part.batch(documents)
            own = None if parents is None else parents.of(batch.rows)
            nodes, best = best_of_batch(network, tensors_of(batch, head.device), k, own)
            count = nodes.shape[1]
            ids[batch.rows, :count], scores[batch.rows, :count] = nodes.cpu().numpy(), best.cpu().numpy()
            step(len(documents))
            done += int(lengths[documents].sum())
            budget.check_pace(begin, done, total)
    ids[~np.isfinite(scores)] = NO_LABEL  # a model that has diverged predicts nothing
    scores[ids == NO_LABEL] = -np.inf
    return sorted_by_score(ids, scores)


@torch.no_grad()
def best_of_batch(network: Any, arrays: tuple[Tensor, ...], k: int, parents: Any) -> tuple[Tensor, Tensor]:
    """The best nodes of each document, at most k, and their probabilities times those of their parents."""
    head, states = network.head, network(*arrays)
    if parents is None:
        nodes, best = head.best(states, min(k, head.n_labels))
        return nodes, head.probabilities(best)
    children = parents.children()
    candidates = torch.from_numpy(children).to(head.device)
    scores = head.probabilities(head.scores(states, candidates))
    above = torch.from_numpy(parents.scores).to(scores.device)
    scores *= above.repeat_interleave(candidates.shape[1] // above.shape[1], 1)
    scores.masked_fill_(candidates == NO_LABEL, -torch.inf)
    if parents.child_ids is not None:
        order = torch.from_numpy(np.argsort(parents.child_ids[children], axis=1, kind="stable")).to(scores.device)
        scores, candidates = scores.gather(1, order), candidates.gather(1, order)
    best, columns = exact_topk(scores, min(k, scores.shape[1]))
    return candidates.gather(1, columns), best


# --- networks over words ---


def new_network(vectors: Tensor, config: Any, size: int, seed: int) -> EncoderHead:
    """The network of a level of `size` nodes, by the config of attention_xml or bigru; its head has no weights yet.

    attention_xml: label-wise attention, then layers that all labels share. bigru: label-wise attention, then one output
    per label, or without attention the mean state, then one output per label.
    """
    attention = getattr(config, "attention", "shared")
    encoder: Any = RecurrentEncoder(vectors, config.words.is_frozen, config.recurrent, seed, pooled=attention == "none")
    width = encoder.width
    if attention == "none":
        return EncoderHead(encoder, Outputs(width, size, HeadConfig(dropout=0.0)))
    output = LabelOutput(width, size) if attention == "label" else SharedOutput(width, config.hidden)
    return EncoderHead(encoder, Attention(width, size, output))


def initialised(network: EncoderHead, above: Any, targets: Any, seed: int) -> EncoderHead:
    """Draw the weights of the head, for targets [documents, nodes]; all but those of the nodes are as in `above`."""
    network.head.initialise(np.bincount(targets.indices, minlength=targets.shape[1]), targets.shape[0], seed)
    if above is not None:
        frozen = [] if network.encoder.words.requires_grad else ["words"]  # a frozen table is shared by all levels
        learned = {name: part for name, part in above.encoder.state_dict().items() if name not in frozen}
        network.encoder.load_state_dict(learned, strict=False)
        head: Any = network.head
        head.output.load_state_dict(above.head.output.state_dict())
    return network


def restored_network(
    vectors: Tensor, config: Any, size: int, tensors: Mapping[str, np.ndarray], prefix: str, path: Path
) -> EncoderHead:
    """The network of a level from the arrays of a model file, whose names begin with `prefix`, on its device."""
    with torch.device("meta"):
        network = new_network(torch.empty(vectors.shape), config, size, 0)
    weights = {}
    for name, expected in network.state_dict().items():
        if config.words.is_frozen and name == WORDS:
            weights[name] = vectors
            continue
        array = get_tensor(tensors, prefix + name, path)
        if array.shape != tuple(expected.shape) or array.dtype != np.float32:
            raise ModelFormatError(
                f"{path}: {prefix}{name} is {array.dtype} {array.shape}, not {tuple(expected.shape)}"
            )
        weights[name] = as_tensor(array)
    network.load_state_dict(weights, assign=True)
    return network.requires_grad_(False).eval().to(computing_device())


def free_buffers(network: EncoderHead) -> None:
    """Free the buffers that encoder and head keep for their next batch."""
    for part in (network.encoder, network.head):
        if hasattr(part, "pool"):
            part.pool.clear()


def mean_states(encoders: Sequence[RecurrentEncoder], words: Inputs) -> np.ndarray:
    """The mean state of each document in each encoder, concatenated [documents, widths]."""
    vectors = np.empty((len(words), sum(encoder.width for encoder in encoders)), np.float32)
    with torch.no_grad(), progress("encoding", len(words)) as step:
        for documents in batches_by_length(words.lengths, TOKENS_AT_ONCE):
            batch = words.batch(documents)
            ids, lengths = tensors_of(batch)
            means = [
                encoder.states(ids.to(encoder.words.device), lengths).sum(1).cpu() / lengths[:, None]
                for encoder in encoders
            ]
            vectors[batch.rows] = torch.cat(means, 1).numpy()
            step(len(documents))
    return vectors


# --- explanation ---
# Explains scores of networks with label-wise attention: attention weights of words and their contributions.
#
# The output layers are linear wherever their ReLUs do not switch, so at a document the score before the sigmoid is
# exactly ``bias + sum over words of (weight of the word) x (gradient . state of the word)``. A term's value is the
# weight: the fraction of the label's attention that the word gets. A term's weight is the gradient times the state.


def explain_labels(tree: LevelTree, tokens: WordTokens, labels: np.ndarray) -> list[LabelPath]:
    """The paths of some labels (ids) for one document."""
    shape = tree.tree
    nodes = [shape.ancestors(depth)[labels] for depth in range(shape.depth)]
    kept = [np.ones(len(labels), bool)]
    for depth, top in enumerate(tree.search(tokens, 1)[:-1]):
        kept.append(kept[-1] & np.isin(nodes[depth], top.ids[0][top.ids[0] != NO_LABEL]))
    ids, _ = tokens.batch(np.arange(1)).arrays
    views = [_view(level, ids, own) for level, own in zip(tree.levels, nodes, strict=True)]
    words, inverse = np.unique(ids, return_inverse=True)
    paths = []
    for number, label in enumerate(labels.tolist()):
        steps, labels_below, total = [], [], 1.0
        for depth, view in enumerate(views):
            margin = float(view.margins[number])
            score = 1 / (1 + np.exp(-margin))
            total *= score
            below = np.flatnonzero(shape.ancestors(depth) == nodes[depth][number])
            reached = bool(kept[min(depth + 1, len(kept) - 1)][number])
            labels_below.append(below)
            bias = float(view.biases[number])
            steps.append(PathStep(int(nodes[depth][number]), len(below), (), margin, bias, score, total, reached))
        weights, added = view.weights[number], view.added[number]
        attention = np.bincount(inverse, weights, len(words))
        sums = np.bincount(inverse, weights * added, len(words))
        used = attention > 0
        given = total if steps[-1].kept else 0.0
        means = sums[used] / attention[used]
        paths.append(LabelPath(label, tuple(steps), tuple(labels_below), words[used], attention[used], means, given))
    return paths


class _AttentionView:
    """Attention of nodes over a document: weights, contributions [nodes, words], margins and biases [nodes]."""

    def __init__(self, weights: Tensor, added: Tensor, margins: Tensor) -> None:
        self.weights, self.added, self.margins = (part.cpu().double().numpy() for part in (weights, added, margins))
        self.biases = self.margins - (self.weights * self.added).sum(1)


def _view(level: EncoderHead, ids: np.ndarray, nodes: np.ndarray) -> _AttentionView:
    head: Any = level.head
    device = level.encoder.words.device
    with torch.no_grad():
        states = level.encoder.states(torch.from_numpy(ids).to(device), torch.tensor([len(ids)]))[0]
        chosen = torch.from_numpy(nodes.astype(np.int64)).to(device)
        weights = head.weights_of_words(states, chosen)
        views = weights @ states
    views.requires_grad_()
    output = head.output
    with torch.enable_grad():
        margins = output(views, chosen) if isinstance(output, LabelOutput) else output(views)
        (gradients,) = torch.autograd.grad(margins.sum(), views)
    return _AttentionView(weights, gradients @ states.T, margins.detach())
