"""Estimate the memory of fine-tuning an encoder before it begins, and refuse what does not fit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from labelwise.errors import ConfigError
from labelwise.formatting import size
from labelwise.linear.memory import Memory
from labelwise.nn.config import TrainingConfig
from labelwise.runtime.device import computing_device
from labelwise.runtime.memory import free_memory

log = logging.getLogger("labelwise")

STATES = 4
"""Weights, gradients, two moments."""
KEPT_PER_TOKEN = 18
"""Activations per layer and token that the backward pass needs, as a multiple of the hidden size (and of 1 if they are
recomputed): projections, attention output, feed-forward layers, norms, dropout."""
FLOAT = 4


def fine_tuning_bytes(
    encoder: Any, sizes: Sequence[int], n_documents: int, training: TrainingConfig
) -> tuple[int, int]:
    """Bytes on the device and bytes for the documents' vectors, which are always in the memory of the host.

    `sizes` are the numbers of nodes of the levels.
    """
    settings, config = encoder.backbone.config, encoder.config
    layers, hidden = settings.num_hidden_layers, settings.hidden_size
    heads = getattr(settings, "num_attention_heads", 1)
    weights = sum(parameter.numel() for parameter in encoder.parameters())
    windows = config.windows if config.long_texts == "windows" else 1
    length = config.max_length
    tokens = training.batch_size * length * windows
    if training.tokens_per_batch is not None:
        tokens = max(min(tokens, training.tokens_per_batch), length)
    per_token = (1 if config.gradient_checkpointing else KEPT_PER_TOKEN) * hidden + heads * length
    outputs = max(sizes) * (encoder.width + 1)
    device = FLOAT * (STATES * (weights + outputs) + layers * tokens * per_token)
    return device, 2 * FLOAT * n_documents * encoder.width


def check_fine_tuning_memory(
    encoder: Any, sizes: Sequence[int], n_documents: int, training: TrainingConfig, memory: Memory
) -> None:
    """Report the needed and the free memory; raise ConfigError where it does not fit, unless `memory` is `ignore`."""
    on_device, vectors = fine_tuning_bytes(encoder, sizes, n_documents, training)
    on_gpu = computing_device().type != "cpu"
    need, free = vectors + (0 if on_gpu else on_device), free_memory()
    if isinstance(memory, float | int):
        limit = int(memory * 1e9)
        free = limit if free is None else min(limit, free)
    known = "" if free is None else f"; {size(free)} are free"
    gpu = f", and {size(on_device)} on the GPU" if on_gpu else ""
    log.info("fine-tuning needs about %s%s%s", size(need), gpu, known)
    if memory != "ignore" and free is not None and need > free:
        raise ConfigError(
            f"fine-tuning needs about {size(need)} of memory, {size(free)} are free; use a smaller "
            "fine_tuning.training.batch_size with accumulate, encoder.gradient_checkpointing, a smaller "
            "encoder.max_length or fine_tuning.documents, or set memory to ignore to train anyway"
        )
