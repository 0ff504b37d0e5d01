"""From words to hidden states: a word table, dropout, and a bidirectional LSTM or GRU.

Batches are packed (see `recurrent_passes`): a document's states do not depend on the other documents of its batch,
and the backward direction starts at the document's own last word. On a CPU our own passes are used, elsewhere torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from labelwise.nn.config import RecurrentConfig
from labelwise.nn.heads.base import States
from labelwise.nn.inputs import BufferPool, Buffers
from labelwise.runtime.device import limited_threads, seeded
from labelwise.runtime.ranks import add_row_gradient
from labelwise.runtime.threads import ranges, run_all, threads

# --- recurrent passes ---
# Word table, dropout and a bidirectional LSTM or GRU in one pass over packed tokens, for CPUs.
#
# Torch's layers pay for padding or packing, run the directions one after the other, and allocate new memory at every
# step. Here tokens are packed by time steps, documents in order of descending length, so that each document costs only
# its own length; the input products of all steps are one matrix product; each direction has its own thread; one kernel
# runs between two matrix products; and all memory comes from `Buffers` that the next step reuses.
# Results and gradients equal torch's up to rounding.

FEW = 1 << 16
"""Arrays up to this size use one thread."""


class Steps(NamedTuple):
    """Layout of packed tokens: time step t holds token t of the first ``counts[t]`` documents."""

    counts: tuple[int, ...]
    begins: tuple[int, ...]

    @classmethod
    def of(cls, lengths: np.ndarray) -> Steps:
        """From the lengths of documents, descending and at least 1."""
        counts = np.searchsorted(-lengths, -np.arange(int(lengths[0])) if len(lengths) else [], side="left")
        return cls(tuple(counts.tolist()), tuple((np.cumsum(counts) - counts).tolist()))

    @property
    def tokens(self) -> int:
        """Total number of tokens."""
        return self.begins[-1] + self.counts[-1]


class Plan(NamedTuple):
    """Settings of one pass: the type of cell, the time steps and the dropout rates."""

    cell_type: str
    steps: Steps
    drop_words: float
    drop_states: float
    pool: BufferPool
    keep: bool
    """Whether to keep what a backward pass needs."""

    def order(self, direction: int) -> range:
        """The time steps in the order of a direction."""
        return range(len(self.steps.counts))[:: -1 if direction else 1]


class Weights(NamedTuple):
    """Weights of direction 0 or 1: columns ``:input_end`` of the gates are inputs', ``recurrent_begin:`` recurrent."""

    direction: int
    inputs: Tensor
    recurrent: Tensor
    bias: Tensor
    """Over all columns of the gates."""
    input_end: int
    recurrent_begin: int

    @classmethod
    def of(cls, cell_type: str, direction: int, given: Sequence[Tensor]) -> Weights:
        """From torch's eight tensors, with columns in the kernels' order."""
        inputs, recurrent, input_bias, recurrent_bias = (w.detach() for w in given[4 * direction : 4 * direction + 4])
        bias, w = input_bias + recurrent_bias, len(inputs) // 3
        if cell_type == "lstm":
            return cls(direction, inputs, recurrent, bias, len(inputs), 0)
        bias = torch.cat([input_bias[2 * w :], bias[: 2 * w], recurrent_bias[2 * w :]])
        return cls(direction, torch.cat([inputs[2 * w :], inputs[: 2 * w]]), recurrent, bias, 3 * w, w)

    @property
    def width(self) -> int:
        """Dimension of a state of this direction."""
        return self.recurrent.shape[1]


class Dropout:
    """One draw of dropout: the dropped fraction, and two keys from torch's generator that decide which entries."""

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction
        self.keys = torch.randint(1 << 32, (2,)).numpy().astype(np.uint32) if fraction else ()

    def apply(self, values: Tensor) -> None:
        """Zero the dropped entries of a contiguous tensor in place and scale the others."""
        if not self.fraction:
            return
        from labelwise.kernels.networks import drop_out

        flat, parts = values.view(-1).numpy(), threads() if values.numel() > FEW else 1
        limits = np.uint32(self.fraction * 2**32), np.float32(1 / (1 - self.fraction))
        run_all(
            lambda part: drop_out(flat[slice(*part)], np.int64(part[0]), *self.keys, *limits), ranges(len(flat), parts)
        )


