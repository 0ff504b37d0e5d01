"""The text encoder inside a saved model, given as `encoder.model` by the folder of the model or of its run.

A fine-tuned encoder is useful only with the settings it was trained with, so those that decide its vectors come from
the saved model, and others are refused. Free of torch; `transformer.open_encoder` reads the weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from labelwise.config import validated
from labelwise.errors import ConfigError, LabelwiseError, ModelFormatError
from labelwise.io.folder import CONFIG_FILE, MANIFEST, Folder
from labelwise.io.run_folder import model_folder
from labelwise.nn.config import TINY, EncoderConfig
from labelwise.registry import methods_that

# --- encoder files ---
# Checks of a pretrained encoder's folder, without torch, so that they run before anything is loaded.
#
# transformers accepts incomplete folders: without the files of a tokenizer it builds one that knows only the special
# tokens, and every word becomes "unknown". So both the files and the tokenizer are checked here. A folder that PECOS's
# XR-Transformer has written holds weights and tokenizer in folders of their own, next to files that are not read.

TOKENIZER_FILES = (
    ("tokenizer.json",),
    ("vocab.txt",),
    ("vocab.json", "merges.txt"),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("sentencepiece.model",),
    ("spm.model",),
    ("tokenizer.model",),
)
"""Any of these sets of files makes a tokenizer."""
MIN_KNOWN_FRACTION = 0.1
"""A tokenizer that knows a smaller fraction of the embedding rows than this belongs to another model."""


PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
"""Files of weights that run code when they are read."""
PECOS_POOLING = {"distilbert": "first", "xlnet": "last"}
"""How XR-Transformer pools, by type of model; the others have a pooler."""
PECOS_LENGTH = 128


class EncoderSource(NamedTuple):
    """Where a pretrained encoder is."""

    weights: str
    """Folder with config.json and weights, or a name on the hub."""
    tokenizer: str
    local: bool
    """Whether it is a folder."""


def encoder_source(model: str) -> EncoderSource:
    """Find an encoder by its folder, by the folder of a model of XR-Transformer, or by its name on the hub."""
    folder = Path(os.path.expanduser(model))
    if folder.is_dir():
        matcher = _matcher_folder(folder)
        weights, tokenizer = (
            (folder, folder) if matcher is None else (matcher / "text_encoder", matcher / "text_tokenizer")
        )
        if not (weights / "config.json").is_file():
            raise ConfigError(
                f"encoder.model: {weights} has no config.json; the folder of a transformers model is needed"
            )
        _check_tokenizer_files(tokenizer)
        return EncoderSource(str(weights), str(tokenizer), True)
    if folder.exists() or folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ConfigError(f"encoder.model: {model} is not a folder; give a folder with weights or a hub name")
    return EncoderSource(model, model, False)


def _matcher_folder(folder: Path) -> Path | None:
    """The part of a model of XR-Transformer that has weights and tokenizer; None if this is no such model."""
    if (folder / "config.json").exists():
        return None
    candidates = (folder, folder / "text_encoder")
    return next((path for path in candidates if (path / "text_tokenizer").is_dir()), None)


def matcher_settings(model: str) -> dict[str, Any]:
    """`pooling` and `max_length` of a model of XR-Transformer, as it was trained; empty for any other encoder."""
    folder = Path(os.path.expanduser(model))
    matcher = _matcher_folder(folder) if folder.is_dir() else None
    if matcher is None:
        return {}
    kind = _json_object(matcher / "text_encoder" / "config.json").get("model_type")
    length = PECOS_LENGTH
    if (matcher / "param.json").exists():
        given = _json_object(matcher / "param.json").get("pred_params")
        length = given.get("truncate_length") if isinstance(given, dict) else None
    return {
        "pooling": PECOS_POOLING.get(str(kind), "pooler"),
        "max_length": length if isinstance(length, int) and length > 0 else PECOS_LENGTH,
    }


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"encoder.model: {path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"encoder.model: {path} is damaged; a JSON object is needed")
    return value


def why_no_safetensors(source: str) -> str:
    """What to do about an encoder without weights in safetensors."""
    folder = Path(source)
    pickled = [path.name for pattern in PICKLED for path in sorted(folder.glob(pattern))] if folder.is_dir() else []
    if not pickled:
        return f"{source} has no weights in safetensors; weights in pickle files (.bin, .pt) are not read"
    return (
        f"{source} has no weights in safetensors, and {pickled[0]} is a pickle file, which can run code: it is not "
        "read. If you trust it, convert it once: AutoModel.from_pretrained(folder).save_pretrained(new_folder) of "
        "transformers writes model.safetensors; copy that into this folder"
    )


def _check_tokenizer_files(folder: Path) -> None:
    if any(all((folder / name).is_file() for name in names) for names in TOKENIZER_FILES):
        return
    accepted = ", ".join(" with ".join(names) for names in TOKENIZER_FILES)
    raise ConfigError(
        f"encoder.model: {folder} has no tokenizer; accepted is one of {accepted}. Copy these files from where the "
        "weights came from, or save both there with tokenizer.save_pretrained and model.save_pretrained"
    )


def check_vocabulary(source: str, vocabulary: Collection[str], special: Collection[str], rows: int) -> None:
    """Refuse a tokenizer that knows hardly any of the tokens that the weights have embeddings for."""
    words = len(set(vocabulary) - set(special))
    if words == 0 or words < MIN_KNOWN_FRACTION * rows:
        raise ConfigError(
            f"encoder.model: the tokenizer of {source} knows {words:,} tokens beside the special ones, the weights "
            f"know {rows:,}; its files are cut off or of another model; copy them from where the weights came from"
        )


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
