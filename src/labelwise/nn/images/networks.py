"""Residual networks (He et al., CVPR 2016) for small and large images, as backbones of `ImageEncoder`.

Differences from torchvision's networks: a 3x3 first layer without pooling for small images, any number of channels, and
the last normalisation of each block starts at 0, so that blocks begin as the identity (Goyal et al. 2017).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from labelwise.errors import ConfigError, ModelFormatError, import_required
from labelwise.io.folder import get_tensor
from labelwise.nn.config import RESNETS, BackboneConfig
from labelwise.nn.inputs import as_array, take_weights
from labelwise.nn.text.files import call_configured, call_guarded, checked_settings, encoder_source
from labelwise.runtime.ranks import current_share, is_distributed

# --- batch norm ---
# Batch normalisation over the batches of all ranks, on any device, and for batches of one.
#
# With several ranks, torch's own layers would normalise each rank's part of a batch by itself: the result would depend
# on the number of ranks. `torch.nn.SyncBatchNorm` does not run on CPUs. Here sums are added over ranks, and so are
# their gradients. On a single process this is torch's layer.


class BatchNorm(nn.Module):
    """Batch normalisation of maps [documents, channels, height, width] or of vectors [documents, channels]."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.channels, self.eps, self.momentum = channels, eps, momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, values: Tensor) -> Tensor:
        """Normalised values: by the batch in training, by running means otherwise."""
        count = values.numel() // self.channels
        if self.training and is_distributed():
            return self._over_ranks(values, count)
        # a single vector has no variance; it is normalised as in predictions, and changes no running mean
        by_batch = self.training and count > 1
        return nn.functional.batch_norm(
            values, self.running_mean, self.running_var, self.weight, self.bias, by_batch, self.momentum, self.eps
        )

    def _over_ranks(self, values: Tensor, count: int) -> Tensor:
        from torch.distributed.nn.functional import all_reduce

        wide = values.to(torch.promote_types(values.dtype, torch.float32))
        others = [axis for axis in range(values.ndim) if axis != 1]
        shape = [1, -1, *[1] * (values.ndim - 2)]
        share = current_share()
        counts = 1.0 if share is None or share.own else 0.0  # a rank without documents computes one of another rank
        own = torch.cat([wide.sum(others), wide.new_full((1,), float(count))]) * counts
        sums: Any = all_reduce(own)
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = wide - mean.reshape(shape)
        squares: Any = all_reduce(centred.square().sum(others) * counts)  # of differences: no cancellation
        variance = squares / total
        if float(total) > 1:
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                unbiased = variance * (total / (total - 1))
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        normalised = centred * torch.rsqrt(variance + self.eps).reshape(shape)
        result = torch.addcmul(self.bias.reshape(shape), normalised, self.weight.reshape(shape))
        return result.to(values.dtype)


