"""Image networks of the package transformers (ResNet, ViT, ConvNeXt ...) as backbones of `ImageEncoder`.

Their settings are saved with the weights, so that a model folder needs no other files. Files may come from strangers:
only families of plain image networks are built, counts are bounded, and no code of a model is run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from labelwise.errors import ConfigError
from labelwise.nn.config import BackboneConfig
from labelwise.nn.text.saved_encoder import encoder_source
from labelwise.nn.text.tokens import call_guarded, checked_settings

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
    source, _, _ = encoder_source(str(config.model))
    model = call_configured(lambda: _pretrained(source), "backbone.model")
    for name, wanted in (("image_size", size), ("num_channels", channels)):
        given = getattr(model.config, name, wanted)
        if given != wanted and name == "num_channels":
            raise ConfigError(f"backbone.model: {source} reads images with {given} channels; set image.channels")
        if given not in (wanted, [wanted, wanted], (wanted, wanted)):
            raise ConfigError(f"backbone.model: {source} reads images of {given} pixels; set image.size")
    return ImageModel(model, config.dropout)


def restored_image_model(settings: np.ndarray, n_weights: int, config: BackboneConfig, path: Path) -> ImageModel:
    """A network without weights, on the current device, from the settings of a model file."""
    values = checked_settings(settings, n_weights, path, IMAGE_FAMILIES)
    model = call_guarded(lambda: _built(values, str(path)), f"{path}: the network cannot be built")
    return ImageModel(model, config.dropout)


def call_configured(work: Any, field: str) -> Any:
    """Call `work`, raising its errors as ConfigError."""
    try:
        return work()
    except (ConfigError, MemoryError):
        raise
    except Exception as error:  # settings and files can break a library in any way
        raise ConfigError(f"{field}: {' '.join(str(error).split())[:300]}") from None


def _built(settings: dict[str, Any], where: str) -> Any:
    family = settings.get("model_type")
    if family not in IMAGE_FAMILIES:
        known = ", ".join(sorted(IMAGE_FAMILIES))
        raise ConfigError(f"{where}: {family!r} is no family of image networks; accepted: {known}")
    plain = {key: value for key, value in settings.items() if key not in ("model_type", "transformers_version")}
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, **plain))


def _pretrained(source: str) -> Any:
    settings = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    if settings.model_type not in IMAGE_FAMILIES:
        raise ConfigError(f"backbone.model: {source} is a {settings.model_type}, no family of image networks")
    model, loading = transformers.AutoModel.from_pretrained(
        source, config=settings, use_safetensors=True, trust_remote_code=False, dtype=torch.float32,
        output_loading_info=True,
    )  # fmt: skip
    drawn = sorted(name for name in loading["missing_keys"] if not name.startswith("pooler."))
    if drawn:
        raise ConfigError(f"backbone.model: {source} lacks {len(drawn):,} weights, for example {drawn[0]}")
    return model
