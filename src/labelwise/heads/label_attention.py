"""Label-wise attention: every label has its own view of a document, a mean of the words' states under its own weights.

    weights of the words = softmax over the document's own words of (label vector . state)
    view                 = sum of weight x state
    score                = output layers of the view

For a document only the labels of a list are looked at (candidates), or all. Training works on blocks of documents and
labels: scores of words, softmax, views, output, loss, and the way back through all of them, before the next block
begins. Memory is bounded by a block on each thread; of labels x words x documents nothing is kept. Words after the end
of a document have no weight at all, and gradients of label vectors are rows of the candidates only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from labelwise.device import limited_threads
from labelwise.encoders.buffers import BufferPool, Buffers
from labelwise.encoders.row_gradients import add_row_gradient
from labelwise.heads.label_outputs import LabelOutput, SharedOutput
from labelwise.parallel import run_all, threads

SCORES_AT_ONCE = 1 << 20
"""Words x labels of a block on a CPU: what its caches hold."""
SCORES_ON_A_GPU = 1 << 26
VIEWS_A_SCORE = 8
"""Numbers of views that a block may have for each of these scores: many short documents have few words, but as many
views as long ones."""
LABELS_AT_ONCE = 2048
START_SPREAD = 4.0
"""Length of the first label vectors: with much less all labels see the same at first, and are slow to part."""


@dataclass(frozen=True)
class Attended:
    """What is attended to: states [documents, longest, width], the longest document first.

    `lengths` are on the CPU. `candidates` are label numbers [documents, places], -1 where a place is empty; None for
    all labels.
    """

    states: Tensor
    lengths: Tensor
    candidates: Tensor | None = None


class LabelAttention(nn.Module):
    """Scores of labels.

    Parameters
    ----------
    width
        Length of a state.
    n_labels
        Labels in all.
    output
        From a view to a score.

    With candidates the gradient of the label vectors (`weight`) is row-sparse, and `rows=` of the training names it.
    """

    def __init__(self, width: int, n_labels: int, output: SharedOutput | LabelOutput) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_labels, width))
        self.output = output
        self.pool = BufferPool()

    @torch.no_grad()
    def start(self, seed: int, shares: np.ndarray | None = None) -> LabelAttention:
        """Draw the first label vectors; with the `shares` of documents that have each label also the output layers."""
        generator = torch.Generator().manual_seed(seed)
        self.weight.normal_(0, START_SPREAD * self.weight.shape[1] ** -0.5, generator=generator)
        if shares is not None:
            self.output.start(torch.from_numpy(np.asarray(shares, np.float32)), generator)
        return self

    @property
    def n_labels(self) -> int:
        """Labels in all."""
        return len(self.weight)

    def loss(self, given: Attended, wanted: Tensor) -> Tensor:
        """Mean cross-entropy over documents and labels looked at; `wanted` [documents, places] is 1 for true ones."""
        found: Any = _AttentionLoss.apply(
            given.states.float(), self.weight, self, given, wanted, *self.output.tensors()
        )
        return found

    @torch.no_grad()
    def scores(self, given: Attended) -> Tensor:
        """Scores before the sigmoid [documents, places]; -inf at empty places."""
        with torch.autocast(given.states.device.type, enabled=False):
            return _Work(self, replace(given, states=given.states.float()), None).run().scores

    @torch.no_grad()
    def weights_of_words(self, states: Tensor, labels: Tensor) -> Tensor:
        """Weights of the words [labels, words] of one document."""
        return torch.softmax(self.weight[labels] @ states.T, -1)


@dataclass(frozen=True)
class _Block:
    """Documents and labels that are done together, and the longest of the documents."""

    documents: slice
    labels: slice
    words: int


def _blocks(lengths: np.ndarray, n_labels: int, width: int, at_once: int) -> Iterator[list[_Block]]:
    """For each group of documents the blocks of labels; those of one group share gradients of states."""
    begin = 0
    while begin < len(lengths):
        words = int(lengths[begin])
        wide = min(n_labels, LABELS_AT_ONCE)
        end = min(len(lengths), begin + max(1, at_once // (wide * max(words, width // VIEWS_A_SCORE))))
        yield [
            _Block(slice(begin, end), slice(first, min(first + wide, n_labels)), words)
            for first in range(0, n_labels, wide)
        ]
        begin = end


class _Work:
    """One batch: scores, and with `wanted` also the loss and all gradients."""

    def __init__(
        self, head: LabelAttention, given: Attended, wanted: Tensor | None, gradients: Tensor | None = None
    ) -> None:
        self.head, self.states, self.lengths = head, given.states, given.lengths.numpy()
        self.wanted, self.state_gradients = wanted, gradients
        self.output = type(head.output)
        self.tensors = [part.detach() for part in head.output.tensors()]
        self.table = head.weight.detach()
        self.empty: Tensor | None = None
        self.places: Tensor | None = None
        self.rows: Tensor | None = None
        self.buffers: Buffers | None = None
        count = head.n_labels
        if given.candidates is not None:
            if self.output is LabelOutput:
                raise TypeError("weights per label go with all labels, not with candidates")
            count = given.candidates.shape[1]
            self.empty = given.candidates < 0
            # an empty place looks at a label that the document looks at anyway, so that no other row is touched
            filled = torch.where(self.empty, given.candidates.amax(1, keepdim=True).clamp_min(0), given.candidates)
            self.rows, self.places = torch.unique(filled, return_inverse=True)
            self.buffers = head.pool.acquire(self.states.device)
            rows = self.buffers.get("table", len(self.rows), self.table.shape[1])
            self.table = torch.index_select(self.table, 0, self.rows, out=rows)
        self.count = count
        documents = len(self.lengths)
        self.scores = self.states.new_zeros(documents, count)
        looked_at = documents * count - (0 if self.empty is None else int(self.empty.sum()))
        self.scale = 1.0 / max(looked_at, 1)
        self.total = torch.zeros((), dtype=torch.float64)
        self.sums: list[Tensor] = []

    def run(self) -> _Work:
        """All blocks, in turns on all threads; sums are added in the order of threads."""
        cpu = self.states.device.type == "cpu"
        parts = threads() if cpu else 1
        at_once = SCORES_AT_ONCE if cpu else SCORES_ON_A_GPU
        groups = list(_blocks(self.lengths, self.count, self.states.shape[2], at_once))
        if self.wanted is None:  # nothing is added up: blocks of labels may go to other threads too
            groups = [[block] for group in groups for block in group]
        shares = [[*chain.from_iterable(groups[turn::parts])] for turn in range(min(parts, len(groups)))]
        usual = torch.get_num_threads()
        found = (
            run_all(lambda share: self._share_alone(share, usual), shares)
            if cpu
            else [self._share(share) for share in shares]
        )
        for number, (total, sums) in enumerate(found):
            self.total += total
            self.sums = (
                sums if number == 0 else [mine.add_(theirs) for mine, theirs in zip(self.sums, sums, strict=True)]
            )
        if self.empty is not None:
            self.scores.masked_fill_(self.empty, -torch.inf)
        if self.buffers is not None:
            self.head.pool.release(self.buffers)
        return self

    def _share_alone(self, blocks: Sequence[_Block], usual: int) -> tuple[Tensor, list[Tensor]]:
        """A share on a thread of its own, even if it is the only one: few numbers are not worth more."""
        with limited_threads(1, usual), torch.no_grad():
            return self._share(blocks)

    def _share(self, blocks: Sequence[_Block]) -> tuple[Tensor, list[Tensor]]:
        learning = self.wanted is not None and self.state_gradients is not None
        sums = [torch.zeros_like(part) for part in (self.table, *self.tensors)] if learning else []
        total = torch.zeros((), dtype=torch.float64)
        buffers = self.head.pool.acquire(self.states.device)
        for block in blocks:
            total += self._block(block, buffers, sums)
        self.head.pool.release(buffers)
        return total, sums

    def _block(self, block: _Block, buffers: Buffers, sums: list[Tensor]) -> float:
        """Everything of one block: the names are those of the module's header."""
        documents, labels = block.documents, block.labels
        states = self.states[documents, : block.words]
        rows = self._rows(block, buffers)
        shape = (len(states), rows.shape[1])
        weights = torch.bmm(rows, states.mT, out=buffers.get("weights", *shape, block.words))
        for number, length in enumerate(self.lengths[documents].tolist()):
            if length < block.words:
                weights[number, :, length:] = -torch.inf
        torch._softmax(weights, -1, False, out=weights)
        views = torch.bmm(weights, states, out=buffers.get("views", *shape, states.shape[2]))
        scores, kept = self.output.block_forward(self.tensors, views, labels, buffers)
        self.scores[documents, labels] = scores
        if self.wanted is None:
            return 0.0
        wanted = self.wanted[documents, labels]
        losses = functional.softplus(scores).sub_(scores * wanted)
        gradients = torch.sigmoid(scores).sub_(wanted).mul_(self.scale)
        if self.empty is not None:
            empty = self.empty[documents, labels]
            losses.masked_fill_(empty, 0)
            gradients.masked_fill_(empty, 0)
        if sums:
            self._back(
                block,
                buffers,
                sums,
                (states, rows, weights),
                self.output.block_backward(self.tensors, sums[1:], gradients, kept, labels, buffers),
            )
        return float(losses.sum()) * self.scale

    def _back(
        self,
        block: _Block,
        buffers: Buffers,
        sums: list[Tensor],
        kept: tuple[Tensor, Tensor, Tensor],
        view_gradients: Tensor,
    ) -> None:
        """Gradients of states and label vectors from those of the views."""
        states, rows, weights = kept
        documents, labels = block.documents, block.labels
        assert self.state_gradients is not None
        target = self.state_gradients[documents, : block.words]
        if labels.start == 0:
            torch.bmm(weights.mT, view_gradients, out=target)
            self.state_gradients[documents, block.words :] = 0
        else:
            target.baddbmm_(weights.mT, view_gradients)
        gradients = torch.bmm(view_gradients, states.mT, out=buffers.get("weight gradients", *weights.shape))
        torch._softmax_backward_data(gradients, weights, -1, weights.dtype, grad_input=gradients)
        target.baddbmm_(gradients.mT, rows)
        if self.places is None:
            for own, state in zip(gradients, states, strict=True):
                sums[0][labels].addmm_(own, state)
        else:
            found = torch.bmm(gradients, states, out=buffers.get("row gradients", *rows.shape))
            sums[0].index_add_(0, self.places[documents, labels].reshape(-1), found.flatten(0, 1))

    def _rows(self, block: _Block, buffers: Buffers) -> Tensor:
        """The label vectors of a block [documents, labels, width]."""
        count = block.documents.stop - block.documents.start
        if self.places is None:
            return self.table[block.labels].expand(count, -1, -1)
        places = self.places[block.documents, block.labels]
        rows = buffers.get("rows", places.numel(), self.table.shape[1])
        return torch.index_select(self.table, 0, places.reshape(-1), out=rows).view(*places.shape, -1)


class _AttentionLoss(torch.autograd.Function):
    """The mean loss, with all gradients computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, head: LabelAttention, given: Attended, wanted: Tensor, *output: Tensor
    ) -> Tensor:
        states = states.detach()
        learning = any(ctx.needs_input_grad)
        buffers = head.pool.acquire(states.device) if learning else None
        gradients = None if buffers is None else buffers.get("state gradients", *states.shape)
        with torch.autocast(states.device.type, enabled=False):  # all in float32: it is a small part of the work
            work = _Work(head, Attended(states, given.lengths, given.candidates), wanted, gradients).run()
        ctx.buffers, ctx.gradients, ctx.sums, ctx.rows = buffers, gradients, work.sums, work.rows
        ctx.pool, ctx.weight = head.pool, weight
        return work.total.to(states.device, states.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        (outer,) = grad_outputs
        gradients, (table, *output) = ctx.gradients, ctx.sums
        ctx.gradients = ctx.sums = None
        if float(outer) != 1.0:
            for part in (gradients, table, *output):
                part.mul_(outer)
        if ctx.rows is not None:
            add_row_gradient(ctx.weight, ctx.rows, table)
            table = None
        ctx.pool.release(ctx.buffers)
        return gradients, table, None, None, None, *output