EXPANSION = 4
"""Channels of a bottleneck block's output as a multiple of its inner ones."""


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the positions."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """Two 3x3 convolutions, or a bottleneck of three, around which the input is added."""

    def __init__(self, inputs: int, channels: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.outputs = channels * EXPANSION if bottleneck else channels
        if bottleneck:
            layers = [(inputs, channels, 1, 1), (channels, channels, 3, stride), (channels, self.outputs, 1, 1)]
        else:
            layers = [(inputs, channels, 3, stride), (channels, channels, 3, 1)]
        self.convolutions = nn.ModuleList(convolution(*layer) for layer in layers)
        self.norms = nn.ModuleList(BatchNorm(layer[1]) for layer in layers)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != self.outputs:
            self.shortcut = nn.Sequential(convolution(inputs, self.outputs, 1, stride), BatchNorm(self.outputs))

    def forward(self, images: Tensor) -> Tensor:
        """The sum of the input and what the convolutions compute."""
        layer = images
        for index, (convolve, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            layer = norm(convolve(layer if index == 0 else functional.relu(layer)))
        return functional.relu(layer + self.shortcut(images))


class ResNet(nn.Module):
    """Images [documents, channels, height, width] to vectors.

    Parameters
    ----------
    config
        Depth, channels, first layers, pooling.
    channels
        1 for grey images, 3 for colour.
    size
        Width and height of the images.
    """

    def __init__(self, config: BackboneConfig, channels: int, size: int) -> None:
        super().__init__()
        counts, bottleneck = RESNETS[config.name]
        large, width = config.has_large_stem(size), config.channels
        # a fifth faster on CPUs; with other numbers of channels torch 2.13 writes beyond its arrays in this layout
        self.channels_last = width % 8 == 0
        self.first = convolution(channels, width, 7 if large else 3, 2 if large else 1)
        self.norm = BatchNorm(width)
        self.pool_first = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        side = math.ceil(math.ceil(size / 2) / 2) if large else size
        blocks: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(counts):
            for index in range(count):
                stride = 2 if stage and not index else 1
                block = Block(inputs, width << stage, stride, bottleneck)
                side, inputs = math.ceil(side / stride), block.outputs
                blocks.append(block)
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(config.dropout)
        self.flat = config.pool == "flatten"
        self.width = inputs * side * side if self.flat else inputs
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw the weights for ReLU (He et al. 2015) from torch's generator."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Block):
                module.norms[-1].weight.zero_()  # type: ignore[union-attr]

    def forward(self, images: Tensor) -> Tensor:
        """Vectors [documents, width]."""
        maps = self.blocks(self.pool_first(functional.relu(self.norm(self.first(images)))))
        return self.dropout(maps.flatten(1) if self.flat else maps.mean((2, 3)))


# --- image encoder ---
# An image network as an encoder: pixels are normalised on the device, then a backbone computes a vector per image.
#
# A backbone is any module from float images [documents, channels, height, width] to vectors, with their `width`.

COUNTER = "num_batches_tracked"
"""A buffer of batch normalisation that neither training nor prediction reads."""


class ImageEncoder(nn.Module):
    """uint8 images [documents, channels, height, width] to vectors.

    Parameters
    ----------
    backbone
        From normalised images to vectors; has the attribute `width`, and `channels_last` if that layout is faster.
    mean, std
        Per channel, for pixels from 0 to 1.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, mean: np.ndarray, std: np.ndarray) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.register_buffer("mean", torch.as_tensor(np.asarray(mean, np.float32)))
        self.register_buffer("std", torch.as_tensor(np.asarray(std, np.float32)))

    @property
    def width(self) -> int:
        """Dimension of the vectors."""
        return self.backbone.width

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.mean.device

    def forward(self, pixels: Tensor) -> Tensor:
        """Vectors [documents, width] of pixels that are normalised, channel by channel, to mean 0 and deviation 1."""
        last = getattr(self.backbone, "channels_last", False)
        images = pixels.to(memory_format=torch.channels_last if last else torch.contiguous_format).float()
        mean, std = self.mean[:, None, None], self.std[:, None, None]
        return self.backbone((images - 255 * mean) / (255 * std))

    # --- files ---

    def state(self) -> dict[str, np.ndarray]:
        """All weights, running means and variances, and the settings of a network that has its own."""
        weights = {name: value for name, value in self.state_dict().items() if not name.endswith(COUNTER)}
        state = {name: np.ascontiguousarray(as_array(value)) for name, value in weights.items()}
        settings = getattr(self.backbone, "settings", None)
        return state if settings is None else {**state, "settings": settings}

    def restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> Self:
        """Restore what `state` returned, without copying; the encoder may have been built on the meta device."""
        counters = {name: np.zeros((), np.int64) for name in self.state_dict() if name.endswith(COUNTER)}
        take_weights(self, {**tensors, **counters}, path, "the weights do not fit the network of the config")
        if bool((self.std <= 0).any()):
            raise ModelFormatError(f"{path}: std must be above 0")
        if any(bool((value < 0).any()) for name, value in self.named_buffers() if name.endswith("running_var")):
            raise ModelFormatError(f"{path}: a variance is below 0")
        return self


