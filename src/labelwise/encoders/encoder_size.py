"""The size of a text encoder from its settings, without its weights: layers, width, vocabulary. Free of torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.encoders.config import TINY, EncoderConfig
from labelwise.errors import ConfigError

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
