"""Explains scores of networks with label-wise attention: attention weights of words and their contributions.

The output layers are linear wherever their ReLUs do not switch, so at a document the score before the sigmoid is
exactly ``bias + sum over words of (weight of the word) x (gradient . state of the word)``. A term's value is the
weight: the fraction of the label's attention that the word gets. A term's weight is the gradient times the state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.labelspace.tree import LabelPath, PathStep
from labelwise.nn.encode import EncoderHead
from labelwise.nn.heads.attention import LabelOutput
from labelwise.nn.levels import LevelTree
from labelwise.nn.words.vocabulary import WordTokens
from labelwise.topk import NO_LABEL


def explain_labels(tree: LevelTree, tokens: WordTokens, labels: np.ndarray) -> list[LabelPath]:
    """The paths of some labels (ids) for one document."""
    shape = tree.tree
    nodes = [shape.ancestors(depth)[labels] for depth in range(shape.depth)]
    kept = [np.ones(len(labels), bool)]
    for depth, top in enumerate(tree.search(tokens, 1)[:-1]):
        kept.append(kept[-1] & np.isin(nodes[depth], top.ids[0][top.ids[0] != NO_LABEL]))
    batch = tokens.batch(np.arange(1))
    views = [_view(level, batch.ids, own) for level, own in zip(tree.levels, nodes, strict=True)]
    words, inverse = np.unique(batch.ids, return_inverse=True)
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
