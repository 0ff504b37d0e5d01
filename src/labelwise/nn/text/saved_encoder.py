"""The text encoder inside a saved model, given as `encoder.model` by the folder of the model or of its run.

A fine-tuned encoder is useful only with the settings it was trained with, so those that decide its vectors come from
the saved model, and others are refused. Free of torch; `transformer.open_encoder` reads the weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelwise.config import validated
from labelwise.errors import ConfigError, LabelwiseError, ModelFormatError
from labelwise.io.folder import CONFIG_FILE, MANIFEST, Folder
from labelwise.io.run_folder import model_folder
from labelwise.nn.config import TINY, EncoderConfig
from labelwise.nn.text.encoder_files import encoder_source
from labelwise.registry import methods_that

SECTION = "encoder"
"""Of a method's parameters, and before the names of an encoder's arrays in a model."""
TRAINED_WITH = ("max_length", "long_texts", "windows", "pooling", "layers")
"""Settings that decide vectors and that an encoder was trained with."""


def saved_folder(model: str) -> Folder | None:
    """Open the model folder at a path, or that of the run there; None for any other folder, and for hub names."""
    folder = Path(os.path.expanduser(model))
    if not folder.is_dir():
        return None
    folder = model_folder(folder)
    return Folder(folder, "model") if (folder / MANIFEST).is_file() else None


def saved_settings(model: str) -> dict[str, Any]:
    """The settings of the encoder in a saved model that decide its vectors; empty for any other encoder."""
    folder = saved_folder(model)
    if folder is None:
        return {}
    values = folder.read_json(CONFIG_FILE)
    section = values.get(SECTION) if isinstance(values, dict) else None
    if not isinstance(section, dict):
        raise no_encoder(model, folder)
    try:
        config = validated(EncoderConfig, section)
    except ConfigError as error:
        raise ModelFormatError(f"{folder.file(CONFIG_FILE)}: {error}") from None
    return {name: getattr(config, name) for name in (*TRAINED_WITH, "precision")}


def no_encoder(model: str, folder: Folder) -> ConfigError:
    """The error for a saved model without a text encoder."""
    return ConfigError(
        f"encoder.model: {model} is a saved model of {folder.manifest.get('method')}, which has no text encoder of its "
        f"own; accepted are saved models of {methods_that('attention')}, folders with weights, and hub names"
    )


def with_saved_settings(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """A method's parameters as given, with settings of its encoder from the saved model that they name, if they do.

    Nothing is refused here; `check_encoder` is called before training.
    """
    given = parameters.get(SECTION)
    given = given.given_fields() if isinstance(given, EncoderConfig) else given
    if not isinstance(given, Mapping) or given.get("architecture"):
        return parameters
    if not isinstance(given.get("model"), str) or given["model"] == TINY:  # also if there is such a folder
        return parameters
    try:
        saved = saved_settings(given["model"])
    except LabelwiseError:
        return parameters
    return {**parameters, SECTION: {**saved, **given}} if saved else parameters


def check_encoder(config: EncoderConfig) -> None:
    """Raise if there is no such encoder, or if it is one of a saved model that was trained with other settings."""
    if config.starts_random:
        return
    saved = saved_settings(config.model)
    if not saved:
        encoder_source(config.model)
        return
    for name in TRAINED_WITH:
        own = getattr(config, name)
        if own != saved[name]:
            raise ConfigError(
                f"encoder.{name}: the encoder in {config.model} was trained with {saved[name]}, got {own}; leave "
                f"{name} out, it is taken from there"
            )
