"""Checks of a pretrained encoder's folder, without torch, so that they run before anything is loaded.

transformers accepts incomplete folders: without the files of a tokenizer it builds one that knows only the special
tokens, and every word becomes "unknown". So both the files and the tokenizer are checked here.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from labelwise.errors import ConfigError

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


def encoder_source(model: str) -> tuple[str, bool]:
    """The folder of a model or its name on the hub, and whether it is a folder. Raises if it can be neither."""
    folder = Path(os.path.expanduser(model))
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"encoder.model: {folder} has no config.json; the folder of a transformers model is needed"
            )
        _check_tokenizer_files(folder)
        return str(folder), True
    if folder.exists() or folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ConfigError(f"encoder.model: {model} is not a folder; give a folder with weights or a hub name")
    return model, False


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