class RecurrentPass(torch.autograd.Function):
    """Hidden states [documents, longest, 2 x width], zero after a document's end; dropout is applied to them.

    Arguments: the plan, packed word ids, the word table, the initial hidden states and cells (or None), and torch's
    eight weights of a bidirectional layer.
    """

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, ids: Tensor, table: Tensor, hidden: Tensor | None, cell: Tensor | None, *given: Tensor
    ) -> Tensor:
        buffers = plan.pool.acquire(ids.device)
        steps, width = plan.steps, given[1].shape[1]
        documents, longest, tokens = steps.counts[0], len(steps.counts), steps.tokens
        words = torch.index_select(table.detach(), 0, ids, out=buffers.get("words", tokens, table.shape[1]))
        dropped = Dropout(plan.drop_words), Dropout(plan.drop_states)
        dropped[0].apply(words)
        shape = (documents, longest, 2 * width)
        out = buffers.get("out", *shape) if plan.keep else torch.empty(shape)
        weights = [Weights.of(plan.cell_type, direction, given) for direction in (0, 1)]
        starts = [None if part is None else part.detach() for part in (hidden, cell)]
        _each_direction(lambda own: _forward(plan, buffers, own, words, starts, out), weights)
        for step in range(1, longest):  # documents that end before this step
            if steps.counts[step] < documents:
                out[steps.counts[step] :, step] = 0
        dropped[1].apply(out)
        if plan.keep:
            ctx.plan, ctx.buffers, ctx.weights, ctx.ids, ctx.dropped = plan, buffers, weights, ids, dropped
            ctx.table, ctx.has_cell = table, cell is not None
        else:
            plan.pool.release(buffers)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        plan, buffers, weights = ctx.plan, ctx.buffers, ctx.weights
        steps = plan.steps
        shape = (steps.counts[0], len(steps.counts), 2 * weights[0].width)
        gradients = grad_outputs[0].contiguous()
        if plan.drop_states:
            gradients = buffers.get("out", *shape).copy_(gradients)
            ctx.dropped[1].apply(gradients)
        needs_words, needs_start = ctx.needs_input_grad[2], ctx.needs_input_grad[3]
        words = buffers.get("words", steps.tokens, ctx.table.shape[1])
        results = _each_direction(lambda own: _backward(plan, buffers, own, words, gradients, needs_words), weights)
        if needs_words:
            total = results[0][0].add_(results[1][0])
            ctx.dropped[0].apply(total)
            rows, inverse = torch.unique(ctx.ids, return_inverse=True)
            sums = torch.zeros(len(rows), total.shape[1]).index_add_(0, inverse, total)
            add_row_gradient(ctx.table, rows, sums)
        starts: list[Tensor | None] = [None, None]
        if needs_start:
            starts[0] = torch.stack([hidden for _, hidden, _, _ in results])
            starts[1] = torch.stack([cell for _, _, cell, _ in results]) if ctx.has_cell else None
        plan.pool.release(buffers)
        ctx.buffers = None
        return None, None, None, *starts, *(gradient for part in results for gradient in part[3])