def image_backbone(config: Any, saved: Mapping[str, np.ndarray] | None = None, path: Path = Path()) -> nn.Module:
    """The network from normalised images to vectors that a method's config describes, with initial weights.

    `saved` are the arrays of a model file, for whose weights the network is built.
    """
    image = config.image
    if hasattr(config, "network"):
        from labelwise.nn.images.faces import make_face_network

        return make_face_network(config.network, image.channels, image.size, config.training.seed)
    if config.backbone.name != "transformers":
        return ResNet(config.backbone, image.channels, image.size)
    import_required("backbone.name: transformers", "vision", "transformers")

    if saved is None:
        return new_image_model(config.backbone, image.channels, image.size)
    n_weights = sum(array.size for array in saved.values())
    settings = checked_settings(get_tensor(saved, "settings", path), n_weights, path, IMAGE_FAMILIES)
    model = call_guarded(lambda: _built(settings, str(path)), f"{path}: the network cannot be built")
    return ImageModel(model, config.backbone.dropout)


# --- image models ---
# Image networks of the package transformers (ResNet, ViT, ConvNeXt ...) as backbones of `ImageEncoder`.
#
# Their settings are saved with the weights, so that a model folder needs no other files. Files may come from strangers:
# only families of plain image networks are built, counts are bounded, and no code of a model is run.

IMAGE_FAMILIES = frozenset(
    ("beit", "bit", "convnext", "convnextv2", "cvt", "data2vec-vision", "deit", "dinov2", "focalnet", "levit",
     "mobilenet_v1", "mobilenet_v2", "mobilevit", "mobilevitv2", "poolformer", "pvt_v2", "regnet", "resnet", "swin",
     "swinv2", "vit", "vit_mae", "vit_msn")
)  # fmt: skip
"""Families that are built from their settings alone."""


class ImageModel(nn.Module):
    """A network of transformers from images to vectors: the first token if there is one for that, else the mean."""

    def __init__(self, model: Any, dropout: float) -> None:
        super().__init__()
        pooler = getattr(model, "pooler", None)
        if pooler is not None and any(True for _ in pooler.parameters()):
            model.pooler = None  # not used, and often without trained weights; a pooling without weights is called
        self.model = model
        self.dropout = nn.Dropout(dropout)
        sizes = getattr(model.config, "hidden_sizes", None)
        self.width = int(sizes[-1]) if sizes else int(model.config.hidden_size)
        self.has_class_token = any(name.endswith("cls_token") for name, _ in model.named_parameters())

    @property
    def settings(self) -> np.ndarray:
        """The settings of the network as bytes of JSON, for model files."""
        return np.frombuffer(json.dumps(self.model.config.to_diff_dict()).encode(), np.uint8)

    def forward(self, images: Tensor) -> Tensor:
        """Vectors [documents, width]."""
        hidden = self.model(pixel_values=images).last_hidden_state
        if hidden.ndim == 4:
            return self.dropout(hidden.mean((2, 3)))
        return self.dropout(hidden[:, 0] if self.has_class_token else hidden.mean(1))


def new_image_model(config: BackboneConfig, channels: int, size: int) -> ImageModel:
    """The network of a config: with the weights of a folder, or with random ones."""
    if config.architecture is not None:
        given = {"image_size": size, "num_channels": channels, **config.architecture}
        model = call_configured(lambda: _built(given, "backbone.architecture"), "backbone.architecture")
        return ImageModel(model, config.dropout)
    source, _ = encoder_source(str(config.model))
    model = call_configured(lambda: _pretrained(source), "backbone.model")
    for name, wanted in (("image_size", size), ("num_channels", channels)):
        given = getattr(model.config, name, wanted)
        if given != wanted and name == "num_channels":
            raise ConfigError(f"backbone.model: {source} reads images with {given} channels; set image.channels")
        if given not in (wanted, [wanted, wanted], (wanted, wanted)):
            raise ConfigError(f"backbone.model: {source} reads images of {given} pixels; set image.size")
    return ImageModel(model, config.dropout)


