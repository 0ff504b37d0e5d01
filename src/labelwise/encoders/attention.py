"""Attention maps of a text encoder for single documents: a few tokens and one map per layer, for drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelwise.encoders.base import tensors_of
from labelwise.encoders.transformer import TransformerEncoder
from labelwise.strings import Strings

AttentionReader = Callable[[Tensor, Tensor], Tensor | None]


@dataclass(frozen=True)
class AttentionMap:
    """Attention among the tokens of one document, the mean over heads."""

    tokens: list[str]
    """The tokens shown, special ones included."""
    n_tokens: int
    """Tokens the encoder read; those in the middle are left out when there are more than are shown."""
    weights: np.ndarray
    """[layers, from, to] over the tokens shown; rows sum to 1 if all are. Models without attention have no layers."""
    entropy: np.ndarray
    """Per layer the entropy of attention over ln(tokens), the mean over tokens and heads; 1 is uniform."""


@torch.inference_mode()
def attention_maps(encoder: TransformerEncoder, texts: Strings, max_tokens: int) -> list[AttentionMap]:
    """Maps of at most `max_tokens` tokens of each text's first window: its start and the special tokens at its end."""
    encoder.eval()
    tokens = encoder.tokenizer.encode(texts, encoder.config)
    read, maps = encoder.attention_reader(), []
    for document in range(len(tokens)):
        inputs = tensors_of(tokens.batch(np.array([document])), encoder.device)
        attended, mask = attention_of_first(read, inputs)
        ids, length = inputs[0], mask.shape[1]
        if attended is None:
            attended = ids.new_zeros(0, 1, 1, length, length)
        entropy = np.array(attention_entropy(attended.double(), mask))
        after = len(tokens.suffix)
        positions = np.arange(length)
        if length > max_tokens:
            positions = np.concatenate([positions[: max_tokens - after], positions[length - after :]])
        shown = attended[:, 0].double().mean(1).cpu().numpy()[:, positions][:, :, positions]  # the mean over heads
        words = encoder.tokenizer.words(ids[0].cpu().numpy()[positions].tolist())
        maps.append(AttentionMap(words, length, shown, entropy))
    return maps


def attention_of_first(read: AttentionReader, inputs: Sequence[Tensor]) -> tuple[Tensor | None, Tensor]:
    """Attention weights of the first window of a batch, without padding, and its mask [1, length].

    `read` is the encoder's `attention_reader()`.
    """
    ids, mask = inputs[0][:1], inputs[1][:1]
    length = int(mask.sum())
    return read(ids[:, :length], mask[:, :length]), mask[:, :length]


def attention_entropy(weights: Tensor, mask: Tensor) -> tuple[float, ...]:
    """Per layer the entropy of attention over ln(tokens), the mean over heads and tokens.

    `weights` is [layers, documents, heads, tokens, tokens]. Documents of one token are left out.
    """
    lengths = mask.sum(1)
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1).mean(2)  # [layers, documents, tokens]
    relative = entropy / lengths.clamp_min(2).log()[None, :, None]
    counted = (mask & (lengths > 1).unsqueeze(1)).unsqueeze(0).to(relative.dtype)
    means = (relative * counted).sum((1, 2)) / counted.sum().clamp_min(1)
    return tuple(round(float(mean), 6) for mean in means)
