"""From words to hidden states: a word table, dropout, and a bidirectional LSTM or GRU.

Batches are packed (see `recurrent_passes`): a document's states do not depend on the other documents of its batch,
and the backward direction starts at the document's own last word. On a CPU our own passes are used, elsewhere torch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from labelwise.nn.config import RecurrentConfig
from labelwise.nn.heads.base import States
from labelwise.nn.inputs import BufferPool
from labelwise.nn.words.recurrent_passes import Plan, RecurrentPass, Steps
from labelwise.runtime.device import seeded


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

    word_tables = ("words",)
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
        self.start: nn.Parameter | None = None
        self.start_cell: nn.Parameter | None = None
        if config.learned_start:
            self.start = nn.Parameter(torch.zeros(2, half))
            if config.cell == "lstm":
                self.start_cell = nn.Parameter(torch.zeros(2, half))
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
