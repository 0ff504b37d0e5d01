"""Label-wise attention: every label has its own view of a document, a weighted mean of the words' states.

    weights of the words = softmax over the document's own words of (label vector . state)
    view                 = sum of weight x state
    score                = output layers of the view

Either all labels are scored for a document, or only a list of candidates. Training works on blocks of documents and
labels: word scores, softmax, views, outputs, loss, and the backward pass through all of them, before the next block
begins. Memory is bounded by one block per thread; no array of labels x words x documents is kept. Padding after the
end of a document has weight 0, and label vectors have gradients only in the rows of the candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from labelwise.nn.heads.base import Head, States, Targets, exact_topk, label_priors, rows_of
from labelwise.nn.inputs import BufferPool, Buffers
from labelwise.runtime.device import limited_threads
from labelwise.runtime.ranks import add_row_gradient, divisor
from labelwise.runtime.threads import run_all, threads

# --- label outputs ---
# From a label's view of a document (a vector) to its score: one small network for all labels, or weights per label.
#
# Both work block by block with an explicit backward pass, like the attention that calls them: gradients are accumulated
# while a block is in the cache, and nothing of it is kept.


class SharedOutput(nn.Module):
    """The same layers for all labels, with ReLU between them; the last has one output.

    Parameters
    ----------
    width
        Dimension of a view.
    hidden
        Widths of the hidden layers; without any, the output is linear.
    """

    def __init__(self, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        sizes = [width, *hidden, 1]
        self.weights = nn.ParameterList(torch.empty(after, before) for before, after in pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(after) for after in sizes[1:])

    @torch.no_grad()
    def initialise(self, priors: Any, generator: torch.Generator) -> None:
        """Draw the initial weights; the last bias is the log-odds of the mean prior."""
        for weight in self.weights:
            nn.init.xavier_uniform_(weight, generator=generator)
        for bias in self.biases:
            bias.zero_()
        prior = min(max(float(priors.mean()), 1e-6), 0.5)
        self.biases[-1].fill_(torch.logit(torch.tensor(prior)).item())

    def forward(self, views: Tensor) -> Tensor:
        """Scores [...] of views [..., width], with autograd, for explanations."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            views = torch.relu(nn.functional.linear(views, weight, bias))
        return nn.functional.linear(views, self.weights[-1], self.biases[-1]).squeeze(-1)

    def block_forward(self, views: Tensor, labels: slice, buffers: Buffers) -> tuple[Tensor, Any]:
        """Scores [documents, labels] of views [documents, labels, width], and what `block_backward` needs."""
        kept = [views.flatten(0, 1)]
        for depth, (weight, bias) in enumerate(zip(self.weights[:-1], self.biases[:-1], strict=True)):
            out = buffers.get(f"layer {depth}", len(kept[-1]), len(weight))
            kept.append(torch.addmm(bias, kept[-1], weight.T, out=out).relu_())
        return (kept[-1] @ self.weights[-1][0] + self.biases[-1]).view(views.shape[:2]), kept

    def block_backward(
        self, sums: Sequence[Tensor], gradients: Tensor, kept: Any, labels: slice, buffers: Buffers
    ) -> Tensor:
        """Add the gradients of all parameters, in their order, to `sums`; returns that of the views."""
        last, flat = len(self.weights) - 1, gradients.reshape(-1)
        sums[last][0].addmv_(kept[-1].T, flat)
        sums[-1].add_(flat.sum())
        back = torch.outer(flat, self.weights[-1][0], out=buffers.get(f"back {last}", *kept[-1].shape))
        for depth in range(last - 1, -1, -1):
            back = torch.ops.aten.threshold_backward.grad_input(back, kept[depth + 1], 0, grad_input=back)
            sums[depth].addmm_(back.T, kept[depth])
            sums[last + 1 + depth].add_(back.sum(0))
            back = torch.mm(back, self.weights[depth], out=buffers.get(f"back {depth}", *kept[depth].shape))
        return back.view(*gradients.shape, -1)


