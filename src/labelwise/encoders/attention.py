"""What a text encoder attends to in single documents, small enough to be drawn: tokens and one map per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelwise.encoders.base import tensors_of
from labelwise.encoders.transformer import TransformerEncoder
from labelwise.strings import Strings


@dataclass(frozen=True)
class AttentionMap:
    """Attention among the tokens of one document, the mean over heads."""

    tokens: list[str]
    """The tokens shown, special ones among them."""
    n_tokens: int
    """Tokens the encoder read; those in the middle are left out when there are more than are shown."""
    weights: np.ndarray
    """[layers, from, to] over the tokens shown. Rows sum to 1 where all tokens are; a model may have no layer of it."""
    entropy: np.ndarray
    """For each layer the entropy of attention over ln(tokens), of all tokens and heads; 1 is uniform."""


@torch.inference_mode()
def attention_maps(encoder: TransformerEncoder, texts: Strings, most: int) -> list[AttentionMap]:
    """Maps of each text's first stretch with at most so many tokens: its start, and the special tokens at its end."""
    encoder.eval()
    tokens = encoder.tokenizer.encode(texts, encoder.config)
    maps = []
    for document in range(len(tokens)):
        inputs = tensors_of(tokens.batch(np.array([document])), encoder.device)
        attended, mask = attention_of_first(encoder, inputs)
        ids, length = inputs[0], mask.shape[1]
        if attended is None:
            attended = ids.new_zeros(0, 1, 1, length, length)
        entropy = np.array(attention_entropy(attended.double(), mask))
        after = len(tokens.suffix)
        places = np.arange(length)
        if length > most:
            places = np.concatenate([places[: most - after], places[length - after :]])
        shown = attended[:, 0].double().mean(1).cpu().numpy()[:, places][:, :, places]  # the mean over heads
        words = encoder.tokenizer.words(ids[0].cpu().numpy()[places].tolist())
        maps.append(AttentionMap(words, length, shown, entropy))
    return maps


def attention_of_first(encoder: TransformerEncoder, inputs: Sequence[Tensor]) -> tuple[Tensor | None, Tensor]:
    """Attention weights of the first stretch of a batch, without padding, and its mask [1, length]."""
    ids, mask = inputs[0][:1], inputs[1][:1]
    length = int(mask.sum())
    return encoder.attentions(ids[:, :length], mask[:, :length]), mask[:, :length]


def attention_entropy(weights: Tensor, mask: Tensor) -> tuple[float, ...]:
    """For each layer the entropy of attention over ln(tokens), the mean of heads and tokens.

    `weights` is [layers, documents, heads, tokens, tokens]. Documents of one token have no choice and are left out.
    """
    lengths = mask.sum(1)
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1).mean(2)  # [layers, documents, tokens]
    relative = entropy / lengths.clamp_min(2).log()[None, :, None]
    counted = (mask & (lengths > 1).unsqueeze(1)).unsqueeze(0).to(relative.dtype)
    means = (relative * counted).sum((1, 2)) / counted.sum().clamp_min(1)
    return tuple(round(float(mean), 6) for mean in means)