def _built(settings: dict[str, Any], where: str) -> Any:
    family = settings.get("model_type")
    if family not in IMAGE_FAMILIES:
        known = ", ".join(sorted(IMAGE_FAMILIES))
        raise ConfigError(f"{where}: {family!r} is no family of image networks; accepted: {known}")
    from transformers import AutoConfig, AutoModel

    plain = {key: value for key, value in settings.items() if key not in ("model_type", "transformers_version")}
    return AutoModel.from_config(AutoConfig.for_model(family, **plain))


def _pretrained(source: str) -> Any:
    from transformers import AutoConfig

    from labelwise.nn.text.transformer import load_weights

    settings = AutoConfig.from_pretrained(source, trust_remote_code=False)
    if settings.model_type not in IMAGE_FAMILIES:
        raise ConfigError(f"backbone.model: {source} is a {settings.model_type}, no family of image networks")
    return load_weights(source, settings, "backbone.model")


# --- occlusion maps ---
# How much a label's score falls when a part of the image is covered (Zeiler and Fergus 2014).
#
# Works with any encoder of images and any head, because nothing but scores is needed.

PIXELS_AT_ONCE = 1 << 20
"""Pixels of images that are encoded at a time."""
SCORES_AT_ONCE = 1 << 22
"""Documents x labels that are ranked at a time."""
LEAST = 1e-6
"""Scores below it count as equal, so that the logarithm of a label that is not ranked any more is finite."""


@torch.inference_mode()
def occlusion_maps(network: Any, pixels: np.ndarray, labels: np.ndarray, cells: int) -> np.ndarray:
    """Falls of the logarithm of the scores of some labels, float32 [labels, cells, cells].

    Parameters
    ----------
    network
        Encoder and head.
    pixels
        One image, uint8 [channels, height, width].
    labels
        Ids of the labels.
    cells
        The image is divided into cells x cells parts, each of which is covered once by the mean colour.
    """
    encoder = network.encoder
    colour = np.rint(255 * encoder.mean.cpu().numpy()).astype(np.uint8)
    down, right = (np.linspace(0, length, cells + 1).round().astype(int) for length in pixels.shape[1:])

    def covered(cell: int) -> np.ndarray:
        """The image without one part; without none for -1."""
        image = pixels.copy()
        if cell >= 0:
            row, column = divmod(cell, cells)
            image[:, down[row] : down[row + 1], right[column] : right[column + 1]] = colour[:, None, None]
        return image

    encoder.eval()
    at_once, parts = max(1, PIXELS_AT_ONCE // (pixels.shape[1] * pixels.shape[2])), []
    for begin in range(-1, cells * cells, at_once):
        images = np.stack([covered(cell) for cell in range(begin, min(begin + at_once, cells * cells))])
        vectors = encoder(torch.from_numpy(images).to(encoder.device)).float()
        parts.append(label_scores(network.head, vectors, labels))
    logs = np.log(np.maximum(np.concatenate(parts), LEAST))
    return (logs[0] - logs[1:]).T.reshape(len(labels), cells, cells).astype(np.float32)


def label_scores(head: Any, vectors: Tensor, labels: np.ndarray) -> np.ndarray:
    """Scores of some labels [documents, labels]; 0 where a search has not reached the label."""
    scores = np.zeros((len(vectors), len(labels)))
    at_once = max(1, SCORES_AT_ONCE // head.n_labels)
    for begin in range(0, len(vectors), at_once):
        ids, best = head.best(vectors[begin : begin + at_once], head.n_labels)
        found = head.probabilities(best)
        for column, label in enumerate(labels.tolist()):
            scores[begin : begin + at_once, column] = torch.where(ids == label, found, 0.0).amax(1).cpu().numpy()
    return scores