class LabelOutput(nn.Module):
    """Weights and a bias per label."""

    def __init__(self, width: int, n_labels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_labels, width))
        self.bias = nn.Parameter(torch.zeros(n_labels))

    @torch.no_grad()
    def initialise(self, priors: Any, generator: torch.Generator) -> None:
        """Draw the initial weights; biases are the log-odds of the labels' priors."""
        nn.init.xavier_uniform_(self.weight, generator=generator)
        self.bias.copy_(torch.logit(torch.as_tensor(priors).clamp(1e-6, 0.5)))

    def forward(self, views: Tensor, labels: Tensor) -> Tensor:
        """Scores of views [..., width] of the given labels [...]."""
        return (views * self.weight[labels]).sum(-1) + self.bias[labels]

    def block_forward(self, views: Tensor, labels: slice, buffers: Buffers) -> tuple[Tensor, Any]:
        """As in `SharedOutput`."""
        products = torch.mul(views, self.weight[labels], out=buffers.get("products", *views.shape))
        return products.sum(-1) + self.bias[labels], views

    def block_backward(
        self, sums: Sequence[Tensor], gradients: Tensor, kept: Any, labels: slice, buffers: Buffers
    ) -> Tensor:
        """As in `SharedOutput`."""
        scaled = torch.mul(kept, gradients[..., None], out=buffers.get("products", *kept.shape))
        sums[0][labels] += scaled.sum(0)
        sums[1][labels] += gradients.sum(0)
        return torch.mul(gradients[..., None], self.weight[labels], out=buffers.get("products", *kept.shape))


SCORES_AT_ONCE = 1 << 20
"""Words x labels per block on a CPU: as many as fit in its caches."""
SCORES_AT_ONCE_GPU = 1 << 26
VIEWS_PER_SCORE = 8
"""Numbers in views that a block may have per score: short documents have few words, but as many views as long ones."""
LABELS_AT_ONCE = 2048
INITIAL_NORM = 4.0
"""Expected norm of the initial label vectors: with a much smaller one all labels start with nearly equal attention."""


class Attention(Head):
    """Scores labels by label-wise attention to the states of words.

    Parameters
    ----------
    width
        Dimension of a state.
    n_labels
        Number of labels.
    output
        Layers from a view to a score.
    """

    def __init__(self, width: int, n_labels: int, output: SharedOutput | LabelOutput) -> None:
        super().__init__(n_labels)
        self.weight = nn.Parameter(torch.empty(n_labels, width))
        self.output = output
        self.pool = BufferPool()

    def row_tables(self, candidates: bool = False) -> tuple[str, ...]:
        """The label vectors if only candidates are scored."""
        return ("weight",) if candidates else ()

    @torch.no_grad()
    def initialise(self, counts: np.ndarray, n_documents: int, seed: int) -> Self:
        """Draw the initial label vectors, and the output layers with biases from the frequencies of labels."""
        generator = torch.Generator().manual_seed(seed)
        self.weight.normal_(0, INITIAL_NORM * self.weight.shape[1] ** -0.5, generator=generator)
        priors = torch.from_numpy(label_priors(counts, n_documents).astype(np.float32))
        self.output.initialise(priors, generator)
        return self

    def loss(self, states: States, targets: Targets | Tensor, candidates: Tensor | None = None) -> Tensor:
        """Mean cross-entropy over documents and scored labels."""
        given = self, states.lengths, targets, candidates
        loss: Any = _AttentionLoss.apply(given, states.values.float(), self.weight, *self.output.parameters())
        return loss

    @torch.no_grad()
    def scores(self, states: States, candidates: Tensor | None = None) -> Tensor:
        """Probabilities [documents, candidates]; -inf where there is no candidate. None: of all labels."""
        with torch.autocast(states.values.device.type, enabled=False):
            done = _AttentionPass(self, states.values.float(), states.lengths, None, candidates).run()
            scores = torch.sigmoid(done.scores)
        return scores if candidates is None else scores.masked_fill_(candidates < 0, -torch.inf)

    @torch.no_grad()
    def best(self, states: States, k: int) -> tuple[Tensor, Tensor]:
        """Ids and probabilities of the k best labels."""
        best, ids = exact_topk(self.scores(states), k)
        return ids, best

    def probabilities(self, scores: Tensor) -> Tensor:
        """Scores are probabilities already."""
        return scores

    @torch.no_grad()
    def weights_of_words(self, states: Tensor, labels: Tensor) -> Tensor:
        """Attention weights [labels, words] of one document."""
        return torch.softmax(self.weight[labels] @ states.T, -1)