def _each_direction(work: Any, directions: Sequence[Any]) -> list[Any]:
    """Map over both directions, in parallel if there are two threads."""
    per_direction, usual = max(1, threads() // 2), torch.get_num_threads()

    def run_direction(direction: Any) -> Any:
        with limited_threads(per_direction, usual), torch.no_grad():
            return work(direction)

    return run_all(run_direction, directions)


def _forward(
    plan: Plan, buffers: Buffers, weights: Weights, words: Tensor, starts: list[Tensor | None], out: Tensor
) -> None:
    from labelwise.kernels.recurrent_cells import gru_forward, lstm_forward

    kernel = lstm_forward if plan.cell_type == "lstm" else gru_forward
    steps, direction, width = plan.steps, weights.direction, weights.width
    gates, before, cells = _gate_buffers(plan, buffers, weights)
    columns = gates[:, : weights.input_end]
    torch.addmm(weights.bias[: weights.input_end], words, weights.inputs.T, out=columns)
    gates[:, weights.input_end :] = weights.bias[weights.input_end :]
    recurrent, sums = weights.recurrent.T, gates[:, weights.recurrent_begin :]
    arrays = gates.numpy(), cells.numpy(), before.numpy(), out.numpy()
    order = plan.order(direction)
    begun = 0  # documents that started at an earlier step
    for number, step in enumerate(order):
        begin, count = steps.begins[step], steps.counts[step]
        if count > begun:
            for part, start in ((cells, starts[1]), (before, starts[0])):  # a GRU's cells are its hidden states
                part[begin + begun : begin + count] = 0 if start is None else start[direction]
        sums[begin : begin + count].addmm_(before[begin : begin + count], recurrent)
        following, kept = 0, 0
        if number + 1 < len(order):
            after = order[number + 1]
            following, kept = steps.begins[after], min(count, steps.counts[after])
        kernel(*arrays, begin, count, following, kept, step, direction * width)
        begun = kept


def _backward(
    plan: Plan, buffers: Buffers, weights: Weights, words: Tensor, gradients: Tensor, needs_words: bool
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """Gradients of the words, of the initial state and cell, and of torch's four tensors."""
    from labelwise.kernels.recurrent_cells import gru_backward, lstm_backward

    steps, direction, width = plan.steps, weights.direction, weights.width
    gates, before, cells = _gate_buffers(plan, buffers, weights)
    hidden, carried = (buffers.get(f"{name} {direction}", steps.counts[0], width) for name in ("hidden", "carried"))
    sums = gates[:, weights.recurrent_begin :]
    lstm = plan.cell_type == "lstm"
    kernel, states, straight = (lstm_backward, cells, 0) if lstm else (gru_backward, before, 1)
    arrays = gates.numpy(), states.numpy(), gradients.numpy(), hidden.numpy(), carried.numpy()
    first_hidden, first_cell = torch.zeros(width), torch.zeros(width)
    after = 0  # documents of the step that follows
    for step in reversed(plan.order(direction)):
        begin, count = steps.begins[step], steps.counts[step]
        if after > count:  # these began at the following step
            first_hidden += hidden[count:after].sum(0)
            first_cell += carried[count:after].sum(0)
        kernel(*arrays, begin, count, min(after, count), step, direction * width)
        own = hidden[:count]
        torch.addmm(own, sums[begin : begin + count], weights.recurrent, beta=straight, out=own)
        after = count
    first_hidden += hidden[:after].sum(0)
    first_cell += carried[:after].sum(0)
    inputs = gates[:, : weights.input_end]
    word_gradients = words
    if needs_words:
        word_gradients = torch.mm(inputs, weights.inputs, out=buffers.get(f"word gradients {direction}", *words.shape))
    of_weights = _weight_gradients(plan.cell_type, inputs.T @ words, sums.T @ before, gates.sum(0))
    return word_gradients, first_hidden, first_cell, of_weights


def _weight_gradients(cell_type: str, inputs: Tensor, recurrent: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the four tensors in torch's order."""
    if cell_type == "lstm":
        return inputs, recurrent, bias, bias.clone()
    w = len(inputs) // 3
    new, others, added = bias[:w], bias[w : 3 * w], bias[3 * w :]
    return torch.cat([inputs[w:], inputs[:w]]), recurrent, torch.cat([others, new]), torch.cat([others, added])


def _gate_buffers(plan: Plan, buffers: Buffers, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
    """Gates, hidden states and cells before each step. A GRU has no cells, and its kernels read none."""
    tokens, width, direction = plan.steps.tokens, weights.width, weights.direction
    gates = buffers.get(f"gates {direction}", tokens, 4 * width)
    before = buffers.get(f"before {direction}", tokens, width)
    cells = buffers.get(f"cells {direction}", tokens, width) if plan.cell_type == "lstm" else before
    return gates, before, cells


class RecurrentEncoder(nn.Module):
    """Hidden states of the words of documents.

    Parameters
    ----------
    table
        A vector per word [words, width]; a table that is trained is copied.
    frozen
        Whether the table is not trained; otherwise its gradient is row-sparse, and `train` needs its name in `rows`.
    config
        The recurrent layer.
    seed
        Seed of the initial weights.
    pooled
        Whether a document has the mean of its states, instead of `States`.
    """

    embedding_tables = ("words",)
    """Names of the parameters that are embedding tables, for `decay_on`."""

    def __init__(
        self, table: Tensor, frozen: bool, config: RecurrentConfig, seed: int = 0, pooled: bool = False
    ) -> None:
        super().__init__()
        self.config, self.pooled = config, pooled
        self.words = nn.Parameter(table if frozen else table.clone(), requires_grad=not frozen)
        layer: Any = nn.LSTM if config.cell == "lstm" else nn.GRU
        half = config.width // 2
        with seeded(seed):
            self.layer: Any = layer(table.shape[1], half, batch_first=True, bidirectional=True)
            for name, weight in self.layer.named_parameters():
                if weight.ndim == 2:
                    nn.init.xavier_uniform_(weight)
                elif name.startswith("bias"):
                    nn.init.zeros_(weight)
        learns_cell = config.learned_start and config.cell == "lstm"
        self.start = nn.Parameter(torch.zeros(2, half)) if config.learned_start else None
        self.start_cell = nn.Parameter(torch.zeros(2, half)) if learns_cell else None
        self.pool = BufferPool()

    @property
    def row_tables(self) -> tuple[str, ...]:
        """Names of the parameters with row-sparse gradients: the word table if it is trained."""
        return ("words",) if self.words.requires_grad else ()

    @property
    def width(self) -> int:
        """Dimension of a state."""
        return self.config.width

    def forward(self, ids: Tensor, lengths: Tensor) -> States | Tensor:
        """The states of packed words, or their mean per document."""
        sizes = lengths.cpu()
        states = self.states(ids, sizes)
        return states.sum(1) / sizes[:, None].to(ids.device) if self.pooled else States(states, sizes)

    def states(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """States [documents, longest, width] of packed words, zero after the end of a document.

        `lengths` must be descending (see `WordTokens.batch`).
        """
        if self.words.device.type != "cpu":
            return self.by_torch(ids, lengths)
        config, learning = self.config, torch.is_grad_enabled()
        plan = Plan(
            config.cell,
            Steps.of(lengths.numpy()),
            config.word_dropout if self.training else 0.0,
            config.dropout if self.training else 0.0,
            self.pool,
            learning,
        )
        states: Any = RecurrentPass.apply(plan, ids, self.words, self.start, self.start_cell, *self._weights())
        return states

    def by_torch(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The same with torch's own layers."""
        config = self.config
        words = functional.embedding(ids, self.words, sparse=True)
        words = functional.dropout(words, config.word_dropout, self.training)
        counts = torch.tensor(Steps.of(lengths.cpu().numpy()).counts)
        start = None
        if self.start is not None:
            parts = [self.start, self.start_cell] if self.start_cell is not None else [self.start]
            wide = [part[:, None].expand(-1, len(lengths), -1).contiguous() for part in parts]
            start = tuple(wide) if len(wide) == 2 else wide[0]
        packed, _ = self.layer(PackedSequence(words, counts), start)
        states, _ = pad_packed_sequence(packed, batch_first=True)
        return functional.dropout(states, config.dropout, self.training)

    def _weights(self) -> list[Tensor]:
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        return [getattr(self.layer, name + side) for side in ("", "_reverse") for name in names]
