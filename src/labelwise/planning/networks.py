"""The cost of networks from the shape of the data: operations of encoders and heads, weights, and memory of training.

An operation is a multiplication or an addition. A step of training costs three times its forward pass. How many of them
a second has is measured per kind of network (`Constants.networks`), because their layers differ in how well they use a
processor. Free of torch.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from labelwise.errors import ConfigError, import_required
from labelwise.nn.config import (
    TINY,
    DigitHeadConfig,
    EncoderConfig,
    FineTuningConfig,
    ImageNetworkConfig,
    TextNetworkConfig,
    TrainingConfig,
)
from labelwise.planning.costs import (
    BASE_BYTES,
    HASH_BYTES,
    NAME_BYTES,
    TORCH_BYTES,
    Constants,
    Cost,
    DataShape,
)
from labelwise.planning.linear import linear_tree_cost

FLOAT = 4
STATES = 4
"""Weights, gradients, two moments."""
AVERAGED = 1
"""Further copies of the weights if they are averaged or the best ones are restored."""
BACKWARD = 3
"""Operations of a training step per operation of its forward pass."""
KEPT_PER_TOKEN = 18
"""Activations per layer and token that the backward pass needs, in multiples of the hidden size."""
TOKENS_PER_WORD = 1.4
"""Pieces of a tokenizer per word."""
CHANGES = (
    "training.batch_size with training.accumulate: fewer activations",
    "a smaller encoder",
    "fewer outputs: mach or mhe_text with num_group",
    "training.epochs",
)


@dataclass(frozen=True)
class NetworkSize:
    """A part of a network, per document."""

    weights: float
    forward: float
    """Operations."""
    kept: float
    """Numbers that the backward pass needs."""
    rows: float = 0.0
    """Weights of which a step changes only some rows, so that they have no gradients of full size."""

    def __add__(self, other: NetworkSize) -> NetworkSize:
        """Both."""
        return NetworkSize(
            self.weights + other.weights, self.forward + other.forward, self.kept + other.kept, self.rows + other.rows
        )


def training_steps(training: TrainingConfig, documents: int) -> float:
    """Documents that training processes, repeated ones too, divided by its batch size: its batches."""
    most = math.inf if training.epochs is None else training.epochs * math.ceil(documents / training.batch_size)
    return float(min(most, math.inf if training.steps is None else training.steps * training.accumulate))


def network_cost(
    shape: DataShape,
    constants: Constants,
    kind: str,
    size: NetworkSize,
    training: TrainingConfig,
    *,
    documents: int | None = None,
    extra_forward: float = 0.0,
    ranks: bool = True,
    changes: tuple[str, ...] = CHANGES,
) -> Cost:
    """Training a network on all documents; `extra_forward`: passes over them besides the steps."""
    batches = training_steps(training, shape.documents if documents is None else documents)
    operations = size.forward * (BACKWARD * batches * training.batch_size + extra_forward * shape.documents)
    copies = STATES + AVERAGED * (training.averaging.kind != "none" or training.restore_best)
    device = FLOAT * (copies * size.weights + 3 * size.rows + training.batch_size * size.kept)
    model = FLOAT * (size.weights + size.rows) + shape.labels * NAME_BYTES + shape.documents * HASH_BYTES
    rate = constants.rate(kind)
    return Cost(
        network=operations / rate,
        operations=operations,
        memory=BASE_BYTES + TORCH_BYTES + 2 * shape.bytes + shape.labels * NAME_BYTES,
        device_memory=device,
        disk=shape.bytes + model + FLOAT * 3 * (size.weights + size.rows),
        model=model,
        latency=constants.call + size.forward / rate,
        step_bytes=FLOAT * size.weights,
        steps=batches / training.accumulate,
        shares=1_000_000 if ranks else 1,
        changes=changes,
    )


def head_size(outputs: float, width: float, labels: int, scored: float | None = None) -> NetworkSize:
    """Scores of some outputs from a vector; `scored` of them per document, if not all."""
    each = outputs if scored is None else scored
    return NetworkSize(outputs * (width + 1), 2 * each * width, 2 * min(each, 8192))


def grouped_head_size(labels: int, width: float, groups: int, beam: int, bottleneck: int) -> NetworkSize:
    """A cascade: groups are scored, then the labels of some groups from a narrower vector."""
    each = math.ceil(labels / groups)
    weights = groups * (width + 1) + width * bottleneck + labels * (bottleneck + 1)
    return NetworkSize(
        weights, 2 * (groups * width + width * bottleneck + beam * each * bottleneck), groups + beam * each
    )


def digit_head_size(config: Any, labels: int, width: float) -> NetworkSize:
    """The head of a `DigitHeadConfig`."""
    if config.kind == "product":
        radices = config.radices or [math.ceil(labels ** (1 / config.heads))] * config.heads
        return head_size(sum(radices), width, labels)
    if config.kind == "cascade":
        first = config.radices[0] if config.radices else math.ceil(labels**0.5)
        return grouped_head_size(labels, width, first, config.groups or 10, config.bottleneck or 400)
    if config.kind == "sampling":
        fraction = config.sampled_fraction or (config.sampled_groups or 10) / math.ceil(labels**0.5)
        return head_size(labels, width, labels, labels * min(1.0, fraction))
    return head_size(labels, width, labels)


def recurrent_size(shape: DataShape, words: Any, recurrent: Any) -> tuple[NetworkSize, float, float]:
    """Word vectors and a bidirectional layer; also the width of its states and the words that are read."""
    length = min(words.max_length, shape.words if shape.words is not None else shape.nonzeros)
    inputs = words.width or 300
    each = recurrent.width // 2
    gates = 4 if recurrent.cell == "lstm" else 3
    weights = 2 * gates * each * (inputs + each + 2)
    vocabulary = min(shape.features, words.max_size)
    size = NetworkSize(weights, 2 * weights * length, length * (inputs + 2 * (gates + 2) * each), vocabulary * inputs)
    return size, recurrent.width, length


def label_attention_size(width: float, words: float, attended: float, labels: float, hidden: list[int]) -> NetworkSize:
    """Attention of labels over words, and the layers after it; `attended` labels per document out of `labels`."""
    layers = [width, *hidden, 1]
    dense = sum(one * other for one, other in pairwise(layers))
    each = 4 * words * width + 2 * dense
    return NetworkSize(dense, attended * each, min(attended, 8192) * (width + sum(hidden)), labels * width)


def attention_xml_cost(config: Any, shape: DataShape, constants: Constants) -> Cost:
    """One network per level; of all but the first, a document's candidates are the children of some nodes."""
    size, width, words = recurrent_size(shape, config.words, config.recurrent)
    levels = [shape.labels]
    if not config.flat:
        groups = 1 << max(0, math.ceil(math.log2(shape.labels / config.cluster_size)))
        levels = [*(config.levels or [groups]), shape.labels]
    total, above = None, None
    for nodes in levels:
        attended = nodes if above is None else min(nodes, config.beam_width * nodes / above)
        level = size + label_attention_size(width, words, attended, nodes, config.hidden)
        cost = network_cost(shape, constants, "recurrent", level, config.training, ranks=True)
        total = cost if total is None else total + cost
        above = nodes
    assert total is not None
    trees = config.trees
    return replace(
        total, network=trees * total.network, operations=trees * total.operations, model=trees * total.model,
        latency=trees * total.latency, steps=trees * total.steps,
    )  # fmt: skip