@dataclass(frozen=True)
class _Block:
    """Documents and labels of a block, and the length of its longest document."""

    documents: slice
    labels: slice
    words: int


def _blocks(lengths: np.ndarray, n_labels: int, width: int, at_once: int) -> Iterator[list[_Block]]:
    """The blocks of each group of documents; blocks of one group add to the same state gradients."""
    begin = 0
    while begin < len(lengths):
        words = int(lengths[begin])
        wide = min(n_labels, LABELS_AT_ONCE)
        end = min(len(lengths), begin + max(1, at_once // (wide * max(words, width // VIEWS_PER_SCORE))))
        yield [
            _Block(slice(begin, end), slice(first, min(first + wide, n_labels)), words)
            for first in range(0, n_labels, wide)
        ]
        begin = end


class _AttentionPass:
    """One pass over a batch: scores, or with targets the loss, and with arrays for those of the states all gradients.

    Without candidates all labels are scored.
    """

    def __init__(
        self,
        head: Attention,
        states: Tensor,
        lengths: Tensor,
        targets: Targets | Tensor | None,
        candidates: Tensor | None,
        state_gradients: Tensor | None = None,
    ) -> None:
        self.head, self.states, self.lengths, self.targets = head, states, lengths.numpy(), targets
        self.state_gradients, self.table, self.count = state_gradients, head.weight, head.n_labels
        self.empty: Tensor | None = None
        self.row_index: Tensor | None = None
        self.rows: Tensor | None = None
        self.buffers: Buffers | None = None
        if candidates is not None:
            if isinstance(head.output, LabelOutput):
                raise TypeError("an output with weights per label needs all labels, not candidates")
            self.count, self.empty = candidates.shape[1], candidates < 0
            self.rows, self.row_index = rows_of(candidates)
            self.buffers = head.pool.acquire(states.device)
            rows = self.buffers.get("table", len(self.rows), self.table.shape[1])
            self.table = torch.index_select(self.table, 0, self.rows, out=rows)
        # in training only the scores of a block exist
        self.scores = states.new_zeros(len(states) if targets is None else 0, self.count)
        scored = len(states) * self.count - (0 if self.empty is None else int(self.empty.sum()))
        self.scale = 1.0 / (max(scored, 1) if state_gradients is None else divisor(scored, states.device))
        self.total = torch.zeros((), dtype=torch.float64)
        self.sums: list[Tensor] = []

    def run(self) -> _AttentionPass:
        """Run all blocks, distributed over threads; sums are added in the order of threads."""
        on_cpu = self.states.device.type == "cpu"
        parts, at_once = (threads(), SCORES_AT_ONCE) if on_cpu else (1, SCORES_AT_ONCE_GPU)
        groups = list(_blocks(self.lengths, self.count, self.states.shape[2], at_once))
        if self.targets is None:  # no sums: the blocks of a group may run on different threads
            groups = [[block] for group in groups for block in group]
        work = [[*chain.from_iterable(groups[turn::parts])] for turn in range(min(parts, len(groups)))]
        usual = torch.get_num_threads()
        for total, sums in run_all(lambda blocks: self._run_blocks(blocks, usual), work):
            self.total += total
            self.sums = [mine.add_(its) for mine, its in zip(self.sums, sums, strict=True)] if self.sums else sums
        if self.buffers is not None:
            self.head.pool.release(self.buffers)
        return self

    def _run_blocks(self, blocks: Sequence[_Block], usual: int) -> tuple[Tensor, list[Tensor]]:
        """Run blocks with one torch thread, even if no other blocks run: blocks are too small for several."""
        tables = () if self.state_gradients is None else (self.table, *self.head.output.parameters())
        with limited_threads(1, usual), torch.no_grad():
            sums = [torch.zeros_like(part) for part in tables]
            total = torch.zeros((), dtype=torch.float64)
            buffers = self.head.pool.acquire(self.states.device)
            for block in blocks:
                total += self._block(block, buffers, sums)
        self.head.pool.release(buffers)
        return total, sums

    def _block(self, block: _Block, buffers: Buffers, sums: list[Tensor]) -> float:
        """Scores, loss and gradients of one block; names as in the module's docstring."""
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
        scores, kept = self.head.output.block_forward(views, labels, buffers)
        if self.targets is None:
            self.scores[documents, labels] = scores
            return 0.0
        targets = self._targets_of(block, self.targets)
        losses = functional.softplus(scores).sub_(scores * targets)
        gradients = torch.sigmoid(scores).sub_(targets).mul_(self.scale)
        if self.empty is not None:
            empty = self.empty[documents, labels]
            losses.masked_fill_(empty, 0)
            gradients.masked_fill_(empty, 0)
        if self.state_gradients is not None:
            of_views = self.head.output.block_backward(sums[1:], gradients, kept, labels, buffers)
            self._backward(block, buffers, sums[0], (states, rows, weights), of_views)
        return float(losses.sum()) * self.scale

    def _targets_of(self, block: _Block, targets: Targets | Tensor) -> Tensor:
        """1 for the true labels of a block, 0 for others [documents, labels]."""
        documents, labels = block.documents, block.labels
        if isinstance(targets, Tensor):
            return targets[documents, labels]
        own = targets.among(labels)
        inside = (own.documents >= documents.start) & (own.documents < documents.stop)
        dense = self.states.new_zeros(documents.stop - documents.start, labels.stop - labels.start)
        dense[own.documents[inside] - documents.start, own.labels[inside]] = 1.0
        return dense

    def _backward(
        self, block: _Block, buffers: Buffers, sums: Tensor, kept: Sequence[Tensor], of_views: Tensor
    ) -> None:
        """Gradients of states and label vectors from those of the views."""
        states, rows, weights = kept
        of_states = self.state_gradients
        assert of_states is not None
        documents, labels = block.documents, block.labels
        target = of_states[documents, : block.words]
        if labels.start == 0:
            torch.bmm(weights.mT, of_views, out=target)
            of_states[documents, block.words :] = 0
        else:
            target.baddbmm_(weights.mT, of_views)
        gradients = torch.bmm(of_views, states.mT, out=buffers.get("weight gradients", *weights.shape))
        torch._softmax_backward_data(gradients, weights, -1, weights.dtype, grad_input=gradients)
        target.baddbmm_(gradients.mT, rows)
        if self.row_index is None:
            for own, state in zip(gradients, states, strict=True):
                sums[labels].addmm_(own, state)
        else:
            of_rows = torch.bmm(gradients, states, out=buffers.get("row gradients", *rows.shape))
            sums.index_add_(0, self.row_index[documents, labels].reshape(-1), of_rows.flatten(0, 1))

    def _rows(self, block: _Block, buffers: Buffers) -> Tensor:
        """The label vectors of a block [documents, labels, width]."""
        count = block.documents.stop - block.documents.start
        if self.row_index is None:
            return self.table[block.labels].expand(count, -1, -1)
        row_index = self.row_index[block.documents, block.labels]
        rows = buffers.get("rows", row_index.numel(), self.table.shape[1])
        return torch.index_select(self.table, 0, row_index.reshape(-1), out=rows).view(*row_index.shape, -1)


class _AttentionLoss(torch.autograd.Function):
    """The mean loss, with all gradients computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, given: Any, states: Tensor, weight: Tensor, *output: Tensor) -> Tensor:
        head, lengths, targets, candidates = given
        buffers = head.pool.acquire(states.device) if any(ctx.needs_input_grad) else None
        gradients = None if buffers is None else buffers.get("state gradients", *states.shape)
        with torch.autocast(states.device.type, enabled=False):  # all in float32: it is a small part of the work
            done = _AttentionPass(head, states, lengths, targets, candidates, gradients).run()
        ctx.buffers, ctx.gradients, ctx.sums, ctx.rows = buffers, gradients, done.sums, done.rows
        ctx.pool, ctx.weight = head.pool, weight
        return done.total.to(states.device, states.dtype)

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
        return None, gradients, table, *output
