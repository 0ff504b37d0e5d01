"""Costs of methods with a text encoder: what `_cost` of several of them shares."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from labelwise.costs import TORCH_BYTES, Constants, Cost, DataShape
from labelwise.encoders.config import EncoderConfig
from labelwise.encoders.encoder_size import encoder_size
from labelwise.networks.cost import KEPT_PER_TOKEN, TOKENS_PER_WORD, NetworkSize, head_size, network_cost
from labelwise.networks.fine_tuning_settings import FineTuningConfig

TRANSFORMER = "transformer"


def tokens_of(shape: DataShape, config: EncoderConfig) -> float:
    """Tokens per document that the encoder reads."""
    read = config.max_length * (config.windows if config.long_texts == "windows" else 1)
    return min(read, TOKENS_PER_WORD * (shape.words if shape.words is not None else shape.nonzeros) + 2)


def encoder_part(shape: DataShape, config: EncoderConfig) -> tuple[NetworkSize, float]:
    """The encoder in training, and the width of its vectors."""
    size, tokens = encoder_size(config), tokens_of(shape, config)
    kept = tokens * size.width * size.layers * (1 if config.gradient_checkpointing else KEPT_PER_TOKEN)
    trained = NetworkSize(size.weights, size.operations(tokens), kept)
    if config.frozen:  # encoded once, so that a step costs the head only
        trained = NetworkSize(0, 0, 0, size.weights)
    return trained, size.width * config.layers


def text_network_cost(shape: DataShape, constants: Constants, config: Any, head: NetworkSize) -> Cost:
    """An encoder with a head; before both are trained, the texts may be encoded once to train the head alone."""
    encoder, _ = encoder_part(shape, config.encoder)
    cost = network_cost(shape, constants, TRANSFORMER, encoder + head, config.training)
    first = 0 if config.encoder.starts_random or config.head_epochs == 0 else 1
    return cost if not (first or config.encoder.frozen) else with_encoding(cost, shape, constants, config.encoder)


def with_encoding(cost: Cost, shape: DataShape, constants: Constants, config: EncoderConfig) -> Cost:
    """The cost with one pass of the encoder over all texts, and its vectors in memory."""
    size = encoder_size(config)
    operations = shape.documents * size.operations(tokens_of(shape, config))
    seconds = operations / constants.rate(TRANSFORMER)
    return replace(
        cost,
        network=cost.network + seconds,
        operations=cost.operations + operations,
        memory=cost.memory + TORCH_BYTES + 4 * size.weights,
        model=cost.model + 4 * size.weights,
        latency=cost.latency + size.operations(tokens_of(shape, config)) / constants.rate(TRANSFORMER),
    )


def fine_tuning_cost(shape: DataShape, constants: Constants, config: EncoderConfig, fine: FineTuningConfig) -> Cost:
    """Fine-tuning an encoder level by level of a label tree, as `xr_transformer` does."""
    levels, nodes = 1, fine.top_nodes
    while nodes < min(fine.max_nodes, math.ceil(shape.labels / fine.leaf_size)):
        nodes, levels = nodes * fine.branching, levels + 1
    encoder, width = encoder_part(shape, config)
    nodes = min(nodes, fine.max_nodes, shape.labels)
    size = encoder + head_size(nodes, width, nodes, min(nodes, fine.beam * fine.branching + fine.top_nodes))
    documents = min(shape.documents, fine.documents or shape.documents)
    one = network_cost(shape, constants, TRANSFORMER, size, fine.training, documents=documents)
    return replace(
        one, network=levels * one.network, operations=levels * one.operations, steps=levels * one.steps, model=0.0,
        latency=0.0,
    )  # fmt: skip