def bigru_cost(config: Any, shape: DataShape, constants: Constants) -> Cost:
    """One network, with label-wise attention or without."""
    size, width, words = recurrent_size(shape, config.words, config.recurrent)
    if config.attention == "label":
        size += label_attention_size(width, words, shape.labels, shape.labels, [])
    else:
        size += head_size(shape.labels, width, shape.labels)
    return network_cost(shape, constants, "recurrent", size, config.training, ranks=True)


def bucket_size(shape: DataShape, rows: int, hidden: list[int], buckets: int) -> NetworkSize:
    """One repetition of bucket networks: sparse features, layers, buckets."""
    layers = [*hidden, buckets]
    dense = sum(one * other + other for one, other in pairwise(layers))
    first = 2 * shape.nonzeros * hidden[0] if hidden else 0.0
    return NetworkSize(dense, first + 2 * dense, sum(layers) * 2, rows * (hidden[0] if hidden else buckets))


# --- encoder size ---
# The size of a text encoder from its settings, without its weights: layers, width, vocabulary. Free of torch.

KNOWN = {
    "distilbert/distilbert-base-uncased": (6, 768, 30_522),
    "google-bert/bert-base-uncased": (12, 768, 30_522),
    "sentence-transformers/all-minilm-l6-v2": (6, 384, 30_522),
    TINY: (2, 32, 8_000),
}
"""Layers, width and vocabulary of the encoders that configs name by default, which need not be downloaded."""
LAYER_NAMES = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
WIDTH_NAMES = ("hidden_size", "dim", "d_model", "n_embd")


@dataclass(frozen=True)
class EncoderSize:
    """An encoder."""

    layers: int
    width: int
    vocabulary: int

    @property
    def layer_weights(self) -> float:
        """Weights of all layers: attention and a feed-forward layer of four times the width."""
        return 12.0 * self.layers * self.width**2

    @property
    def weights(self) -> float:
        """All weights, those of words too."""
        return self.layer_weights + float(self.vocabulary + 512) * self.width

    def operations(self, tokens: float) -> float:
        """Operations of a forward pass over so many tokens."""
        return 2 * self.layer_weights * tokens + 4.0 * self.layers * self.width * tokens**2


def encoder_size(config: EncoderConfig) -> EncoderSize:
    """From the architecture, a folder with a config.json, or a known name."""
    if config.architecture is not None:
        return _from_settings(config.architecture, config.vocabulary, "encoder.architecture")
    known = KNOWN.get(config.model.lower())
    if known is not None:
        return EncoderSize(*known)
    folder = Path(config.model).expanduser()
    for path in (folder / "config.json", *sorted(folder.glob("*/config.json"))):
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(settings, dict) and any(name in settings for name in WIDTH_NAMES):
            return _from_settings(settings, 30_522, str(path))
    raise ConfigError(
        f"encoder.model: the size of {config.model} is not known; give a folder with its config.json, or "
        "encoder.architecture with the same settings"
    )


def _from_settings(settings: dict[str, Any], vocabulary: int, where: str) -> EncoderSize:
    layers = next((settings[name] for name in LAYER_NAMES if name in settings), 12)
    width = next((settings[name] for name in WIDTH_NAMES if name in settings), 768)
    words = settings.get("vocab_size", vocabulary)
    for name, value in (("layers", layers), ("width", width), ("vocabulary", words)):
        if not isinstance(value, int) or not 0 < value < 1 << 31:
            raise ConfigError(f"{where}: the number of {name} is {value!r}")
    return EncoderSize(layers, width, words)


# --- text costs ---
# Costs of methods with a text encoder: what `_cost` of several of them shares.

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


def network_head_size(config: Any, labels: int, width: float) -> NetworkSize:
    """The head of a method with one encoder and one head."""
    if isinstance(config.head, DigitHeadConfig):
        return digit_head_size(config.head, labels, width)
    if getattr(config, "num_group", 0):
        return grouped_head_size(labels, width, config.num_group, config.groups, config.bottleneck)
    return head_size(labels, width, labels)


def text_network_cost(config: TextNetworkConfig, shape: DataShape, constants: Constants) -> Cost:
    """An encoder with a head; before both are trained, the texts may be encoded once to train the head alone."""
    encoder, width = encoder_part(shape, config.encoder)
    size = encoder + network_head_size(config, shape.labels, width)
    cost = network_cost(shape, constants, TRANSFORMER, size, config.training)
    first = 0 if config.encoder.starts_random or config.head_epochs == 0 else 1
    return cost if not (first or config.encoder.frozen) else with_encoding(cost, shape, constants, config.encoder)


def image_network_cost(config: ImageNetworkConfig, shape: DataShape, constants: Constants) -> Cost:
    """An encoder of images with a head; operations are counted in a forward pass of the untrained network."""
    import_required("the cost of a network for images", "vision", "torch", "pillow")
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from labelwise.nn.images.networks import image_backbone

    image, kept = config.image, []
    backbone = image_backbone(config).eval()
    for module in backbone.modules():
        module.register_forward_hook(lambda _, __, output: kept.append(output.numel()))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        width = backbone(torch.zeros(1, image.channels, image.size, image.size)).shape[1]
    weights = sum(parameter.numel() for parameter in backbone.parameters())
    encoder = NetworkSize(weights, counter.get_total_flops(), sum(kept))
    pixels = replace(shape, words=None, nonzeros=image.size**2 * image.channels / 8)
    size = encoder + network_head_size(config, shape.labels, width)
    return network_cost(pixels, constants, "image", size, config.training)


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


def hybrid_linear_cost(config: Any, shape: DataShape, constants: Constants) -> Cost:
    """Linear trees on TF-IDF and the vectors of an encoder that reads every text once."""
    width = encoder_size(config.encoder).width * config.encoder.layers
    return with_encoding(linear_tree_cost(config, shape, constants, width), shape, constants, config.encoder)


def xr_transformer_cost(config: Any, shape: DataShape, constants: Constants) -> Cost:
    """The same after fine-tuning the encoder."""
    fine_tuning = fine_tuning_cost(shape, constants, config.encoder, config.fine_tuning)
    return replace(fine_tuning + hybrid_linear_cost(config, shape, constants), shares=1)
